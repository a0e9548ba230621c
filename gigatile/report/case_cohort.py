"""The cohort of volumes: splits, sites, grids, regions, and what the manifest states about it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gigatile.cohort.splits import SplitProof
from gigatile.records.manifest import Manifest
from gigatile.report.case_inputs import CohortCase, ScoredCase
from gigatile.report.leakage import other_records
from gigatile.settings.split import SPLITS
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.state import CaseState

SEGMENTATION = "segmentation"


def split_rows(cohort: Sequence[CohortCase], splits: SplitProof) -> list[dict[str, Any]]:
    """Count patients and cases of each split, and what became of them; the last row is the whole.

    `share` is of all patients, and `wanted` what was asked for; both None where it is not told.
    """
    names: list[str | None] = [name for name in SPLITS if name in splits.splits]
    rows = []
    for name in [*names, None]:
        mine = [one for one in cohort if name is None or one.split == name]
        stated = splits.splits.get(name) if name else None
        rows.append(
            {
                "split": name,
                "patients": len({one.patient for one in mine}),
                "cases": len(mine),
                "prepared": sum(one.state == "prepared" for one in mine),
                "failed": sum(one.state != "prepared" for one in mine),
                "warned": sum(bool(one.warnings) for one in mine if one.state == "prepared"),
                "share": stated.share if stated else None,
                "wanted": splits.shares.get(name) if name else None,
            }
        )
    return rows


def site_rows(cohort: Sequence[CohortCase]) -> list[dict[str, Any]]:
    """Count each site's cases by split; no rows where the sheet names no site."""
    sites = sorted({one.site for one in cohort})
    if not any(sites):
        return []
    rows = []
    for site in sites:
        mine = [one for one in cohort if one.site == site]
        rows.append(
            {
                "site": site or "not given",
                "patients": len({one.patient for one in mine}),
                "cases": len(mine),
                "failed": sum(one.state != "prepared" for one in mine),
                "by_split": [sum(one.split == split for one in mine) for split in SPLITS],
            }
        )
    return rows


def grid_rows(states: Sequence[CaseState]) -> list[dict[str, Any]]:
    """Count the prepared cases by the spacing and orientation of their own files, most first."""
    found: Counter[tuple[tuple[str, ...], str]] = Counter()
    for state in states:
        source = state.sources.get(state.reference or "")
        if state.state == "prepared" and source and source.spacing:
            # In the file's own order of axes, as its orientation is told.
            spacing = tuple(f"{side:.3g}" for side in source.spacing)
            found[spacing, source.orientation or "–"] += 1
    return [
        {"spacing": " × ".join(spacing), "orientation": orientation, "cases": cases}
        for (spacing, orientation), cases in sorted(
            found.items(), key=lambda one: (-one[1], one[0])
        )
    ]


def format_rows(states: Sequence[CaseState]) -> list[tuple[str, int]]:
    """Count what is particular about the files of prepared cases."""
    prepared = [state for state in states if state.state == "prepared"]
    found: Counter[str] = Counter()
    for state in prepared:
        sources = state.sources.values()
        found["lay on different grids and were resampled"] += state.agreement == "resampled"
        found["lay on grids that differ by noise"] += state.agreement == "noise"
        found["were resampled to volumes.spacing"] += _resampled(state)
        found["lack a modality, filled with zeros"] += bool(state.filled)
        found["have a background that is not 0"] += any(state.background.values())
        found["have a file of big-endian values"] += any(s.byte_order == "big" for s in sources)
        found["have a file of scaled values"] += any(s.scaled for s in sources)
        found["have a file of NIfTI-2"] += any(s.format == "NIfTI-2" for s in sources)
    return [(what, count) for what, count in found.items() if count]


def region_rows(settings: VolumeSettings, states: Sequence[CaseState]) -> list[dict[str, Any]]:
    """Return each region with its labels, their values, and how many prepared cases have it."""
    values = settings.label_values
    labelled = [state for state in states if state.state == "prepared" and state.labelled]
    return [
        {
            "region": region,
            "labels": [f"{label} ({values[label]})" for label in labels],
            "cases": sum(
                any(state.volumes_ml.get(label, 0) > 0 for label in labels) for state in labelled
            ),
            "of": len(labelled),
        }
        for region, labels in settings.region_labels.items()
    ]


def failed_rows(
    cohort: Sequence[CohortCase], scored: Sequence[ScoredCase]
) -> list[tuple[CohortCase, str]]:
    """Return the cases that no figure counts, each with the reason."""
    counted = {one.case for one in scored}
    found = []
    for one in cohort:
        if one.state != "prepared":
            found.append((one, one.reason or "no reason was recorded"))
        elif one.split == "test" and one.case not in counted:
            found.append((one, "it is a prepared test case, yet the evaluation has no figures"))
    return found


def image_files(
    cohort: Sequence[CohortCase], states: Mapping[str, CaseState]
) -> list[tuple[str, str, str]]:
    """Return split, fingerprint and name of each image file of the prepared cases.

    Cases that could not be prepared (an empty file, an HTML page) were not trained on. Two heads
    without a tumour have equal segmentations; the others are compared by their voxels.
    """
    return [
        (one.split, source.fingerprint, f"{one.case} ({name})")
        for one in cohort
        if one.state == "prepared"
        for name, source in states[one.case].sources.items()
        if source.fingerprint and name != SEGMENTATION
    ]


def other_shards(manifest: Manifest, cohort: Sequence[CohortCase]) -> list[str]:
    """Return where the manifest contradicts the table: numbers of cases, and records."""
    found = []
    for split in SPLITS:
        mine = [one for one in cohort if one.split == split and one.state == "prepared"]
        stated = manifest.splits[split].records if split in manifest.splits else 0
        if split == "test":
            found += ["test is in the shards"] if stated else []
            continue
        if stated != len(mine):
            found.append(f"{split}: {stated} cases in the shards, {len(mine)} prepared")
    prepared = [one for one in cohort if one.state == "prepared"]
    return [*found, *other_records(manifest.inputs, prepared, "case", "volumes")]


def _resampled(state: CaseState) -> bool:
    grid = state.grid
    return grid is not None and any(
        abs(one - two) > 1e-6 for one, two in zip(grid.canonical_spacing, grid.spacing, strict=True)
    )
