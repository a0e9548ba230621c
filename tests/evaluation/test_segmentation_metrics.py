"""Metrics of segmentations equal those of surface-distance, on real and on synthetic cases."""

from itertools import combinations

import nibabel
import numpy as np
import pytest
import surface_distance
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.metrics import confusion_matrix

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import METRICS, RegionScores, score_case
from gigatile.evaluation.surfaces import hausdorff95, surface
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.volumes import VolumeSettings

# surface-distance uses deprecated names of SciPy.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BRATS = VolumeSettings(labels="brats2017")
SEGMENTATIONS = (
    "pred_hnfnetv1-20",
    "pred_isen-20",
    "pred_sanet0-20",
    "pred_scan-20",
    "pred_yixinmpl-20",
    "seg_fused_mav",
)


def score(reference, predicted, spacing=(1, 1, 1), settings=BRATS) -> dict[str, RegionScores]:
    return score_case(reference, predicted, spacing, settings.label_values, settings.region_labels)


def expected_hd95(reference, predicted, spacing, percent=95):
    distances = surface_distance.compute_surface_distances(reference, predicted, spacing)
    return surface_distance.compute_robust_hausdorff(distances, percent)


def assert_equals_surface_distance(reference, predicted, spacing, settings):
    scores = score(reference, predicted, spacing, settings)
    assert list(scores) == list(settings.region_labels)
    for region, labels in settings.region_labels.items():
        values = [settings.label_values[label] for label in labels]
        r, p = np.isin(reference, values), np.isin(predicted, values)
        row = scores[region]
        assert r.any() and p.any() and row.empty == ""
        dice = surface_distance.compute_dice_coefficient(r, p)
        assert row.dice == pytest.approx(dice, abs=1e-12)
        assert row.hd95_mm == pytest.approx(expected_hd95(r, p, spacing), abs=1e-9)
        box = ndimage.find_objects((r | p).view(np.uint8))[0]
        (_, fp), (fn, tp) = confusion_matrix(r[box].ravel(), p[box].ravel())
        assert row.sensitivity == pytest.approx(tp / (tp + fn), abs=1e-12)
        assert row.specificity == pytest.approx(1 - fp / (r.size - tp - fn), abs=1e-12)
        millilitres = np.prod(spacing) / 1000
        assert row.truth_ml == pytest.approx(r.sum() * millilitres)
        assert row.predicted_ml == pytest.approx(p.sum() * millilitres)


@pytest.fixture(scope="module")
def segmentations(shared_data):
    folder = shared_data / "nifti/tcga_brats_space/TCGA-FG-6692"
    return {
        name: np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj) for name in SEGMENTATIONS
    }


@pytest.mark.parametrize("pair", list(combinations(SEGMENTATIONS, 2)), ids=" and ".join)
def test_segmentations_of_a_patient_against_each_other(segmentations, pair):
    reference, predicted = (segmentations[name] for name in pair)
    assert_equals_surface_distance(reference, predicted, (1, 1, 1), BRATS)


def test_known_metrics_of_real_segmentations(segmentations):
    """Values of surface-distance 0.1, in case a later version of it has the same fault as ours."""
    scores = score(segmentations["seg_fused_mav"], segmentations["pred_isen-20"])
    expected = {
        "whole_tumour": (0.913949, 7.280110),
        "tumour_core": (0.966924, 1.0),
        "enhancing_tumour": (0.945933, 1.0),
    }
    for region, (dice, hd95) in expected.items():
        assert scores[region].dice == pytest.approx(dice, abs=1e-6)
        assert scores[region].hd95_mm == pytest.approx(hd95, abs=1e-6)


@pytest.mark.parametrize(
    "case",
    ["pat0002", *(pytest.param(name, marks=pytest.mark.long) for name in ("pat0001", "pat0003"))],
)
def test_real_labels_against_shifted_and_eroded_copies(shared_data, case):
    path = shared_data / f"nifti/brats_2013_{case}_1/OTMultiClass.nii.gz"
    file = nibabel.load(path)
    reference = file.get_fdata().round().astype(np.uint8)
    present = {f"label_{value}": int(value) for value in np.unique(reference) if value}
    settings = VolumeSettings(
        labels=present, regions={"all": tuple(present)} | {n: n for n in present}
    )
    shifted = np.roll(reference, (3, -2, 1), axis=(0, 1, 2))
    kept = ndimage.binary_erosion(reference > 0)
    eroded = np.where(kept, reference, 0).astype(np.uint8)
    # The spacing of the file, and one that differs between the axes.
    for spacing in (file.header.get_zooms(), (0.7, 1.9, 5.0)):
        spacing = tuple(map(float, spacing))
        assert_equals_surface_distance(reference, shifted, spacing, settings)
        assert_equals_surface_distance(eroded, reference, spacing, settings)


