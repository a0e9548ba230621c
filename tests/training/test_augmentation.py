"""Random changes of tiles, compared with their definitions."""

import cv2
import numpy as np
import pytest
from skimage.color import hed2rgb, rgb2hed
from trained import weights

from gigatile.demo.cohort import COHORT
from gigatile.demo.tissue import draw_slide
from gigatile.records.tile import decode_jpeg, encode_jpeg
from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training import augmentation
from gigatile.training.augmentation import CHANGES, Augmentation, Draws
from gigatile.training.batches import batches
from gigatile.training.sample_order import Epoch
from gigatile.views import apply_view

SIDE = 96
# A value of each setting that switches its change on.
STRONG = {
    "scale": 0.3,
    "stain": 0.2,
    "brightness": 0.3,
    "contrast": 0.3,
    "saturation": 0.5,
    "hue": 30,
    "blur": 3,
    "noise": 20,
    "jpeg_quality": 20,
    "cutout": 0.5,
}


@pytest.fixture(scope="module")
def tile() -> np.ndarray:
    pixels = draw_slide(COHORT[0])
    middle = pixels.shape[0] // 2, pixels.shape[1] // 2
    return np.ascontiguousarray(pixels[middle[0] :, middle[1] :][:SIDE, :SIDE])


class Given(Draws):
    """Numbers at a share of their ranges, in place of random ones."""

    def __init__(self, *shares: float) -> None:
        self._numbers = iter(shares)


def changed(tile, name, *shares, **settings) -> np.ndarray:
    """Return a changed tile; each random number is at a share of its range."""
    return getattr(augmentation, name)(tile, AugmentationSettings(**settings), Given(*shares))


def test_every_setting_switches_a_change_on(tile):
    keys = [key for _, keys in CHANGES for key in keys]
    # Mixup changes no tile alone.
    assert [*keys, "mixup"] == list(AugmentationSettings.model_fields)
    assert keys == list(STRONG)
    assert not Augmentation(AugmentationSettings())
    before = tile.copy()
    for key, value in STRONG.items():
        change = Augmentation(AugmentationSettings(**{key: value}))
        results = [change(tile, seed) for seed in range(4)]
        for result in results:
            assert result.shape == tile.shape and result.dtype == np.uint8
            assert result.flags.c_contiguous, key
        assert len({result.tobytes() for result in results}) > 1, key
        np.testing.assert_array_equal(change(tile, 3), results[3])
    np.testing.assert_array_equal(tile, before)


@pytest.mark.parametrize("name", [change.__name__ for change, _ in CHANGES])
def test_the_middle_of_all_ranges_changes_nothing(tile, name):
    middles = [0.0 if name in ("blur", "add_noise", "erase") else 0.5] * 32
    kept = decode_jpeg(encode_jpeg(tile, 60)) if name == "compress" else tile
    result = changed(tile, name, *middles, **(STRONG | {"jpeg_quality": 20}))
    assert np.abs(result.astype(int) - kept).max() <= (1 if name == "change_stain" else 0)


@pytest.mark.parametrize("seed", range(5))
def test_stain_is_that_of_scikit_image(tile, seed):
    random = np.random.default_rng(seed)
    shares = random.uniform(0, 1, 6)
    result = changed(tile, "change_stain", *shares, stain=0.2)
    factors, shifts = 0.8 + 0.4 * shares[:3], -0.2 + 0.4 * shares[3:]
    # Their stains are of unit length, too, and their logarithm is natural, over that of 1e-6.
    unit = np.log(10) / -np.log(1e-6)
    hed = rgb2hed(np.maximum(tile, 0.5) / 255)
    dense = hed.min(axis=2) > 0  # elsewhere they clip
    expected = 255 * hed2rgb(hed * factors + shifts * unit)
    # A difference of densities beyond the range is clipped here at the end only.
    inside = dense & (expected.min(axis=2) > 1) & (expected.max(axis=2) < 254)
    assert inside.mean() > 0.01
    np.testing.assert_allclose(result[inside], expected[inside], atol=1.5)


def test_colour_is_that_of_pillow(tile):
    from PIL import Image, ImageEnhance

    image = Image.fromarray(tile)
    brighter = changed(tile, "change_colour", 1, 0.5, 0.5, 0.5, brightness=0.2)
    np.testing.assert_allclose(brighter, ImageEnhance.Brightness(image).enhance(1.2), atol=1)
    for share, factor in ((0, 0.7), (1, 1.3)):
        contrast = changed(tile, "change_colour", 0.5, share, 0.5, 0.5, contrast=0.3)
        np.testing.assert_allclose(contrast, ImageEnhance.Contrast(image).enhance(factor), atol=2)
        saturation = changed(tile, "change_colour", 0.5, 0.5, share, 0.5, saturation=0.3)
        np.testing.assert_allclose(saturation, ImageEnhance.Color(image).enhance(factor), atol=2)


