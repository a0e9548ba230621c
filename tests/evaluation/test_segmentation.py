"""Figures of segmentations equal the reference's, and those of empty regions are as stated.

The reference is the package surface-distance, on real cases and on made ones.
"""

import json
from itertools import combinations

import nibabel
import numpy as np
import pandas as pd
import pytest
import surface_distance
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import (
    COLUMNS,
    FIGURES,
    evaluate_cases,
    read_cases,
    score_case,
    write_cases,
)
from gigatile.evaluation.surfaces import hausdorff95, surface
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.volumes import VolumeSettings

# The reference calls SciPy by names that are old.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BRATS = VolumeSettings(labels="brats2017")
LABELS = (BRATS.label_values, BRATS.region_labels)
SEGMENTATIONS = (
    "pred_hnfnetv1-20",
    "pred_isen-20",
    "pred_sanet0-20",
    "pred_scan-20",
    "pred_yixinmpl-20",
    "seg_fused_mav",
)


def score(truth, predicted, spacing=(1, 1, 1), settings=BRATS):
    rows = score_case(truth, predicted, spacing, settings.label_values, settings.region_labels)
    return {row["region"]: row for row in rows}


def reference_hd95(truth, predicted, spacing, percent=95):
    distances = surface_distance.compute_surface_distances(truth, predicted, spacing)
    return surface_distance.compute_robust_hausdorff(distances, percent)


def assert_equals_reference(truth, predicted, spacing, settings):
    scores = score(truth, predicted, spacing, settings)
    assert list(scores) == list(settings.region_labels)
    for region, labels in settings.region_labels.items():
        values = [settings.label_values[label] for label in labels]
        t, p = np.isin(truth, values), np.isin(predicted, values)
        row = scores[region]
        assert t.any() and p.any() and row["empty"] == ""
        dice = surface_distance.compute_dice_coefficient(t, p)
        assert row["dice"] == pytest.approx(dice, abs=1e-12)
        assert row["hd95_mm"] == pytest.approx(reference_hd95(t, p, spacing), abs=1e-9)
        box = ndimage.find_objects((t | p).view(np.uint8))[0]
        (_, fp), (fn, tp) = confusion_matrix(t[box].ravel(), p[box].ravel())
        assert row["sensitivity"] == pytest.approx(tp / (tp + fn), abs=1e-12)
        assert row["specificity"] == pytest.approx(1 - fp / (t.size - tp - fn), abs=1e-12)
        millilitres = np.prod(spacing) / 1000
        assert row["truth_ml"] == pytest.approx(t.sum() * millilitres)
        assert row["predicted_ml"] == pytest.approx(p.sum() * millilitres)


@pytest.fixture(scope="module")
def segmentations(shared_data):
    folder = shared_data / "nifti/tcga_brats_space/TCGA-FG-6692"
    return {
        name: np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj) for name in SEGMENTATIONS
    }


@pytest.mark.parametrize("pair", list(combinations(SEGMENTATIONS, 2)), ids=" and ".join)
def test_six_segmentations_of_a_patient_against_each_other(segmentations, pair):
    truth, predicted = (segmentations[name] for name in pair)
    assert_equals_reference(truth, predicted, (1, 1, 1), BRATS)


def test_some_figures_of_real_segmentations(segmentations):
    """As the reference gave them when this was written, so that both cannot go astray at once."""
    scores = score(segmentations["seg_fused_mav"], segmentations["pred_isen-20"])
    expected = {
        "whole_tumour": (0.913949, 7.280110),
        "tumour_core": (0.966924, 1.0),
        "enhancing_tumour": (0.945933, 1.0),
    }
    for region, (dice, hd95) in expected.items():
        assert scores[region]["dice"] == pytest.approx(dice, abs=1e-6)
        assert scores[region]["hd95_mm"] == pytest.approx(hd95, abs=1e-6)


