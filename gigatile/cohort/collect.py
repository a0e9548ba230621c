"""What became of each slide: the states of a cohort gathered into one table."""

from collections.abc import Sequence
from pathlib import Path

from gigatile.cohort.samples import Sample
from gigatile.errors import UserError, all_faults
from gigatile.files import read_json
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table, write_table

COLUMNS = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")


def collect_states(samples: Sequence[dict[str, str]], states_dir: Path, out: Path) -> None:
    """Write the table of slides (tiles.tsv), from the state that each slide's tiling left.

    Args:
        samples: one row per slide (slide, patient, and where known label and split).
        states_dir: where <slide>.json lies.
        out: the table; `sha256` is of the slide's records, so the table changes when they do.
    """
    rows = []
    for sample in samples:
        state = read_json(states_dir / f"{sample['slide']}.json")
        rows.append(
            (
                sample["slide"],
                sample["patient"],
                sample.get("label", ""),
                sample.get("split", ""),
                state["state"],
                state["tiles"]["kept"],
                state["reason"],
                state["records"]["sha256"],
            )
        )
    write_table(out, COLUMNS, rows)


def rows_of_sheet(samples: Sequence[Sample]) -> list[dict[str, str]]:
    """Return the rows of a sheet of new slides, which have neither label nor split."""
    return [{"slide": sample.slide, "patient": sample.patient} for sample in samples]


def tiled_slides(table: Path, *splits: str) -> list[dict[str, str]]:
    """Return the rows of tiles.tsv whose slides have tiles, of the given splits (none: of all)."""
    rows = read_table(table, COLUMNS)
    return [
        row for row in rows if row["state"] == "tiled" and (not splits or row["split"] in splits)
    ]


def check_remaining(table: Path, splits: Sequence[str] = SPLITS) -> None:
    """Refuse to go on when bad slides have taken the last slide of a label from a split.

    Args:
        table: as `collect_states` wrote it.
        splits: those that it was written of.

    Raises:
        UserError: each label and split that is concerned, with its lost slides and their reasons.
    """
    rows = read_table(table, COLUMNS)
    faults = []
    for label in sorted({row["label"] for row in rows}):
        for split in splits:
            mine = [row for row in rows if (row["label"], row["split"]) == (label, split)]
            if any(row["state"] == "tiled" for row in mine):
                continue
            lost = "".join(f"\n      {row['slide']}: {row['reason']}" for row in mine)
            faults.append(f"label {label!r} has no usable slide left in {split}; lost:{lost}")
    if faults:
        raise all_faults(f"{table}: the cohort cannot be used as it is", faults)


def check_any(table: Path) -> None:
    """Refuse a sheet of new slides of which none gave a tile."""
    if not tiled_slides(table):
        reasons = [f"{row['slide']}: {row['reason']}" for row in read_table(table, COLUMNS)]
        raise (
            all_faults(f"{table}: no slide could be used", reasons)
            if reasons
            else UserError(f"{table}: no slide")
        )
