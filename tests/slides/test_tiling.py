import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from known_slides import GLASS, STAIN, glass, tissue, write_svs
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.files import fingerprint
from gigatile.records import decode_tile, read_records
from gigatile.records.tile import encode_jpeg
from gigatile.settings.tiles import TileSettings
from gigatile.slides.tiling import TilingFiles, tile_slide

EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    """A slide of 700 × 520 px at 0.5 µm: the left 384 px are tissue, the rest is glass."""
    pixels = glass(520, 700)
    pixels[:, :384] = tissue(520, 384)
    path = tmp_path_factory.mktemp("slide") / "half.svs"
    return write_svs(path, pixels, shrink(pixels, 2), shrink(pixels, 4))


def tile_in_process(source: Path, out: Path, sheet_mpp: float | None = None, **settings) -> dict:
    kinds = ("tfrecord", "json", "jpg", "parquet")
    files = TilingFiles(*(out / f"S1.{kind}" for kind in kinds))
    settings = TileSettings(**({"size": 64} | settings))
    state = tile_slide(source, "S1", sheet_mpp, settings, files).to_json()
    assert json.loads(files.state.read_text()) == state
    return state


def tiles_in(out: Path) -> list:
    return [decode_tile(data) for data in read_records(out / "S1.tfrecord")]


# --- The state


def test_state_describes_the_slide_and_its_tiles(slide, tmp_path):
    changed = {"mpp": 1.0, "max_background": 0.25, "quality": 77, "on_error": "stop"}
    changed["uniform"] = "off"
    execution = set(TileSettings.EXECUTION)
    settings = TileSettings(size=64, **changed).model_dump(mode="json", exclude=execution)
    state = tile_in_process(slide, tmp_path, **changed)
    records = tmp_path / "S1.tfrecord"
    assert state == {
        "schema": 3,
        "slide": "S1",
        "state": "tiled",
        "reason": None,
        "source": {
            "name": "half.svs",
            "bytes": slide.stat().st_size,
            "fingerprint": fingerprint(slide),
            "vendor": "aperio",
            "width": 700,
            "height": 520,
            "levels": [
                {"width": 700, "height": 520, "downsample": 1.0},
                {"width": 350, "height": 260, "downsample": 2.0},
                {"width": 175, "height": 130, "downsample": 4.0},
            ],
            "objective_power": "20",
            "scanner": None,
        },
        "mpp": 0.5,
        "mpp_from": "file",
        "mpp_by_source": {"file": 0.5, "objective": 0.5},
        "contradictions": [],
        "grid": {
            "size": 64,
            "mpp": 1.0,
            "extent": 128.0,
            "level": 1,
            "scale": [2.0, 2.0],
            "resampled": False,
            "columns": 5,
            "rows": 4,
        },
        "illumination": "transmitted",
        "tissue_threshold": 13,
        "overview": {
            "by": "openslide",
            "why": "its tiles are ADOBE_DEFLATE, not JPEG",
            "compared": 0,
        },
        "reading": {
            "by": "openslide",
            "why": "its tiles are ADOBE_DEFLATE, not JPEG",
            "compared": 0,
        },
        "stain": None,
        "tiles": {"kept": 12, "dropped": {"background": 8}, "marked": {}},
        "unreadable": [],
        "appearance": state["appearance"],
        "records": {
            "bytes": records.stat().st_size,
            "sha256": hashlib.sha256(records.read_bytes()).hexdigest(),
        },
        "files": {
            name: {"sha256": hashlib.sha256((tmp_path / f"S1.{kind}").read_bytes()).hexdigest()}
            for name, kind in (("index", "parquet"), ("overview", "jpg"))
        },
        "settings": settings,
    }


def test_mpp_of_the_sheet_has_priority(slide, tmp_path):
    state = tile_in_process(slide, tmp_path, sheet_mpp=0.25, mpp=0.5)
    assert (state["mpp"], state["mpp_from"]) == (0.25, "sheet")
    assert state["grid"]["extent"] == 128


