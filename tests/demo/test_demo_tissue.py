"""The content of demo slides: tissue on glass, and classes that differ in texture, not colour."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gigatile.demo.cohort import COHORT, LABELS, find_slide
from gigatile.demo.svs import shrink
from gigatile.demo.tissue import draw_slide, stain_of

TILE = 224
STAINED = 31  # saturation, of 255: glass is below, stained tissue above


@functools.lru_cache(maxsize=8)
def picture(slide: str) -> np.ndarray:
    return draw_slide(find_slide(slide))


def saturation(pixels: np.ndarray) -> np.ndarray:
    high = pixels.max(axis=2).astype(np.int64)
    return (high - pixels.min(axis=2)) * 255 // np.maximum(high, 1)


def tiles_of(pixels: np.ndarray) -> list[np.ndarray]:
    rows, columns = (side // TILE for side in pixels.shape[:2])
    corners = itertools.product(range(rows), range(columns))
    cut = [pixels[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE] for r, c in corners]
    return [tile for tile in cut if (saturation(tile) > STAINED).mean() > 0.5]


def texture(tile: np.ndarray) -> np.ndarray:
    """Return the strength, brightness and edge steepness of structures of three sizes.

    All are relative to the contrast of the tile, and so independent of its colour.
    """
    grey = shrink(tile, 2).astype(np.float32).mean(axis=2)
    grey = (grey - grey.mean()) / grey.std()
    features = []
    for sigma in (1.0, 2.0, 4.0):
        smooth = ndimage.gaussian_filter(grey, sigma)
        band = smooth - ndimage.gaussian_filter(grey, 2 * sigma)
        features += [band.std(), (band**3).mean() / band.std() ** 3]
        features += np.quantile(np.hypot(*np.gradient(smooth)), (0.3, 0.6, 0.9)).tolist()
    return np.array(features)


def test_slide_is_the_same_on_every_call() -> None:
    assert (draw_slide(find_slide("P03-1")) == picture("P03-1")).all()


@pytest.mark.parametrize("slide", ["P01-1", "P02-1", "P03-1", "P19-2"])
def test_tissue_covers_less_than_half_and_no_border(slide: str) -> None:
    stained = saturation(picture(slide)) > STAINED
    assert 0.28 < stained.mean() < 0.5
    border = np.concatenate([stained[:8].ravel(), stained[-8:].ravel(), *stained[:, [0, -1]]])
    assert not border.any()


def test_glass_is_bright_and_nearly_grey() -> None:
    glass = picture("P01-1")[:100, :100]
    assert glass.min() > 215
    assert saturation(glass).max() < 13
    assert glass.std() > 0.5


def test_glass_only_slide_has_no_stained_patch() -> None:
    pixels = picture("P11-2")
    assert saturation(pixels).max() < 13
    assert pixels.min() > 215


def test_pen_mark_is_on_tissue_and_glass() -> None:
    marked = picture("P19-1").astype(np.int64)
    clean = draw_slide(dataclasses.replace(find_slide("P19-1"), oddity="none")).astype(np.int64)
    ink = (clean - marked).max(axis=2) > 40
    assert 0.005 < ink.mean() < 0.10
    assert 0.2 < (saturation(clean[ink][None]) > STAINED).mean() < 0.95
    red, green, blue = marked[ink].T
    assert ((green > red) & (green > blue)).mean() > 0.6
    # No stained tissue is green.
    assert (clean[..., 1] > clean[..., 0] + 5).mean() < 0.001


@pytest.mark.parametrize("slide", ["P03-1", "P06-1", "P12-1", "P07-2", "P01-1"])
def test_tile_inside_the_tissue_is_mostly_stained(slide: str) -> None:
    stained = saturation(picture(slide)) > STAINED
    # Air spaces and lumens are inside the tissue, a hole of half a tile is not.
    inside = ndimage.binary_closing(stained[::8, ::8], iterations=7)
    shares = []
    for row, column in itertools.product(range(stained.shape[0] // TILE), range(13)):
        tile = np.s_[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        coarse = np.s_[row * 28 : (row + 1) * 28, column * 28 : (column + 1) * 28]
        if inside[coarse].all():
            shares.append(stained[tile].mean())
    assert len(shares) > 20
    assert min(shares) >= 0.6


def test_stain_depends_on_the_patient() -> None:
    def strength(slide: str) -> float:
        stain = stain_of(find_slide(slide))
        return float(stain.haematoxylin.sum() + stain.eosin.sum())

    # Two slides of one patient differ less than most patients do, whatever their labels.
    assert strength("P07-1") == pytest.approx(strength("P07-2"), rel=0.09)
    one_each = [strength(slide.slide) for slide in COHORT if slide.slide.endswith("-1")]
    assert np.std(one_each) / np.mean(one_each) > 0.08


@pytest.mark.long
def test_texture_separates_classes_and_colour_does_not() -> None:
    colours, textures, labels, halves = [], [], [], []
    for label in LABELS:
        usual = (each for each in COHORT if each.label == label and each.slide.endswith("-1"))
        for number, slide in enumerate(itertools.islice(usual, 5)):
            for tile in tiles_of(picture(slide.slide))[::2]:
                colours.append(tile.mean(axis=(0, 1)))
                textures.append(texture(tile))
                labels.append(label)
                halves.append(number % 2)
    labels, halves = np.array(labels), np.array(halves)

    def accuracy(model: object, features: list[np.ndarray]) -> float:
        """Train on one half of the patients and test on the other, both ways."""
        values, right = np.array(features), 0
        for half in (0, 1):
            model.fit(values[halves == half], labels[halves == half])
            right += (model.predict(values[halves != half]) == labels[halves != half]).sum()
        return right / len(labels)

    by_colour = accuracy(make_pipeline(StandardScaler(), NearestCentroid()), colours)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    by_texture = accuracy(logistic, textures)
    print(f"accuracy by colour {by_colour:.3f}, by texture {by_texture:.3f}")
    assert by_colour < 0.60
    assert by_texture > 0.85
