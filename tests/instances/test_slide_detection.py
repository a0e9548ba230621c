"""The instances of whole slides: each once, in the right place, whatever the slide."""

import faulthandler
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tifffile
from drawn_slides import CELL, DarkObjects, DrawnSlide, draw_slide
from scipy.spatial import cKDTree

from gigatile.demo.svs import write_svs
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.instances.geojson import read_geojson
from gigatile.instances.slide_detection import DetectionFiles, SlideJob, detect_slide
from gigatile.instances.slide_state import DetectionState
from gigatile.settings.slide_instances import SlideInstanceSettings

SETTINGS = SlideInstanceSettings()


def files_in(folder: Path) -> DetectionFiles:
    names = ("s.parquet", "s.geojson.gz", "s.jpg", "s.json")
    return DetectionFiles(*(folder / name for name in names))


def detect(
    folder: Path, source: Path, detector: DarkObjects | None = None, **changed: object
) -> tuple[DetectionState, dict[str, np.ndarray], DetectionFiles]:
    """Detect the instances of a slide; return state, table and files."""
    sizes = {"window": 256, "overlap": 64}
    values = {"mpp": None, "requested_mpp": None, "settings": SETTINGS} | sizes | changed
    job = SlideJob("s", source, **values)
    files = files_in(folder)
    state = detect_slide(job, lambda: detector or DarkObjects(), "0" * 64, files)
    table = pq.read_table(files.table).to_pydict()
    return state, {name: np.array(column) for name, column in table.items()}, files


def check_each_once(slide: DrawnSlide, table: dict[str, np.ndarray], tolerance: float) -> None:
    """Check that each drawn nucleus is in the table exactly once, in its place."""
    positions = np.stack([table["x"], table["y"]], axis=1)
    assert len(positions) == len(slide.centroids)
    distances, nearest = cKDTree(slide.centroids).query(positions)
    assert distances.max() < tolerance
    assert len(np.unique(nearest)) == len(nearest)


@pytest.mark.parametrize(("window", "overlap"), [(256, 64), (100, 40), (2000, 64)])
def test_each_nucleus_is_found_once(tmp_path, window, overlap):
    slide = draw_slide(tmp_path / "s.svs", 31, 47, seed=1, share=0.8)
    state, table, files = detect(tmp_path, slide.path, window=window, overlap=overlap, cores=2)
    assert state.state == "detected", state.reason
    check_each_once(slide, table, tolerance=1.0)
    assert state.instances == {"nucleus": len(slide.centroids)} and state.cut == 0
    np.testing.assert_allclose(table["x_um"], table["x"] / 2)
    assert abs(table["area_px"].mean() - slide.areas.mean()) < 3
    np.testing.assert_allclose(table["area_um2"], table["area_px"] / 4)
    assert (state.input.across, state.input.resampled, state.input.mpp) == (1, False, 0.5)
    assert state.reading.by == "native tiles"
    objects = read_geojson(files.outlines)
    with gzip.open(files.outlines) as handle:
        features = json.load(handle)["features"]
    assert [feature["id"] for feature in features] == table["id"].tolist()
    areas = [sum(_area(ring) for polygon in item.polygons for ring in polygon) for item in objects]
    np.testing.assert_allclose(areas, table["area_px"])
    measured = [feature["properties"]["measurements"]["Area µm^2"] for feature in features]
    np.testing.assert_allclose(measured, table["area_um2"])


def _area(ring: np.ndarray) -> float:
    x, y = ring.T
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


@pytest.mark.parametrize("requested", [0.5, 0.503, 0.8, 1.0, 0.47])
def test_instances_keep_their_place_at_every_scale(tmp_path, requested):
    slide = draw_slide(tmp_path / "s.svs", 40, 30, seed=2, share=0.7)
    state, table, _ = detect(tmp_path, slide.path, requested_mpp=requested)
    assert state.state == "detected", state.reason
    assert abs(state.input.mpp / requested - 1) < 0.011
    check_each_once(slide, table, tolerance=1.0)
    # The last ones as well as the first: the error does not grow across the slide.
    assert abs(table["area_um2"].mean() / (slide.areas.mean() / 4) - 1) < 0.08