@pytest.mark.parametrize("case", ["pat0001", "pat0002", "pat0003"])
def test_real_labels_against_moved_and_eroded_ones(shared_data, case):
    path = shared_data / f"nifti/brats_2013_{case}_1/OTMultiClass.nii.gz"
    file = nibabel.load(path)
    truth = file.get_fdata().round().astype(np.uint8)
    present = {f"label_{value}": int(value) for value in np.unique(truth) if value}
    settings = VolumeSettings(
        labels=present, regions={"all": tuple(present)} | {n: n for n in present}
    )
    moved = np.roll(truth, (3, -2, 1), axis=(0, 1, 2))
    kept = ndimage.binary_erosion(truth > 0)
    eroded = np.where(kept, truth, 0).astype(np.uint8)
    # Spacings that nobody mistakes for another axis's, beside the file's own.
    for spacing in (file.header.get_zooms(), (0.7, 1.9, 5.0)):
        spacing = tuple(map(float, spacing))
        assert_equals_reference(truth, moved, spacing, settings)
        assert_equals_reference(eroded, truth, spacing, settings)


@given(st.integers(0, 2**32 - 1), st.tuples(*[st.floats(0.2, 6)] * 3), st.floats(0.02, 0.98))
def test_any_small_regions_equal_the_reference(seed, spacing, share):
    """Random voxels have every neighbourhood that there is, at the volume's edge too."""
    random = np.random.default_rng(seed)
    shape = random.integers(1, 9, 3)
    truth, predicted = (random.random(shape) < share for _ in range(2))
    truth.flat[0] = predicted.flat[-1] = True
    distance = hausdorff95(truth, predicted, np.array(spacing))
    # Just below 95 %: where pieces are equal, that share can be met to the last bit.
    assert distance == pytest.approx(reference_hd95(truth, predicted, spacing, 95 - 1e-7), abs=1e-9)


@pytest.mark.parametrize("spacing", [(1, 1, 1), (0.5, 1.3, 4)])
def test_each_of_the_pieces_that_a_surface_has(spacing):
    for number in range(1, 256):
        region = np.array([number >> bit & 1 for bit in range(8)], bool).reshape(2, 2, 2)
        corners, areas = surface(region, np.array(spacing))
        expected = surface_distance.compute_surface_distances(region, region, spacing)
        assert sorted(areas) == pytest.approx(sorted(expected["surfel_areas_gt"]))
        middle = np.flatnonzero((corners == spacing).all(axis=1))
        assert len(middle) == (number != 255)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_distances_are_in_millimetres_along_each_axis(axis):
    spacing = np.array([0.5, 2, 3])
    truth, predicted = np.zeros((2, 12, 12, 12), bool)
    truth[5, 5, 5] = True
    predicted[tuple(np.array([5, 5, 5]) + 4 * np.eye(3, dtype=int)[axis])] = True
    assert hausdorff95(truth, predicted, spacing) == pytest.approx(4 * spacing[axis])


def test_five_percent_of_the_surface_may_lie_anywhere():
    truth = np.zeros((90, 40, 40), bool)
    truth[5:35, 5:35, 5:35] = True
    predicted = truth.copy()
    predicted[80, 20, 20] = True  # 8 corners of thousands
    assert hausdorff95(truth, predicted, np.ones(3)) == 0
    predicted[60:80, 10:30, 10:30] = True
    assert hausdorff95(truth, predicted, np.ones(3)) > 25
    assert hausdorff95(predicted, truth, np.ones(3)) > 25


def test_exactly_95_percent_is_enough():
    """Nineteen of twenty equal pieces: no rounding may decide."""
    truth, predicted = np.zeros((2, 80, 4, 12), bool)
    truth[2::4, 1, 1] = predicted[2::4, 1, 1] = True
    predicted[2, 1, 1], predicted[2, 1, 8] = False, True
    for spacing in (np.ones(3), np.array([0.3, 0.7, 1.1])):
        assert hausdorff95(truth, predicted, spacing) == 0
    predicted[6, 1, 1], predicted[6, 1, 8] = False, True
    assert hausdorff95(truth, predicted, np.ones(3)) > 4


