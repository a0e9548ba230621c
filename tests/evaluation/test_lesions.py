"""Lesion-wise metrics equal their definition, written directly, on real and random cases."""

from itertools import combinations

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from gigatile.evaluation.lesions import LesionScores, score_lesions
from gigatile.evaluation.segmentation import score_case
from gigatile.evaluation.surfaces import HAUSDORFF95
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.volumes import VolumeSettings

FARTHEST = 374.0
TOUCHING = np.ones((3, 3, 3))
STEP = ndimage.generate_binary_structure(3, 2)


def by_definition(reference, predicted, spacing, dilation, smallest) -> LesionScores:
    """Score whole volumes lesion by lesion, as the challenge describes it."""
    grow = {"structure": STEP, "iterations": dilation}
    merged, lesions = ndimage.label(ndimage.binary_dilation(reference, **grow), TOUCHING)
    parts, count = ndimage.label(predicted, TOUCHING)
    dice, distances, reaching, missed = [], [], set(), 0
    for number in range(1, lesions + 1):
        lesion = (merged == number) & reference
        reached = set(parts[ndimage.binary_dilation(lesion, **grow)]) - {0}
        reaching |= reached
        if lesion.sum() * np.prod(spacing) <= smallest:
            continue
        part = np.isin(parts, list(reached))
        missed += not reached
        dice.append(2 * (lesion & part).sum() / (lesion.sum() + part.sum()))
        distance = FARTHEST
        if reached:
            distance = HAUSDORFF95["surface"](lesion, part, np.array(spacing))
        distances.append(distance)
    extra = count - len(reaching)
    scored = len(dice) + extra
    return LesionScores(
        dice=sum(dice) / scored if scored else 1,
        hd95_mm=(sum(distances) + extra * FARTHEST) / scored if scored else 0,
        lesions=len(dice),
        missed=missed,
        false_positives=extra,
    )


def assert_as_defined(reference, predicted, spacing, dilation, smallest) -> LesionScores:
    ours = score_lesions(
        reference,
        predicted,
        np.array(spacing),
        dilation,
        smallest,
        FARTHEST,
        HAUSDORFF95["surface"],
    )
    expected = by_definition(reference, predicted, spacing, dilation, smallest)
    assert (ours.lesions, ours.missed, ours.false_positives) == (
        *(expected.lesions, expected.missed, expected.false_positives),
    )
    assert ours.dice == pytest.approx(expected.dice, abs=1e-12)
    assert ours.hd95_mm == pytest.approx(expected.hd95_mm, abs=1e-9)
    return ours


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.floats(0.3, 4)] * 3),
    st.integers(1, 3),
    st.sampled_from([0.0, 2.0, 10.0, 50.0]),
    st.floats(0.002, 0.05),
)
def test_random_lesions(seed, spacing, dilation, smallest, share):
    """Few voxels far apart, some of them as blocks, also at the edges of the volume."""
    random = np.random.default_rng(seed)
    reference, predicted = random.random((2, *random.integers(1, 22, 3))) < share
    reference, predicted = (
        ndimage.binary_dilation(region, STEP, int(times)) if times else region
        for region, times in zip((reference, predicted), random.integers(0, 2, 2), strict=True)
    )
    assert_as_defined(reference, predicted, spacing, dilation, smallest)


