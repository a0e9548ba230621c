"""The state of a slide has figures of how its tiles look."""

import numpy as np
import pytest
from outcomes import Outcome, assert_tiled

from gigatile.slides.appearance import AppearanceSum, colour_of
from gigatile.slides.quality import measure

OFF = dict.fromkeys(("blur", "uniform", "clipped", "stripes"), "off")


def expected(outcome: Outcome) -> dict[str, float]:
    """Return the figures from the decoded tiles and from the table of tiles."""
    colours = np.mean([record.pixels().mean((0, 1)) for record in outcome.tiles], axis=0)
    kept = outcome.index[outcome.index.dropped == ""]
    assert len(kept) == len(outcome.tiles)
    measures = {name: float(kept[name].mean()) for name in ("contrast", "sharpness")}
    return dict(zip(("red", "green", "blue"), colours.tolist(), strict=True)) | measures


@pytest.mark.parametrize("stain", ["off", "macenko"])
def test_figures_are_those_of_the_tiles_that_are_kept(pyramid, tile, stain):
    outcome = tile(pyramid, size=128, stain=stain)
    appearance = assert_tiled(outcome)["appearance"]
    # JPEG changes a mean by less than a grey level.
    assert appearance == pytest.approx(expected(outcome), abs=0.7)
    assert list(appearance) == ["red", "green", "blue", "contrast", "sharpness"]


def test_dropped_tiles_do_not_count(pyramid, tile):
    whole = tile(pyramid, size=128)
    limit = float(whole.index.contrast.median())
    part = tile(pyramid, size=128, folder="part", uniform="drop", uniform_limit=limit)
    state = assert_tiled(part)
    assert 0 < state["tiles"]["dropped"]["uniform"] < len(whole.tiles)
    assert state["appearance"] == pytest.approx(expected(part), abs=0.7)
    assert state["appearance"]["contrast"] > assert_tiled(whole)["appearance"]["contrast"]


def test_tiles_that_are_not_decoded_have_no_figures(pyramid, tile):
    outcome = tile(pyramid, size=256, encoding="lossless", **OFF)
    assert "appearance" not in assert_tiled(outcome)
    outcome = tile(pyramid, size=256, encoding="lossless", folder="decoded")
    assert assert_tiled(outcome)["appearance"] == pytest.approx(expected(outcome), abs=0.01)


def test_larger_regions_have_more_weight():
    rng = np.random.default_rng(1)
    small, large = (rng.integers(0, high, (32, 32, 3), np.uint8) for high in (100, 255))
    both = AppearanceSum()
    for pixels, weight in ((small, 1), (large, 3)):
        both.add(colour_of(pixels), measure(pixels), weight)
    repeated = AppearanceSum()
    for pixels in (small, large, large, large):
        repeated.add(colour_of(pixels), measure(pixels))
    assert both.figures() == repeated.figures()
    assert AppearanceSum().figures() == {}