def test_hue_keeps_grey_and_luminance(tile):
    grey = np.full((8, 8, 3), 130, np.uint8)
    np.testing.assert_array_equal(changed(grey, "change_colour", 0.5, 0.5, 0.5, 1, hue=90), grey)
    pastel = 100 + tile // 5
    turned = changed(pastel, "change_colour", 0.5, 0.5, 0.5, 1, hue=60)
    weights = [0.299, 0.587, 0.114]
    np.testing.assert_allclose(turned @ weights, pastel @ weights, atol=1.5)
    back = changed(turned, "change_colour", 0.5, 0.5, 0.5, 0, hue=60)
    np.testing.assert_allclose(back, pastel, atol=2)


def test_scale_keeps_the_centre():
    image = np.zeros((97, 97, 3), np.uint8)
    image[40:57, 40:57] = 255
    larger = changed(image, "change_scale", 1, scale=0.5)
    assert abs((larger[48, :, 0] > 127).sum() - 17 * 1.5) <= 1
    np.testing.assert_array_equal(larger, larger[::-1, ::-1])
    smaller = changed(image, "change_scale", 0, scale=0.5)
    assert abs((smaller[48, 30:67, 0] > 127).sum() - 8.5) <= 1


def test_blur_has_its_standard_deviation():
    image = np.zeros((65, 65, 3), np.uint8)
    image[:, 32] = 255
    line = changed(image, "blur", 0.5, blur=4)[32, :, 0].astype(float)
    spread = (line * (np.arange(65) - 32) ** 2).sum() / line.sum()
    assert np.sqrt(spread) == pytest.approx(2, rel=0.05)


def test_noise_has_its_standard_deviation():
    image = np.full((224, 224, 3), 128, np.uint8)
    noisy = changed(image, "add_noise", 0.5, 0.3, noise=20).astype(float) - 128
    assert noisy.std() == pytest.approx(10, rel=0.02) and abs(noisy.mean()) < 0.2
    dark = changed(np.zeros_like(image), "add_noise", 0.5, 0.3, noise=20)
    assert dark.max() < 80  # a negative value becomes 0


def test_cutout_erases_a_square(tile):
    for y, x in ((0.5, 0.5), (0, 0), (0.999, 0.2)):
        result = changed(tile, "erase", 1, y, x, cutout=0.5)
        different = (result != tile).any(axis=2)
        rows, columns = np.flatnonzero(different.any(axis=1)), np.flatnonzero(different.any(axis=0))
        assert len(rows) <= SIDE // 2 and len(columns) <= SIDE // 2
        inside = result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        np.testing.assert_allclose(inside.std(axis=(0, 1)), 0, atol=1e-9)
        np.testing.assert_allclose(inside[0, 0], cv2.mean(tile)[:3], atol=0.5)


def test_switching_a_change_on_does_not_draw_others_anew(tile):
    stain = {"stain": 0.2}
    blurred = Augmentation(AugmentationSettings(**stain, blur=2))(tile, 7)
    plain = Augmentation(AugmentationSettings(**stain))(tile, 7)
    blur = Augmentation(AugmentationSettings(blur=2))
    np.testing.assert_array_equal(blurred, blur(plain, 7))


def test_draws_are_uniform_and_differ_between_seeds():
    first = np.array([Draws(seed).between(0, 1) for seed in range(4000)])
    second = [draws.between(0, 1) for draws in map(Draws, range(4000)) if draws.between(0, 1) >= 0]
    counts = np.histogram(first, 10, (0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 99.9 %, 9 degrees
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


@pytest.mark.long
def test_statistics_are_those_of_unchanged_tiles(launcher, manifest, tmp_path):
    """Of batch normalisation, in the saved model. The weights hardly move."""
    recipe = {"model": "resnet18", "epochs": 1, "limit_batches": 1, "learning_rate": 1e-12}
    launcher.train(manifest, tmp_path / "plain", **recipe)
    launcher.train(manifest, tmp_path / "changed", **recipe, augmentation={"noise": 100})
    for value, expected in zip(
        *(weights(tmp_path / name / "segments") for name in ("changed", "plain")), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def test_tiles_of_training_are_augmented_and_turned(manifest):
    settings = AugmentationSettings(stain=0.2, noise=10)
    task = TileClassification(TileSettings(), settings)
    reader = task.reader(manifest, "train")
    epoch = Epoch(task.sampling(reader, TrainSettings()), 3, reader.classes_of)
    (batch, *_), (unchanged, *_) = (
        list(batches(task.source(reader, augmented), epoch, 20, 0, 1, 2))
        for augmented in (True, False)
    )
    samples = epoch.samples(0, 20)
    change = Augmentation(settings)
    for number, (record, view, seed) in enumerate(
        zip(samples.records.tolist(), samples.views.tolist(), samples.seeds.tolist(), strict=True)
    ):
        upright = reader[record].pixels()
        np.testing.assert_array_equal(unchanged.inputs[number], apply_view(upright, view))
        expected = apply_view(change(upright, seed), view)
        np.testing.assert_array_equal(batch.inputs[number], expected)
        assert (expected != unchanged.inputs[number]).any()