@given(st.integers(0, 2**32 - 1), st.tuples(*[st.floats(0.2, 6)] * 3), st.floats(0.02, 0.98))
def test_distance_of_random_regions_equals_surface_distance(seed, spacing, share):
    """Random voxels have all possible neighbourhoods, also at the edge of the volume."""
    random = np.random.default_rng(seed)
    shape = random.integers(1, 9, 3)
    reference, predicted = (random.random(shape) < share for _ in range(2))
    reference.flat[0] = predicted.flat[-1] = True
    distance = hausdorff95(reference, predicted, np.array(spacing))
    # Just below 95 %, because equal pieces can add up to exactly 95 %.
    expected = expected_hd95(reference, predicted, spacing, 95 - 1e-7)
    assert distance == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("spacing", [(1, 1, 1), (0.5, 1.3, 4)])
def test_area_of_every_surface_element(spacing):
    for number in range(1, 256):
        region = np.array([number >> bit & 1 for bit in range(8)], bool).reshape(2, 2, 2)
        corners, areas = surface(region, np.array(spacing))
        expected = surface_distance.compute_surface_distances(region, region, spacing)
        assert sorted(areas) == pytest.approx(sorted(expected["surfel_areas_gt"]))
        centre = np.flatnonzero((corners == spacing).all(axis=1))
        assert len(centre) == (number != 255)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_distances_are_in_millimetres_along_each_axis(axis):
    spacing = np.array([0.5, 2, 3])
    reference, predicted = np.zeros((2, 12, 12, 12), bool)
    reference[5, 5, 5] = True
    predicted[tuple(np.array([5, 5, 5]) + 4 * np.eye(3, dtype=int)[axis])] = True
    assert hausdorff95(reference, predicted, spacing) == pytest.approx(4 * spacing[axis])


def test_five_percent_of_the_surface_are_ignored():
    reference = np.zeros((90, 40, 40), bool)
    reference[5:35, 5:35, 5:35] = True
    predicted = reference.copy()
    predicted[80, 20, 20] = True  # 8 corners of thousands
    assert hausdorff95(reference, predicted, np.ones(3)) == 0
    predicted[60:80, 10:30, 10:30] = True
    assert hausdorff95(reference, predicted, np.ones(3)) > 25
    assert hausdorff95(predicted, reference, np.ones(3)) > 25


def test_exactly_95_percent_of_the_area_suffice():
    """Nineteen of twenty equal pieces, for which rounding must not matter."""
    reference, predicted = np.zeros((2, 80, 4, 12), bool)
    reference[2::4, 1, 1] = predicted[2::4, 1, 1] = True
    predicted[2, 1, 1], predicted[2, 1, 8] = False, True
    for spacing in (np.ones(3), np.array([0.3, 0.7, 1.1])):
        assert hausdorff95(reference, predicted, spacing) == 0
    predicted[6, 1, 1], predicted[6, 1, 8] = False, True
    assert hausdorff95(reference, predicted, np.ones(3)) > 4


def test_perfect_segmentation():
    reference = np.zeros((9, 8, 7), np.uint8)
    reference[2:6, 2:6, 2:6] = 2
    reference[3:5, 3:5, 3:5] = 4
    for row in score(reference, reference, (1, 2, 3)).values():
        assert [getattr(row, metric) for metric in METRICS] == [1, 0, 1, 1, 1, 0]
        assert row.empty == ""
    assert score(reference, reference, (1, 2, 3))["whole_tumour"].truth_ml == pytest.approx(
        64 * 6e-3
    )
    assert score(reference, reference, (1, 2, 3))["tumour_core"].truth_ml == pytest.approx(8 * 6e-3)


def test_sensitivity_and_specificity_are_not_swapped():
    reference, predicted = np.zeros((2, 10, 10, 10), np.uint8)
    reference[:4] = 4
    predicted[1:6] = 4
    row = score(reference, predicted)["enhancing_tumour"]
    assert row.sensitivity == pytest.approx(3 / 4)
    assert row.specificity == pytest.approx(4 / 6)
    assert row.dice == pytest.approx(2 * 3 / 9)
    assert (row.truth_ml, row.predicted_ml) == pytest.approx((0.4, 0.5))


