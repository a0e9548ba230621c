"""The page of a case: metrics, slices with outlines, and input."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.affines import obliquity

from gigatile.errors import UserError
from gigatile.records.files import DiskFile
from gigatile.records.volume import VolumeRecord
from gigatile.report.cases.inputs import (
    ScoredCase,
    TrainedSegmenter,
    read_segmentation,
    read_state_of,
)
from gigatile.report.cases.slices import (
    PLANES,
    STACK_MOST,
    STACK_SIDE,
    Slices,
    Volumes,
)
from gigatile.report.pages import Neighbours, ScaleBar, render, scale_bar
from gigatile.report.provenance import checksum
from gigatile.report.unit_pages import PageInputs, WritePage
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.grid import Grid, forward_labels
from gigatile.volumes.reader import open_volume
from gigatile.volumes.segmentation_state import SegmentationState
from gigatile.volumes.state import CaseState

TEMPLATE = Path(__file__).parent / "templates/case.html.j2"
# The files of a case, and what its page shows of them.
FILES = {
    "{records}/{id}.json": "Case pages: input",
    "{records}/{id}.tfrecord": "Case pages: slices",
    "{results}/segmentations/{id}.json": "Case pages: windows, volumes",
    "{results}/segmentations/{id}.nii.gz": "Case pages: outlines of the prediction",
}
# At most so many modalities can be shown under the outlines; the last row shows all.
MODALITIES_SWITCHED = 4
# Relative difference of two volumes that were computed from the same voxels in different ways.
SAME_ML = 0.01
# Degrees between the grid and the patient's axes from which on the page says so.
OBLIQUE = 1.0

CasePageInputs = PageInputs[ScoredCase, TrainedSegmenter]


def case_pages(inputs: CasePageInputs) -> WritePage:
    """Return the function that renders the page of a case."""
    return partial(_page, inputs, checksum(inputs.files.model))


def _page(
    inputs: CasePageInputs, model_sha256: str, case: str, neighbours: Neighbours
) -> tuple[str, dict[str, str]]:
    """Return the page of a case, and the checksums of its files by their names in the run."""
    row, scored, settings = inputs.rows[case], inputs.scored[case], inputs.model.volumes
    files = inputs.files.expand(list(FILES), case)
    state_path, records_path, segmented_path, segmentation_path = files.values()
    state = read_state_of(row, inputs.files.records)
    if state.state != "prepared":
        raise UserError(f"{state_path}: was not prepared, but it was scored")
    segmented = read_segmentation(segmented_path, case)
    sums = {name: checksum(path) for name, path in files.items()}
    _check_inputs({list(files)[1]: row.sha256}, sums, state_path, "the record")
    # In the folder of its stage, the segmentation names the records without `predictions/`.
    given = {f"volumes/{case}.tfrecord": row.sha256, "model/model.keras": model_sha256}
    _check_inputs(segmented.inputs, given, segmented_path, "the segmentation")
    if scored is not None:
        _check_volumes(scored, state, segmented, settings, segmented_path)
    volumes = _read_volumes(
        case, state, scored is not None, settings, state_path, records_path, segmentation_path
    )
    page = render(
        TEMPLATE,
        case=case,
        row=row,
        scored=scored,
        matches=inputs.matches(case),
        appearance=inputs.appearance(case),
        segmented=segmented,
        state=state,
        settings=settings,
        regions=settings.region_labels,
        grid=volumes.grid,
        margin=_margin(volumes.grid),
        bars={plane.name: _bar(volumes.grid, plane.across) for plane in PLANES},
        oblique=_oblique(volumes.grid),
        neighbours=neighbours,
        sums=sums,
        **_views(Slices(volumes, settings), state, settings),
    )
    return page, sums


def _views(slices: Slices, state: CaseState, settings: VolumeSettings) -> dict[str, Any]:
    """Return the slices of a page: the largest, the most different, all axial, all modalities."""
    shown = [m for m in settings.modalities if m not in state.filled][:MODALITIES_SWITCHED]
    modalities = shown or [settings.modalities[0]]
    fullest = slices.largest()
    largest = fullest or slices.middle()
    most_different = slices.most_different()
    others = slices.most_different(other_than=largest)
    stack = slices.stack(PLANES[0], STACK_MOST, modalities[0], STACK_SIDE)
    return {
        "modalities": modalities,
        "largest": [slices.view(plane, largest[plane.axis], modalities) for plane in PLANES],
        "different": [
            slices.view(plane, number, modalities)
            for plane in PLANES
            if (number := others[plane.axis]) is not None
        ],
        "agree": most_different == [None, None, None],
        "most_above": [p.name for p in PLANES if most_different[p.axis] == largest[p.axis]],
        "stack": stack,
        "stack_start": min(range(len(stack)), key=lambda n: abs(stack[n].number - largest[2])),
        "nothing": fullest is None,
        "of_reference": slices.of_reference,
        "in_all": slices.view(PLANES[0], largest[2], settings.modalities),
    }


def _read_volumes(
    case: str,
    state: CaseState,
    labelled: bool,
    settings: VolumeSettings,
    state_path: Path,
    records: Path,
    segmentation: Path,
) -> Volumes:
    """Read the prepared volumes of a case, and its segmentation on the same grid."""
    with DiskFile(records) as file:
        record = VolumeRecord(file, 0, file.size)
        head = record.head
        if (head.case, head.channels) != (case, settings.modalities):
            raise UserError(
                f"{records}: it is the record of case {head.case!r} with the channels "
                f"{', '.join(head.channels)}; must be of {case!r} with "
                f"{', '.join(settings.modalities)}"
            )
        image, reference = record.read((0, 0, 0), head.shape)
    grid = state.prepared_grid(state_path)
    if grid.shape != head.shape:
        raise UserError(
            f"{records}: has {head.shape} voxels, its state says {grid.shape}; delete it"
        )
    try:
        volume = open_volume(segmentation)
        if volume.shape != grid.original_shape:
            raise VolumeError(
                f"has {volume.shape} voxels, but the case has {grid.original_shape}; it is out of "
                "date"
            )
        predicted = forward_labels(volume.read_labels(settings.label_values), grid)
    except VolumeError as error:
        raise UserError(f"{segmentation}: {error}") from None
    return Volumes(image, reference if labelled else None, predicted, grid)


def _check_inputs(
    recorded: Mapping[str, str], sums: Mapping[str, str], source: Path, what: str
) -> None:
    """Compare the checksums that `source` records for its inputs with those of the files."""
    for name, sha256 in recorded.items():
        if sums.get(name, sha256) != sha256:
            raise UserError(
                f"{source}: {what} is of another {name} (SHA-256 {sha256[:12]}…) than the one "
                f"given ({sums[name][:12]}…); one of the two is out of date"
            )


def _check_volumes(
    scored: ScoredCase,
    state: CaseState,
    segmented: SegmentationState,
    settings: VolumeSettings,
    source: Path,
) -> None:
    """Refuse metrics of other segmentations, which have other volumes."""
    for region, labels in settings.region_labels.items():
        scores = scored.regions[region]
        reference = sum(state.volumes_ml.get(label, 0) for label in labels)
        for what, stated, actual in (
            ("reference", scores.truth_ml, reference),
            ("prediction", scores.predicted_ml, segmented.volumes_ml.get(region, 0)),
        ):
            if abs(stated - actual) > SAME_ML * max(stated, actual) + 1e-4:
                raise UserError(
                    f"{source}: evaluation/cases.tsv has {stated:.3f} ml of {region} in the "
                    f"{what}, the case has {actual:.3f} ml; one of the two is out of date, run the "
                    "evaluation again"
                )


def _margin(grid: Grid) -> float:
    """Return the millimetres around an image, for letters and the scale bar."""
    return 0.075 * max(n * mm for n, mm in zip(grid.shape, grid.spacing, strict=True))


def _bar(grid: Grid, across: int) -> ScaleBar:
    return scale_bar(grid.shape[across], grid.spacing[across] * 1000)


def _oblique(grid: Grid) -> float | None:
    """Return the angle in degrees between the slices and the patient's axes; None: negligible."""
    degrees = float(np.degrees(obliquity(grid.affine).max()))
    return degrees if degrees >= OBLIQUE else None
