"""From scores of regions to the most likely labels."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.label_decision import Decision
from gigatile.volumes.targets import Targets

LABELS = {"edema": 1, "core": 4, "rim": 2}
BRATS = {"whole": ("edema", "core", "rim"), "inner": ("core", "rim"), "bright": ("rim",)}
REGIONS = (
    BRATS,
    {"rim": ("rim",), "core": ("core",), "edema": ("edema",)},
    {"whole": ("rim", "core")},  # no region has edema, so edema becomes background
    {"first": ("edema", "core"), "second": ("core", "rim"), "third": ("core",)},
)
shares = st.floats(0, 1, width=32)


def decision(regions: dict, labels: dict | None = None) -> Decision:
    volumes = VolumeSettings(labels=labels or LABELS, regions=regions)
    return Decision(list(regions), "sigmoid", volumes)


def likelihood(value: int, scores, regions, labels) -> float:
    """Return the product of p of the label's regions, and 1 - p of the other regions."""
    (name,) = [name for name, number in labels.items() if number == value] or [None]
    product = 1.0
    for score, region in zip(scores.tolist(), regions.values(), strict=True):
        p = min(max(score, 1e-6), 1 - 1e-6)
        product *= p if name in region else 1 - p
    return product


@given(regions=st.sampled_from(REGIONS), scores=st.lists(shares, min_size=3, max_size=3))
def test_voxels_get_the_most_likely_label(regions, scores):
    scores = np.array(scores[: len(regions)], np.float32)
    decided = int(decision(regions)(scores))
    likelihoods = {value: likelihood(value, scores, regions, LABELS) for value in (0, 1, 2, 4)}
    assert likelihoods[decided] >= max(likelihoods.values()) * (1 - 1e-3)
    # Of labels in the same regions, the lowest value is chosen, background first.
    alike = [v for v in likelihoods if in_regions(v, regions) == in_regions(decided, regions)]
    assert decided == min(alike)


def in_regions(value: int, regions) -> tuple[bool, ...]:
    names = {number: name for name, number in LABELS.items()}
    return tuple(names.get(value) in region for region in regions.values())


def test_regions_have_scores_above_one_half():
    """For scores that do not contradict each other."""
    steps = (0.0, 0.01, 0.3, 0.4999, 0.5, 0.5001, 0.7, 0.99, 1.0)
    for regions in REGIONS[:2]:
        values = {in_regions(value, regions): value for value in (0, 1, 2, 4)}
        scores = np.array(list(itertools.product(steps, repeat=3)), np.float32)
        decided = decision(regions)(scores)
        consistent = 0
        for score, value in zip(scores, decided, strict=True):
            above = tuple((score > 0.5).tolist())
            if above in values:
                consistent += 1
                assert value == values[above], score
        assert consistent > 200


def test_more_certain_score_resolves_a_contradiction():
    decide = decision(BRATS)
    scores = [[0.45, 0.3, 0.9], [0.01, 0.3, 0.9], [0.9, 0.2, 0.99], [0.4, 0.99, 0.99]]
    decided = decide(np.array(scores, np.float32))
    # .45*.3*.9 > .55*.7*.1; .01*.3*.9 < .99*.7*.1; .9*.2*.99 > .9*.8*.01; .4*.99*.99
    np.testing.assert_array_equal(decided, [2, 0, 2, 2])


def test_any_shape_is_accepted_and_file_values_returned():
    scores = np.random.default_rng(1).random((3, 5, 4, 3)).astype(np.float32)
    decide = decision(BRATS)
    decided = decide(scores)
    assert (decided.shape, decided.dtype) == ((3, 5, 4), np.uint8)
    assert set(np.unique(decided)) == {0, 1, 2, 4}
    for index in np.ndindex(decided.shape):
        assert decide(scores[index]) == decided[index]
    np.testing.assert_array_equal(decide(scores[:, ::2]), decided[:, ::2])
    assert decide(np.zeros((0, 4, 3), np.float32)).shape == (0, 4)


def test_certain_scores_stay_finite():
    with np.errstate(all="raise"):
        decided = decision(BRATS)(
            np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1], [1, 1, 0]], np.float32)
        )
    np.testing.assert_array_equal(decided[[0, 1, 3]], [2, 0, 4])
    assert decided[2] in (1, 2), "both are equally likely"


def test_softmax_selects_the_highest_score():
    volumes = VolumeSettings(labels=LABELS, regions="labels")
    targets = Targets(volumes, PatchSettings(targets="labels"))
    decide = Decision(targets.names, targets.activation, volumes)
    scores = np.random.default_rng(1).dirichlet(np.ones(4), (4, 5)).astype(np.float32)
    np.testing.assert_array_equal(decide(scores), np.array([0, 1, 2, 4])[scores.argmax(axis=-1)])
    assert decide(scores).dtype == np.uint8


# --- Training targets


@pytest.mark.parametrize("regions", REGIONS)
def test_region_targets_follow_their_labels(regions):
    volumes = VolumeSettings(labels=LABELS, regions=regions)
    targets = Targets(volumes, PatchSettings())
    assert (targets.names, targets.outputs) == (list(regions), len(regions))
    assert (targets.activation, targets.table.shape) == ("sigmoid", (256, len(regions)))
    for number, names in enumerate(regions.values()):
        inside = np.flatnonzero(targets.table[:, number])
        assert set(inside) == {LABELS[name] for name in names}
    assert set(np.unique(targets.table)) == {0, 1}
    # The targets of a label decide for that label, or for another label in the same regions.
    decided = Decision(targets.names, targets.activation, volumes)(targets.table[[0, 1, 2, 4]])
    for value, label in zip((0, 1, 2, 4), decided.tolist(), strict=True):
        assert in_regions(label, regions) == in_regions(value, regions)
    assert len(set(decided.tolist())) == len(np.unique(targets.table[[0, 1, 2, 4]], axis=0))


def test_label_targets_follow_their_values():
    volumes = VolumeSettings(labels=LABELS, regions=BRATS)
    targets = Targets(volumes, PatchSettings(targets="labels"))
    assert targets.names == ["edema", "rim", "core"]
    assert (targets.outputs, targets.activation) == (4, "softmax")
    np.testing.assert_array_equal(targets.table.sum(axis=1), 1)
    assert targets.table[[0, 1, 2, 4]].argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert targets.table[[3, 200]].argmax(axis=1).tolist() == [0, 0], "values that are no label"