SHAPE = (240, 240, 155)


def volume(*values):
    labels = np.zeros(SHAPE, np.uint8)
    for index, value in enumerate(values):
        labels[100 + 10 * index : 105 + 10 * index, 100:110, 70:80] = value
    return labels


@pytest.mark.parametrize(
    ("reference", "predicted", "dice", "hd95", "sensitivity", "specificity", "empty"),
    [
        ((1, 2), (1, 2), 1, 0, None, 1, "both"),
        ((1, 2, 4), (1, 2), 0, 373.128664, 0, 1, "prediction"),
        ((1, 2), (1, 2, 4), 0, 373.128664, None, 1 - 500 / 8_928_000, "truth"),
    ],
)
def test_empty_region(reference, predicted, dice, hd95, sensitivity, specificity, empty):
    row = score(volume(*reference), volume(*predicted))["enhancing_tumour"]
    assert row.dice == dice
    assert row.hd95_mm == pytest.approx(hd95, abs=1e-6)
    assert row.sensitivity == sensitivity
    assert row.specificity == pytest.approx(specificity, abs=1e-12)
    assert row.empty == empty
    assert row.truth_ml == (0.5 if 4 in reference else 0)
    assert row.predicted_ml == (0.5 if 4 in predicted else 0)


def test_diagonal_is_in_millimetres():
    reference, predicted = np.zeros((2, 30, 20, 10), np.uint8)
    predicted[1, 1, 1] = 2
    row = score(reference, predicted, (1, 2, 4.5))["whole_tumour"]
    assert row.hd95_mm == pytest.approx((30**2 + 40**2 + 45**2) ** 0.5)


def test_region_that_fills_the_volume_has_no_specificity():
    reference = np.full((4, 4, 4), 4, np.uint8)
    predicted = reference.copy()
    predicted[0] = 0
    row = score(reference, predicted)["whole_tumour"]
    assert row.specificity is None
    assert row.sensitivity == pytest.approx(0.75)


def test_unsuitable_arrays_and_spacings_are_refused():
    good = np.zeros((4, 5, 6), np.uint8)
    undeclared = good.copy()
    undeclared[0, 0, :3] = 3
    undeclared[1, 1, 1] = 200
    message = r"reference has the undeclared value\(s\) 3 \(3 voxels\), 200 \(1 voxels"
    with pytest.raises(UserError, match=message):
        score(undeclared, good)
    with pytest.raises(UserError, match=r"the prediction has .*1 necrotic_core, 2 edema, 4 enhanc"):
        score(good, undeclared)
    with pytest.raises(UserError, match=r"\(4, 5, 6\) and the prediction \(5, 4, 6\)"):
        score(good, good.reshape(5, 4, 6))
    with pytest.raises(UserError, match=r"reference has .* float32; must be \(x, y, z\) uint8"):
        score(good.astype(np.float32), good)
    with pytest.raises(UserError, match=r"prediction has the shape \(4, 5, 6, 1\)"):
        score(good, good[..., None])
    for spacing in ((1, 1), (1, 0, 1), (1, 1, float("nan")), (1, -1, 1)):
        with pytest.raises(UserError, match="three numbers of mm above 0"):
            score(good, good, spacing)


def monai_hd95(reference, predicted, spacing):
    """Return the distance as MONAI 1.5 computes it, from distance maps of whole volumes."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (reference, predicted)]
    maps = [ndimage.distance_transform_edt(~mask, sampling=spacing) for mask in edges]
    return max(np.percentile(maps[1][edges[0]], 95), np.percentile(maps[0][edges[1]], 95))


@pytest.mark.parametrize("spacing", [(1, 1, 1), (0.7, 1.9, 5.0)])
def test_distance_of_voxels_equals_monais(spacing):
    rng = np.random.default_rng(4)
    for number in range(4):
        smooth = ndimage.gaussian_filter(rng.normal(size=(2, 24, 20, 22)), (0, 2, 2, 2))
        masks = smooth > 0.02 * number
        arguments = (*masks.view(np.uint8), spacing, {"a": 1}, {"a": ("a",)})
        for hd95, expected in (("voxels", monai_hd95), ("surface", expected_hd95)):
            distance = score_case(*arguments, settings=EvaluationSettings(hd95=hd95))["a"].hd95_mm
            assert distance == pytest.approx(expected(*masks, spacing), abs=1e-9)
