"""The predicted class of a slide from the scores of its tiles: by mean score and majority vote."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from gigatile.tables import write_table


def predict_slides(tiles: Path, classes: Sequence[str]) -> pd.DataFrame:
    """Predict the class of each slide of a table of scored tiles, with one slide in memory.

    Returns:
        A row per slide in the order of the table: slide, patient, label, tiles (their number), and
        the results of `predict_slide`: p_<class>…, call_mean and call_vote.
    """
    names = [f"p_{label}" for label in classes]
    rows = []
    table = pq.ParquetFile(tiles)
    for group in range(table.num_row_groups):
        slide = table.read_row_group(group).to_pandas()
        sheet_fields = slide.iloc[0][["slide", "patient", "label"]]
        mean, *predicted = predict_slide(slide[names].to_numpy(), classes)
        rows.append([*sheet_fields, len(slide), *mean, *predicted])
    columns = ["slide", "patient", "label", "tiles", *names, "call_mean", "call_vote"]
    return pd.DataFrame(rows, columns=columns)


def predict_slide(scores: np.ndarray, classes: Sequence[str]) -> tuple[np.ndarray, str, str]:
    """Predict the class of a slide from the scores of its tiles.

    Args:
        scores: (tiles, classes).
        classes: their names.

    Returns:
        The mean score of each class, (classes,) float64, rounded to six decimals; the class with
        the highest mean; and the class predicted for most tiles, where ties go to the higher mean.
    """
    scores = scores.astype(np.float64)
    mean = scores.mean(axis=0).round(6)
    votes = np.bincount(scores.argmax(axis=1), minlength=len(classes))
    winner = max(range(len(classes)), key=lambda c: (votes[c], mean[c], -c))
    return mean, classes[int(mean.argmax())], classes[winner]


def write_predictions(predictions: pd.DataFrame, out: Path) -> None:
    """Write slides.tsv; scores with six decimals."""
    rows = (
        [f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row]
        for row in predictions.itertuples(index=False)
    )
    write_table(out, list(predictions.columns), rows)