def test_a_case_without_fault():
    truth = np.zeros((9, 8, 7), np.uint8)
    truth[2:6, 2:6, 2:6] = 2
    truth[3:5, 3:5, 3:5] = 4
    for row in score(truth, truth, (1, 2, 3)).values():
        figures = [row[figure] for figure in FIGURES]
        assert figures == [1, 0, 1, 1] and row["empty"] == ""
    assert score(truth, truth, (1, 2, 3))["whole_tumour"]["truth_ml"] == pytest.approx(64 * 6e-3)
    assert score(truth, truth, (1, 2, 3))["tumour_core"]["truth_ml"] == pytest.approx(8 * 6e-3)


def test_sensitivity_and_specificity_are_not_each_other():
    truth, predicted = np.zeros((2, 10, 10, 10), np.uint8)
    truth[:4] = 4
    predicted[1:6] = 4
    row = score(truth, predicted)["enhancing_tumour"]
    assert row["sensitivity"] == pytest.approx(3 / 4)
    assert row["specificity"] == pytest.approx(4 / 6)
    assert row["dice"] == pytest.approx(2 * 3 / 9)
    assert (row["truth_ml"], row["predicted_ml"]) == pytest.approx((0.4, 0.5))


SHAPE = (240, 240, 155)


def volume(*values):
    labels = np.zeros(SHAPE, np.uint8)
    for index, value in enumerate(values):
        labels[100 + 10 * index : 105 + 10 * index, 100:110, 70:80] = value
    return labels


@pytest.mark.parametrize(
    ("truth", "predicted", "dice", "hd95", "sensitivity", "specificity", "empty"),
    [
        ((1, 2), (1, 2), 1, 0, None, 1, "both"),
        ((1, 2, 4), (1, 2), 0, 373.128664, 0, 1, "prediction"),
        ((1, 2), (1, 2, 4), 0, 373.128664, None, 1 - 500 / 8_928_000, "truth"),
    ],
)
def test_an_empty_region(truth, predicted, dice, hd95, sensitivity, specificity, empty):
    row = score(volume(*truth), volume(*predicted))["enhancing_tumour"]
    assert row["dice"] == dice
    assert row["hd95_mm"] == pytest.approx(hd95, abs=1e-6)
    assert row["sensitivity"] == sensitivity
    assert row["specificity"] == pytest.approx(specificity, abs=1e-12)
    assert row["empty"] == empty
    assert row["truth_ml"] == (0.5 if 4 in truth else 0)
    assert row["predicted_ml"] == (0.5 if 4 in predicted else 0)


def test_the_diagonal_is_in_millimetres():
    truth, predicted = np.zeros((2, 30, 20, 10), np.uint8)
    predicted[1, 1, 1] = 2
    row = score(truth, predicted, (1, 2, 4.5))["whole_tumour"]
    assert row["hd95_mm"] == pytest.approx((30**2 + 40**2 + 45**2) ** 0.5)


def test_a_region_that_fills_the_volume_has_no_specificity():
    truth = np.full((4, 4, 4), 4, np.uint8)
    predicted = truth.copy()
    predicted[0] = 0
    row = score(truth, predicted)["whole_tumour"]
    assert row["specificity"] is None
    assert row["sensitivity"] == pytest.approx(0.75)


