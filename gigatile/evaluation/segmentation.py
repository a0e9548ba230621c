"""Figures of segmentations: per case and region, and their means with 95 % intervals."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    describe,
    draw_mean,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.surfaces import HAUSDORFF95
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import read_table, write_table

SCHEMA = 2
FIGURES = ("dice", "hd95_mm", "sensitivity", "specificity")
VOLUMES = ("truth_ml", "predicted_ml")
COLUMNS = ("case", "patient", "region", *FIGURES, "diagonal_mm", *VOLUMES, "empty")
# What lacks a region, if anything does.
EMPTY = ("truth", "prediction", "both")


def score_case(
    truth: np.ndarray,
    predicted: np.ndarray,
    spacing: Sequence[float],
    label_values: Mapping[str, int],
    region_labels: Mapping[str, Sequence[str]],
    voxel_ml: float | None = None,
    hd95: str = "surface",
) -> list[dict[str, Any]]:
    """Score the segmentation of a case, region by region.

    With the voxels of the region in the truth T, in the prediction P, and all voxels of the volume:
    Dice 2|T∩P| / (|T|+|P|), sensitivity |T∩P| / |T|, specificity the share of the voxels outside T
    that are outside P, and the 95 % Hausdorff distance as `surfaces` defines it.

    A region that is empty is scored as in the BraTS challenge:

    - Neither has it: Dice 1, distance 0.
    - One has it: Dice 0, and the distance is the worst that there is, the diagonal of the volume in
      mm, voxels and not their centres counted: 373.13 mm for the challenge's 240×240×155 voxels of
      1 mm, as nnU-Net's copy of its ranking has it
      (https://github.com/MIC-DKFZ/nnUNet/blob/nnunetv1/nnunet/dataset_conversion/Task082_BraTS_2020.py).
      Its own code of 2023 rounds that up to 374
      (https://github.com/rachitsaluja/BraTS-2023-Metrics).
    - Sensitivity is not defined where the truth lacks the region, nor specificity where it fills
      the volume: None. The challenge writes 0 or 1 there, which says nothing of the prediction.

    Args:
        truth, predicted: (x, y, z) uint8 values of labels, 0 background, on one grid.
        spacing: (3,) mm between voxels along each axis of the arrays.
        label_values: what each value stands for.
        region_labels: the labels that each region consists of.
        voxel_ml: of one voxel; None: the product of its sides, unless the axes are skewed.
        hd95: which definition of the distance, as `evaluate.hd95` names it.

    Returns:
        A row per region in the order given: region, dice, hd95_mm, sensitivity, specificity,
        diagonal_mm (of the volume), truth_ml, predicted_ml, empty ("truth", "prediction" or "both"
        lack the region, or "").

    Raises:
        UserError: arrays of two shapes or of another type, a spacing that is none, or a value that
            is not declared.
    """
    sides = _checked(truth, predicted, spacing)
    counts = _counts(truth, predicted)
    _check_values(counts, label_values)
    millilitres = float(sides.prod()) / 1000 if voxel_ml is None else voxel_ml

    diagonal = float(np.linalg.norm(sides * truth.shape))

    rows = []
    for region, labels in region_labels.items():
        within = np.zeros(256, bool)
        within[[label_values[label] for label in labels]] = True
        both = int(counts[np.ix_(within, within)].sum())
        neither = int(counts[np.ix_(~within, ~within)].sum())
        of_truth, of_predicted = int(counts[within].sum()), int(counts[:, within].sum())
        outside = truth.size - of_truth

        if of_truth and of_predicted:
            distance = HAUSDORFF95[hd95](within[truth], within[predicted], sides)
        else:
            distance = diagonal if of_truth or of_predicted else 0.0
        lacking = (("", "prediction"), ("truth", "both"))[not of_truth][not of_predicted]
        rows.append(
            {
                "region": region,
                "dice": 1.0 if lacking == "both" else 2 * both / (of_truth + of_predicted),
                "hd95_mm": distance,
                "sensitivity": both / of_truth if of_truth else None,
                "specificity": neither / outside if outside else None,
                "diagonal_mm": diagonal,
                "truth_ml": of_truth * millilitres,
                "predicted_ml": of_predicted * millilitres,
                "empty": lacking,
            }
        )
    return rows


def write_cases(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write cases.tsv: a row per case and region, numbers with six decimals, None as nothing.

    Args:
        rows: what `score_case` gives, each with its case and patient.
        path: the table.
    """
    cells = (
        [f"{row[name]:.6f}" if isinstance(row[name], float) else row[name] for name in COLUMNS]
        for row in rows
    )
    write_table(path, COLUMNS, cells)


def read_cases(path: Path) -> pd.DataFrame:
    """Read cases.tsv: numbers as float64, NaN where a figure is not defined.

    Raises:
        UserError: the file is missing or damaged.
    """
    table = pd.DataFrame(read_table(path, COLUMNS), columns=list(COLUMNS))
    for name in (*FIGURES, "diagonal_mm", *VOLUMES):
        try:
            table[name] = np.array([float(cell or "nan") for cell in table[name]], np.float64)
        except ValueError as error:
            raise UserError(
                f"{path}: column {name} has a cell that is no number ({error}); delete the file to "
                "have it remade"
            ) from None
    return table


def evaluate_cases(
    table: pd.DataFrame, regions: Sequence[str], settings: EvaluationSettings
) -> dict[str, Any]:
    """Return the means over cases, each with a 95 % interval over patients (`intervals`).

    Dice, sensitivity and specificity of a new case are between 0 and 1, its
    Hausdorff distance between 0 and the diagonal of the largest volume.

    A figure that is not defined for a case (None or NaN) is left out of the mean; `n` tells how
    many cases counted. The mean over regions is of the regions' means, unweighted, and not defined
    where one of them is not; its `n` is of the region with the fewest cases.

    Args:
        table: a row per case and region, as `write_cases` takes them.
        regions: in the order of the result.
        settings: number of draws for the intervals and their seed.

    Returns:
        schema, regions, intervals (how they were made), n (cases), patients; for each figure `mean`
        and `per_region`, as `with_interval` gives them, with `n`; `empty`, for each region how many
        cases' truth, prediction or both lack it.

    Raises:
        UserError: a case has not one row of each region.
    """
    _check_rows(table, regions)
    patients = table.groupby("case", sort=True)["patient"].first()
    weights = Weights(patients.to_numpy(), settings)
    by_region = {region: table[table["region"] == region].set_index("case") for region in regions}

    metrics: dict[str, Any] = {
        "schema": SCHEMA,
        "regions": list(regions),
        **describe(settings),
        "hd95": settings.hd95,
        "n": len(patients),
        "patients": int(patients.nunique()),
    }
    for figure in FIGURES:
        # Nothing bounds the distance of an unseen case but the size of its volume.
        highest = table["diagonal_mm"].astype(np.float64).max() if figure == "hd95_mm" else 1.0
        per_region, means, draws = {}, [], []
        for region in regions:
            values = by_region[region][figure].astype(np.float64).loc[patients.index].to_numpy()
            defined = ~np.isnan(values)
            counted = weights.patients(defined)
            means.append(values[defined].mean() if counted else np.nan)
            draws.append(draw_mean(values, weights, 0, highest))
            per_region[region] = with_interval(
                means[-1], draws[-1], counted, too_few_patients({"": counted})
            ) | {"n": int(defined.sum())}
        fewest = min(per_region.values(), key=lambda interval: interval["patients"])["patients"]
        mean = with_interval(
            float(np.mean(means)), Draws.mean(draws), fewest, too_few_patients({"": fewest})
        )
        least = min(interval["n"] for interval in per_region.values())
        metrics[figure] = {"mean": mean | {"n": least}, "per_region": per_region}
    metrics["empty"] = {
        region: {what: int((rows["empty"] == what).sum()) for what in EMPTY}
        for region, rows in by_region.items()
    }
    return metrics


def _checked(truth: np.ndarray, predicted: np.ndarray, spacing: Sequence[float]) -> np.ndarray:
    """Return the spacing as (3,) float64 when it and the arrays can be scored."""
    for name, labels in (("truth", truth), ("prediction", predicted)):
        if labels.ndim != 3 or labels.dtype != np.uint8:
            raise UserError(
                f"the {name} has the shape {labels.shape} and the type {labels.dtype}; "
                "must be (x, y, z) uint8"
            )
    if truth.shape != predicted.shape:
        raise UserError(
            f"the truth has the shape {truth.shape} and the prediction {predicted.shape}; "
            "both must lie on one grid"
        )
    sides = np.asarray(spacing, np.float64)
    if sides.shape != (3,) or not np.isfinite(sides).all() or (sides <= 0).any():
        raise UserError(f"spacing: found {list(spacing)}; must be three numbers of mm above 0")
    return sides


def _counts(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return how many voxels have each pair of values: (256 of truth, 256 predicted) int64."""
    counts = np.zeros(256 * 256, np.int64)
    # Plane by plane, since bincount makes eight bytes of every one.
    for of_truth, of_predicted in zip(truth, predicted, strict=True):
        pairs = of_truth.astype(np.uint16) << 8 | of_predicted
        counts += np.bincount(pairs.ravel(), minlength=256 * 256)
    return counts.reshape(256, 256)


def _check_values(counts: np.ndarray, label_values: Mapping[str, int]) -> None:
    declared = [0, *label_values.values()]
    faults = []
    for name, voxels in (("truth", counts.sum(axis=1)), ("prediction", counts.sum(axis=0))):
        voxels[declared] = 0
        strange = [f"{value} ({voxels[value]} voxels)" for value in np.flatnonzero(voxels)]
        if strange:
            faults.append(f"the {name} has the value(s) {', '.join(strange)}")
    if faults:
        known = ", ".join(f"{value} {label}" for label, value in label_values.items())
        raise UserError(f"{'; '.join(faults)}, not declared; labels are 0 background, {known}")


def _check_rows(table: pd.DataFrame, regions: Sequence[str]) -> None:
    rows = table.groupby(["case", "region"]).size()
    for case in sorted(set(table["case"])):
        counts = rows[case]
        if dict(counts) != dict.fromkeys(regions, 1):
            listed = ", ".join(f"{count} of {region}" for region, count in counts.items())
            raise UserError(
                f"case {case}: found rows {listed}; must be one each of {', '.join(regions)}"
            )
