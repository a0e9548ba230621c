"""The first page of a report: what was found, on whom, from which files, and how sure it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigatile.errors import UserError
from gigatile.records.manifest import Manifest
from gigatile.report import cohort_section as cohort_part
from gigatile.report import figures
from gigatile.report.findings import Findings
from gigatile.report.heatmap import data_uri
from gigatile.report.inputs import (
    CohortSlide,
    ModelSettings,
    ScoredSlide,
)
from gigatile.report.leakage import Evidence, leakage_checks
from gigatile.report.losses import (
    ALPHA,
    LEAST_DIFFERENCE,
    SlideLoss,
    compare_losses,
    loss_rows,
    loss_warnings,
)
from gigatile.report.metrics import Interval, Level, Metrics, truths, why_undefined
from gigatile.report.pages import render
from gigatile.report.sites import site_notes
from gigatile.report.training_section import curves
from gigatile.slides.state import SlideState

LEVELS = ("slide", "patient")
CALLS = {"mean_call": "mean of the tile scores", "vote_call": "majority vote of the tiles"}


@dataclass(frozen=True, kw_only=True)
class SlideFindings(Findings):
    """Everything that the first page tells, read and checked."""

    cohort: Sequence[CohortSlide]
    states: Sequence[SlideState]
    losses: Sequence[SlideLoss]
    manifest: Manifest
    scored: Sequence[ScoredSlide]
    metrics: Metrics
    model: ModelSettings


def index_page(found: SlideFindings) -> str:
    """Render the first page."""
    mpp = cohort_part.mpp_rows(found.states)
    checks = leakage_checks(_evidence(found))
    losses = compare_losses(found.losses)
    rows = _figures_table(found.metrics)
    wrong = [one for one in found.scored if one.call_mean != one.label]
    return render(
        "index.html.j2",
        found=found,
        classes=found.metrics.classes,
        verdicts=[_verdict(found.metrics, name) for name in LEVELS],
        labels=cohort_part.label_rows(found.cohort, found.splits.labels),
        sites=cohort_part.site_rows(found.cohort, found.splits.labels),
        site_notes=site_notes(found.cohort),
        mpp=mpp,
        faults=cohort_part.fault_rows(found.states),
        slide_warnings=cohort_part.slide_warnings(found.states),
        mpp_warning=cohort_part.mpp_warning(mpp, found.model.tiles.get("mpp")),
        loss_warnings=loss_warnings(losses),
        losses=loss_rows(losses),
        loss_alpha=ALPHA,
        loss_difference=LEAST_DIFFERENCE,
        splits=cohort_part.split_rows(found.splits),
        checks=checks,
        broken=[check for check in checks if check.shared],
        curves=curves(found.history, found.model.chosen.epoch),
        roc=[_roc(found.metrics, name) for name in LEVELS],
        confusions=[_confusions(found.metrics, name) for name in LEVELS],
        figures_table=rows,
        wrong=wrong,
        left_out=cohort_part.left_out(found.cohort, found.scored),
        settings=_settings(found),
    )


def _evidence(found: SlideFindings) -> Evidence:
    prints = {state.slide: state.source.fingerprint or "" for state in found.states}
    return Evidence(
        unit="slide",
        splits=found.splits,
        cohort=found.cohort,
        sheet=found.sheet,
        files=[(s.split, prints[s.slide], s.slide) for s in found.cohort if prints.get(s.slide)],
        sharded=cohort_part.other_shards(found.manifest, found.cohort),
        contents=found.contents,
        scored={s.slide: {"patient": s.patient, "label": s.label} for s in found.scored},
        chain=found.chain,
        chosen=found.model.chosen,
        history=found.history,
    )


def check_confusion(metrics: Metrics, scored: Sequence[ScoredSlide], source: Any) -> None:
    """Refuse metrics that do not count the very calls that the page lists.

    Raises:
        UserError: the confusion matrix of the slides is another.
    """
    for name, call in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        counted = [
            [
                sum(one.label == truth and getattr(one, call) == called for one in scored)
                for called in metrics.classes
            ]
            for truth in metrics.classes
        ]
        if counted != getattr(metrics.slide.confusion, name):
            raise UserError(
                f"{source}: its confusion matrix of slides ({name}) is not what slides.tsv counts; "
                "one of the two is stale, run the evaluation again"
            )


def unit(level: Level, name: str) -> str:
    """Return what a level counts; a patient whose slides have two labels is a case of each."""
    return name if name == "slide" or level.n == level.patients else "case"


def flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Write nested settings as (dotted key, value) pairs, in their order."""
    if isinstance(values, Mapping):
        return [
            pair
            for key, value in values.items()
            for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if values is None or isinstance(values, bool):
        return [(prefix, {None: "null", True: "true", False: "false"}[values])]
    return [(prefix, f"{values:g}" if isinstance(values, float) else str(values))]


def _verdict(metrics: Metrics, name: str) -> dict[str, Any]:
    level: Level = getattr(metrics, name)
    right = {
        call: sum(getattr(level.confusion, call)[k][k] for k in range(len(metrics.classes)))
        for call in CALLS
    }
    return {
        "name": name,
        "unit": unit(level, name),
        "level": level,
        "right": right,
        "why": why_undefined(level, metrics.classes, name),
    }


def _roc(metrics: Metrics, name: str) -> dict[str, Any]:
    level: Level = getattr(metrics, name)
    panels = []
    for one in metrics.classes:
        curve = level.roc_curve.get(one)
        auc = level.roc_auc.per_class[one]
        drawn = curve is not None and len(curve.fpr) > 1
        panels.append(
            {
                "class": one,
                "auc": auc,
                "n": truths(level, metrics.classes)[one],
                "image": data_uri(figures.roc(curve), "image/svg+xml") if curve and drawn else "",
                "why": why_undefined(level, metrics.classes, name, one),
            }
        )
    return {"name": name, "unit": unit(level, name), "level": level, "panels": panels}


def _confusions(metrics: Metrics, name: str) -> dict[str, Any]:
    level: Level = getattr(metrics, name)
    tables = []
    for call, text in CALLS.items():
        counts = getattr(level.confusion, call)
        rows = [
            {
                "truth": truth,
                "total": sum(row),
                "cells": [
                    {"n": n, "share": n / sum(row) if sum(row) else 0.0, "right": k == j}
                    for j, n in enumerate(row)
                ],
            }
            for k, (truth, row) in enumerate(zip(metrics.classes, counts, strict=True))
        ]
        right = sum(counts[k][k] for k in range(len(counts)))
        tables.append({"call": text, "rows": rows, "right": right, "total": level.n})
    return {"name": name, "tables": tables}


def _figures_table(metrics: Metrics) -> list[dict[str, Any]]:
    """Return one row for each figure, with its interval at both levels."""
    getters: list[tuple[str, str | None, Any]] = [
        (f"Accuracy, {text}", None, lambda level, call=call: getattr(level.accuracy, call))
        for call, text in CALLS.items()
    ]
    for title, key in (("ROC AUC", "roc_auc"), ("Average precision", "average_precision")):
        getters.append(
            (
                f"{title}, mean of the classes",
                None,
                lambda level, key=key: getattr(level, key).macro,
            )
        )
        getters += [
            (
                f"{title}, {one}",
                one,
                lambda level, key=key, one=one: getattr(level, key).per_class[one],
            )
            for one in metrics.classes
        ]
    rows = []
    for title, one, getter in getters:
        cells = []
        for name in LEVELS:
            level: Level = getattr(metrics, name)
            found: Interval = getter(level)
            why = why_undefined(level, metrics.classes, name, one)
            cells.append({"ci": found, "why": why})
        rows.append({"title": title, "cells": cells, "minor": one is not None})
    return rows


def _settings(found: SlideFindings) -> list[tuple[str, str, str]]:
    """Return (key, value, file) of the settings as the stages recorded them when they ran."""
    metrics, manifest, model = found.metrics, found.manifest, found.model
    recorded: dict[str, dict[str, Any]] = {
        "splits.json": {"split": {"seed": found.splits.seed}},
        "shards/manifest.json": {
            "shards": {"target_mb": manifest.target_mb, "seed": manifest.seed}
        },
        "model/settings.json": {"tiles": model.tiles, "train": model.train},
        "evaluation/metrics.json": {"evaluate": metrics.intervals.settings()},
    }
    return [
        (key, value, source) for source, values in recorded.items() for key, value in flat(values)
    ]
