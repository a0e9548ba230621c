"""Native tiles compared with OpenSlide, pixel by pixel."""

import contextlib
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import formats
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_slides import aperio_description, tissue, write_svs

from gigatile.demo.svs import shrink
from gigatile.demo.svs import write_svs as write_demo_svs
from gigatile.records.tile import encode_jpeg
from gigatile.slides import regions, tiff
from gigatile.slides.reader import RegionError, Slide, open_slide
from gigatile.slides.regions import TiffRegions, openslide_reader, openslide_regions
from gigatile.slides.tiff import NotTiled, TiffLevel

PIXELS = tissue(700, 1003)
PIXELS[100:300, 200:500] = (30, 60, 200)


def _aperio(path: Path, **layout) -> Path:
    """Write levels of 1003 and 501 px: a downsample of 2.0014."""
    return write_svs(path, PIXELS, shrink(PIXELS, 2), compression="jpeg", **layout)


def _generic(path: Path, **coding) -> Path:
    return formats.write_generic_tiff(path.with_suffix(".tif"), PIXELS, **coding)


SLIDES = {
    "demo": lambda path: write_demo_svs(path, PIXELS, mpp=0.5, objective_power=20) or path,
    "aperio": _aperio,
    "aperio 4:2:2": lambda path: _aperio(path, subsampling=(2, 1)),
    "aperio 4:4:4": lambda path: _aperio(path, subsampling=(1, 1)),
    "aperio, large tiles": lambda path: _aperio(path, tile=240),
    "generic": _generic,
    "generic 4:4:4": lambda path: _generic(path, subsampling=(1, 1)),
    "generic RGB": lambda path: _generic(path, subsampling=(1, 1), coding="RGB"),
    "philips": lambda path: formats.write_philips(path, PIXELS, missing=((1, 1), (2, 3))),
}


@pytest.fixture(scope="module")
def slides(tmp_path_factory) -> dict[str, Path]:
    paths = {}
    for number, (name, write) in enumerate(SLIDES.items()):
        paths[name] = write(tmp_path_factory.mktemp("slides") / f"{number}.svs")
    return paths


def read(level: TiffLevel, boxes: list[tuple[int, ...]], pool=None) -> list[np.ndarray]:
    return [region() for region in TiffRegions(level, np.array(boxes), pool)]


def reference(slide: Slide, level: int, boxes: list[tuple[int, ...]]) -> list[np.ndarray]:
    return [np.asarray(slide.region(left, top, level, *size)) for left, top, *size in boxes]


@st.composite
def boxes_in(draw, width: int, height: int) -> list[tuple[int, ...]]:
    """Draw regions that start on a level and may extend over its edges, in any order."""
    corners = st.tuples(st.integers(0, width - 1), st.integers(0, height - 1))
    sizes = st.tuples(st.integers(1, 300), st.integers(1, 300))
    drawn = draw(st.lists(st.tuples(corners, sizes), min_size=1, max_size=8))
    return [(*corner, *size) for corner, size in drawn]


# --- Equal pixels


