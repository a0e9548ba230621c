"""Slides of many formats, read by OpenSlide and by Gigatile's reader."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import formats
import numpy as np
import openslide
import pytest
import tifffile
from PIL import Image

from gigatile.demo.svs import shrink
from gigatile.records import decode_tile, read_records
from gigatile.records.tile import encode_jpeg
from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import plan_grid
from gigatile.slides.overview import read_overview
from gigatile.slides.reader import open_slide
from gigatile.slides.tiling import TilingFiles, tile_slide

WIDTH, HEIGHT = 1000, 700
MPP = 0.25
# Colour, and left, top, right and bottom in pixels: different, so that a rotated or mirrored slide
# is noticed, and far apart, so that small errors of the scale add up.
MARKERS = {(0, 120, 0): (304, 208, 400, 304), (0, 0, 160): (820, 590, 900, 630)}


@dataclass(frozen=True)
class Case:
    """A format, and the level sizes of a slide of 1000 by 700 px in it."""

    write: Callable[..., Path]
    name: str
    vendor: str
    levels: tuple[tuple[int, int], ...]
    options: dict[str, Any] = field(default_factory=dict)
    margin: int = 0  # px of level 0 around the pixels


EXACT = ((1000, 700), (250, 175), (62, 43))
HALVED = ((1024, 768), (512, 384), (256, 192), (128, 96), (64, 48), (32, 24), (16, 12), (8, 6))
GENERIC = (formats.write_generic_tiff, "slide.tif", "generic-tiff", EXACT)
CASES = {
    "hamamatsu": Case(formats.write_hamamatsu, "slide.ndpi", "hamamatsu", HALVED),
    "hamamatsu-vms": Case(formats.write_hamamatsu_vms, "slide.vms", "hamamatsu", HALVED),
    "hamamatsu-vmu": Case(
        formats.write_hamamatsu_vmu, "slide.vmu", "hamamatsu", ((1024, 768), (64, 48))
    ),
    "mirax": Case(
        formats.write_mirax,
        *("slide.mrxs", "mirax", ((1024, 800), (512, 400), (256, 200), (128, 100))),
    ),
    "mirax-without-overlap": Case(
        formats.write_mirax,
        *("slide.mrxs", "mirax", ((1024, 768), (512, 384), (256, 192), (128, 96))),
        {"overlap": 0},
    ),
    "dicom": Case(formats.write_dicom, "slide", "dicom", EXACT),
    "leica": Case(
        formats.write_leica,
        *("slide.scn", "leica", ((1128, 828), (282, 207), (70, 52))),
        margin=64,
    ),
    "philips": Case(
        formats.write_philips, "slide.tiff", "philips", ((1024, 768), (256, 192), (64, 48))
    ),
    "sakura": Case(formats.write_sakura, "slide.svslide", "sakura", EXACT),
    "ventana": Case(
        formats.write_ventana, "slide.bif", "ventana", ((1024, 800), (256, 200), (64, 50))
    ),
    "trestle": Case(formats.write_trestle, "slide.tif", "trestle", EXACT),
    "generic-420": Case(*GENERIC),
    "generic-444": Case(*GENERIC, {"subsampling": (1, 1)}),
    "generic-rgb": Case(*GENERIC, {"subsampling": (1, 1), "coding": "RGB"}),
    "generic-classic": Case(*GENERIC, {"big": False}),
}


def known_pixels() -> np.ndarray:
    """Return a picture that JPEG preserves well, and that differs from any shift of itself."""
    row, column = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack(
        [
            190 + 30 * np.sin(column / 70),
            150 + 40 * np.cos(row / 90),
            180 + 30 * np.sin((column + row) / 110),
        ],
        axis=-1,
    )
    # Fine enough to reveal a shift of one pixel.
    pixels += (20 * np.sin(column * 2 * np.pi / 37) * np.sin(row * 2 * np.pi / 29))[..., None]
    for colour, (left, top, right, bottom) in MARKERS.items():
        pixels[top:bottom, left:right] = colour
    return pixels.astype(np.uint8)


PIXELS = known_pixels()


@pytest.fixture(scope="module", params=CASES)
def slide(request, tmp_path_factory) -> tuple[Case, Path]:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return case, case.write(folder / case.name, PIXELS, mpp=MPP, **case.options)


def centre(pixels: np.ndarray, colour: tuple[int, int, int]) -> tuple[float, float]:
    """Return the centre (x, y) of the pixels of about this colour."""
    rows, columns = np.nonzero(np.abs(pixels.astype(int) - colour).max(axis=-1) < 60)
    return columns.mean() + 0.5, rows.mean() + 0.5


def assert_markers(pixels: np.ndarray, margin: int, scale: tuple[float, float]) -> None:
    """Check that all markers are within a pixel of their positions at `scale` (across, down)."""
    tolerance = 1.5 if margin else 1  # OpenSlide rounds a margin down to whole pixels of the level
    for colour, (left, top, right, bottom) in MARKERS.items():
        across, down = centre(pixels, colour)
        assert across == pytest.approx((margin + (left + right) / 2) / scale[0], abs=tolerance)
        assert down == pytest.approx((margin + (top + bottom) / 2) / scale[1], abs=tolerance)


# --- All formats


def test_format_levels_and_scale_are_read(slide):
    case, path = slide
    assert openslide.OpenSlide.detect_format(path) == case.vendor
    with openslide.OpenSlide(path) as handle:
        assert float(handle.properties[openslide.PROPERTY_NAME_MPP_X]) == pytest.approx(MPP)
        assert float(handle.properties[openslide.PROPERTY_NAME_MPP_Y]) == pytest.approx(MPP)
        assert handle.level_dimensions == case.levels
    with open_slide(path) as opened:
        assert opened.vendor == case.vendor
        assert (opened.width, opened.height) == case.levels[0]
        assert opened.level_sizes == case.levels


def test_level_0_has_the_written_pixels(slide):
    case, path = slide
    with open_slide(path) as opened:
        region = opened.region(case.margin, case.margin, 0, WIDTH, HEIGHT)
    difference = np.abs(np.asarray(region).astype(int) - PIXELS)
    assert difference.mean() < 1
    # In each part, so that a single misplaced tile is noticed.
    assert shrink(difference.astype(np.uint8), 50).max() < 5
    assert_markers(np.asarray(region), 0, (1, 1))


def test_levels_show_the_same_slide(slide):
    case, path = slide
    with open_slide(path) as opened:
        for level, (width, height) in enumerate(opened.level_sizes):
            if opened.downsamples[level] < 17:  # on coarser levels, markers are about one pixel
                region = np.asarray(opened.region(0, 0, level, width, height))
                assert_markers(region, case.margin, opened.scales[level])


def test_level_1_is_level_0_downsampled(slide):
    case, path = slide
    with open_slide(path) as opened:
        factor = round(opened.downsamples[1])
        expected = shrink(PIXELS, factor)
        corner = case.margin // factor
        region = opened.region(corner, corner, 1, expected.shape[1], expected.shape[0])
    assert np.abs(np.asarray(region).astype(int) - expected).mean() < 2


def test_reader_equals_openslide(slide):
    _, path = slide
    with openslide.OpenSlide(path) as handle, open_slide(path) as opened:
        for level in (0, 1):
            size = handle.level_dimensions[level]
            read = handle.read_region((0, 0), level, size)
            over_white = Image.new("RGB", size, "white")
            over_white.paste(read, mask=read.getchannel("A"))
            assert opened.region(0, 0, level, *size).tobytes() == over_white.tobytes()


def test_overview_shows_the_same_slide(slide):
    case, path = slide
    with open_slide(path) as opened:
        overview = read_overview(path, opened, 8)
    picture, scale = overview.pixels, overview.downsample
    assert max(scale) <= 8
    assert_markers(picture, case.margin, scale)


def test_tiles_equal_openslides_regions(slide, tmp_path):
    """At the scale of level 0, and of level 1."""
    case, path = slide
    kinds = ("tfrecord", "json", "jpg", "parquet")
    files = TilingFiles(*(tmp_path / f"S1.{kind}" for kind in kinds))
    for level in (0, 1):
        with open_slide(path) as opened:
            mpp = MPP * opened.downsamples[level]
            settings = TileSettings(size=48, mpp=mpp, max_background=1)
            state = tile_slide(path, "S1", None, settings, files)
            assert state.state == "tiled", state.reason
            grid = plan_grid(opened, state.mpp, settings)
            assert (state.mpp_from, grid.level) == (
                "resolution" if case.vendor == "generic-tiff" else "file",
                level,
            )
            native = case.vendor in ("generic-tiff", "philips")
            assert state.reading.by == ("native tiles" if native else "openslide")
            tiles = [decode_tile(data) for data in read_records(files.records)]
            assert len(tiles) == grid.columns * grid.rows > 0
            boxes, spans = grid.boxes(grid.corners())
            for tile, box, span in zip(tiles, boxes.tolist(), spans, strict=True):
                left, top, width, height = box
                region = np.asarray(opened.region(left, top, grid.level, width, height))
                assert tile.image == encode_jpeg(grid.resize_to_tile(region, span), 90)


def test_equal_pixels_give_equal_bytes(slide, tmp_path):
    case, path = slide
    case.write(tmp_path / case.name, PIXELS, mpp=MPP, **case.options)
    folder = path.parent if (path.parent / case.name).exists() else path.parent.parent
    written = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    assert written == {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
    for name in written:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


# --- Single formats


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("dicom", (384, 256, 512, 384)),
        ("philips", (384, 256, 512, 384)),
        ("sakura", (384, 256, 512, 384)),
        # The overlapping neighbours show the rest of the photo.
        ("mirax", (352, 240, 448, 336)),
    ],
)
def test_unscanned_areas_read_as_white(tmp_path, name, box):
    case = CASES[name]
    path = case.write(tmp_path / case.name, PIXELS, mpp=MPP, missing=[(2, 3)])
    left, top, right, bottom = box
    with openslide.OpenSlide(path) as handle:
        alpha = np.asarray(handle.read_region((0, 0), 0, (WIDTH, HEIGHT)))[..., 3]
    scanned = np.full((HEIGHT, WIDTH), 255)
    scanned[top:bottom, left:right] = 0
    assert np.array_equal(alpha, scanned)
    with open_slide(path) as opened:
        region = np.asarray(opened.region(0, 0, 0, WIDTH, HEIGHT)).astype(int)
    assert (region[top:bottom, left:right] == 255).all()
    assert np.abs(region - PIXELS)[scanned > 0].mean() < 1


def test_missing_mirax_photo_is_missing_in_all_levels(tmp_path):
    path = formats.write_mirax(tmp_path / "slide.mrxs", PIXELS, mpp=MPP, missing=[(2, 3)])
    with openslide.OpenSlide(path) as handle:
        for level, factor in enumerate((1, 2, 4, 8)):
            size = tuple(side // factor for side in (96, 96))
            region = handle.read_region((352, 240), level, size)
            assert region.getextrema()[3] == (0, 0)


def test_area_around_leica_regions_is_white(tmp_path):
    path = formats.write_leica(tmp_path / "slide.scn", PIXELS, mpp=MPP)
    with openslide.OpenSlide(path) as handle:
        bounds = [handle.properties[f"openslide.bounds-{side}"] for side in ("x", "y")]
        alpha = np.asarray(handle.read_region((0, 0), 0, handle.dimensions))[..., 3]
    assert bounds == ["64", "64"]
    assert (alpha[64:-64, 64:-64] == 255).all()
    assert alpha.astype(int).sum() == 255 * WIDTH * HEIGHT


def test_philips_tags_have_padded_sizes(tmp_path):
    path = formats.write_philips(tmp_path / "slide.tiff", PIXELS, mpp=MPP)
    with tifffile.TiffFile(path) as tiff:
        assert [page.shape[:2] for page in tiff.pages] == [(768, 1024), (256, 256), (128, 128)]
    with openslide.OpenSlide(path) as handle:
        assert handle.level_downsamples == (1, 4, 16)
