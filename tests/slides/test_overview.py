import subprocess
import sys
from pathlib import Path

import numpy as np
import openslide
import pytest
from known_slides import glass, tiles_of_level_0, write_svs
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.slides import overview
from gigatile.slides.overview import BLOCK, PROBES, read_overview
from gigatile.slides.reader import RegionError, Slide, SlideError, open_slide
from gigatile.slides.reader_selection import ReaderChoice
from gigatile.slides.tiff import TiffLevel

NATIVE = ReaderChoice("native tiles", None, 4)


def written(folder: Path, compression: str) -> tuple[Path, list[np.ndarray]]:
    """Return a slide of noise, and its levels as OpenSlide reads them."""
    pixels = np.random.default_rng(1).integers(0, 256, (400, 512, 3), np.uint8)
    path = folder / f"{compression}.svs"
    write_svs(path, pixels, shrink(pixels, 4), compression=compression)
    with openslide.OpenSlide(path) as handle:
        levels = [
            np.asarray(handle.read_region((0, 0), level, size).convert("RGB"))
            for level, size in enumerate(handle.level_dimensions)
        ]
    return path, levels


@pytest.fixture(scope="module", params=["zlib", "jpeg"])
def noise(tmp_path_factory, request):
    return written(tmp_path_factory.mktemp("noise"), request.param)


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """A slide with native tiles that Gigatile reads directly."""
    return written(tmp_path_factory.mktemp("native"), "jpeg")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def regions_read(monkeypatch) -> list[tuple[int, ...]]:
    """Return a list to which each region that OpenSlide reads is appended."""
    read: list[tuple[int, ...]] = []
    region = Slide.region

    def counted(slide: Slide, *box: int) -> Image.Image:
        read.append(box)
        return region(slide, *box)

    monkeypatch.setattr(Slide, "region", counted)
    return read


def damaged(path: Path, whole: Path, column: int, row: int) -> Path:
    """Copy a slide and overwrite a tile of level 0, which has 8 columns."""
    data = bytearray(whole.read_bytes())
    offset, length = tiles_of_level_0(whole)[row * 8 + column]
    data[offset : offset + length] = bytes(length)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("wanted", "factor", "level"), [(1, 1, 0), (1.9, 1, 0), (3.5, 3, 0), (4, 1, 1), (13, 3, 1)]
)
def test_overview_is_the_mean_of_blocks(noise, wanted, factor, level):
    path, levels = noise
    with open_slide(path) as slide:
        result = read_overview(path, slide, wanted)
    assert np.array_equal(result.pixels, Image.fromarray(levels[level]).reduce(factor))
    across, down = result.downsample
    assert across == down == factor * (4 if level else 1) <= wanted
    assert result.error is None and not result.unreadable.any()
    if path.stem == "jpeg":
        assert result.reader == NATIVE
    else:
        assert result.reader == ReaderChoice(
            "openslide", "its tiles are ADOBE_DEFLATE, not JPEG", 0
        )


def test_overview_of_a_large_slide_is_coarser(noise):
    with open_slide(noise[0]) as slide:
        result = read_overview(noise[0], slide, 1, longest=100)
    assert result.pixels.shape == (67, 86, 3)  # every sixth of 512 × 400
    assert result.downsample == (6, 6)


