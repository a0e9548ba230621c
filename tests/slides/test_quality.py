import csv
import io

import cv2
import numpy as np
import openslide
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from known_slides import glass, tissue
from PIL import Image

from gigatile.slides.quality import INKS, fold_mask, ink_masks, measure

pytestmark = pytest.mark.filterwarnings("error")

# Fraction of red, green and blue light that passes through the ink of a pen.
PENS = {
    "red": [(0.80, 0.07, 0.08), (0.86, 0.16, 0.20)],
    "green": [(0.08, 0.43, 0.24), (0.16, 0.55, 0.35)],
    "blue": [(0.12, 0.24, 0.60), (0.16, 0.35, 0.75), (0.12, 0.15, 0.45)],
    "black": [(0.08, 0.08, 0.10), (0.16, 0.15, 0.16)],
}
EVERY_PEN = [(ink, passes) for ink in INKS for passes in PENS[ink]]
# Colours of overviews of real H&E slides: pale, dark, blood, nuclei, a fold.
STAINED = [(225, 190, 215), (190, 110, 160), (150, 60, 130), (221, 49, 111), (80, 45, 110)]


def stroke(ground: np.ndarray, passes: tuple[float, ...], opacity: float) -> np.ndarray:
    return np.rint(ground * (1 - opacity) + opacity * 255 * np.array(passes)).astype(np.uint8)


def ink_fractions(overview: np.ndarray) -> dict[str, float]:
    return {ink: float(mask.mean()) for ink, mask in ink_masks(overview).items()}


