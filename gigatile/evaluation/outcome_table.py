"""Reads slides.tsv of predicted numbers or risks: a row per slide."""

from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.errors import UserError
from gigatile.tables import read_table

COLUMNS = ("slide", "patient", "label", "tiles", "predicted")


def read_outcome_table(path: Path, labelled: bool = True) -> pd.DataFrame:
    """Return the predictions of slides; see `COLUMNS`.

    Args:
        path: the table.
        labelled: False: of new slides, without the column `label`.

    Raises:
        UserError: the table is missing or damaged.
    """
    columns = [name for name in COLUMNS if labelled or name != "label"]
    table = pd.DataFrame(read_table(path, columns), columns=columns)
    try:
        table = table.astype({"tiles": int, "predicted": float})
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it and run again") from None
    if not np.isfinite(table["predicted"]).all():
        raise UserError(f"{path}: a prediction is not a number; delete it and run again")
    return table
