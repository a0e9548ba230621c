"""The page of one case: its figures, its slices with the outlines, and what it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from nibabel.affines import obliquity

from gigatile.cohort.collect import fingerprints_of
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.records.volume import VolumeRecord
from gigatile.report.case_inputs import (
    CaseModel,
    CohortCase,
    RegionScores,
    ScoredCase,
    SegmentationState,
    read_state,
)
from gigatile.report.case_pictures import (
    PLANES,
    STACK_MOST,
    STACK_SIDE,
    Slices,
    View,
    Volumes,
)
from gigatile.report.heatmap import ScaleBar, scale_bar
from gigatile.report.in_cohort import Match
from gigatile.report.inputs import read_recorded
from gigatile.report.pages import Neighbours, neighbours_of, render
from gigatile.report.provenance import Ledger, checksum
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.grid import Grid, forward_labels
from gigatile.volumes.reader import open_volume
from gigatile.volumes.state import CaseState

# Up to so many modalities can be laid under each slice; the row of all shows the others too.
MODALITIES_SWITCHED = 4
# Volumes in two files are of the same voxels; they may differ by how a voxel's was found.
SAME_ML = 0.01
# What a letter at a picture's side means, less exactly.
OBLIQUE = 1.0


@dataclass(frozen=True)
class CaseFiles:
    """Where the files behind the pages of cases lie; and their names in the run's folder."""

    volumes_dir: Path
    segmentations_dir: Path
    model: Path
    volumes_name: str = "volumes"
    segmentations_name: str = "evaluation/segmentations"

    def of(self, case: str) -> dict[str, Path]:
        """Return the files of a case by their names in the run."""
        return {
            f"{self.volumes_name}/{case}.json": self.volumes_dir / f"{case}.json",
            f"{self.volumes_name}/{case}.tfrecord": self.volumes_dir / f"{case}.tfrecord",
            f"{self.segmentations_name}/{case}.json": self.segmentations_dir / f"{case}.json",
            f"{self.segmentations_name}/{case}.nii.gz": self.segmentations_dir / f"{case}.nii.gz",
        }


@dataclass(frozen=True)
class ShownCase:
    """A case that has a page.

    Attributes:
        scored: its figures; None: the truth is not known.
        matches: of a new case, the cases of the cohort that have something in common with it.
    """

    row: CohortCase
    scored: ScoredCase | None = None
    matches: Sequence[Match] = ()


def write_case_pages(
    shown: Sequence[ShownCase], model: CaseModel, files: CaseFiles, folder: Path
) -> dict[str, str]:
    """Write <case>.html to `folder` for each case, one after the other.

    Returns:
        The checksums of the cases' files by their names in the run.
    """
    sums: dict[str, str] = {}
    model_sha256 = checksum(files.model)
    places = neighbours_of([one.row.case for one in shown])
    for one, neighbours in zip(shown, places, strict=True):
        page, mine = case_page(one, neighbours, model, files, model_sha256)
        (folder / f"{one.row.case}.html").write_text(page, encoding="utf-8")
        sums |= mine
    return sums


def case_page(
    shown: ShownCase,
    neighbours: Neighbours,
    model: CaseModel,
    files: CaseFiles,
    model_sha256: str,
) -> tuple[str, dict[str, str]]:
    """Render the page of one case; nothing of it is held once it is returned.

    Returns:
        The page, and the checksums of the case's files by their names in the run.

    Raises:
        UserError: a file is missing, damaged, or does not belong to the others.
    """
    case = shown.row.case
    state = check_state(shown.row, files.volumes_dir)
    if state.state != "prepared":
        raise UserError(f"{files.volumes_dir / case}.json: was not prepared, yet it was scored")
    found = files.segmentations_dir / f"{case}.json"
    segmented = read_segmentation(found, case)
    sums = {name: checksum(path) for name, path in files.of(case).items()}
    own = {f"{files.volumes_name}/{case}.tfrecord": shown.row.sha256}
    _check_made_from(own, sums, files.volumes_dir / f"{case}.json")
    # The segmentation's own inputs are named as in its stage's folder.
    here = own | {f"volumes/{case}.tfrecord": shown.row.sha256, "model/model.keras": model_sha256}
    _check_made_from(segmented.inputs, here, found, "the segmentation")
    settings = model.volumes
    if shown.scored is not None:
        _check_volumes(shown.scored, state, segmented, settings, found)
    volumes = read_volumes(case, state, shown.scored is not None, settings, files)
    slices = Slices(volumes, settings)
    switched = [m for m in settings.modalities if m not in state.filled][:MODALITIES_SWITCHED]
    switched = switched or [settings.modalities[0]]
    found_most = slices.largest()
    largest = found_most or slices.middle()
    most_different, of_others = slices.most_different(), slices.most_different(largest)
    different = [
        slices.view(plane, number, switched)
        for plane in PLANES
        if (number := of_others[plane.axis]) is not None
    ]
    stack = slices.stack(PLANES[0], STACK_MOST, switched[0], STACK_SIDE)
    page = render(
        "case.html.j2",
        case=case,
        row=shown.row,
        scored=shown.scored,
        matches=shown.matches,
        segmented=segmented,
        state=state,
        settings=settings,
        regions=settings.region_labels,
        modalities=switched,
        largest=_row(slices, largest, switched),
        different=different,
        agree=most_different == [None, None, None],
        most_above=[p.name for p in PLANES if most_different[p.axis] == largest[p.axis]],
        stack=stack,
        stack_start=min(range(len(stack)), key=lambda n: abs(stack[n].number - largest[2])),
        nothing=found_most is None,
        of_truth=slices.of_truth,
        in_all=slices.view(PLANES[0], largest[2], settings.modalities),
        margin=_margin(volumes.grid),
        bars={plane.name: _bar(volumes.grid, plane.across) for plane in PLANES},
        grid=volumes.grid,
        oblique=_oblique(volumes.grid),
        neighbours=neighbours,
        sums=sums,
        files=files,
    )
    return page, sums