def test_tile_records_have_slide_and_position(slide, tmp_path):
    tile_in_process(slide, tmp_path, mpp=0.8)
    tiles = tiles_in(tmp_path)
    corners = [(round(c * 102.4), round(r * 102.4)) for r in range(5) for c in range(6)]
    assert [(tile.x, tile.y) for tile in tiles] == [(x, y) for x, y in corners if x < 384 - 51]
    for tile in tiles:
        assert (tile.slide, tile.patient, tile.label) == ("S1", "", "")
        assert tile.extent == np.float32(102.4)
        assert tile.mpp == np.float32(0.8)
        assert tile.tissue == pytest.approx(min(1, (384 - tile.x) / 102.4), abs=0.01)


def test_tile_is_a_jpeg_of_the_slides_pixels(slide, tmp_path):
    pixels = tissue(520, 384)
    for quality in (30, 90):
        tile_in_process(slide, tmp_path, quality=quality)
        for tile in tiles_in(tmp_path):
            if tile.x + 64 <= 384:
                expected = pixels[tile.y : tile.y + 64, tile.x : tile.x + 64]
                assert tile.image == encode_jpeg(expected, quality)
                assert tile.pixels().shape == (64, 64, 3)


@pytest.mark.parametrize("quality", [30, 75, 90, 100])
@pytest.mark.parametrize("side", [64, 67])
def test_jpeg_equals_pillows_bytes(quality, side):
    """Tiles are 4:2:0 JPEGs, and do not change with the encoder's implementation."""
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), np.uint8)
    expected = io.BytesIO()
    Image.fromarray(pixels).save(expected, "JPEG", quality=quality)
    assert encode_jpeg(pixels, quality) == expected.getvalue()


# --- Background


@pytest.mark.parametrize(
    ("max_background", "kept"),
    [(1, 8), (0.75, 8), (0.7499, 6), (0.5, 6), (0.4999, 4), (0.25, 4), (0.2499, 2), (0, 2)],
)
def test_tile_at_the_background_limit_is_kept(tmp_path, max_background, kept):
    """Two rows of four tiles with 100, 75, 50 and 25 % tissue."""
    pixels = glass(128, 256)
    for column, width in enumerate((64, 48, 32, 16)):
        pixels[:, 64 * column : 64 * column + width] = STAIN
    path = write_svs(tmp_path / "s.svs", pixels)
    exact = {"close_gaps_um": 0, "fill_holes_um2": 0}
    state = tile_in_process(path, tmp_path, max_background=max_background, **exact)
    assert state["tiles"]["kept"] == kept
    assert state["tiles"]["dropped"] == {"background": 8 - kept}
    assert [(t.x, t.y) for t in tiles_in(tmp_path)] == [
        (64 * column, 64 * row) for row in range(2) for column in range(kept // 2)
    ]
    fractions = sorted({tile.tissue for tile in tiles_in(tmp_path)}, reverse=True)
    assert fractions == [1, 0.75, 0.5, 0.25][: kept // 2]


# --- The overview


@pytest.mark.parametrize(
    ("height", "width", "factors", "size", "shape"),
    [
        (300, 200, (), 64, (75, 50)),  # a tile spans 16 px of the overview
        (513, 527, (), 512, (16, 16)),  # the last pixel extends over the edge
        (
            303,
            205,
            (2,),
            64,
            (151, 102),
        ),  # level 1 has a downsample of 2.01, so 2 of its pixels are too much
        (279, 16_384, (8,), 144, (34, 2048)),  # level 1 has downsamples of 8 and 8.2
        (16_384, 279, (8,), 144, (2048, 34)),
        (700, 9000, (), 64, (159, 2048)),
    ],
)
def test_overview_spans_the_slide_exactly(tmp_path, height, width, factors, size, shape):
    """Stain covers three quarters of the width and height, of the slide and of the overview."""
    pixels = glass(height, width)
    pixels[: round(height * 0.75), : round(width * 0.75)] = STAIN
    levels = [shrink(pixels, factor) for factor in factors]
    path = write_svs(tmp_path / "s.svs", pixels, *levels, tile=256)
    tile_in_process(path, tmp_path, size=size)
    overview = np.asarray(Image.open(tmp_path / "S1.jpg").convert("RGB"))
    assert overview.shape == (*shape, 3)
    green = overview[..., 1].astype(float)
    stained = (GLASS[1] - green) / (GLASS[1] - STAIN[1])  # fraction of each pixel
    # A level omits partial pixels at its edges, and the file does not record how much.
    tolerance = 0.8 if factors else 0.4
    assert stained[0].sum() == pytest.approx(shape[1] * 0.75, abs=tolerance)
    assert stained[:, 0].sum() == pytest.approx(shape[0] * 0.75, abs=tolerance)


def test_tissue_at_the_end_of_a_long_slide_is_kept(tmp_path):
    pixels = glass(279, 16_384)
    pixels[:, 15_744:16_128] = STAIN
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8), tile=256)
    state = tile_in_process(path, tmp_path, size=128, max_background=0.1)
    assert state["tiles"]["kept"] == 6
    assert [tile.x for tile in tiles_in(tmp_path)] == [15_744, 15_872, 16_000] * 2