def test_what_cannot_be_scored_is_refused():
    good = np.zeros((4, 5, 6), np.uint8)
    strange = good.copy()
    strange[0, 0, :3] = 3
    strange[1, 1, 1] = 200
    with pytest.raises(UserError, match=r"truth has the value\(s\) 3 \(3 voxels\), 200 \(1 voxels"):
        score(strange, good)
    with pytest.raises(UserError, match=r"the prediction has .*1 necrotic_core, 2 edema, 4 enhanc"):
        score(good, strange)
    with pytest.raises(UserError, match=r"\(4, 5, 6\) and the prediction \(5, 4, 6\)"):
        score(good, good.reshape(5, 4, 6))
    with pytest.raises(UserError, match=r"truth has .* float32; must be \(x, y, z\) uint8"):
        score(good.astype(np.float32), good)
    with pytest.raises(UserError, match=r"prediction has the shape \(4, 5, 6, 1\)"):
        score(good, good[..., None])
    for spacing in ((1, 1), (1, 0, 1), (1, 1, float("nan")), (1, -1, 1)):
        with pytest.raises(UserError, match="three numbers of mm above 0"):
            score(good, good, spacing)


# The table of cases, and figures of the cohort.

REGIONS = ("whole", "core")
FEWEST = EvaluationSettings(resamples=1000)


