"""The first page of a report of volumes: how well the model segments whom, and how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigatile.records.manifest import Manifest
from gigatile.report import case_cohort as cohort_part
from gigatile.report import figures
from gigatile.report.case_inputs import (
    CaseModel,
    CohortCase,
    ScoredCase,
)
from gigatile.report.case_metrics import CaseMetrics
from gigatile.report.findings import Findings
from gigatile.report.heatmap import data_uri
from gigatile.report.index_page import flat
from gigatile.report.leakage import Evidence, leakage_checks
from gigatile.report.pages import render
from gigatile.report.sites import site_notes
from gigatile.report.training_section import curves
from gigatile.volumes.state import CaseState

# What is told of each region: its name in the files, its title, and its digits.
TOLD = (
    ("dice", "Dice", 3),
    ("hd95_mm", "HD95, mm", 1),
    ("sensitivity", "Sensitivity", 3),
    ("specificity", "Specificity", 4),
)


@dataclass(frozen=True, kw_only=True)
class CaseFindings(Findings):
    """Everything that the first page tells, read and checked."""

    cohort: Sequence[CohortCase]
    states: Mapping[str, CaseState]
    manifest: Manifest
    scored: Sequence[ScoredCase]
    metrics: CaseMetrics
    model: CaseModel


def case_index(found: CaseFindings) -> str:
    """Render the first page."""
    states = [found.states[one.case] for one in found.cohort]
    checks = leakage_checks(_evidence(found))
    return render(
        "case_index.html.j2",
        found=found,
        told=TOLD,
        checks=checks,
        broken=[check for check in checks if check.shared],
        splits=cohort_part.split_rows(found.cohort, found.splits),
        sites=cohort_part.site_rows(found.cohort),
        site_notes=site_notes(found.cohort),
        grids=cohort_part.grid_rows(states),
        formats=cohort_part.format_rows(states),
        regions=cohort_part.region_rows(found.model.volumes, states),
        warned=[
            (one, found.states[one.case].warnings)
            for one in found.cohort
            if one.state == "prepared" and found.states[one.case].warnings
        ],
        left_out=cohort_part.failed_rows(found.cohort, found.scored),
        cases=_cases(found),
        pictures=_pictures(found),
        curves=curves(found.history, found.model.chosen.epoch),
        settings=_settings(found),
    )


def _evidence(found: CaseFindings) -> Evidence:
    return Evidence(
        unit="case",
        splits=found.splits,
        cohort=found.cohort,
        sheet=found.sheet,
        files=cohort_part.image_files(found.cohort, found.states),
        sharded=cohort_part.other_shards(found.manifest, found.cohort),
        contents=found.contents,
        scored={one.case: {"patient": one.patient} for one in found.scored},
        chain=found.chain,
        chosen=found.model.chosen,
        history=found.history,
    )


def _cases(found: CaseFindings) -> list[dict[str, Any]]:
    """Return a row of each scored case, the one with the least mean Dice first."""
    rows = {one.case: one for one in found.cohort}
    ordered = sorted(found.scored, key=lambda one: (one.dice, one.case))
    return [
        {
            "scored": one,
            "page": one.case in rows,
            "warnings": rows[one.case].warnings if one.case in rows else 0,
        }
        for one in ordered
    ]


def _pictures(found: CaseFindings) -> list[dict[str, str]]:
    """Draw each case's Dice, and its volumes, by region."""
    if not found.scored:
        return []
    regions = found.metrics.regions
    dice = {name: [_shown(one.regions[name].dice) for one in found.scored] for name in regions}
    means = {name: found.metrics.dice.per_region[name] for name in regions}
    volumes = {
        name: [(one.regions[name].truth_ml, one.regions[name].predicted_ml) for one in found.scored]
        for name in regions
    }
    return [
        {
            "image": data_uri(figures.spread(dice, means, "Dice"), "image/svg+xml"),
            "alt": "Dice of each test case, by region: "
            + "; ".join(
                f"{name} from {min(dice[name]):.3f} to {max(dice[name]):.3f}" for name in dice
            ),
            "caption": "Dice of each test case; the bar is the mean, the line its 95 % interval "
            "if there is one.",
        },
        {
            "image": data_uri(figures.volumes(volumes), "image/svg+xml"),
            "alt": "Volume of each region by prediction over that by truth, in millilitres",
            "caption": "Volumes by truth and by prediction, a mark for each test case; on the "
            "dotted line both are equal.",
        },
    ]


def _shown(value: float | None) -> float:
    return 0.0 if value is None else value


def _settings(found: CaseFindings) -> list[tuple[str, str, str]]:
    """Return (key, value, file) of the settings as the stages recorded them when they ran."""
    metrics, manifest, model = found.metrics, found.manifest, found.model
    recorded: dict[str, dict[str, Any]] = {
        "splits.json": {"split": {"seed": found.splits.seed}},
        "shards/manifest.json": {
            "shards": {"target_mb": manifest.target_mb, "seed": manifest.seed}
        },
        "model/settings.json": model.settings(),
        "evaluation/metrics.json": {
            "evaluate": metrics.intervals.settings() | {"hd95": metrics.hd95}
        },
    }
    return [
        (key, value, source) for source, values in recorded.items() for key, value in flat(values)
    ]