def texture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return stained tissue in focus: structures of several pixels, without preferred direction."""
    grain = np.random.default_rng(seed).normal(0, 1, (height, width)).astype(np.float32)
    cells = 90 * cv2.GaussianBlur(grain, (0, 0), 1) + 100 * cv2.GaussianBlur(grain, (0, 0), 5)
    return (np.array([190, 130, 170]) + cells[..., None]).clip(0, 255).astype(np.uint8)


def blurred(tile: np.ndarray, sigma: float) -> np.ndarray:
    return cv2.GaussianBlur(tile, (0, 0), sigma) if sigma else tile


def compressed(tile: np.ndarray, quality: int | None) -> np.ndarray:
    if quality is None:
        return tile
    file = io.BytesIO()
    Image.fromarray(tile).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def striped(tile: np.ndarray, levels: int, every: int = 16) -> np.ndarray:
    """Return the tile with brighter bands of rows, repeated `every` rows."""
    bands = np.arange(len(tile)) % every < every // 2
    return (tile + levels * bands[:, None, None]).clip(0, 255).astype(np.uint8)


def transposed(tile: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(tile.transpose(1, 0, 2))


# --- Pen


@pytest.mark.parametrize("opacity", [0.85, 0.95])
@pytest.mark.parametrize("ground", [glass, tissue])
@pytest.mark.parametrize(("ink", "passes"), EVERY_PEN)
def test_ink_is_detected_by_colour(ink, passes, ground, opacity):
    overview = ground(64, 80)
    overview[20:40, 10:70] = stroke(overview[20:40, 10:70], passes, opacity)
    masks = ink_masks(overview)
    assert tuple(masks) == INKS
    expected = np.zeros((64, 80), bool)
    expected[20:40, 10:70] = True
    assert np.array_equal(masks.pop(ink), expected)
    assert not any(mask.any() for mask in masks.values())


@pytest.mark.parametrize(("ink", "passes"), EVERY_PEN)
def test_ink_fraction_grows_with_the_ink(ink, passes):
    fractions = []
    for opacity in (0, 0.3, 0.6, 0.8, 1):
        overview = tissue(60, 60)
        overview[:30] = stroke(overview[:30], passes, opacity)
        fractions.append(ink_fractions(overview)[ink])
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 0.5)


@pytest.mark.parametrize(
    "ground", [(243, 243, 243), (255, 255, 255), (205, 225, 235), (240, 215, 165)]
)
def test_tinted_glass_has_no_ink_and_no_fold(ground):
    overview = np.full((50, 50, 3), ground, np.uint8)
    assert not any(ink_fractions(overview).values())
    assert not fold_mask(overview, np.ones((50, 50), bool)).any()
    assert not fold_mask(overview, np.zeros((50, 50), bool)).any()


@pytest.mark.parametrize("colour", STAINED)
def test_stained_tissue_is_not_ink(colour):
    noise = np.random.default_rng(3).integers(-8, 9, (60, 60, 3))
    assert not any(ink_fractions((np.array(colour) + noise).astype(np.uint8)).values())


@pytest.mark.parametrize("colour", [(80, 70, 40), (40, 70, 80), (80, 40, 70)])
def test_dark_colours_are_not_black_ink(colour):
    assert ink_fractions(np.full((9, 9, 3), colour, np.uint8))["black"] == 0  # melanin, for one


@given(npst.arrays(np.uint8, (6, 7, 3), elements=st.integers(0, 255)))
def test_pixels_have_at_most_one_ink(overview):
    assert sum(mask.astype(int) for mask in ink_masks(overview).values()).max() <= 1
    assert ink_fractions(overview * 0) == dict.fromkeys(INKS, 0) | {"black": 1}  # a frame


# --- Folds


def folded(overview: np.ndarray, rows: slice) -> np.ndarray:
    """Fold other tissue over some rows: the transmittances of both layers are multiplied."""
    transmittance = overview / 243.0
    transmittance[rows] *= np.roll(transmittance, (7, 11), (0, 1))[rows]
    return np.rint(transmittance * 243).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("dark", [1, 1.8])
def test_folds_are_detected_and_dark_tissue_is_not(dark):
    """A fold is darker than the rest of the slide, however dark the stain is."""
    stained = np.rint(243 * (tissue(128, 128) / 243.0) ** dark).clip(0, 255).astype(np.uint8)
    everywhere = np.ones((128, 128), bool)
    assert not fold_mask(stained, everywhere).any()
    folds = fold_mask(folded(stained, slice(50, 66)), everywhere)
    assert folds[51:65].mean() > 0.98
    assert not folds[:48].any()
    assert not folds[68:].any()


def test_fold_mask_is_tissue_and_grows_with_the_fold():
    on_tissue = np.ones((128, 128), bool)
    on_tissue[:, :40] = False
    sizes = [
        fold_mask(folded(tissue(128, 128), slice(40, 40 + wide)), on_tissue).sum()
        for wide in (0, 8, 16, 24)
    ]
    assert sizes == sorted(set(sizes))
    assert not (fold_mask(folded(tissue(128, 128), slice(40, 64)), on_tissue) & ~on_tissue).any()
    assert not fold_mask(tissue(128, 128), np.zeros((128, 128), bool)).any()


# --- Pixels of a tile


def test_sharpness_falls_with_blur_but_not_with_pale_stain():
    tile = texture(256, 256)
    falling = [measure(blurred(tile, sigma)).sharpness for sigma in (0, 0.5, 1, 2, 4)]
    assert falling == sorted(falling)[::-1]
    pale = np.rint(243 - (243 - tile.astype(float)) * 0.6).astype(np.uint8)
    assert measure(pale).sharpness == pytest.approx(falling[0], rel=0.1)
    smeared = cv2.GaussianBlur(tile, (9, 1), 2)  # motion blur along one axis
    across, down = measure(smeared).sharpness, measure(transposed(smeared)).sharpness
    assert across == pytest.approx(down, rel=0.02)
    assert across < 0.9 * falling[0]


def test_sharpness_is_0_for_gradients_and_1_for_noise():
    slope = np.arange(224).clip(20, 210).astype(np.uint8)[None, :, None].repeat(64, 0).repeat(3, 2)
    assert measure(slope).sharpness == measure(transposed(slope)).sharpness == 0
    noise = np.random.default_rng(1).integers(0, 256, (256, 256, 1)).astype(np.uint8).repeat(3, 2)
    assert measure(noise).sharpness == pytest.approx(1, abs=0.02)
    assert measure(243 + noise % 3).sharpness < 0.14


def test_contrast_is_the_standard_deviation_of_grey():
    tile = np.full((64, 64, 3), 100, np.uint8)
    assert measure(tile).contrast == 0
    tile[:, :32] = 140
    assert measure(tile).contrast == pytest.approx(20)


@pytest.mark.parametrize(("level", "lost"), [(0, 1), (5, 1), (6, 0), (249, 0), (250, 1), (255, 1)])
def test_clipped_is_the_fraction_at_both_ends(level, lost):
    tile = texture(64, 64).clip(20, 230)
    assert measure(tile).clipped == 0
    tile[:, :16] = level
    assert measure(tile).clipped == pytest.approx(0.25 * lost)


@pytest.mark.parametrize("turn", [np.asarray, transposed])
@pytest.mark.parametrize("levels", [-10, -3, 3, 10])
def test_seam_is_measured_by_its_height(levels, turn):
    flat = np.full((224, 230, 3), 150, np.uint8)
    assert measure(turn(striped(flat, levels, 250))).stripes == abs(levels)


@pytest.mark.parametrize("turn", [np.asarray, transposed])
def test_stripes_on_tissue_grow_with_their_height(turn):
    stripes = [
        measure(turn(striped(texture(256, 256), levels))).stripes for levels in (0, 3, 6, 10)
    ]
    assert stripes == sorted(stripes)
    assert stripes[0] < 0.2 < 1 < stripes[-1]


def test_partial_lines_are_not_stripes():
    tile = np.full((224, 224, 3), 150, np.uint8)
    tile[100:, :200] = 100  # an edge of tissue
    assert measure(tile).stripes == 0
    slope = np.repeat(np.arange(224, dtype=np.uint8)[:, None, None], 224, 1).repeat(3, 2)
    assert measure(slope).stripes == 0
    assert measure(transposed(slope)).stripes == 0


@pytest.mark.parametrize("size", [(16, 16), (17, 31), (16, 300), (300, 16), (97, 224)])
@pytest.mark.parametrize("level", [0, 128, 255])
def test_uniform_and_small_tiles_are_measured(level, size):
    flat = np.full((*size, 3), level, np.uint8)
    with np.errstate(all="raise"):
        assert measure(flat) == (0, 0, float(level != 128), 0)
        assert np.isfinite(measure(tissue(*size))).all()
        for overview in (flat, flat[:1, :1]):
            ink_masks(overview)
            assert not fold_mask(overview, np.ones(overview.shape[:2], bool)).any()


def test_measures_do_not_depend_on_memory_layout():
    slide = texture(300, 300)
    tile = slide[17:241, 33:257]
    tile.flags.writeable = False
    numbers = measure(tile)
    assert numbers == measure(tile.copy())
    assert {type(number) for number in numbers} == {float}


# --- Real slides


def picture(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.fixture(scope="module")
def lung(shared_data) -> list[np.ndarray]:
    with (shared_data / "lung/tiles.tsv").open() as file:
        names = [row["file"] for row in csv.DictReader(file, delimiter="\t")]
    return [picture(shared_data / "lung" / name) for name in names]


def test_real_red_pen_is_detected(shared_data):
    overview = picture(shared_data / "wsi/png/tcga-red-pen.png")
    masks = ink_masks(overview)
    assert masks["red"][150:350, 40:120].mean() > 0.95
    assert masks["red"][230:, 260:].mean() < 0.002
    assert not any(masks[ink].any() for ink in ("green", "blue", "black"))


def test_nearly_white_tile_has_low_contrast(shared_data):
    pale = picture(shared_data / "wsi/png/almost-white-2.png")
    assert measure(pale[200:]).contrast < 8
    assert max(ink_fractions(pale).values()) < 1e-3
    assert measure(picture(shared_data / "wsi/png/tcga-lung-rgb.png")).contrast > 40


def test_real_slide_has_no_pen_and_few_folds(shared_data):
    with openslide.OpenSlide(shared_data / "wsi/cmu-1-small-region.svs") as slide:
        pixels = np.asarray(slide.read_region((0, 0), 0, slide.dimensions).convert("RGB"))
    overview = cv2.resize(pixels, None, fx=1 / 14, fy=1 / 14, interpolation=cv2.INTER_AREA)
    assert max(ink_fractions(overview).values()) < 1e-3  # traces of the dye that marks a margin
    on_tissue = np.ptp(overview, axis=2) > 25
    folds = fold_mask(overview, on_tissue)
    assert 0 < folds[on_tissue].mean() < 0.02
    tile = np.ascontiguousarray(pixels[1200:1712, 900:1412])
    assert measure(tile).sharpness > 0.3 > 0.14 > measure(blurred(tile, 2)).sharpness
    assert measure(tile).stripes == 0


def test_second_layer_of_real_tissue_is_a_fold(shared_data):
    overview = picture(shared_data / "wsi/png/tcga-red-pen.png")[150:, 240:]
    on_tissue = np.ptp(overview, axis=2) > 25
    assert fold_mask(overview, on_tissue).mean() < 0.01
    folds = fold_mask(folded(overview, slice(100, 116)), on_tissue)
    assert folds[102:114].mean() > 0.4
    assert np.delete(folds, slice(96, 120), axis=0).mean() < 0.01


def test_good_real_tissue_is_rarely_marked(lung):
    numbers = np.array([measure(tile) for tile in lung])
    sharpness, contrast, clipped, stripes = numbers.T
    assert len(lung) == 1484
    assert (sharpness < 0.14).mean() == 0
    assert (contrast < 8).mean() == 0
    assert clipped.max() < 0.001
    assert (stripes > 1).mean() == 0
    small = [cv2.resize(tile, (16, 16), interpolation=cv2.INTER_AREA) for tile in lung]
    assert max(max(ink_fractions(tile).values()) for tile in small) < 0.05
    slide = np.concatenate(
        [np.concatenate(small[row * 38 : row * 38 + 38], 1) for row in range(38)]
    )
    folds = fold_mask(slide, np.ptp(slide, axis=2) > 25)
    tile_fractions = folds.reshape(38, 16, 38, 16).mean((1, 3))
    assert (tile_fractions > 0.1).mean() < 0.01


@pytest.mark.parametrize("quality", [None, 50, 90])
def test_blurred_real_tissue_is_detected(lung, quality):
    numbers = np.array(
        [
            [measure(compressed(blurred(tile, sigma), quality)).sharpness for sigma in (0, 1, 2, 4)]
            for tile in lung[::12]
        ]
    )
    assert (np.diff(numbers, axis=1) < 0).all()
    assert numbers[:, 0].min() > 0.14 > numbers[:, 2].max()


def test_stripes_on_real_tissue_are_detected(lung):
    stripes = [measure(compressed(striped(tile, 5), 80)).stripes for tile in lung[::12]]
    assert (np.array(stripes) > 1).mean() > 0.9
