"""The sections with the metrics of a classification: ROC curves, confusion, and the test slides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gigatile.evaluation.metrics import evaluate_level
from gigatile.evaluation.metrics_file import ByClass, Interval, Level, SlideMetrics
from gigatile.report.groups import Figure
from gigatile.report.slides import figures
from gigatile.report.slides.metrics import SlideRun, count_labels, why_undefined
from gigatile.report.task_report import Content, Section
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.slides.state import SlideState

TEMPLATES = Path(__file__).parent / "templates"
LEVELS = ("slide", "patient")
# The predictions in metrics.json, of a classifier of tiles and of a classifier of whole slides.
PREDICTIONS = {
    "mean_call": "mean score of the tiles",
    "vote_call": "majority vote of the tiles",
}
PREDICTION = {"mean_call": "highest score"}


def predictions_of(metrics: SlideMetrics) -> dict[str, str]:
    """Return the predictions that metrics have, with their descriptions."""
    return PREDICTION if metrics.slide.confusion.vote_call is None else PREDICTIONS


def summary(run: SlideRun) -> dict[str, Any]:
    """Return the values of the top of the first page."""
    levels = {name: _summary(run.metrics, name) for name in LEVELS}
    return {**levels, "classes": run.metrics.classes}


def _summary(metrics: SlideMetrics, name: str) -> dict[str, Any]:
    level: Level = getattr(metrics, name)
    correct = {
        prediction: sum(row[k] for k, row in enumerate(getattr(level.confusion, prediction)))
        for prediction in predictions_of(metrics)
    }
    why = why_undefined(level, metrics.classes, name)
    return {"name": name, "level": level, "correct": correct, "why": why}


def _unit(level: Level, name: str) -> str:
    """Return what a level counts; a patient whose slides have two labels is a case of each."""
    return name if name == "slide" or level.n == level.patients else "case"


def _roc(metrics: SlideMetrics, name: str, kind: str) -> dict[str, Any]:
    level: Level = getattr(metrics, name)
    counts = count_labels(level, metrics.classes)
    panels = []
    for label in metrics.classes:
        curve = level.roc_curve.get(label)
        defined = curve is not None and len(curve.fpr) > 1
        panels.append(
            {
                "class": label,
                "auc": level.roc_auc.per_class[label],
                "n": counts[label],
                "plot": figures.roc(curve) if curve and defined else None,
                "why": why_undefined(level, metrics.classes, name, label, kind),
            }
        )
    return {"name": name, "unit": _unit(level, name), "level": level, "panels": panels}


def roc_content(metrics: SlideMetrics, kind: str = "test") -> Content:
    """Return the ROC curves of a cohort; `kind`: "test" or "new"."""
    return Content({"levels": [_roc(metrics, name, kind) for name in LEVELS]})


def confusion_content(metrics: SlideMetrics) -> Content:
    """Return the confusion matrices of a cohort."""
    classes = metrics.classes
    levels = []
    for name in LEVELS:
        level: Level = getattr(metrics, name)
        tables = []
        for prediction, text in predictions_of(metrics).items():
            counts = getattr(level.confusion, prediction)
            rows = [
                {
                    "label": label,
                    "total": sum(row),
                    "cells": [
                        {"n": n, "share": n / sum(row) if sum(row) else 0.0, "correct": k == j}
                        for j, n in enumerate(row)
                    ],
                }
                for k, (label, row) in enumerate(zip(classes, counts, strict=True))
            ]
            correct = sum(counts[k][k] for k in range(len(counts)))
            table = {"text": text, "rows": rows, "correct": correct, "total": level.n}
            tables.append(table | {"rates": rates(counts)})
        levels.append({"name": name, "tables": tables})
    return Content({"classes": classes, "levels": levels})


def rates(counts: Sequence[Sequence[int]]) -> list[dict[str, tuple[int, int]]]:
    """Return sensitivity and specificity of each class, as numerator and denominator.

    Args:
        counts: confusion matrix, (classes, classes); rows: labels, columns: predicted classes.
    """
    total, by_class = sum(map(sum, counts)), []
    for k, row in enumerate(counts):
        others = total - sum(row)
        false_positives = sum(other[k] for other in counts) - row[k]
        by_class.append(
            {"sensitivity": (row[k], sum(row)), "specificity": (others - false_positives, others)}
        )
    return by_class


def metrics_content(metrics: SlideMetrics, kind: str = "test") -> Content:
    """Return a row for each metric of a cohort, with its interval at both levels."""
    rows = []
    levels: list[Level] = [getattr(metrics, name) for name in LEVELS]

    def add(title: str, intervals: Sequence[Interval], label: str | None = None) -> None:
        cells = [
            {
                "interval": interval,
                "why": why_undefined(level, metrics.classes, name, label, kind),
            }
            for interval, level, name in zip(intervals, levels, LEVELS, strict=True)
        ]
        rows.append({"title": title, "cells": cells, "minor": label is not None})

    for name, text in predictions_of(metrics).items():
        add(f"Accuracy, {text}", [getattr(level.accuracy, name) for level in levels])
    for title, key in (("ROC AUC", "roc_auc"), ("Average precision", "average_precision")):
        metric_by_level: list[ByClass] = [getattr(level, key) for level in levels]
        add(f"{title}, mean of the classes", [by_class.macro for by_class in metric_by_level])
        for label in metrics.classes:
            intervals = [by_class.per_class[label] for by_class in metric_by_level]
            add(f"{title}, {label}", intervals, label)
    return Content({"rows": rows, "levels": LEVELS, "intervals": metrics.intervals})


def _scored_slides(run: SlideRun) -> Content:
    wrong = [slide for slide in run.scored if slide.call_mean != slide.label]
    pages = {row.id for row in run.cohort}
    votes = "vote_call" in predictions_of(run.metrics)
    values = {"scored": run.scored, "wrong": wrong, "classes": run.metrics.classes, "votes": votes}
    return Content(values | {"pages": pages})


def figures_of_group(run: SlideRun, slides: frozenset[str]) -> dict[str, Figure]:
    """Return accuracy and ROC AUC of some test slides."""
    classes = run.metrics.classes
    rows = [
        [slide.patient, slide.label, *slide.scores.values(), slide.call_mean, slide.call_vote]
        for slide in run.scored
        if slide.id in slides
    ]
    names = ["patient", "label", *(f"p_{label}" for label in classes), "call_mean", "call_vote"]
    settings = EvaluationSettings(**run.metrics.settings())
    cases = pd.DataFrame(rows, columns=names)
    if "vote_call" not in predictions_of(run.metrics):
        cases = cases.drop(columns="call_vote")
    level = evaluate_level(cases, classes, settings)
    return {
        "Accuracy": Figure(interval=level.accuracy.mean_call),
        "ROC AUC": Figure(interval=level.roc_auc.macro, why=why_undefined(level, classes, "slide")),
    }


def scanner_of(state: SlideState) -> str:
    """Return the scanner of a slide; empty if it is not known."""
    return state.source.scanner or ""


ROC = Section("roc", "ROC curves", TEMPLATES / "roc.html.j2", lambda run: roc_content(run.metrics))
CONFUSION = Section(
    "confusion",
    "Confusion",
    TEMPLATES / "confusion.html.j2",
    lambda run: confusion_content(run.metrics),
)
METRICS = Section(
    "metrics",
    "Metrics and their intervals",
    TEMPLATES / "metrics.html.j2",
    lambda run: metrics_content(run.metrics),
    "Metrics",
)
TEST_SLIDES = Section("slides", "Test slides", TEMPLATES / "test_slides.html.j2", _scored_slides)
