"""The sections with the cohort of cases: splits, sites, grids, regions and warnings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.splits import SplitProof
from gigatile.report.cases.metrics import CaseRun
from gigatile.report.inputs import CohortRow
from gigatile.report.sites import count_sites, site_notes
from gigatile.report.task_report import Content, Section
from gigatile.settings.split import SPLITS
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.state import CaseState

TEMPLATES = Path(__file__).parent / "templates"
SEGMENTATION = "segmentation"


def image_files(run: CaseRun) -> list[tuple[str, str, str]]:
    """Return split, fingerprint and name of each image file of the prepared cases.

    Without failed cases (an empty file, an HTML page), which were not trained on, and without
    segmentations: those of two heads without a tumour are equal. Other segmentations are compared
    by their voxels.
    """
    return [
        (row.split, source.fingerprint, f"{row.id} ({name})")
        for row in run.cohort
        if row.state == "prepared"
        for name, source in run.states[row.id].sources.items()
        if source.fingerprint and name != SEGMENTATION
    ]


def _cohort(run: CaseRun) -> Content:
    states = list(run.states.values())
    return Content(
        {
            "splits": _split_rows(run.cohort, run.states, run.splits),
            "sites": count_sites(run.cohort),
            "site_notes": site_notes(run.cohort),
            "spacing": run.model.volumes.spacing,
            "grids": _grid_rows(states),
            "formats": _format_rows(states),
        }
    )


def _regions(run: CaseRun) -> Content:
    rows = _region_rows(run.model.volumes, list(run.states.values()))
    return Content({"rows": rows, "settings": run.model.volumes, "outputs": run.model.outputs})


def _warnings(run: CaseRun) -> Content:
    rows = [(row, run.states[row.id].warnings) for row in run.cohort if row.state == "prepared"]
    return Content({"rows": [(row, warnings) for row, warnings in rows if warnings]})


def _split_rows(
    cohort: Sequence[CohortRow], states: Mapping[str, CaseState], splits: SplitProof
) -> list[dict[str, Any]]:
    """Count patients and cases of each split by their state; the last row is the total.

    `share` is the fraction of all patients, `wanted` the setting; None: not recorded.
    """
    names: list[str | None] = [name for name in SPLITS if name in splits.splits]
    rows = []
    for name in [*names, None]:
        cases = [row for row in cohort if name is None or row.split == name]
        stated = splits.splits.get(name) if name else None
        rows.append(
            {
                "split": name,
                "patients": len({row.patient for row in cases}),
                "cases": len(cases),
                "prepared": sum(row.state == "prepared" for row in cases),
                "failed": sum(row.state != "prepared" for row in cases),
                "warned": sum(
                    bool(states[row.id].warnings) for row in cases if row.state == "prepared"
                ),
                "share": stated.share if stated else None,
                "wanted": splits.shares.get(name) if name else None,
            }
        )
    return rows


def _grid_rows(states: Sequence[CaseState]) -> list[dict[str, Any]]:
    """Count the prepared cases by spacing and orientation of their files, most frequent first."""
    counts: Counter[tuple[tuple[str, ...], str]] = Counter()
    for state in states:
        source = state.sources.get(state.reference or "")
        if state.state == "prepared" and source and source.spacing:
            # In the order of the file's axes, like the orientation.
            spacing = tuple(f"{side:.3g}" for side in source.spacing)
            counts[spacing, source.orientation or "–"] += 1
    return [
        {"spacing": " × ".join(spacing), "orientation": orientation, "cases": cases}
        for (spacing, orientation), cases in sorted(
            counts.items(), key=lambda item: (-item[1], item[0])
        )
    ]


def _format_rows(states: Sequence[CaseState]) -> list[tuple[str, int]]:
    """Count the prepared cases with special properties of their files."""
    counts: Counter[str] = Counter()
    for state in states:
        if state.state != "prepared":
            continue
        sources = state.sources.values()
        counts["have files on different grids, which were resampled"] += (
            state.agreement == "resampled"
        )
        counts["have files on grids that differ by rounding"] += state.agreement == "noise"
        counts["were resampled to volumes.spacing"] += _resampled(state)
        counts["lack a modality, which was filled with zeros"] += bool(state.filled)
        counts["have a background other than 0"] += any(state.background.values())
        counts["have a big-endian file"] += any(s.byte_order == "big" for s in sources)
        counts["have a file with scaled values"] += any(s.scaled for s in sources)
        counts["have a NIfTI-2 file"] += any(s.format == "NIfTI-2" for s in sources)
    return [(text, count) for text, count in counts.items() if count]


def _region_rows(settings: VolumeSettings, states: Sequence[CaseState]) -> list[dict[str, Any]]:
    """Return each region with its labels, their values, and the number of cases that have it."""
    values = settings.label_values
    labelled = [state for state in states if state.state == "prepared" and state.labelled]
    return [
        {
            "region": region,
            "labels": [f"{label} ({values[label]})" for label in labels],
            "cases": sum(
                any(state.volumes_ml.get(label, 0) > 0 for label in labels) for state in labelled
            ),
            "total": len(labelled),
        }
        for region, labels in settings.region_labels.items()
    ]


def _resampled(state: CaseState) -> bool:
    grid = state.grid
    return grid is not None and any(
        abs(original - prepared) > 1e-6
        for original, prepared in zip(grid.canonical_spacing, grid.spacing, strict=True)
    )


COHORT = Section("cohort", "Cohort", TEMPLATES / "cohort.html.j2", _cohort)
REGIONS = Section("labels", "Labels and regions", TEMPLATES / "regions.html.j2", _regions)
WARNINGS = Section("warnings", "Warnings", TEMPLATES / "warnings.html.j2", _warnings)
