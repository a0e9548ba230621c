"""Segment one case with a trained model: labels on the grid of the case's files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import checksums, sha256_of
from gigatile.json_models import write_model
from gigatile.records.files import DiskFile
from gigatile.records.volume import VolumeRecord
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.components import keep_components
from gigatile.tasks.volume_segmentation.sliding_window import (
    PreparedVoxels,
    Segmenter,
    score_volume,
)
from gigatile.volumes.grid import Grid
from gigatile.volumes.restoration import Restorer, write_segmentation
from gigatile.volumes.segmentation_state import SegmentationState, Windows


@dataclass(frozen=True)
class CaseSegmentation:
    """A segmented case.

    Attributes:
        labels: (x, y, z) uint8, the axes as in the case's files; 0 background.
        volumes_ml: millilitres of each label and region, by its name.
        grid: of the case's files.
    """

    labels: np.ndarray
    volumes_ml: dict[str, float]
    grid: Grid

    @property
    def affine(self) -> np.ndarray:
        """(4, 4), from voxel indices to millimetres in RAS+."""
        return np.array(self.grid.original_affine)

    def save(self, path: Path | str) -> None:
        """Write the labels as NIfTI (.nii, .nii.gz) with the geometry of the case's files."""
        write_segmentation(Path(path), self.labels, self.grid)


def segment(
    segmenter: Segmenter, case: PreparedVoxels, grid: Grid, windows: WindowSettings
) -> CaseSegmentation:
    """Return the segmentation of a prepared case.

    Args:
        segmenter: the model.
        case: its voxels.
        grid: the grid of its voxels.
        windows: the section `windows` of the settings.

    Raises:
        UserError: the case has other channels than the model.
    """
    segmenter.check(case)
    restorer = Restorer(grid, segmenter.decide)
    for scores in score_volume(segmenter, case, windows):
        restorer.add(scores)
    voxel_mm3 = float(np.prod(grid.canonical_spacing))
    labels = keep_components(restorer.labels(), voxel_mm3, segmenter.kept)
    counts = np.bincount(labels.reshape(-1), minlength=256)
    return CaseSegmentation(labels, _volumes(counts, grid, segmenter), grid)


def segment_case(
    segmenter: Segmenter,
    case: str,
    record: Path,
    windows: WindowSettings,
    out: Path,
    described: Path,
    inputs: dict[str, Path],
) -> SegmentationState:
    """Segment a case; write its segmentation and then its state, which is returned.

    Args:
        segmenter: the model.
        case: the case's id.
        record: the file of the prepared case.
        windows: the section `windows` of the settings.
        out: the segmentation to write (.nii.gz), on the grid of the case's files.
        described: the state to write (.json).
        inputs: the files that it depends on, by their names in the run.

    Raises:
        UserError: the record is damaged, of another case, or has other channels than the model.
    """
    with DiskFile(record) as file:
        prepared = VolumeRecord(file, 0, file.size)
        if prepared.case != case:
            raise UserError(f"{record}: contains case {prepared.case!r}, expected {case!r}")
        try:
            grid = Grid.from_json(prepared.head.grid)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{record}: has no grid of the case's files; delete this file and run again"
            ) from None
        segmented = segment(segmenter, prepared, grid, windows)
    segmented.save(out)
    state = SegmentationState(
        case=case,
        state="segmented",
        volumes_ml=segmented.volumes_ml,
        windows=Windows(**windows.model_dump(), size=list(segmenter.window)),
        inputs=checksums(inputs),
        sha256=sha256_of(out),
    )
    write_model(described, state)
    return state


def _volumes(counts: np.ndarray, grid: Grid, segmenter: Segmenter) -> dict[str, float]:
    """Return the millilitres of each label and region."""
    values, regions = segmenter.volumes.label_values, segmenter.volumes.region_labels
    parts = {name: (name,) for name in values} | regions
    voxel_ml = float(np.prod(grid.canonical_spacing)) / 1000
    return {
        name: round(voxel_ml * int(counts[[values[label] for label in labels]].sum()), 6)
        for name, labels in parts.items()
    }
