import numpy as np
import pytest
import tifffile
from known_slides import aperio_description, glass, write_svs

from gigatile.demo.svs import shrink
from gigatile.slides.reader import open_slide


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    pixels = np.random.default_rng(1).integers(0, 256, (400, 512, 3), np.uint8)
    path = tmp_path_factory.mktemp("noise") / "noise.svs"
    return write_svs(path, pixels, shrink(pixels, 4)), pixels


# --- Metadata


def test_slide_has_size_scale_and_levels(noise):
    with open_slide(noise[0]) as slide:
        assert (slide.width, slide.height) == (512, 400)
        assert slide.level_sizes == ((512, 400), (128, 100))
        assert slide.scales == [(1, 1), (4, 4)]
        assert (slide.vendor, slide.objective_power) == ("aperio", "20")


def test_levels_have_a_scale_per_axis(tmp_path):
    pixels = glass(279, 4096)
    path = write_svs(tmp_path / "s.svs", pixels, shrink(pixels, 8))
    with open_slide(path) as slide:
        assert slide.scales == [(1, 1), (8, 279 / 34)]


# --- Regions


def test_region_position_is_in_level_pixels(noise):
    path, pixels = noise
    with open_slide(path) as slide:
        assert np.array_equal(slide.region(37, 51, 0, 90, 70), pixels[51:121, 37:127])
        level = shrink(pixels, 4)
        assert np.array_equal(slide.region(37, 51, 1, 20, 30), level[51:81, 37:57])


def test_outside_and_unscanned_areas_are_white(tmp_path):
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
        description=aperio_description(128, 128),
        metadata=None,
    )
    with open_slide(path) as slide:
        region = np.asarray(slide.region(0, 0, 0, 150, 140))
    assert (region[:64, :64] == 0).all()
    assert (region[64:128, 64:128] == 0).all()
    for unseen in (region[:64, 64:], region[64:128, :64], region[:, 128:], region[128:]):
        assert (unseen == 255).all()
