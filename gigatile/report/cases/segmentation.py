"""The sections with the metrics of a segmentation, and the test cases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigatile.evaluation.metrics_file import CaseMetrics
from gigatile.evaluation.segmentation import evaluate_cases, read_cases
from gigatile.report.cases import figures
from gigatile.report.cases.inputs import ScoredCase, read_segmentation, read_state_of
from gigatile.report.cases.metrics import CaseRun
from gigatile.report.cases.page import CasePageInputs
from gigatile.report.groups import Figure
from gigatile.report.pages import data_uri, plural, words
from gigatile.report.task_report import Banner, Content, Section
from gigatile.settings.evaluate import EvaluationSettings

TEMPLATES = Path(__file__).parent / "templates"
# The metrics of a region: name in the files, title, and digits.
SHOWN = (
    ("dice", "Dice", 3),
    ("hd95_mm", "HD95, mm", 1),
    ("sensitivity", "Sensitivity", 3),
    ("specificity", "Specificity", 4),
    ("lesion_dice", "Lesion-wise Dice", 3),
    ("lesion_hd95_mm", "Lesion-wise HD95, mm", 1),
)


def summary(run: CaseRun) -> dict[str, Any]:
    """Return the values of the top of the first page."""
    return {"metrics": run.metrics}


def new_cases(inputs: CasePageInputs) -> dict[str, Any]:
    """Return the values of the first page of new cases."""
    folder = inputs.files.results / "segmentations"
    rows = [
        {
            "case": case,
            "patient": inputs.rows[case].patient,
            "state": read_state_of(inputs.rows[case], inputs.files.records),
            "volumes_ml": read_segmentation(folder / f"{case}.json", case).volumes_ml,
        }
        for case in inputs.scored
    ]
    return {"rows": rows, "regions": inputs.model.volumes.region_labels}


def _metrics(run: CaseRun) -> Content:
    return metrics_content(run.metrics, run.scored)


def metrics_content(
    metrics: CaseMetrics, scored: Sequence[ScoredCase], kind: str = "test"
) -> Content:
    """Return the content of the section with the metrics.

    Args:
        metrics: of all cases.
        scored: the cases.
        kind: of the cases, for the text.
    """
    values = {
        "metrics": metrics,
        "shown": SHOWN,
        "pictures": _pictures(metrics, scored, kind),
        "kind": kind,
    }
    return Content(values, _missing_regions(metrics))


def _missing_regions(metrics: CaseMetrics) -> list[Banner]:
    """Warn of regions that are missing in some cases."""
    banners = []
    for region in metrics.regions:
        missing = metrics.empty[region]
        sentences = [
            f"In {plural(number, 'case')}, {text}."
            for number, text in (
                (
                    missing.truth,
                    "the prediction has it and the reference segmentation does not: Dice is 0, "
                    "and the distance the largest possible",
                ),
                (
                    missing.prediction,
                    "the reference segmentation has it and the prediction does not: Dice is 0, "
                    "and the distance the largest possible",
                ),
                (missing.both, "neither has it: Dice is 1 and the distance 0"),
            )
            if number
        ]
        if sentences:
            text = " ".join([*sentences, "These cases count in the means."])
            banners.append(Banner(f"Not every case has {words(region)}.", text))
    return banners


def _scored_cases(run: CaseRun) -> Content:
    """Return a row for each test case, the case with the least mean Dice first."""
    cases = [
        {
            "scored": case,
            "page": case.id in run.states,
            "warnings": len(run.states[case.id].warnings) if case.id in run.states else 0,
        }
        for case in sorted(run.scored, key=lambda case: (case.dice, case.id))
    ]
    return Content({"cases": cases, "regions": run.metrics.regions})


def _pictures(
    metrics: CaseMetrics, scored: Sequence[ScoredCase], kind: str
) -> list[dict[str, str]]:
    """Plot the Dice and the volumes of each case, by region."""
    if not scored:
        return []
    regions = metrics.regions
    dice = {name: [case.regions[name].dice or 0.0 for case in scored] for name in regions}
    means = {name: metrics.dice.per_region[name] for name in regions}
    volumes = {
        name: [(case.regions[name].truth_ml, case.regions[name].predicted_ml) for case in scored]
        for name in regions
    }
    return [
        {
            "image": data_uri(figures.spread(dice, means, "Dice"), "image/svg+xml"),
            "alt": f"Dice of each {kind} case, by region: "
            + "; ".join(
                f"{name} from {min(dice[name]):.3f} to {max(dice[name]):.3f}" for name in dice
            ),
            "caption": f"Dice of each {kind} case; the bar is the mean, the line its 95 % interval "
            "if there is one.",
        },
        {
            "image": data_uri(figures.volumes(volumes), "image/svg+xml"),
            "alt": "Predicted over reference volume of each region, in millilitres",
            "caption": f"Reference and predicted volumes, a marker for each {kind} case; on the "
            "dotted line both are equal.",
        },
    ]


def figures_of_group(run: CaseRun, cases: frozenset[str]) -> dict[str, Figure]:
    """Return the mean Dice and the mean distance of some test cases."""
    table = read_cases(run.files["evaluation_dir"] / "cases.tsv")
    settings = EvaluationSettings(**run.metrics.settings())
    of_group = table[table["case"].isin(cases)]
    metrics = evaluate_cases(of_group, run.metrics.regions, settings, {})
    return {
        title: Figure(
            interval=getattr(metrics, name).mean, why="a region is in no case", digits=digits
        )
        for name, title, digits in SHOWN[:2]
    }


METRICS = Section(
    "metrics", "Metrics and their intervals", TEMPLATES / "metrics.html.j2", _metrics, "Metrics"
)
TEST_CASES = Section("cases", "Test cases", TEMPLATES / "test_cases.html.j2", _scored_cases)
