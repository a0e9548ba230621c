"""Predictions of models with a known quality, and the folders of evaluated runs."""

from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.evaluation.metrics import evaluate
from gigatile.files import sha256_of
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import write_table

SETTINGS = EvaluationSettings(resamples=1000)


def predictions_of(
    count: int, seed: int, noise: float, shared: int = 0, classes: int = 3
) -> pd.DataFrame:
    """Return predictions; those with the same `shared` are of the same patients."""
    labels = np.arange(count) % classes
    signal = np.random.default_rng(shared).normal(size=(count, classes))
    signal[np.arange(count), labels] += 1
    logits = signal + np.random.default_rng(seed).normal(0, noise, (count, classes))
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    table = pd.DataFrame(
        {
            "slide": [f"S{number:03}" for number in range(count)],
            "patient": [f"P{number:03}" for number in range(count)],
            "label": [f"c{label}" for label in labels],
        }
    )
    for label in range(classes):
        table[f"p_c{label}"] = scores[:, label]
    table["call_mean"] = [f"c{label}" for label in scores.argmax(axis=1)]
    return table


def names(classes: int = 3) -> list[str]:
    return [f"c{number}" for number in range(classes)]


def write_run(folder: Path, table: pd.DataFrame, classes: int = 3) -> Path:
    evaluation = folder / "evaluation"
    evaluation.mkdir(parents=True)
    table = table.assign(tiles=5)
    write_table(evaluation / "slides.tsv", list(table.columns), table.to_numpy().tolist())
    inputs = {"evaluation/slides.tsv": sha256_of(evaluation / "slides.tsv")}
    metrics = evaluate(table, names(classes), SETTINGS, inputs)
    write_model(evaluation / "metrics.json", metrics)
    return folder
