"""The test cohort's segmentations against the truth, on the grids of the cases' own files."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.evaluation.segmentation import score_case
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import NOISE, Geometry, geometry_of
from gigatile.volumes.reader import open_volume


def score_cases(
    rows: Sequence[Mapping[str, str]],
    truths: Mapping[str, Path],
    segmentations: Path,
    volumes: VolumeSettings,
    cores: int,
    hd95: str = "surface",
) -> list[dict[str, Any]]:
    """Score each case, a few at a time; the result does not depend on how many.

    Args:
        rows: the cases, with their patients.
        truths: the file of each case's own segmentation.
        segmentations: folder of <case>.nii.gz, as the model has it.
        volumes: the values of labels, and the regions.
        cores: cases at a time.
        hd95: the definition of the Hausdorff distance, as `evaluate.hd95` names it.

    Returns:
        What `segmentation.write_cases` writes, in the order of the rows and regions.

    Raises:
        UserError: a file that cannot be read, or is on another grid; every one.
    """

    def score(row: Mapping[str, str]) -> list[dict[str, Any]] | str:
        case = row["case"]
        if case not in truths:
            return f"case {case}: the sheet has no segmentation of it"
        try:
            result = _score(truths[case], segmentations / f"{case}.nii.gz", volumes, hd95)
        except UserError as error:
            return f"case {case}: {error}"
        return [{"case": case, "patient": row["patient"]} | scores for scores in result]

    with ThreadPoolExecutor(cores) as pool:
        results = list(pool.map(score, rows))
    if faults := [fault for fault in results if isinstance(fault, str)]:
        raise all_faults(f"{len(faults)} case(s) cannot be scored", faults)
    return [row for case in results if not isinstance(case, str) for row in case]


def _score(
    truth: Path, segmentation: Path, volumes: VolumeSettings, hd95: str
) -> list[dict[str, Any]]:
    values = volumes.label_values
    (predicted, of_mine), (reference, of_theirs) = (
        _read(path, values) for path in (segmentation, truth)
    )
    # Voxel is compared with voxel: axes in another order are another grid here.
    if predicted.shape != reference.shape or np.abs(
        of_mine.corners() - of_theirs.corners()
    ).max() > (NOISE * min(of_theirs.spacing)):
        raise UserError(
            f"{segmentation.name} has {_placed(of_mine)} where {truth.name} has "
            f"{_placed(of_theirs)}; one of the two is stale"
        )
    return score_case(
        reference,
        predicted,
        of_theirs.spacing,
        values,
        volumes.region_labels,
        of_theirs.voxel_ml,
        hd95,
    )


def _read(path: Path, values: Mapping[str, int]) -> tuple[np.ndarray, Geometry]:
    """Return a segmentation, (x, y, z) uint8, and where it lies."""
    try:
        volume = open_volume(path)
        return volume.read_labels(values), geometry_of(volume)
    except VolumeError as error:
        raise UserError(f"{path.name}: {error}") from None


def _placed(grid: Geometry) -> str:
    x, y, z = grid.affine[:3, 3].tolist()
    return f"{grid}, the first at ({x:.1f}, {y:.1f}, {z:.1f}) mm,"
