"""The sections of the first page that the reports of all tasks have."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from gigatile.report import figures
from gigatile.report.pages import TEMPLATES, data_uri, flat, some
from gigatile.report.task_report import Banner, Content, Run, Section
from gigatile.settings.split import SPLITS


def training_section(
    samples: str, caption: str, titles: Mapping[str, str] = MappingProxyType({})
) -> Section:
    """Return the section with the training curves.

    Args:
        samples: what the loss is a mean of: `tiles` or `cases`.
        caption: of each curve, after the name of the metric.
        titles: what the page calls a metric, if not by its name.
    """
    content = partial(_training, samples, caption, titles)
    return Section("training", "Training", TEMPLATES / "training.html.j2", content)


def left_out_section(unit: str) -> Section:
    """Return the section with the slides or cases that count in no metric."""
    title = f"{unit.capitalize()}s left out"
    return Section("left-out", title, TEMPLATES / "left_out.html.j2", left_out_content)


def left_out_content(run: Run) -> Content:
    """Return the slides or cases that count in no metric, each with the reason."""
    return Content({"rows": run.left_out(), "unit": run.unit, "total": len(run.cohort)})


def _splits(run: Run) -> Content:
    splits = [
        {"name": name, "split": run.splits.splits[name]}
        for name in SPLITS
        if name in run.splits.splits and run.splits.splits[name].by_label
    ]
    values = {"unit": run.unit, "splits": splits, "checks": run.checks, "proof": run.splits}
    failed = [check for check in run.checks if check.faults]
    if not failed:
        return Content(values)
    banner = Banner(
        "The splits are not clean.",
        "The metrics below can be too good: do not use them until this is fixed.",
        [f"Failed: {check.claim}. Found: {some(check.faults)}" for check in failed],
        alarm=True,
    )
    return Content(values, [banner])


def _training(samples: str, caption: str, titles: Mapping[str, str], run: Run) -> Content:
    history, curves = run.history, []
    names = [name for name in history if f"valid_{name}" in history]
    # Metrics of the validation alone, such as COCO's average precision.
    alone = [name.removeprefix("valid_") for name in history if name.startswith("valid_")]
    nothing = [float("nan")] * len(history["epoch"])
    history = {**{name: nothing for name in alone if name not in history}, **history}
    for name in [*names, *(name for name in alone if name not in names)]:
        train, valid = history[name], history[f"valid_{name}"]
        image = alt = ""
        title = titles.get(name, name)
        if np.isfinite([*train, *valid]).any():
            curve = figures.training_curve(
                history["epoch"], train, valid, name, run.model.chosen.epoch, title
            )
            image = data_uri(curve, "image/svg+xml")
            alt = figures.describe_curve(history, name, title)
        curves.append({"title": title, "image": image, "alt": alt})
    chosen = run.model.chosen
    values = {"unit": run.unit, "samples": samples, "caption": caption, "curves": curves}
    return Content(
        values | {"chosen": chosen, "criterion": titles.get(chosen.criterion, chosen.criterion)}
    )


def _settings(run: Run) -> Content:
    splits = run.splits
    names = ("folds", "fold", "held_out") if splits.folds else ()
    folds = {name: getattr(splits, name) for name in names}
    recorded: dict[str, dict[str, Any]] = {
        "splits.json": {"split": {"seed": splits.seed, "by": splits.by} | folds},
        "shards/manifest.json": {
            "shards": {"target_mb": run.manifest.target_mb, "seed": run.manifest.seed}
        },
        "model/settings.json": run.model.settings(),
        "evaluation/metrics.json": {"evaluate": run.metrics.settings()},
        "this report": {"report": {"group_by": ", ".join(run.group_by) or "none"}},
    }
    rows = [(key, value, file) for file, values in recorded.items() for key, value in flat(values)]
    return Content({"rows": rows, "versions": run.versions})


def _appearance(run: Run) -> Content:
    return Content({"appearances": run.appearances, "unit": run.unit})


def _provenance(run: Run) -> Content:
    return Content({"ledger": run.ledger})


SPLITS_SECTION = Section(
    "splits",
    "Splits, and the proof that no patient is in two",
    TEMPLATES / "splits.html.j2",
    _splits,
    "Splits",
)
APPEARANCE_SECTION = Section(
    "appearance", "Unlike the training data", TEMPLATES / "appearance.html.j2", _appearance
)
SETTINGS_SECTION = Section(
    "settings", "Settings and software", TEMPLATES / "settings.html.j2", _settings, "Settings"
)
PROVENANCE_SECTION = Section(
    "provenance", "Provenance", TEMPLATES / "provenance.html.j2", _provenance
)
