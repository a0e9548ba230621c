"""One case segmented by a trained model: labels on the grid of its own files."""

from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import checksums, sha256_of
from gigatile.records.volume import VolumeRecord
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.segmentation_state import describe
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter, score_volume
from gigatile.volumes.grid import Grid
from gigatile.volumes.restoration import Restorer, write_segmentation


def segment_case(
    segmenter: Segmenter,
    case: str,
    record: Path,
    windows: WindowSettings,
    out: Path,
    described: Path,
    inputs: dict[str, Path],
) -> dict[str, Any]:
    """Segment a case and write its labels, and last what was found.

    Args:
        segmenter: the model.
        case: whose record it is.
        record: the file of the prepared case.
        windows: how the model goes over it.
        out: the segmentation to write (.nii.gz): it lies over the case's own files.
        described: to write (.json): the volumes found, and from which files.
        inputs: those files by their names in the run.

    Returns:
        What is written to `described`.

    Raises:
        UserError: the record is damaged, of another case, or has other channels than the model.
    """
    with record.open("rb", buffering=0) as handle:
        size = record.stat().st_size
        prepared = VolumeRecord(handle.fileno(), 0, size, record)
        if prepared.head.case != case:
            raise UserError(f"{record}: is of case {prepared.head.case!r}, not of {case!r}")
        segmenter.check(prepared)
        try:
            grid = Grid.from_json(prepared.head.grid)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{record}: tells no grid on which its files lie; prepare the case anew"
            ) from None
        restorer = Restorer(grid, segmenter.decide)
        for scores in score_volume(segmenter, prepared, windows):
            restorer.add(scores)
    labels = restorer.labels()
    write_segmentation(out, labels, grid)
    counts = np.bincount(labels.reshape(-1), minlength=256)
    found = {
        "volumes_ml": _volumes(counts, grid, segmenter),
        "windows": windows.model_dump() | {"size": list(segmenter.window)},
        "inputs": checksums(inputs),
        "sha256": sha256_of(out),
    }
    return describe(described, case, found)


def _volumes(counts: np.ndarray, grid: Grid, segmenter: Segmenter) -> dict[str, float]:
    """Return the millilitres of each region and of each label."""
    values, regions = segmenter.volumes.label_values, segmenter.volumes.region_labels
    of = {name: (name,) for name in values} | regions
    each = float(np.prod(grid.canonical_spacing)) / 1000
    return {
        name: round(each * int(counts[[values[label] for label in labels]].sum()), 6)
        for name, labels in of.items()
    }