def test_same_slide_gives_the_same_bytes(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 20, 30, share=0.5)
    sums = []
    for name, cores in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        _, _, files = detect(tmp_path / name, slide.path, cores=cores)
        sums.append([sha256_of(path) for path in vars(files).values()])
    assert sums[0] == sums[1]


def test_windows_without_tissue_are_not_read(tmp_path):
    """Of a slide with nuclei in a corner, only the windows there are processed."""
    slide = draw_slide(tmp_path / "s.svs", 60, 60, share=0)
    part = draw_slide(tmp_path / "part.svs", 20, 20, seed=3)
    pixels = np.full((60 * CELL, 60 * CELL, 3), 244, np.uint8)
    pixels[: 20 * CELL, : 20 * CELL] = tifffile.imread(part.path)
    write_svs(slide.path, pixels, mpp=0.5, objective_power=20)
    state, table, _ = detect(tmp_path, slide.path)
    check_each_once(part, table, tolerance=1.0)
    windows = state.windows
    assert 9 <= windows.tissue <= 16 < windows.columns * windows.rows
    assert state.tissue_pixels == pytest.approx((20 * CELL) ** 2, rel=0.1)


def test_detections_below_the_threshold_are_left_out(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 12, 12)
    state, table, _ = detect(tmp_path, slide.path, DarkObjects(score=0.49))
    assert state.state == "detected" and not len(table["x"]) and state.instances == {"nucleus": 0}


def test_windows_at_the_limit_are_counted(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 12, 12)
    state, table, _ = detect(tmp_path, slide.path, DarkObjects(limit=5))
    assert 0 < state.windows.full <= state.windows.tissue and state.windows.limit == 5
    assert len(table["x"]) <= 5 * state.windows.tissue
    state, _, _ = detect(tmp_path, slide.path)
    assert state.windows.full == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[: len(data) // 3], "not a slide format"),
        (lambda data: b"no slide", "not a slide format"),
        (lambda data: b"", "not a slide format"),
    ],
)
def test_slide_that_cannot_be_used_has_a_reason(tmp_path, change, reason):
    slide = draw_slide(tmp_path / "s.svs", 12, 12)
    slide.path.write_bytes(change(slide.path.read_bytes()))
    state, table, files = detect(tmp_path, slide.path)
    assert state.state == "failed" and reason in state.reason and str(tmp_path) not in state.reason
    assert not len(table["x"]) and read_geojson(files.outlines) == []
    assert files.overview.exists()


def test_slide_of_unknown_scale(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 12, 12)
    pixels = tifffile.imread(slide.path)
    plain = tmp_path / "plain.tif"
    tifffile.imwrite(plain, pixels, tile=(256, 256), photometric="rgb")
    state, table, _ = detect(tmp_path, plain)
    assert state.state == "detected" and state.mpp is None
    check_each_once(slide, table, tolerance=1.0)
    assert all(value is None for value in table["x_um"].tolist())
    state, _, _ = detect(tmp_path, plain, requested_mpp=0.5)
    assert state.state == "failed" and "does not say its scale" in state.reason
    state, table, _ = detect(tmp_path, plain, requested_mpp=0.5, mpp=0.5)
    assert state.state == "detected" and state.mpp_from == "sheet"


