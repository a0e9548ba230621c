import subprocess
import sys

import numpy as np
import pytest
import tifffile
from known_slides import described, glass, tiles_of_level_0, write_svs
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.slides.reader import BLOCK, open_slide


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    pixels = np.random.default_rng(1).integers(0, 256, (400, 512, 3), np.uint8)
    path = tmp_path_factory.mktemp("noise") / "noise.svs"
    return write_svs(path, pixels, shrink(pixels, 4)), pixels


# --- What the file tells


def test_a_slide_tells_its_size_scale_and_levels(noise):
    with open_slide(noise[0]) as slide:
        assert (slide.width, slide.height) == (512, 400)
        assert slide.level_sizes == ((512, 400), (128, 100))
        assert slide.scales == [(1, 1), (4, 4)]
        assert (slide.vendor, slide.objective_power) == ("aperio", "20")


def test_a_level_has_a_scale_of_its_own_along_each_side(tmp_path):
    pixels = glass(279, 4096)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8))
    with open_slide(path) as slide:
        assert slide.scales == [(1, 1), (8, 279 / 34)]


# --- Regions


def test_a_region_is_placed_in_pixels_of_its_level(noise):
    path, pixels = noise
    with open_slide(path) as slide:
        assert np.array_equal(slide.region(37, 51, 0, 90, 70), pixels[51:121, 37:127])
        level = shrink(pixels, 4)
        assert np.array_equal(slide.region(37, 51, 1, 20, 30), level[51:81, 37:57])


def test_what_lies_over_the_edge_or_was_never_scanned_is_white(tmp_path):
    pixels = np.zeros((128, 128, 3), np.uint8)
    path = tmp_path / "s.svs"
    corners = [pixels[:64, :64], None, None, pixels[:64, :64]]  # two tiles were not scanned
    tifffile.imwrite(
        path,
        iter(corners),
        shape=pixels.shape,
        dtype=pixels.dtype,
        photometric="rgb",
        tile=(64, 64),
        compression="zlib",
        description=described(128, 128),
        metadata=None,
    )
    with open_slide(path) as slide:
        region = np.asarray(slide.region(0, 0, 0, 150, 140))
    assert (region[:64, :64] == 0).all()
    assert (region[64:128, 64:128] == 0).all()
    for unseen in (region[:64, 64:], region[64:128, :64], region[:, 128:], region[128:]):
        assert (unseen == 255).all()


# --- The overview


@pytest.mark.parametrize(
    ("wanted", "factor", "level"), [(1, 1, 0), (1.9, 1, 0), (3.5, 3, 0), (4, 1, 1), (13, 3, 1)]
)
def test_the_overview_is_each_blocks_mean_and_at_least_as_fine_as_wanted(
    noise, wanted, factor, level
):
    path, pixels = noise
    with open_slide(path) as slide:
        found = slide.overview(wanted)
    source = shrink(pixels, 4) if level else pixels
    assert np.array_equal(found.pixels, Image.fromarray(source).reduce(factor))
    across, down = found.downsample
    assert across == down == factor * (4 if level else 1) <= wanted
    assert found.error is None and not found.unseen.any()


def test_the_overview_of_a_very_large_slide_is_coarser_than_wanted(noise):
    with open_slide(noise[0]) as slide:
        found = slide.overview(1, longest=100)
    assert found.pixels.shape == (67, 86, 3)  # every sixth of 512 × 400
    assert found.downsample == (6, 6)


@pytest.mark.parametrize("factor", [1, 3])
def test_the_overview_lacks_what_cannot_be_read_and_little_more(tmp_path, noise, factor):
    pixels = noise[1]
    path = write_svs(tmp_path / "s.svs", pixels)
    data = bytearray(path.read_bytes())
    offset, length = tiles_of_level_0(path)[2 * 8 + 3]  # 64 px at (192, 128)
    data[offset : offset + length] = bytes(length)
    path.write_bytes(data)
    with open_slide(path) as slide:
        found = slide.overview(factor)
    assert "reading 512×400 px of level 0 at (0, 0) fails" in str(found.error)
    expected = np.asarray(Image.fromarray(pixels).reduce(factor))
    assert np.array_equal(found.pixels[~found.unseen], expected[~found.unseen])
    assert (found.pixels[found.unseen] == 255).all()
    lost = np.zeros((400, 512), bool)
    lost[128:192, 192:256] = True
    rows, columns = (slice(n // factor, -(-end // factor)) for n, end in ((128, 192), (192, 256)))
    assert found.unseen[rows, columns].all()
    assert found.unseen.sum() * factor**2 <= 9 * 64 * 64


def test_the_blocks_of_an_overview_join_without_a_seam(tmp_path):
    height, width = 700, 2 * BLOCK + 333
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    path = write_svs(tmp_path / "s.svs", pixels, compression=None, tile=256)
    with open_slide(path) as slide:
        for wanted in (2, 3, 7):
            found = slide.overview(wanted)
            assert found.downsample == (wanted, wanted)
            assert np.array_equal(found.pixels, Image.fromarray(pixels).reduce(wanted))


def test_the_overview_of_a_long_slide_has_the_scale_of_each_side(tmp_path):
    pixels = glass(279, 4096)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8))
    with open_slide(path) as slide:
        found = slide.overview(17)
    assert found.pixels.shape == (17, 256, 3)
    assert found.downsample == (16, 2 * 279 / 34)


def test_the_overview_of_a_slide_without_a_pyramid_costs_time_and_not_memory(tmp_path):
    path = write_svs(tmp_path / "s.svs", glass(6000, 6000), tile=1024)  # 108 MB of pixels
    program = f"""
import re
from pathlib import Path
from gigatile.slides.reader import open_slide

def peak():  # KiB
    return int(re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

with open_slide(Path({str(path)!r})) as slide:
    slide.region(0, 0, 0, 1, 1)
    before = peak()
    slide.overview(14)
    print(peak() - before)
"""
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(grown.stdout) < 120_000
