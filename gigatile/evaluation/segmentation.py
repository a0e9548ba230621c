"""Metrics of segmentations: for each case and region, and their means with 95 % intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    describe_intervals,
    draw_mean,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.lesions import score_lesions
from gigatile.evaluation.metrics_file import (
    CaseMetrics,
    Empty,
    Interval,
    Lesions,
    Mean,
    RegionMeans,
)
from gigatile.evaluation.surfaces import HAUSDORFF95
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import read_table, write_table

METRICS = ("dice", "hd95_mm", "sensitivity", "specificity", "lesion_dice", "lesion_hd95_mm")
# Where a region can be missing.
EMPTY = tuple(Empty.model_fields)


@dataclass(frozen=True)
class RegionScores:
    """The metrics of a region of a case; None: not defined.

    Attributes:
        diagonal_mm: of the whole volume.
        truth_ml, predicted_ml: volume of the region in the reference and in the prediction.
        lesion_dice, lesion_hd95_mm: lesion-wise; see `LesionScores`.
        lesions, missed_lesions, false_positive_lesions: numbers of lesions; see `LesionScores`.
        empty: where the region is missing: "truth" (the reference), "prediction", "both" or "".
    """

    dice: float | None
    hd95_mm: float | None
    sensitivity: float | None
    specificity: float | None
    diagonal_mm: float
    truth_ml: float
    predicted_ml: float
    lesion_dice: float | None
    lesion_hd95_mm: float | None
    lesions: int
    missed_lesions: int
    false_positive_lesions: int
    empty: str


@dataclass(frozen=True)
class CaseScores:
    """The scores of a case, by region."""

    case: str
    patient: str
    regions: Mapping[str, RegionScores]


_SCORES = tuple(score.name for score in fields(RegionScores))
COLUMNS = ("case", "patient", "region", *_SCORES)


def score_case(
    reference: np.ndarray,
    predicted: np.ndarray,
    spacing: Sequence[float],
    label_values: Mapping[str, int],
    region_labels: Mapping[str, Sequence[str]],
    voxel_ml: float | None = None,
    settings: EvaluationSettings | None = None,
) -> dict[str, RegionScores]:
    """Score the segmentation of a case, region by region.

    R are the voxels of the region in the reference, P those in the prediction. Dice is
    2|R∩P| / (|R|+|P|), sensitivity |R∩P| / |R|, and specificity the fraction of the voxels outside
    R that are outside P. `surfaces` defines the 95 % Hausdorff distance.

    Empty regions are scored as in the BraTS challenge:

    - Empty in both: Dice is 1, the distance 0.
    - Empty in one: Dice is 0, and the distance is the largest possible one, the diagonal of the
      volume in mm from outer corner to outer corner: 373.13 mm for the 240×240×155 voxels of 1 mm
      of the challenge, as in nnU-Net's copy of its ranking
      (https://github.com/MIC-DKFZ/nnUNet/blob/nnunetv1/nnunet/dataset_conversion/Task082_BraTS_2020.py).
      The code of the challenge of 2023 rounds it up to 374
      (https://github.com/rachitsaluja/BraTS-2023-Metrics).
    - Sensitivity is not defined if the region is empty in the reference, and specificity if it
      fills the reference: None. The challenge writes 0 or 1, which does not depend on the
      prediction.

    Args:
        reference: (x, y, z) uint8 label values, 0 background.
        predicted: the same for the predicted segmentation, on the same grid.
        spacing: (3,) mm between voxels along each axis of the arrays.
        label_values: the value of each label.
        region_labels: the labels of each region.
        voxel_ml: volume of a voxel; None: the product of the spacing, if the axes are not skewed.
        settings: definition of the distance and of a lesion; None: the defaults.

    Returns:
        The scores by region, in the order of `region_labels`.

    Raises:
        UserError: the arrays differ in shape or have a wrong type, the spacing is not valid, or a
            value is not declared.
    """
    settings = settings or EvaluationSettings()
    sides = _check_arrays(reference, predicted, spacing)
    counts = _count_pairs(reference, predicted)
    _check_values(counts, label_values)
    millilitres = float(sides.prod()) / 1000 if voxel_ml is None else voxel_ml
    diagonal = float(np.linalg.norm(sides * reference.shape))

    scores = {}
    for region, labels in region_labels.items():
        inside = np.zeros(256, bool)
        inside[[label_values[label] for label in labels]] = True
        both = int(counts[np.ix_(inside, inside)].sum())
        neither = int(counts[np.ix_(~inside, ~inside)].sum())
        in_reference, in_prediction = int(counts[inside].sum()), int(counts[:, inside].sum())
        outside = reference.size - in_reference

        hausdorff = HAUSDORFF95[settings.hd95]
        if in_reference and in_prediction:
            distance = hausdorff(inside[reference], inside[predicted], sides)
        else:
            distance = diagonal if in_reference or in_prediction else 0.0
        lesions = score_lesions(
            inside[reference],
            inside[predicted],
            sides,
            settings.lesion_dilation,
            settings.lesion_mm3,
            diagonal,
            hausdorff,
        )
        empty = (("", "prediction"), ("truth", "both"))[not in_reference][not in_prediction]
        scores[region] = RegionScores(
            dice=1.0 if empty == "both" else 2 * both / (in_reference + in_prediction),
            hd95_mm=distance,
            sensitivity=both / in_reference if in_reference else None,
            specificity=neither / outside if outside else None,
            diagonal_mm=diagonal,
            truth_ml=in_reference * millilitres,
            predicted_ml=in_prediction * millilitres,
            lesion_dice=lesions.dice,
            lesion_hd95_mm=lesions.hd95_mm,
            lesions=lesions.lesions,
            missed_lesions=lesions.missed,
            false_positive_lesions=lesions.false_positives,
            empty=empty,
        )
    return scores


def write_cases(cases: Iterable[CaseScores], path: Path) -> None:
    """Write cases.tsv: a row per case and region, numbers with six decimals, None as nothing."""
    write_table(
        path,
        COLUMNS,
        (
            [case.case, case.patient, region, *_cells(scores)]
            for case in cases
            for region, scores in case.regions.items()
        ),
    )


def _cells(scores: RegionScores) -> list[str | None]:
    values = (getattr(scores, name) for name in _SCORES)
    return [f"{value:.6f}" if isinstance(value, float) else value for value in values]


def read_cases(path: Path) -> pd.DataFrame:
    """Read cases.tsv: numbers as float64, NaN for metrics that are not defined.

    Raises:
        UserError: the file is missing or damaged.
    """
    table = pd.DataFrame(read_table(path, COLUMNS), columns=list(COLUMNS))
    for name in _SCORES[:-1]:
        try:
            table[name] = np.array([float(cell or "nan") for cell in table[name]], np.float64)
        except ValueError as error:
            raise UserError(
                f"{path}: column {name} has a cell that is not a number ({error}); delete this "
                "file and run again"
            ) from None
    return table


def evaluate_cases(
    table: pd.DataFrame,
    regions: Sequence[str],
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
) -> CaseMetrics:
    """Return the means over cases, each with a 95 % interval over patients (see `intervals`).

    For an unseen case, Dice, sensitivity and specificity are between 0 and 1, and the Hausdorff
    distance is between 0 and the diagonal of the largest volume.

    Cases for which a metric is not defined (None or NaN) are left out of its mean; `n` is the
    number of the other cases. The mean over regions is the unweighted mean of the regions' means.
    It is not defined if one of them is not, and its `n` is that of the region with the fewest
    cases.

    Args:
        table: a row per case and region, as from `read_cases`.
        regions: in the order of the result.
        settings: number of draws for the intervals, and their seed.
        inputs: the SHA-256 of the files of the table, by name.

    Raises:
        UserError: a case does not have exactly one row for each region.
    """
    _check_rows(table, regions)
    patients = table.groupby("case", sort=True)["patient"].first()
    weights = Weights(patients.to_numpy(), settings)
    by_region = {region: table[table["region"] == region].set_index("case") for region in regions}

    means = {}
    for metric in METRICS:
        # The distance of an unseen case is bounded only by the size of its volume.
        is_distance = metric.endswith("hd95_mm")
        highest = table["diagonal_mm"].astype(np.float64).max() if is_distance else 1.0
        values = {
            region: rows[metric].astype(np.float64).loc[patients.index].to_numpy()
            for region, rows in by_region.items()
        }
        means[metric] = _region_means(values, weights, highest)
    return CaseMetrics(
        regions=list(regions),
        intervals=describe_intervals(settings),
        hd95=settings.hd95,
        n=len(patients),
        patients=int(patients.nunique()),
        dice=means["dice"],
        hd95_mm=means["hd95_mm"],
        sensitivity=means["sensitivity"],
        specificity=means["specificity"],
        lesion_dice=means["lesion_dice"],
        lesion_hd95_mm=means["lesion_hd95_mm"],
        lesion_dilation=settings.lesion_dilation,
        lesion_mm3=settings.lesion_mm3,
        lesions={
            region: Lesions(
                reference=int(rows["lesions"].sum()),
                missed=int(rows["missed_lesions"].sum()),
                false_positives=int(rows["false_positive_lesions"].sum()),
            )
            for region, rows in by_region.items()
        },
        empty={
            region: Empty(**{where: int((rows["empty"] == where).sum()) for where in EMPTY})
            for region, rows in by_region.items()
        },
        inputs=dict(inputs),
    )


def _region_means(
    by_region: Mapping[str, np.ndarray], weights: Weights, highest: float
) -> RegionMeans:
    """Return the means of a metric from its values by region, each (cases,) float64 or NaN."""
    per_region, means, draws = {}, [], []
    for region, values in by_region.items():
        defined = ~np.isnan(values)
        patients = weights.patients(defined)
        means.append(values[defined].mean() if patients else np.nan)
        draws.append(draw_mean(values, weights, 0, highest))
        interval = with_interval(means[-1], draws[-1], patients, too_few_patients({"": patients}))
        per_region[region] = _mean(interval, int(defined.sum()))
    fewest = min(mean.patients for mean in per_region.values())
    interval = with_interval(
        float(np.mean(means)), Draws.mean(draws), fewest, too_few_patients({"": fewest})
    )
    mean = _mean(interval, min(mean.n for mean in per_region.values()))
    return RegionMeans(mean=mean, per_region=per_region)


def _mean(interval: Interval, n: int) -> Mean:
    return Mean(**interval.model_dump(), n=n)


def _check_arrays(
    reference: np.ndarray, predicted: np.ndarray, spacing: Sequence[float]
) -> np.ndarray:
    """Check that the arrays can be scored; return the spacing as (3,) float64."""
    for name, labels in (("reference", reference), ("prediction", predicted)):
        if labels.ndim != 3 or labels.dtype != np.uint8:
            raise UserError(
                f"the {name} has the shape {labels.shape} and the type {labels.dtype}; "
                "must be (x, y, z) uint8"
            )
    if reference.shape != predicted.shape:
        raise UserError(
            f"the reference has the shape {reference.shape} and the prediction {predicted.shape}; "
            "both must be on the same grid"
        )
    sides = np.asarray(spacing, np.float64)
    if sides.shape != (3,) or not np.isfinite(sides).all() or (sides <= 0).any():
        raise UserError(f"spacing: found {list(spacing)}; must be three numbers of mm above 0")
    return sides


def _count_pairs(reference: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the number of voxels of each pair of values: (256 reference, 256 predicted) int64."""
    counts = np.zeros(256 * 256, np.int64)
    # Plane by plane, because bincount converts each voxel to eight bytes.
    for reference_plane, predicted_plane in zip(reference, predicted, strict=True):
        pairs = reference_plane.astype(np.uint16) << 8 | predicted_plane
        counts += np.bincount(pairs.ravel(), minlength=256 * 256)
    return counts.reshape(256, 256)


def _check_values(counts: np.ndarray, label_values: Mapping[str, int]) -> None:
    declared = [0, *label_values.values()]
    faults = []
    for name, voxels in (("reference", counts.sum(axis=1)), ("prediction", counts.sum(axis=0))):
        voxels[declared] = 0
        undeclared = [f"{value} ({voxels[value]} voxels)" for value in np.flatnonzero(voxels)]
        if undeclared:
            faults.append(f"the {name} has the undeclared value(s) {', '.join(undeclared)}")
    if faults:
        labels = ", ".join(f"{value} {label}" for label, value in label_values.items())
        raise UserError(f"{'; '.join(faults)}; labels are 0 background, {labels}")


def _check_rows(table: pd.DataFrame, regions: Sequence[str]) -> None:
    rows = table.groupby(["case", "region"]).size()
    for case in sorted(set(table["case"])):
        counts = rows[case]
        if dict(counts) != dict.fromkeys(regions, 1):
            listed = ", ".join(f"{region} ({count})" for region, count in counts.items())
            raise UserError(
                f"case {case}: has rows of {listed}; must be one each of {', '.join(regions)}"
            )