@pytest.mark.parametrize("factor", [1, 3])
def test_overview_lacks_only_unreadable_parts(tmp_path, noise, factor):
    whole, (pixels, _) = noise
    path = damaged(tmp_path / "s.svs", whole, 3, 2)  # 64 px at (192, 128)
    with open_slide(path) as slide:
        result = read_overview(path, slide, factor)
    assert "reading 512×400 px of level 0 at (0, 0) fails" in str(result.error)
    expected = np.asarray(Image.fromarray(pixels).reduce(factor))
    assert np.array_equal(result.pixels[~result.unreadable], expected[~result.unreadable])
    assert (result.pixels[result.unreadable] == 255).all()
    damage = np.zeros((400, 512), bool)
    damage[128:192, 192:256] = True
    rows, columns = (slice(n // factor, -(-end // factor)) for n, end in ((128, 192), (192, 256)))
    assert result.unreadable[rows, columns].all()
    assert result.unreadable.sum() * factor**2 <= 9 * 64 * 64


def test_native_tiles_across_blocks_are_placed_correctly(native, monkeypatch):
    path, levels = native
    monkeypatch.setattr(overview, "BLOCK", 100)  # tiles have 64 px
    with open_slide(path) as slide:
        for wanted in (1, 2, 3):
            result = read_overview(path, slide, wanted)
            assert result.reader == NATIVE
            assert np.array_equal(result.pixels, Image.fromarray(levels[0]).reduce(wanted))


def test_openslide_reads_only_blocks_with_damaged_tiles(native, tmp_path, monkeypatch):
    whole, levels = native
    path = damaged(tmp_path / "s.svs", whole, 1, 6)  # in two blocks, and in no compared region
    monkeypatch.setattr(overview, "BLOCK", 100)
    read = regions_read(monkeypatch)
    with open_slide(path) as slide:
        result = read_overview(path, slide, 1)
    assert result.reader == NATIVE
    assert not result.unreadable[:300].any() and not result.unreadable[:, 200:].any()
    assert result.unreadable[384:, 64:128].all()
    assert np.array_equal(result.pixels[~result.unreadable], levels[0][~result.unreadable])
    # Four compared regions, then two blocks and their quarters.
    assert read[4] == (0, 300, 0, 100, 100)
    assert all(left < 200 and top >= 300 for left, top, *_ in read[4:])


def test_native_blocks_do_not_use_openslide(noise, monkeypatch):
    path, _ = noise
    monkeypatch.setattr(overview, "BLOCK", 100)
    read = regions_read(monkeypatch)
    calls: list[None] = []
    with open_slide(path) as slide:
        before = open_files()
        read_overview(path, slide, 1, report_progress=lambda: calls.append(None))
        assert open_files() == before
    assert len(calls) == 6 * 4
    assert len(read) == (4 if path.stem == "jpeg" else 6 * 4)


def test_different_native_tiles_are_not_used(native, monkeypatch):
    path, levels = native
    decode = TiffLevel.decode
    # By one grey level, in one of the four compared regions.
    monkeypatch.setattr(
        TiffLevel, "decode", lambda level, tile, data: decode(level, tile, data) ^ (tile == 46)
    )
    with open_slide(path) as slide:
        before = open_files()
        result = read_overview(path, slide, 1)
        assert open_files() == before
    assert np.array_equal(result.pixels, levels[0])
    assert (result.reader.by, result.reader.compared) == ("openslide", 4)
    assert "differ from OpenSlide's pixels by up to 1 at (170, 96)" in str(result.reader.why)


def test_native_tiles_are_not_used_without_comparison(native, tmp_path, monkeypatch):
    whole, levels = native
    path = damaged(tmp_path / "s.svs", whole, 3, 2)  # in all four compared regions
    decode = TiffLevel.decode
    monkeypatch.setattr(
        TiffLevel, "decode", lambda level, tile, data: 255 - decode(level, tile, data)
    )
    monkeypatch.setattr(overview, "BLOCK", 64)
    with open_slide(path) as slide:
        before = open_files()
        result = read_overview(path, slide, 1)
        assert open_files() == before
    assert (result.reader.by, result.reader.compared) == ("openslide", 0)
    assert result.reader.why.startswith("only 0 of 4 regions could be compared")
    assert np.array_equal(result.pixels[~result.unreadable], levels[0][~result.unreadable])


def test_failed_comparison_closes_the_file(native, monkeypatch):
    path, _ = native

    def fail(slide: Slide, *box: int) -> None:
        raise SlideError("it cannot be opened again")

    with open_slide(path) as slide:
        before = open_files()
        monkeypatch.setattr(Slide, "region", fail)
        with pytest.raises(SlideError):
            read_overview(path, slide, 1)
        assert open_files() == before


def test_overview_has_no_seams(tmp_path):
    height, width = 700, 2 * BLOCK + 333
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    path = write_svs(tmp_path / "s.svs", pixels, compression=None, tile=256)
    with open_slide(path) as slide:
        for wanted in (2, 3, 7):
            result = read_overview(path, slide, wanted)
            assert result.downsample == (wanted, wanted)
            assert np.array_equal(result.pixels, Image.fromarray(pixels).reduce(wanted))


def test_overview_has_a_scale_per_axis(tmp_path):
    pixels = glass(279, 4096)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8))
    with open_slide(path) as slide:
        result = read_overview(path, slide, 17)
    assert result.pixels.shape == (17, 256, 3)
    assert result.downsample == (16, 2 * 279 / 34)


@pytest.mark.parametrize("compression", ["zlib", "jpeg"])
def test_overview_without_a_pyramid_needs_little_memory(tmp_path, compression):
    pixels = glass(6000, 6000)  # 108 MB
    path = write_svs(tmp_path / "s.svs", pixels, tile=1024, compression=compression)
    program = f"""
import re
from pathlib import Path
from gigatile.slides.overview import read_overview
from gigatile.slides.reader import RegionError, open_slide

def peak():  # KiB
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

path = Path({str(path)!r})
with open_slide(path) as slide:
    slide.region(0, 0, 0, 1, 1)
    before = peak()
    read_overview(path, slide, 14)
    print(peak() - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(grown.stdout) < 120_000


def test_unreadable_overview_is_given_up_early(noise, tmp_path, monkeypatch):
    """Without this, retrying quarters of unreadable blocks took 43 s for a small slide."""
    path = tmp_path / "s.svs"
    data = bytearray(noise[0].read_bytes())
    for offset, size in tiles_of_level_0(noise[0]):
        data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    read = regions_read(monkeypatch)
    with open_slide(path) as slide:
        assert read_overview(path, slide, 1).unreadable.all()
        whole = len(read)
        assert whole <= 4 + 1 + PROBES**2  # compared regions, the block, probes in it
        monkeypatch.setattr(overview, "BLOCK", 128)
        read.clear()
        assert read_overview(path, slide, 1, max_unreadable=1).unreadable.all()
        everything = len(read)
        read.clear()
        with pytest.raises(RegionError, match=r"level 0 at \(0, 0\) fails"):
            read_overview(path, slide, 1, max_unreadable=0.25)
        assert len(read) < 0.4 * everything