@pytest.mark.parametrize("names", list(combinations(("pred_isen-20", "seg_fused_mav"), 2)))
@pytest.mark.parametrize(("dilation", "smallest"), [(3, 50), (1, 2)])
def test_real_segmentations(shared_data, names, dilation, smallest):
    folder = shared_data / "nifti/tcga_brats_space/TCGA-FG-6692"
    images = [np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj) for name in names]
    regions = VolumeSettings(labels="brats2017")
    evaluate = EvaluationSettings(lesion_dilation=dilation, lesion_mm3=smallest)
    scores = score_case(
        *images,
        (1, 1, 1),
        regions.label_values,
        regions.region_labels,
        settings=evaluate,
    )
    for region, labels in regions.region_labels.items():
        inside = [
            np.isin(image, [regions.label_values[name] for name in labels]) for image in images
        ]
        (box,) = ndimage.find_objects((inside[0] | inside[1]).view(np.uint8))
        box = tuple(slice(max(0, part.start - 4), part.stop + 4) for part in box)
        expected = assert_as_defined(*(part[box] for part in inside), (1, 1, 1), dilation, smallest)
        row = scores[region]
        assert row.lesion_dice == pytest.approx(expected.dice)
        assert (row.lesions, row.missed_lesions, row.false_positive_lesions) == (
            *(expected.lesions, expected.missed, expected.false_positives),
        )
        # Where all lesions are reached, no distance depends on that of a missed one.
        if not (expected.missed or expected.false_positives):
            assert row.lesion_hd95_mm == pytest.approx(expected.hd95_mm)


def drawn(*boxes: tuple[int, int]) -> np.ndarray:
    """Return cubes along a line: first and last voxel of each, in a volume of 40 × 9 × 9."""
    volume = np.zeros((40, 9, 9), bool)
    for first, last in boxes:
        volume[first : last + 1, 2:6, 2:6] = True
    return volume


def line_scores(reference, predicted, dilation=3, smallest=0.0) -> LesionScores:
    return assert_as_defined(reference, predicted, (1, 1, 1), dilation, smallest)


def test_missed_and_false_positive_lesions():
    two = drawn((0, 3), (20, 23))
    assert line_scores(two, two) == LesionScores(1, 0, 2, 0, 0)
    half = line_scores(two, drawn((0, 3)))
    assert half == LesionScores(0.5, FARTHEST / 2, 2, 1, 0)
    more = line_scores(drawn((0, 3)), drawn((0, 3), (20, 21), (30, 31)))
    assert (more.lesions, more.missed, more.false_positives) == (1, 0, 2)
    assert more.dice == pytest.approx(1 / 3) and more.hd95_mm == pytest.approx(FARTHEST * 2 / 3)
    nothing = drawn()
    assert line_scores(nothing, nothing) == LesionScores(1, 0, 0, 0, 0)
    assert line_scores(nothing, two) == LesionScores(0, FARTHEST, 0, 0, 2)
    assert line_scores(two, nothing) == LesionScores(0, FARTHEST, 2, 2, 0)


def test_near_parts_are_one_lesion():
    near = drawn((0, 3), (10, 13))  # six voxels apart: both grow by three
    assert line_scores(near, near).lesions == 1
    assert line_scores(near, near, dilation=2).lesions == 2
    # The lesion is not larger for it: half of it is predicted.
    assert line_scores(near, drawn((0, 3))).dice == pytest.approx(2 / 3)
    # A part that reaches the grown lesion belongs to it, without an overlap.
    assert line_scores(drawn((0, 3)), drawn((0, 3), (6, 7))).false_positives == 0
    assert line_scores(drawn((0, 3)), drawn((0, 3), (7, 8))).false_positives == 1


def test_small_lesions_do_not_count():
    reference = drawn((0, 3), (20, 20))  # 64 and 16 mm³
    assert line_scores(reference, drawn((0, 3)), smallest=16) == LesionScores(1, 0, 1, 0, 0)
    assert line_scores(reference, drawn((0, 3)), smallest=15).missed == 1
    # What is predicted there is not extra.
    assert line_scores(reference, reference, smallest=16) == LesionScores(1, 0, 1, 0, 0)


def test_without_dilation_parts_have_to_overlap():
    scores = score_lesions(
        drawn((0, 3)),
        drawn((4, 5)),
        np.ones(3),
        0,
        0,
        FARTHEST,
        HAUSDORFF95["surface"],
    )
    assert scores == LesionScores(0, FARTHEST, 1, 1, 1)
