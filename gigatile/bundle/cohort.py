"""How the cohort of a model looked, without ids: counts, scales, and hashes of its images."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.json_models import JsonModel
from gigatile.report.inputs import CohortRow
from gigatile.report.records import hash_of, iterate_records, records_file
from gigatile.report.task_report import TaskReport
from gigatile.settings.split import SPLITS

QUANTILES = (0, 0.05, 0.5, 0.95, 1)


class SplitLook(JsonModel):
    """The slides, cases or images of a split.

    Attributes:
        members: number of slides, cases or images.
        patients: number of patients.
        failed: number of members that could not be used.
        records: number of tiles, prepared cases or images.
        labels: number of members with each label; empty for tasks without labels.
        sites: number of sites; 0 if the sheet has none.
    """

    members: int
    patients: int
    failed: int
    records: int
    labels: dict[str, int]
    sites: int


class CohortLook(JsonModel):
    """The content of cohort.json.

    Attributes:
        unit: `slide`, `case` or `image`.
        splits: by name.
        records_per_member: the smallest, 5 %, median, 95 % and largest number of records.
        scales: number of members by µm per pixel of level 0; "unknown" without a scale.
        vendors: number of members by the scanner's vendor.
        illumination: number of slides by illumination.
        images_compared: number of members whose images are in cohort_images.npy.
        images_missing: number of members whose records are missing.
    """

    unit: str
    splits: dict[str, SplitLook]
    records_per_member: list[float]
    scales: dict[str, int]
    vendors: dict[str, int]
    illumination: dict[str, int]
    images_compared: int
    images_missing: int


def look_of(
    rows: Sequence[CohortRow], states: Iterable[Any], unit: str, compared: int, missing: int
) -> CohortLook:
    """Describe a cohort.

    Args:
        rows: of its table.
        states: of its slides, cases or images.
        unit: `slide`, `case` or `image`.
        compared, missing: see `CohortLook`.
    """
    tiled = [state for state in states if getattr(state, "state", None) == "tiled"]
    records = [row.records for row in rows if row.state != "failed"]
    quantiles = np.quantile(records, QUANTILES).tolist() if records else []
    return CohortLook(
        unit=unit,
        splits={split: _split(rows, split) for split in SPLITS},
        records_per_member=[round(value, 1) for value in quantiles],
        scales=_counts("unknown" if s.mpp is None else f"{s.mpp:.4g}" for s in tiled),
        vendors=_counts(s.source.vendor or "unknown" for s in tiled),
        illumination=_counts(s.illumination or "unknown" for s in tiled),
        images_compared=compared,
        images_missing=missing,
    )


def _split(rows: Sequence[CohortRow], split: str) -> SplitLook:
    chosen = [row for row in rows if row.split == split]
    return SplitLook(
        members=len(chosen),
        patients=len({row.patient for row in chosen}),
        failed=sum(row.state == "failed" for row in chosen),
        records=sum(row.records for row in chosen),
        labels=_counts(row.label for row in chosen if row.label),
        sites=len({row.cells.get("site") for row in chosen} - {"", None}),
    )


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def image_hashes(
    rows: Sequence[CohortRow], folder: Path, report: TaskReport
) -> tuple[np.ndarray, int, int]:
    """Return hashes of all images of a cohort, so that copies of them can be found.

    Plain images, which two slides can share by chance, are left out.

    Args:
        rows: of the cohort's table.
        folder: of its records.
        report: of the task, which says what a record contains.

    Returns:
        (n,) uint64, sorted, each once; the number of rows with records, and of those whose records
        are missing.
    """
    kind, hashes, compared, missing = report.kind, [np.empty(0, np.uint64)], 0, 0
    for row in rows:
        if row.state == "failed":
            continue
        if not records_file(row, folder).exists():
            missing += 1
            continue
        compared += 1
        images = (
            image for _, record in iterate_records(row, folder, kind) for image in record.images
        )
        used = [hash_of(image) for image in images if not (kind.is_plain and kind.is_plain(image))]
        hashes.append(np.array(used, np.uint64))
    return np.unique(np.concatenate(hashes)), compared, missing
