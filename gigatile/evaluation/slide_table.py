"""Reads slides.tsv: a row per scored slide."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.tables import read_table


class _Described(JsonModel):
    classes: list[str]


def classes_of(described: Path) -> list[str]:
    """Return the classes of a model from its settings.json, in the order of the scores.

    Raises:
        UserError: the file is missing or damaged.
    """
    return read_model(_Described, described).classes


def read_slide_table(path: Path, classes: Sequence[str], labelled: bool = True) -> pd.DataFrame:
    """Read slides.tsv.

    Args:
        path: the table.
        classes: of the model, in the order of the scores.
        labelled: False: of new slides, which have no column `label`.

    Returns:
        A row per slide, in the order of the file: slide, patient, label, p_<class>…, call_mean, and
        call_vote if the table has it.

    Raises:
        UserError: the file is missing or damaged, a score is not a number from 0 to 1, or a label
            is not one of the classes.
    """
    scores = [f"p_{name}" for name in classes]
    names = ["slide", "patient", *(["label"] if labelled else [])]
    rows = read_table(path, (*names, *scores, "call_mean"))
    table = pd.DataFrame(rows, dtype=object)
    if table.empty:
        return pd.DataFrame(columns=[*names, *scores, "call_mean"])
    calls = [name for name in ("call_mean", "call_vote") if name in table]
    table = table[[*names, *scores, *calls]].copy()
    for column in scores:
        values = pd.to_numeric(table[column], errors="coerce").to_numpy(np.float64)
        _refuse(path, table, column, ~((values >= 0) & (values <= 1)), "a number from 0 to 1")
        table[column] = values
    if labelled:
        unknown = ~table["label"].isin(classes).to_numpy(bool)
        _refuse(path, table, "label", unknown, f"one of {', '.join(classes)}")
    return table


def _refuse(
    path: Path, table: pd.DataFrame, column: str, faults: np.ndarray, expected: str
) -> None:
    if faults.any():
        number = int(faults.argmax())
        raise UserError(
            f"{path}, row {number + 2}: {column} is {table[column].iloc[number]!r}; must be "
            f"{expected}"
        )
