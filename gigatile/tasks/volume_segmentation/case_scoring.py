"""Scores of segmentations against the reference, on the grids of the cases' files."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.evaluation.segmentation import CaseScores, RegionScores, score_case
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import NOISE, Geometry, geometry_of
from gigatile.volumes.reader import open_volume


def score_cases(
    rows: Sequence[Mapping[str, str]],
    references: Mapping[str, Path],
    segmentations: Path,
    volumes: VolumeSettings,
    cores: int,
    settings: EvaluationSettings | None = None,
) -> list[CaseScores]:
    """Score cases in parallel; the result does not depend on the number of cores.

    Args:
        rows: the cases, with their patients.
        references: the reference segmentation of each case.
        segmentations: folder of <case>.nii.gz, the predicted segmentations.
        volumes: label values and regions.
        cores: number of cases scored in parallel.
        settings: definitions of the metrics; None: the defaults.

    Returns:
        The scores of the cases, in the order of `rows`.

    Raises:
        UserError: lists all files that cannot be read, or are on another grid.
    """
    results = try_score_cases(rows, references, segmentations, volumes, cores, settings)
    if faults := [
        f"case {name}: {fault}" for name, fault in results.items() if isinstance(fault, str)
    ]:
        raise all_faults(f"{len(faults)} case(s) cannot be scored", faults)
    return [scores for scores in results.values() if not isinstance(scores, str)]


def try_score_cases(
    rows: Sequence[Mapping[str, str]],
    references: Mapping[str, Path],
    segmentations: Path,
    volumes: VolumeSettings,
    cores: int,
    settings: EvaluationSettings | None = None,
) -> dict[str, CaseScores | str]:
    """Score cases like `score_cases`; return for each its scores, or why it has none.

    Whatever the exception, it costs its case only.
    """

    def score(row: Mapping[str, str]) -> CaseScores | str:
        case = row["case"]
        if case not in references:
            return "has no segmentation in the sample sheet"
        try:
            scores = _score(references[case], segmentations / f"{case}.nii.gz", volumes, settings)
        except UserError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return CaseScores(case, row["patient"], scores)

    with ThreadPoolExecutor(cores) as pool:
        results = list(pool.map(score, rows))
    return {row["case"]: result for row, result in zip(rows, results, strict=True)}


def _score(
    reference_path: Path,
    predicted_path: Path,
    volumes: VolumeSettings,
    settings: EvaluationSettings | None,
) -> dict[str, RegionScores]:
    values = volumes.label_values
    reference, grid = _read(reference_path, values)
    predicted, predicted_grid = _read(predicted_path, values)
    # Voxels are compared by index, so the same grid with other axes does not match.
    if predicted.shape != reference.shape or np.abs(
        predicted_grid.corners() - grid.corners()
    ).max() > NOISE * min(grid.spacing):
        raise UserError(
            f"{predicted_path.name} has {_describe(predicted_grid)} but {reference_path.name} has "
            f"{_describe(grid)}; one of the two is out of date"
        )
    return score_case(
        reference, predicted, grid.spacing, values, volumes.region_labels, grid.voxel_ml, settings
    )


def _read(path: Path, values: Mapping[str, int]) -> tuple[np.ndarray, Geometry]:
    """Return a segmentation, (x, y, z) uint8, and its grid."""
    try:
        volume = open_volume(path)
        return volume.read_labels(values), geometry_of(volume)
    except VolumeError as error:
        raise UserError(f"{path.name}: {error}") from None


def _describe(grid: Geometry) -> str:
    x, y, z = grid.affine[:3, 3].tolist()
    return f"{grid}, the first at ({x:.1f}, {y:.1f}, {z:.1f}) mm,"