# --- Files are reproducible and complete


def test_same_slide_gives_same_bytes(slide, tile, tmp_path):
    first, second = tile(slide, folder="first", mpp=0.8), tile(slide, folder="second", mpp=0.8)
    assert first.files == ["S1.jpg", "S1.json", "S1.parquet", "S1.tfrecord"]
    for name in first.files:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert first.process.stdout == f"S1: {len(first.tiles)} tiles\n"


def test_tiles_have_no_metadata(slide, tmp_path):
    tile_in_process(slide, tmp_path)
    for data in (tiles_in(tmp_path)[0].image, (tmp_path / "S1.jpg").read_bytes()):
        with Image.open(io.BytesIO(data)) as picture:
            assert not {"exif", "icc_profile", "comment"} & set(picture.info)


def test_slide_is_tiled_in_a_process_with_threads_of_opencv(slide, tmp_path):
    """The tiling runs in a fork, in which these threads do not exist."""
    cv2.setNumThreads(4)
    cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (31, 31), 0)
    assert cv2.getNumThreads() == 4
    assert tile_in_process(slide, tmp_path, stall_minutes=0.5)["reason"] is None


def test_killed_job_leaves_no_state(slide, tmp_path):
    """The slide has 5,184 tiles, enough to kill the job while it writes records."""
    pixels = np.tile(tissue(512, 512), (9, 9, 1))
    path = write_svs(tmp_path / "large.svs", pixels, shrink(pixels, 16), tile=512)
    out = tmp_path / "out"
    job = subprocess.Popen(
        [
            *(sys.executable, Path(__file__).parents[2] / "scripts/prepare.py"),
            *("--task", "tile_classification", "--source", path, "--slide", "S1"),
            *("--settings", '{"size": 64}', "--records", out / "S1.tfrecord"),
            *("--state", out / "S1.json", "--overview", out / "S1.jpg"),
            *("--index", out / "S1.parquet"),
        ]
    )
    try:
        while job.poll() is None:
            if any(path.stat().st_size for path in out.glob(".S1-*.tfrecord")):
                break
            time.sleep(0.01)
    finally:
        os.kill(job.pid, signal.SIGKILL)
        status = job.wait()
    assert status == -signal.SIGKILL
    remaining = [path.name for path in out.iterdir()]
    assert len(remaining) == 1
    assert remaining[0].startswith(".S1-")


def test_killed_writer_keeps_the_old_file(tmp_path):
    path = tmp_path / "S1.tfrecord"
    path.write_bytes(b"old")
    program = f"""
import os, signal
from pathlib import Path
from gigatile.records import write_records

def records():
    for _ in range(1000):
        yield bytes(10_000)
    os.kill(os.getpid(), signal.SIGKILL)

write_records(Path({str(path)!r}), records())
"""
    killed = subprocess.run([sys.executable, "-c", program])
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