@pytest.mark.parametrize("name", SLIDES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_region_equals_openslide(slides, name, data):
    with open_slide(slides[name]) as slide:
        number = data.draw(st.integers(0, 1))
        with contextlib.closing(TiffLevel(slides[name], slide, number)) as level:
            boxes = data.draw(boxes_in(level.width, level.height))
            native = read(level, boxes)
            for region, expected in zip(native, reference(slide, number, boxes), strict=True):
                np.testing.assert_array_equal(region, expected)


def test_real_slide_equals_openslide(shared_data):
    path = shared_data / "wsi/cmu-1-small-region.svs"
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        boxes = [(x, y, 500, 500) for y in range(0, 2967, 500) for x in range(0, 2220, 500)]
        for region, expected in zip(read(level, boxes), reference(slide, 0, boxes), strict=True):
            np.testing.assert_array_equal(region, expected)


@pytest.mark.parametrize("kept", [0, 200_000])
def test_small_cache_gives_the_same_regions(slides, monkeypatch, kept):
    monkeypatch.setattr(regions, "CACHE_BYTES", kept)
    path = slides["aperio"]  # tiles of 64 px, 12 kB decoded
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        boxes = [(x, y, 150, 150) for y in range(0, 500, 100) for x in range(0, 800, 100)]
        native = TiffRegions(level, np.array(boxes))
        for region, expected in zip(native, reference(slide, 0, boxes), strict=True):
            np.testing.assert_array_equal(region(), expected)
            assert sum(tile.nbytes for tile in native._cache.values()) <= kept
        # The cache keeps nothing that is not needed any more.
        assert not native._cache and not native._streams


def test_threads_give_the_same_regions(slides):
    path = slides["philips"]
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        boxes = [(x, y, 150, 150) for y in range(0, 600, 100) for x in range(0, 900, 100)]
        alone = read(level, boxes)
        with ThreadPoolExecutor(3) as pool:
            for region, expected in zip(read(level, boxes, pool), alone, strict=True):
                np.testing.assert_array_equal(region, expected)


@pytest.mark.parametrize("position", ["start", "before the scan"])
def test_colour_markers_in_tiles_are_ignored(tmp_path, position):
    """The file declares YCbCr, but an Adobe marker in some tiles declares RGB."""
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
    tiles = []
    for x in range(0, 512, 64):
        stream = encode_jpeg(np.ascontiguousarray(PIXELS[:64, x : x + 64]), 90)
        offset = 2 if position == "start" else stream.index(b"\xff\xda")
        tiles.append(stream[:offset] + adobe + stream[offset:] if x % 128 else stream)
    path = write_svs(tmp_path / "s.svs", iter(tiles), compression="jpeg", shape=(64, 512, 3))
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        boxes = [(x, 0, 64, 64) for x in range(0, 512, 64)]
        for region, expected in zip(read(level, boxes), reference(slide, 0, boxes), strict=True):
            np.testing.assert_array_equal(region, expected)


# --- Reads from the file


def test_tiles_are_read_and_decoded_once(slides, monkeypatch):
    reads, decoded = [], []
    pread, decode = os.pread, TiffLevel.decode
    monkeypatch.setattr(
        tiff.os, "pread", lambda f, n, start: reads.append((start, n)) or pread(f, n, start)
    )
    monkeypatch.setattr(
        TiffLevel, "decode", lambda self, n, data: decoded.append(n) or decode(self, n, data)
    )
    path = slides["aperio"]  # 16 × 11 tiles of 64 px
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        boxes = [(x, y, 100, 100) for y in range(0, 600, 100) for x in range(0, 1000, 100)]
        read(level, boxes)
    assert sorted(decoded) == list(range(16 * 10))  # the last row of tiles is in no region
    # One read per row of tiles, and no byte is read twice.
    assert len(reads) == 10
    spans = sorted((start, start + size) for start, size in reads)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_unneeded_tiles_are_not_read(slides, monkeypatch):
    decoded = []
    decode = TiffLevel.decode
    monkeypatch.setattr(
        TiffLevel, "decode", lambda self, n, data: decoded.append(n) or decode(self, n, data)
    )
    monkeypatch.setattr(tiff, "GAP_BYTES", 0)
    path = slides["aperio"]
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        reads = []
        pread = os.pread
        monkeypatch.setattr(
            tiff.os, "pread", lambda f, n, start: reads.append(n) or pread(f, n, start)
        )
        read(level, [(0, 0, 64, 64), (640, 0, 64, 64)])
        assert decoded == [0, 10]
        assert sum(reads) == level._counts[[0, 10]].sum()


def test_adjacent_tiles_are_read_together(slides, monkeypatch):
    """Also across unneeded tiles; tiles beyond a larger gap are read separately."""
    path = slides["aperio"]
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        reads = []
        pread = os.pread
        monkeypatch.setattr(
            tiff.os, "pread", lambda f, n, start: reads.append(n) or pread(f, n, start)
        )
        boxes = [(0, 0, 64, 64), (640, 0, 64, 64)]
        read(level, boxes)
        between = level._offsets[10] - level._offsets[0] - level._counts[0]
        assert reads == [level._offsets[10] + level._counts[10] - level._offsets[0]]
        monkeypatch.setattr(tiff, "GAP_BYTES", int(between) - 1)
        read(level, boxes)
        assert reads[1:] == level._counts[[0, 10]].tolist()
        monkeypatch.setattr(tiff, "GAP_BYTES", int(between))
        monkeypatch.setattr(tiff, "READ_BYTES", int(reads[0]) - 1)
        read(level, boxes)
        assert reads[3:] == level._counts[[0, 10]].tolist()


# --- Faults


def test_truncation_while_reading_affects_only_lost_tiles(slides, tmp_path):
    path = tmp_path / "s.svs"
    path.write_bytes(slides["aperio"].read_bytes())
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        os.truncate(path, int(level._offsets[5]) + 100)
        boxes = np.array([(64 * column, 0, 64, 64) for column in range(7)])
        for number, region in enumerate(TiffRegions(level, boxes)):
            if number < 5:
                region()
            else:
                with pytest.raises(
                    RegionError, match=f"column {number}, row 0.* the file is truncated"
                ):
                    region()


def test_damaged_tile_affects_only_its_regions(slides, tmp_path):
    data = bytearray(slides["aperio"].read_bytes())
    with (
        open_slide(slides["aperio"]) as slide,
        contextlib.closing(TiffLevel(slides["aperio"], slide, 0)) as level,
    ):
        start, size = int(level._offsets[17]), int(level._counts[17])  # column 1, row 1
        boxes = [(x, y, 64, 64) for y in (0, 64, 128) for x in (0, 64, 128)]
        good = read(level, boxes)
    data[start : start + size] = bytes(size)
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        for number, region in enumerate(TiffRegions(level, np.array(boxes))):
            if number == 4:
                with pytest.raises(RegionError, match=r"column 1, row 1 cannot be read: not a JPE"):
                    region()
            else:
                np.testing.assert_array_equal(region(), good[number])


def test_half_a_tile_is_refused_by_both_readers(slides, tmp_path):
    """Its stream ends early; by default, libjpeg decodes that to a half grey picture."""
    path = slides["aperio"]
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        start, size = int(level._offsets[0]), int(level._counts[0])
    data = bytearray(path.read_bytes())
    half = start + size // 2
    data[half : half + 2] = b"\xff\xd9"  # the end of a stream
    path = tmp_path / "s.svs"
    path.write_bytes(data)
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        with pytest.raises(RegionError, match="fails: Corrupt JPEG data: premature end"):
            slide.region(0, 0, 0, 64, 64)
        with pytest.raises(RegionError, match=r"column 0, row 0 cannot be read: .*premature end"):
            read(level, [(0, 0, 64, 64)])


def test_openslide_error_does_not_affect_other_regions(tmp_path):
    path = write_svs(tmp_path / "s.svs", PIXELS, compression="APERIO_JP2000_RGB")
    good = reference_of(path)
    with tiff.tifffile.TiffFile(path) as file:
        start, size = file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]
    data = bytearray(path.read_bytes())
    data[start : start + size] = bytes(size)
    path.write_bytes(data)
    boxes = np.array([(64 * n, 0, 64, 64) for n in range(3)])
    with contextlib.ExitStack() as close:
        first, second, third = openslide_regions(openslide_reader(path, 0, close), boxes)
        np.testing.assert_array_equal(first(), good[0])
        with pytest.raises(RegionError, match=r"reading 64×64 px of level 0 at \(64, 0\) fails"):
            second()
        np.testing.assert_array_equal(third(), good[2])


