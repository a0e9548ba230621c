"""How the cohort of a model looked, without ids: counts and scales."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from gigatile.json_models import JsonModel
from gigatile.report.appearance import training_appearances
from gigatile.report.inputs import CohortRow
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
        appearance: how each usable member of train and valid looks, in an order that says nothing;
            see `gigatile.evaluation.appearance`.
        earlier_doubt: why images of the models that the training started from may be missing in
            cohort_images.npy; empty: none is missing.
    """

    unit: str
    splits: dict[str, SplitLook]
    records_per_member: list[float]
    scales: dict[str, int]
    vendors: dict[str, int]
    illumination: dict[str, int]
    images_compared: int
    images_missing: int
    appearance: list[dict[str, float]] = Field(default_factory=list)
    earlier_doubt: str = ""


def look_of(
    rows: Sequence[CohortRow],
    states: Iterable[Any],
    unit: str,
    compared: int,
    missing: int,
    earlier_doubt: str,
) -> CohortLook:
    """Describe a cohort.

    Args:
        rows: of its table.
        states: of these rows.
        unit: `slide`, `case` or `image`.
        compared, missing, earlier_doubt: see `CohortLook`.
    """
    by_id = {row.id: state for row, state in zip(rows, states, strict=True)}
    tiled = [state for state in by_id.values() if getattr(state, "state", None) == "tiled"]
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
        appearance=training_appearances(rows, lambda row: by_id[row.id]).members,
        earlier_doubt=earlier_doubt,
    )


def _split(rows: Sequence[CohortRow], split: str) -> SplitLook:
    chosen = [row for row in rows if row.split == split]
    return SplitLook(
        members=len(chosen),
        patients=len({row.patient for row in chosen}),
        failed=sum(row.state == "failed" for row in chosen),
        records=sum(row.records for row in chosen),
        labels=_counts(row.stratum for row in chosen if row.stratum),
        sites=len({row.cells.get("site") for row in chosen} - {"", None}),
    )


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