def test_slide_without_tissue_has_a_reason(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 12, 12)
    write_svs(slide.path, np.full((300, 300, 3), 244, np.uint8), mpp=0.5, objective_power=20)
    state, _, _ = detect(tmp_path, slide.path)
    assert state.state == "failed" and "no tissue" in state.reason


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_unreadable_windows_are_counted_or_end_the_slide(tmp_path, share):
    slide = draw_slide(tmp_path / "s.svs", 70, 70, seed=4)
    with tifffile.TiffFile(slide.path) as file:
        page = file.pages[0]
        tile = 24  # of 7 × 7, in the middle
        position, size = page.dataoffsets[tile], page.databytecounts[tile]
    data = bytearray(slide.path.read_bytes())
    data[position : position + size] = bytes(size)
    slide.path.write_bytes(data)
    settings = SETTINGS.model_copy(update={"max_unreadable": share})
    state, table, _ = detect(tmp_path, slide.path, settings=settings)
    if share == 0.05:
        assert state.state == "failed" and "of its windows cannot be read" in state.reason
        assert not len(table["x"])
        return
    assert state.state == "detected" and 4 <= state.windows.unreadable <= 9
    assert len(state.unreadable) == state.windows.unreadable
    # Everything outside the windows that show the damaged tile is there, once.
    positions = np.stack([table["x"], table["y"]], axis=1)
    away = np.abs(slide.centroids - 3.5 * 256).max(axis=1) > 128 + 256
    distances, nearest = cKDTree(positions).query(slide.centroids[away])
    assert distances.max() < 1.0 and len(np.unique(nearest)) == away.sum()
    assert len(cKDTree(positions).query_pairs(4.0)) == 0


class Broken(DarkObjects):
    """A detector that breaks off in the second batch."""

    def __init__(self, act) -> None:
        super().__init__()
        self.act, self.calls = act, 0

    def detect_windows(self, windows):
        self.calls += 1
        if self.calls == 2:
            self.act()
        return super().detect_windows(windows)


def _crash() -> None:
    faulthandler.disable()  # its traceback would be in the output of the tests
    os.kill(os.getpid(), signal.SIGSEGV)


def _raise(error: Exception) -> None:
    raise error


def test_detection_that_breaks_off_leaves_no_half_written_file(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 40, 40, seed=5)
    state, _, _ = detect(tmp_path, slide.path, Broken(lambda: os.kill(os.getpid(), signal.SIGSEGV)))
    assert state.state == "failed" and "crashed (SIGSEGV)" in state.reason
    state, table, _ = detect(tmp_path, slide.path, Broken(lambda: _raise(ValueError("odd"))))
    assert state.reason == "unexpected error, please report: ValueError: odd"
    assert not len(table["x"]) and state.instances == {}
    state, _, _ = detect(tmp_path, slide.path, Broken(lambda: time.sleep(60)), stall_minutes=1 / 60)
    assert state.reason.startswith("no progress for") and state.stalled_minutes == 1 / 60
    for act in (lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: _raise(MemoryError())):
        # Not the slide's fault: the job fails, and the files of the last one remain.
        with pytest.raises((UserError, MemoryError)):
            detect(tmp_path, slide.path, Broken(act))
    with pytest.raises(UserError, match=r"instances\.on_error: record"):
        detect(
            tmp_path,
            slide.path,
            Broken(lambda: _raise(ValueError("odd"))),
            stop_on_error=True,
        )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"s.svs", "s.parquet", "s.geojson.gz", "s.jpg", "s.json"}


def test_a_small_slide_is_one_window(tmp_path):
    slide = draw_slide(tmp_path / "s.svs", 6, 7, seed=6)
    state, table, _ = detect(tmp_path, slide.path, window=512)
    check_each_once(slide, table, tolerance=1.0)
    assert (state.windows.columns, state.windows.rows) == (1, 1)


@pytest.mark.long
@pytest.mark.slow
def test_slide_of_100_000_nuclei(tmp_path):
    """All of them are in the table and the outlines once, and memory does not grow with them."""
    program = Path(__file__).parent / "programs/slide_memory.py"
    peaks = []
    for rows in (80, 320):
        slide = draw_slide(tmp_path / f"{rows}.svs", rows, 320, seed=rows)
        line = [sys.executable, program, slide.path, tmp_path]
        paths = os.pathsep.join(sys.path)
        done = subprocess.run(
            line, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
        table = pq.read_table(tmp_path / "s.parquet").to_pydict()
        check_each_once(slide, {name: np.array(table[name]) for name in "xy"}, tolerance=1.0)
    assert len(table["x"]) == 102_400
    assert len(set(table["id"])) == 102_400
    assert len(read_geojson(tmp_path / "s.geojson.gz")) == 102_400
    # A slide four times as high: a row of windows and its neighbour are in memory.
    assert peaks[1] < 1.15 * peaks[0], peaks