def reference_of(path: Path) -> list[np.ndarray]:
    with open_slide(path) as slide:
        return reference(slide, 0, [(64 * n, 0, 64, 64) for n in range(3)])


def test_disk_error_affects_only_its_tiles(slides, monkeypatch):
    path = slides["aperio"]
    with open_slide(path) as slide, contextlib.closing(TiffLevel(path, slide, 0)) as level:
        bad = int(level._offsets[5])
        pread = os.pread

        def fail(file, size, start):
            if start <= bad < start + size:
                raise OSError(5, "Input/output error")
            return pread(file, size, start)

        monkeypatch.setattr(tiff.os, "pread", fail)
        monkeypatch.setattr(tiff, "GAP_BYTES", -1)
        boxes = np.array([(64 * column, 0, 64, 64) for column in range(7)])
        for number, region in enumerate(TiffRegions(level, boxes)):
            if number == 5:
                with pytest.raises(RegionError, match=r"column 5, row 0.*: Input/output error"):
                    region()
            else:
                region()


# --- Slides that are not read natively


def test_missing_aperio_tiles_are_not_read_natively(tmp_path):
    """Aperio files lack tiles in unscanned areas; OpenSlide reads them from the finer level."""
    small = shrink(PIXELS, 2)
    tiles = [
        encode_jpeg(np.ascontiguousarray(_padded(small, x, y)), 90)
        for y in range(0, small.shape[0], 64)
        for x in range(0, small.shape[1], 64)
    ]
    tiles[9] = b""
    path = tmp_path / "s.svs"
    with tiff.tifffile.TiffWriter(path, byteorder="<") as file:
        layout = {
            "photometric": "rgb",
            "tile": (64, 64),
            "compression": "jpeg",
            "subsampling": (2, 2),
            "description": aperio_description(1003, 700),
            "metadata": None,
            "software": False,
        }
        file.write(PIXELS, **layout)
        file.write(iter(tiles), shape=small.shape, dtype=np.uint8, **layout)
    with open_slide(path) as slide:
        rendered = np.asarray(slide.region(64, 64, 1, 64, 64))
        assert (rendered < 250).mean() > 0.9
        with pytest.raises(
            NotTiled, match="lacks tiles, which OpenSlide renders from the next finer"
        ):
            TiffLevel(path, slide, 1)
        TiffLevel(path, slide, 0).close()