def add_groups(
    ledger: Ledger, sums: Mapping[str, str], shows: Mapping[str, str], which: str
) -> None:
    """Take up the files behind the pages, those of each kind under one checksum.

    Args:
        sums: as `write_case_pages` returns them.
        shows: for each kind, as volumes/<case>.json, what is drawn from it.
        which: cases these are.
    """
    for kind, text in shows.items():
        folder, suffix = kind.split("<case>")
        group = {
            name: sha256
            for name, sha256 in sums.items()
            if name.startswith(folder) and name.endswith(suffix)
        }
        ledger.add_group(f"{kind} of the {which} cases", group, text)


def check_state(row: CohortCase, folder: Path) -> CaseState:
    """Read the state of a case; it must be the one that the table of cases was made from.

    Raises:
        UserError: it is missing, damaged or another.
    """
    path = folder / f"{row.case}.json"
    state = read_state(path, row.case)
    sources = fingerprints_of(read_json(path))
    told = (state.state, state.records.sha256, sources, len(state.warnings))
    if told != (row.state, row.sha256, row.sources, row.warnings):
        raise UserError(
            f"{path}: is not the state that the table of cases tells of; one of the two is stale"
        )
    return state


def read_segmentation(path: Path, case: str) -> SegmentationState:
    """Read what was found in a case; it must be that case's, and there must be something."""
    segmented = read_recorded(SegmentationState, path)
    if segmented.case != case:
        raise UserError(f"{path}: is of case {segmented.case!r}, not of {case!r}")
    if segmented.state != "segmented":
        raise UserError(f"{path}: case {case!r} was not segmented, yet it was prepared; delete it")
    return segmented


def read_volumes(
    case: str, state: CaseState, labelled: bool, settings: VolumeSettings, files: CaseFiles
) -> Volumes:
    """Read a case's prepared volumes, and its segmentation onto the same grid.

    Raises:
        UserError: a file is missing, damaged, or of another case or grid.
    """
    path = files.volumes_dir / f"{case}.tfrecord"
    with path.open("rb", buffering=0) as handle:
        record = VolumeRecord(handle.fileno(), 0, path.stat().st_size, path)
        head = record.head
        if (head.case, head.channels) != (case, settings.modalities):
            raise UserError(
                f"{path}: is of case {head.case!r} with the channels {', '.join(head.channels)}; "
                f"must be of {case!r} with {', '.join(settings.modalities)}"
            )
        image, truth = record.read((0, 0, 0), head.shape)
    grid = state.prepared_grid(files.volumes_dir / f"{case}.json")
    if grid.shape != head.shape:
        raise UserError(f"{path}: has {head.shape} voxels, its state says {grid.shape}; delete it")
    segmentation = files.segmentations_dir / f"{case}.nii.gz"
    try:
        volume = open_volume(segmentation)
        if volume.shape != grid.original_shape:
            raise VolumeError(
                f"has {volume.shape} voxels where the case has {grid.original_shape}; it is stale"
            )
        predicted = forward_labels(volume.read_labels(settings.label_values), grid)
    except VolumeError as error:
        raise UserError(f"{segmentation}: {error}") from None
    return Volumes(image, truth if labelled else None, predicted, grid)


def _check_made_from(
    recorded: Mapping[str, str], sums: Mapping[str, str], source: Path, what: str = "the record"
) -> None:
    """Compare checksums that were written down with those of the files given here."""
    for name, sha256 in recorded.items():
        if sums.get(name, sha256) != sha256:
            raise UserError(
                f"{source}: {what} is of another {name} (SHA-256 {sha256[:12]}…) than the one "
                f"given ({sums[name][:12]}…); one of the two is stale"
            )


def _check_volumes(
    scored: ScoredCase,
    state: CaseState,
    segmented: SegmentationState,
    settings: VolumeSettings,
    source: Path,
) -> None:
    """Refuse figures of another truth or segmentation: their volumes tell."""
    for region, labels in settings.region_labels.items():
        row: RegionScores = scored.regions[region]
        own = sum(state.volumes_ml.get(label, 0) for label in labels)
        for what, told, here in (
            ("truth", row.truth_ml, own),
            ("prediction", row.predicted_ml, segmented.volumes_ml.get(region, 0)),
        ):
            if abs(told - here) > SAME_ML * max(told, here) + 1e-4:
                raise UserError(
                    f"{source}: evaluation/cases.tsv has {told:.3f} ml of {region} in the {what}, "
                    f"the case has {here:.3f} ml; one of the two is stale, run the evaluation again"
                )


def _row(slices: Slices, numbers: tuple[int, int, int], modalities: Sequence[str]) -> list[View]:
    return [slices.view(plane, numbers[plane.axis], modalities) for plane in PLANES]


def _margin(grid: Grid) -> float:
    """Return the millimetres around a picture, for letters and the scale bar."""
    return 0.075 * max(n * mm for n, mm in zip(grid.shape, grid.spacing, strict=True))


def _bar(grid: Grid, across: int) -> ScaleBar:
    return scale_bar(grid.shape[across], grid.spacing[across] * 1000)


def _oblique(grid: Grid) -> float | None:
    """Return the degrees by which the slices are turned against the patient's own planes."""
    degrees = float(np.degrees(obliquity(grid.affine).max()))
    return degrees if degrees >= OBLIQUE else None