def cohort(patients=20, per_patient=2, seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        skill = random.uniform(0.3, 0.9)
        for case in range(per_patient):
            for region in REGIONS:
                lacking = region == "core" and patient % 4 == 0
                rows.append(
                    {
                        "case": f"c{patient}-{case}",
                        "patient": f"p{patient}",
                        "region": region,
                        "dice": skill + random.uniform(-0.1, 0.1),
                        "hd95_mm": 20 * (1 - skill) + random.random(),
                        "sensitivity": None if lacking else skill,
                        "specificity": 0.9 + 0.1 * skill,
                        "diagonal_mm": 373.0,
                        "truth_ml": 0.0 if lacking else 12.5,
                        "predicted_ml": 11.0,
                        "empty": "truth" if lacking else "",
                    }
                )
    return rows


def test_cases_are_written_and_read(tmp_path):
    path = tmp_path / "cases.tsv"
    rows = cohort()
    rows[0]["empty"] = "both"
    write_cases(rows, path)
    lines = path.read_text().splitlines()
    assert lines[0] == "\t".join(COLUMNS)
    assert lines[0].startswith("case\tpatient\tregion\tdice\thd95_mm\tsensitivity\tspecificity\t")
    assert len(lines) == 1 + len(rows) and lines[2].split("\t")[5] == ""
    table_read = read_cases(path)
    assert list(table_read.columns) == list(COLUMNS)
    for name in COLUMNS:
        expected = pd.DataFrame(rows)[name]
        if name in ("case", "patient", "region", "empty"):
            assert table_read[name].tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(table_read[name], expected.astype(float), atol=5e-7)
    settings = FEWEST
    of_file = evaluate_cases(table_read, REGIONS, settings)
    of_rows = evaluate_cases(pd.DataFrame(rows), REGIONS, settings)
    for region in REGIONS:
        for figure in FIGURES:
            first, other = (each[figure]["per_region"][region] for each in (of_file, of_rows))
            assert first == pytest.approx(other, abs=2e-6)


def test_what_score_case_gives_can_be_written(tmp_path):
    row = {"case": "c", "patient": "p"}
    empty = np.zeros((4, 4, 4), np.uint8)
    rows = [row | scores for scores in score_case(empty, empty, (1, 1, 1), *LABELS)]
    write_cases(rows, tmp_path / "cases.tsv")
    line = (tmp_path / "cases.tsv").read_text().splitlines()[1]
    numbers = "1.000000\t0.000000\t\t1.000000\t6.928203\t0.000000\t0.000000"
    assert line == f"c\tp\twhole_tumour\t{numbers}\tboth"


def test_a_damaged_table_is_told(tmp_path):
    path = tmp_path / "cases.tsv"
    write_cases(cohort(2), path)
    path.write_text(path.read_text().replace("12.500000", "twelve"))
    with pytest.raises(UserError, match=r"cases\.tsv: column truth_ml .*twelve.*delete"):
        read_cases(path)


def test_means_are_over_the_cases_that_have_the_figure():
    table = pd.DataFrame(cohort())
    metrics = evaluate_cases(table, REGIONS, FEWEST)
    assert (metrics["n"], metrics["patients"], metrics["regions"]) == (40, 20, list(REGIONS))
    intervals = metrics["intervals"]
    assert (metrics["schema"], intervals["resamples"], intervals["seed"]) == (2, 1000, 1)
    for figure in FIGURES:
        means = table.assign(value=table[figure].astype(float)).groupby("region")["value"]
        for region in REGIONS:
            interval = metrics[figure]["per_region"][region]
            assert interval["value"] == pytest.approx(means.mean()[region], abs=1e-6)
            assert interval["n"] == means.count()[region]
            assert (
                interval["low"] < interval["value"] < interval["high"]
                and interval["no_interval"] is None
            )
        mean = metrics[figure]["mean"]
        assert mean["value"] == pytest.approx(means.mean().mean(), abs=1e-6)
    assert metrics["sensitivity"]["per_region"]["core"]["n"] == 30
    assert metrics["sensitivity"]["mean"]["n"] == 30
    assert metrics["dice"]["mean"]["n"] == 40
    assert metrics["empty"] == {
        "whole": {"truth": 0, "prediction": 0, "both": 0},
        "core": {"truth": 10, "prediction": 0, "both": 0},
    }


def test_an_interval_weighs_patients_and_one_that_nobody_has_seen():
    """The same as drawing weights in a loop; an unseen patient has none or all of the core."""
    table = pd.DataFrame(cohort(patients=12, per_patient=3))
    metrics = evaluate_cases(table, REGIONS, EvaluationSettings(resamples=10_000))
    random = np.random.default_rng(1)
    core = table[table["region"] == "core"].assign(
        sensitivity=lambda t: t["sensitivity"].astype(float)
    )
    of_patient = [cases["sensitivity"].to_numpy() for _, cases in core.groupby("patient")]
    defined = np.array([interval.mean() for interval in of_patient if not np.isnan(interval).any()])
    assert len(defined) == 9
    means = [
        [np.average([*defined, end], weights=random.exponential(size=10)) for end in (0, 1)]
        for _ in range(4000)
    ]
    interval = metrics["sensitivity"]["per_region"]["core"]
    worst, best = np.array(means).T
    assert interval["patients"] == 9 and interval["n"] == 27
    assert interval["low"] == pytest.approx(np.quantile(worst, 0.025), abs=0.02)
    assert interval["high"] == pytest.approx(np.quantile(best, 0.975), abs=0.02)


def test_a_distance_is_as_long_at_worst_as_the_largest_volume():
    """Regions that were always found at 5 mm may be missed in the next patient."""
    rows = [row | {"hd95_mm": 5.0} for row in cohort(patients=5, per_patient=1)]
    rows[0]["diagonal_mm"] = 400.0
    metrics = evaluate_cases(pd.DataFrame(rows), REGIONS, EvaluationSettings(resamples=10_000))
    mean = metrics["hd95_mm"]["mean"]
    exact = binomtest(5, 5).proportion_ci(method="exact").low
    assert mean["low"] == pytest.approx(5 * exact, abs=0.2)
    assert mean["high"] == pytest.approx(5 * exact + 400 * (1 - exact), abs=4)


def test_too_few_patients_have_no_interval_and_the_reason():
    metrics = evaluate_cases(pd.DataFrame(cohort(patients=6, per_patient=3)), REGIONS, FEWEST)
    assert metrics["dice"]["mean"]["low"] is not None
    why = "fewer than 5 patients (4)"
    for interval in (metrics["sensitivity"]["mean"], metrics["sensitivity"]["per_region"]["core"]):
        assert (interval["low"], interval["high"], interval["no_interval"]) == (None, None, why)
        assert (interval["patients"], interval["n"]) == (4, 12) and interval["value"] is not None
    assert metrics["sensitivity"]["per_region"]["whole"]["low"] is not None


def test_more_cases_of_the_same_patients_tell_nothing_new():
    rows = cohort(per_patient=1)
    copies = [row | {"case": f"{row['case']}-{copy}"} for row in rows for copy in range(9)]
    settings = FEWEST
    single, nine = (
        evaluate_cases(pd.DataFrame(each), REGIONS, settings)["dice"]["mean"]
        for each in (rows, copies)
    )
    assert nine["high"] - nine["low"] == pytest.approx(single["high"] - single["low"], rel=1e-3)


def test_the_seed_alone_decides_and_not_the_order_of_rows():
    table = pd.DataFrame(cohort())
    few = FEWEST
    expected = evaluate_cases(table, REGIONS, few)
    assert evaluate_cases(table.sample(frac=1, random_state=3), REGIONS, few) == expected
    other = evaluate_cases(table, REGIONS, EvaluationSettings(resamples=1000, seed=2))
    assert other["dice"]["mean"]["value"] == expected["dice"]["mean"]["value"]
    assert other["dice"]["mean"]["low"] != expected["dice"]["mean"]["low"]


def test_a_figure_that_no_case_has_is_null():
    table = pd.DataFrame(cohort(patients=1, per_patient=1))
    metrics = evaluate_cases(table, REGIONS, FEWEST)
    assert "NaN" not in json.dumps(metrics, allow_nan=False)
    nothing = dict.fromkeys(("value", "low", "high")) | {"patients": 0, "n": 0}
    nothing["no_interval"] = "the figure is not defined"
    assert metrics["sensitivity"]["per_region"]["core"] == nothing
    assert metrics["sensitivity"]["mean"] == nothing
    whole = metrics["sensitivity"]["per_region"]["whole"]
    assert whole["value"] is not None and whole["n"] == 1
    assert whole["no_interval"] == "fewer than 5 patients (1)"


def test_a_cohort_without_cases_has_no_figures():
    table = pd.DataFrame(columns=list(COLUMNS))
    metrics = evaluate_cases(table, REGIONS, FEWEST)
    assert json.dumps(metrics, allow_nan=False)
    assert metrics["n"] == metrics["patients"] == 0
    assert metrics["dice"]["mean"]["value"] is None


def test_a_case_without_a_row_of_each_region_is_refused():
    rows = cohort(3)
    for faulty in (rows[1:], [*rows, rows[0]], [*rows[:-1], rows[-1] | {"region": "other"}]):
        with pytest.raises(
            UserError, match=r"case c\S+: found rows .*must be one each of whole, core"
        ):
            evaluate_cases(pd.DataFrame(faulty), REGIONS, FEWEST)


def reference_of_voxels(truth, predicted, spacing):
    """As MONAI 1.5 computes it, by maps of distances; on whole volumes."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (truth, predicted)]
    maps = [ndimage.distance_transform_edt(~mask, sampling=spacing) for mask in edges]
    return max(np.percentile(maps[1][edges[0]], 95), np.percentile(maps[0][edges[1]], 95))


@pytest.mark.parametrize("spacing", [(1, 1, 1), (0.7, 1.9, 5.0)])
def test_edge_voxels_that_count_alike_give_monais_distance(spacing):
    rng = np.random.default_rng(4)
    for number in range(4):
        smooth = ndimage.gaussian_filter(rng.normal(size=(2, 24, 20, 22)), (0, 2, 2, 2))
        truth, predicted = smooth > 0.02 * number
        (truth, predicted) = (truth.view(np.uint8), predicted.view(np.uint8))
        (row,) = score_case(truth, predicted, spacing, {"a": 1}, {"a": ("a",)}, hd95="voxels")
        expected = reference_of_voxels(truth > 0, predicted > 0, spacing)
        assert row["hd95_mm"] == pytest.approx(expected, abs=1e-9)
        (other,) = score_case(truth, predicted, spacing, {"a": 1}, {"a": ("a",)})
        assert other["hd95_mm"] == pytest.approx(
            reference_hd95(truth > 0, predicted > 0, spacing), abs=1e-9
        )
