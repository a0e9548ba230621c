import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from known_slides import GLASS, STAIN, glass, make_grid, tissue
from PIL import Image

from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import Grid
from gigatile.slides.reader import SlideError
from gigatile.slides.tissue import (
    SATURATION_BOUNDS,
    SPECK,
    find_tissue,
    mask_fractions,
    region_sizes,
)


def noisy(pixels: np.ndarray, spread: int) -> np.ndarray:
    """Return the pixels with camera noise, independent for each channel."""
    noise = np.random.default_rng(7).integers(-spread, spread + 1, pixels.shape)
    return (pixels.astype(int) + noise).clip(0, 255).astype(np.uint8)


# --- Tissue and glass


def test_stained_pixels_are_tissue():
    pixels = glass(90, 120)
    pixels[20:50, 30:100] = tissue(30, 70)
    result = find_tissue(noisy(pixels, 3))
    mask, threshold = result.mask, result.threshold
    assert result.illumination == "transmitted"
    expected = np.zeros((90, 120), bool)
    expected[20:50, 30:100] = True
    assert np.array_equal(mask, expected)
    assert SATURATION_BOUNDS[0] <= threshold <= SATURATION_BOUNDS[1]


@pytest.mark.parametrize("side", [12, 30, 119])
def test_tissue_border_does_not_depend_on_its_area(side):
    """With faint and strong stain on one slide, Otsu alone would keep only the strong stain."""
    pixels = glass(120, 120)
    pixels[:side] = (215, 165, 200)  # saturation 59
    pixels[: side // 2] = (120, 20, 90)  # saturation 212
    mask = find_tissue(noisy(pixels, 3)).mask
    assert mask[:side].all()
    assert not mask[side:].any()


def test_slide_of_only_tissue_is_all_tissue():
    result = find_tissue(tissue(200, 200))
    assert result.mask.all()
    assert result.threshold == SATURATION_BOUNDS[1]


@pytest.mark.parametrize("colour", [GLASS, (255, 255, 255), (200, 200, 200), (236, 238, 243)])
def test_slide_of_only_glass_is_refused(colour):
    with pytest.raises(SlideError, match=r"no tissue: 0\.00 % of it is stained"):
        find_tissue(noisy(np.full((100, 100, 3), colour, np.uint8), 2))


def test_a_thousandth_of_the_slide_is_enough_tissue():
    pixels = glass(200, 200)
    pixels[:3, :13] = STAIN
    with pytest.raises(SlideError, match=r"0\.10 % of it is stained"):
        find_tissue(pixels)
    pixels[3, 0] = STAIN
    assert find_tissue(pixels).mask.sum() == 40


@pytest.mark.parametrize("mpp", [0.25, 0.5])
@pytest.mark.parametrize("dark", [False, True], ids=["transmitted", "fluorescence"])
def test_small_biopsy_on_a_large_scan_is_tissue(mpp, dark):
    """A square of 130 µm is enough on any slide; a square of 120 µm is not."""
    downsample = (3.5 / mpp, 3.5 / mpp)  # 3.5 µm per pixel of the overview, 4.2 mm in all
    sizes = region_sizes(TileSettings(), mpp, downsample)
    background = np.full((1200, 1200, 3), (8, 8, 8) if dark else GLASS, np.uint8)
    pixels = noisy(background, 3)
    pixels[600:637, 600:637] = STAIN  # 0.095 % of the slide
    mask = find_tissue(pixels, *sizes).mask
    assert mask.sum() == 37**2
    pixels[600:637, 600:637] = background[600:637, 600:637]
    pixels[600:634, 600:634] = STAIN
    with pytest.raises(SlideError, match=r"no tissue: 0\.08 % of it is "):
        find_tissue(pixels, *sizes)


def test_dust_is_removed_and_pores_are_filled():
    pixels = glass(100, 100)
    pixels[20:80, 20:80] = STAIN
    expected = np.zeros((100, 100), bool)
    expected[20:80, 20:80] = True
    side = int(SPECK**0.5)
    pixels[5 : 5 + side, 5 : 5 + side - 1] = STAIN  # dust: smaller than a speck by one row
    pixels[40 : 40 + side, 40 : 40 + side - 1] = GLASS  # a pore
    assert np.array_equal(find_tissue(pixels).mask, expected)
    pixels[5 : 5 + side, 5 : 5 + side] = STAIN
    pixels[40 : 40 + side, 40 : 40 + side] = GLASS
    expected[5 : 5 + side, 5 : 5 + side] = True
    expected[40 : 40 + side, 40 : 40 + side] = False
    assert np.array_equal(find_tissue(pixels).mask, expected)


def test_fluorescence_tissue_is_bright():
    pixels = np.zeros((100, 100, 3), np.uint8)
    pixels[10:40, 10:90] = (20, 120, 60)
    result = find_tissue(noisy(pixels, 8))
    expected = np.zeros((100, 100), bool)
    expected[10:40, 10:90] = True
    assert result.illumination == "fluorescence"
    assert np.array_equal(result.mask, expected)


def test_fluorescence_without_tissue_is_refused():
    dark = noisy(np.full((100, 100, 3), 20, np.uint8), 4)
    with pytest.raises(SlideError, match=r"no tissue: 0\.00 % of it is bright \(brightness above "):
        find_tissue(dark)


def test_black_frame_is_not_fluorescence():
    pixels = np.zeros((100, 100, 3), np.uint8)
    pixels[30:70, 30:70] = GLASS
    pixels[40:50, 40:60] = STAIN
    result = find_tissue(pixels)
    assert result.illumination == "transmitted"
    assert np.array_equal(np.argwhere(result.mask).min(axis=0), (40, 40))
    assert result.mask.sum() == 200


def test_dark_tissue_is_not_fluorescence():
    assert find_tissue(np.full((50, 50, 3), (90, 20, 70), np.uint8)).mask.all()


@given(npst.arrays(np.uint8, (12, 9, 3), elements=st.integers(0, 255)))
def test_threshold_is_otsus_within_bounds(pixels):
    try:
        result = find_tissue(pixels)
    except SlideError:
        return
    if result.illumination == "fluorescence":
        return
    high, low = pixels.max(axis=2).astype(int), pixels.min(axis=2).astype(int)
    saturation = (high - low) * 255 // np.maximum(high, 1)

    def between(limit: int) -> float:
        below, above = saturation[saturation <= limit], saturation[saturation > limit]
        if not below.size or not above.size:
            return 0
        return below.size * above.size * (below.mean() - above.mean()) ** 2

    variances = np.array([between(limit) for limit in range(256)])
    otsu = np.flatnonzero(np.isclose(variances, variances.max()))
    assert result.threshold in np.clip(otsu, *SATURATION_BOUNDS)


# --- Regions


def ring() -> np.ndarray:
    """Return glass with a square frame of tissue, 2 px thick, with an inside of 20 px."""
    pixels = glass(80, 80)
    pixels[20:44, 20:44] = STAIN
    pixels[22:42, 22:42] = GLASS
    return pixels


def test_only_small_holes_are_filled():
    assert not find_tissue(ring(), hole=400).mask[32, 32]
    result = find_tissue(ring(), hole=401)
    assert result.mask[20:44, 20:44].all() and result.mask.sum() == 24**2
    assert result.stained.sum() == 24**2 - 20**2


def test_only_narrow_gaps_are_closed():
    pixels = glass(80, 80)
    pixels[20:60, 10:30] = pixels[20:60, 34:44] = pixels[20:60, 54:70] = STAIN
    assert not find_tissue(pixels).mask[40, 32]
    mask = find_tissue(pixels, gap=6).mask
    assert mask[24:56, 10:44].all()
    assert not mask[:, 44:54].any()


def test_pale_pixels_connected_to_stain_are_tissue():
    pixels = glass(80, 80)
    pixels[20:40, 20:40] = STAIN
    pixels[30, 40:70] = pixels[60, 10:40] = (225, 203, 218)  # saturation 24
    mask = find_tissue(pixels).mask
    assert mask[30, 40:70].all() and not mask[60].any()


# --- Real tissue


def test_tissue_of_real_slides_is_detected(shared_data):
    def mask_of(name: str) -> np.ndarray:
        with Image.open(shared_data / f"wsi/png/{name}.png") as picture:
            return find_tissue(np.asarray(picture.convert("RGB"))).mask

    assert mask_of("tcga-lung-rgb").mean() > 0.7  # open alveoli are background
    faint = mask_of("almost-white-2")
    assert faint[:30, 330:390].mean() > 0.9
    assert faint[256:, :256].mean() < 0.2
    fat = mask_of("tcga-red-pen")
    assert fat[200:, 250:].mean() > 0.9
    assert fat[50:70, 200:230].mean() < 0.1  # the inside of a fat cell


# --- Fractions of tiles


def brute_force(mask: np.ndarray, downsample: tuple[float, float], grid: Grid) -> np.ndarray:
    """Sum, for each tile, its overlap with each pixel of the mask."""

    def overlaps(start: float, end: float, n: int) -> np.ndarray:
        edges = np.arange(n + 1)
        return (np.minimum(edges[1:], end) - np.maximum(edges[:-1], start)).clip(0)

    across, down = downsample
    width, height = grid.extent / across, grid.extent / down
    fractions = []
    for x, y in grid.corners().tolist():
        rows = overlaps(y / down, y / down + height, mask.shape[0])
        columns = overlaps(x / across, x / across + width, mask.shape[1])
        fractions.append(rows @ mask @ columns / (width * height))
    return np.array(fractions)


@given(
    mask=npst.arrays(bool, npst.array_shapes(min_dims=2, max_dims=2, max_side=30)),
    across=st.floats(0.7, 9),
    down=st.floats(0.7, 9),
    extent=st.floats(0.6, 60),
    columns=st.integers(1, 6),
    rows=st.integers(1, 6),
)
def test_mask_fractions_equal_summed_areas(mask, across, down, extent, columns, rows):
    grid = make_grid(16, extent, columns, rows)
    fractions = mask_fractions(mask, (across, down), grid)
    assert fractions.shape == (columns * rows,)
    np.testing.assert_allclose(fractions, brute_force(mask, (across, down), grid), atol=1e-9)


def test_mask_fractions_are_exact_for_aligned_tiles():
    mask = np.zeros((8, 12), bool)
    mask[:3, :4] = True  # three quarters of the first tile
    mask[4:, 4:8] = True  # all of the fifth
    fractions = mask_fractions(mask, (16, 16), make_grid(64, 64.0, 3, 2))
    assert fractions.tolist() == [0.75, 0, 0, 0, 1, 0]


def test_mask_fractions_need_little_memory():
    mask = np.ones((2000, 2000), bool)
    tracemalloc.start()
    try:
        fractions = mask_fractions(mask, (16, 16), make_grid(224, 224.0, 142, 142))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fractions.min() == 1
    assert peak < 12 * mask.size


def test_glass_around_a_small_piece_is_not_a_hole():
    """On a small slide, all glass can be smaller than the largest hole that is filled."""
    overview = np.full((60, 60, 3), 240, np.uint8)
    overview[20:30, 20:30] = (200, 120, 160)
    result = find_tissue(overview, gap=4, hole=100_000)
    assert result.mask.sum() == 100
