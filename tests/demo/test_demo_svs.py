"""The file of a demo slide, read by OpenSlide and tifffile."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import openslide
import pytest
import tifffile

from gigatile.demo.cohort import find_slide
from gigatile.demo.svs import shrink, write_svs
from gigatile.demo.tissue import draw_slide

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_demo_slide.py"
SLIDE = "P12-2"


def make_slide(out: Path, slide: str = SLIDE, **environment: str) -> None:
    subprocess.run(
        [sys.executable, SCRIPT, "--slide", slide, "--out", out],
        check=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slides") / "new folder" / f"{SLIDE}.svs"
    make_slide(path)
    return path


@pytest.fixture(scope="module")
def level_0() -> np.ndarray:
    return draw_slide(find_slide(SLIDE))


def read_level(slide: openslide.OpenSlide, level: int) -> np.ndarray:
    size = slide.level_dimensions[level]
    return np.asarray(slide.read_region((0, 0), level, size).convert("RGB")).astype(np.int64)


def test_openslide_reads_an_aperio_slide_at_20x(path: Path) -> None:
    assert openslide.OpenSlide.detect_format(path) == "aperio"
    with openslide.OpenSlide(path) as slide:
        assert slide.properties["openslide.mpp-x"] == "0.5"
        assert slide.properties["openslide.mpp-y"] == "0.5"
        assert slide.properties["openslide.objective-power"] == "20"
        assert slide.properties["aperio.AppMag"] == "20"
        assert list(slide.associated_images) == ["thumbnail"]
        width, height = slide.dimensions
        assert slide.associated_images["thumbnail"].size == (width // 4, height // 4)


def test_levels_have_downsamples_4_and_16(path: Path) -> None:
    with openslide.OpenSlide(path) as slide:
        width, height = slide.dimensions
        assert 2800 <= width <= 3200
        assert 2150 <= height <= 2450
        sizes = [(width // factor, height // factor) for factor in (1, 4, 16)]
        assert list(slide.level_dimensions) == sizes
        assert slide.level_downsamples == pytest.approx((1, 4, 16), rel=0.005)
        assert slide.get_best_level_for_downsample(5) == 1


def test_every_level_shows_the_rendered_slide(path: Path, level_0: np.ndarray) -> None:
    with openslide.OpenSlide(path) as slide:
        for level, factor in enumerate((1, 4, 16)):
            read = read_level(slide, level)
            assert np.abs(read - shrink(level_0, factor)).mean() < 6, f"level {level}"
        thumbnail = np.asarray(slide.associated_images["thumbnail"].convert("RGB")).astype(np.int64)
        assert np.abs(thumbnail - shrink(level_0, 4)).mean() < 6


def test_file_has_the_layout_of_a_scanner_and_no_date(path: Path) -> None:
    with tifffile.TiffFile(path) as tiff:
        assert tiff.is_svs
        assert tiff.byteorder == "<"
        assert [page.is_tiled for page in tiff.pages] == [True, False, True, True]
        for page in tiff.pages:
            assert page.compression == tifffile.COMPRESSION.JPEG
            assert "DateTime" not in page.tags
            assert "Software" not in page.tags
            if page.is_tiled:
                assert (page.tilewidth, page.tilelength) == (256, 256)
            else:
                assert page.rowsperstrip == 16


@pytest.mark.parametrize("slide", ["P14-1", "P19-1"])
def test_bytes_do_not_depend_on_vector_instructions(tmp_path: Path, slide: str) -> None:
    """In a process in which NumPy and the JPEG library use fewer instructions."""
    make_slide(tmp_path / "usual.svs", slide)
    features = np._core._multiarray_umath.__cpu_features__
    dispatched = np._core._multiarray_umath.__cpu_dispatch__
    offered = " ".join(name for name in dispatched if features[name])
    make_slide(
        tmp_path / "plain.svs",
        slide,
        NPY_DISABLE_CPU_FEATURES=offered,
        JSIMD_FORCENONE="1",
        PYTHONHASHSEED="1",
    )
    assert (tmp_path / "usual.svs").read_bytes() == (tmp_path / "plain.svs").read_bytes()


def test_slides_differ_from_each_other(path: Path, tmp_path: Path) -> None:
    make_slide(tmp_path / "other.svs", "P12-1")
    with openslide.OpenSlide(path) as first, openslide.OpenSlide(tmp_path / "other.svs") as other:
        key = "openslide.quickhash-1"
        assert first.properties[key] != other.properties[key]
        # Not only in their stain: their sizes differ, too.
        assert first.dimensions != other.dimensions


def test_shrink_averages_whole_blocks() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (23, 18, 3), dtype=np.uint8)
    blocks = pixels[:20, :16].reshape(5, 4, 4, 4, 3).astype(np.float64)
    wanted = np.floor(blocks.mean(axis=(1, 3)) + 0.5)
    assert (shrink(pixels, 4) == wanted).all()


def test_pixels_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "slide.svs"
    for pixels in (np.zeros((64, 64), np.uint8), np.zeros((64, 64, 3)), np.zeros((64, 9, 3), "u1")):
        with pytest.raises(ValueError, match=r"not \(height, width, 3\) uint8|too small"):
            write_svs(path, pixels, mpp=0.5, objective_power=20)
    assert not list(tmp_path.iterdir())