def _padded(pixels: np.ndarray, x: int, y: int) -> np.ndarray:
    part = pixels[y : y + 64, x : x + 64]
    return np.pad(part, ((0, 64 - part.shape[0]), (0, 64 - part.shape[1]), (0, 0)), mode="edge")


def test_other_formats_are_not_read_natively(tmp_path):
    for write in (formats.write_ventana, formats.write_leica, formats.write_trestle):
        path = write(tmp_path / f"{write.__name__}.tif", PIXELS)
        with (
            open_slide(path) as slide,
            pytest.raises(NotTiled, match="not supported for the format "),
        ):
            TiffLevel(path, slide, 0)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"compression": "zlib"}, "its tiles are ADOBE_DEFLATE, not JPEG"),
        ({"compression": "APERIO_JP2000_RGB"}, "its tiles are APERIO_JP2000_RGB, not JPEG"),
    ],
)
def test_non_jpeg_tiles_are_not_read_natively(tmp_path, layout, reason):
    path = write_svs(tmp_path / "s.svs", PIXELS, **layout)
    with open_slide(path) as slide, pytest.raises(NotTiled, match=reason):
        TiffLevel(path, slide, 0)


def test_slide_is_not_used_after_a_fork(slides):
    with open_slide(slides["aperio"]) as slide:
        slide.region(0, 0, 0, 8, 8)
        child = os.fork()
        if child == 0:
            try:
                slide.region(0, 0, 0, 8, 8)
            except RuntimeError as error:
                os._exit(0 if "opened by process" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
