"""The report of a volume segmentation."""

from collections.abc import Sequence
from pathlib import Path

from gigatile.cohort.cases import read_cases
from gigatile.cohort.sheet import Member
from gigatile.report import sections
from gigatile.report.cases import cohort, segmentation
from gigatile.report.cases.inputs import TrainedSegmenter, read_new, read_scored, read_state_of
from gigatile.report.cases.metrics import read_metrics
from gigatile.report.cases.page import FILES, case_pages
from gigatile.report.cases.records import VOLUMES
from gigatile.report.groups import groups_section
from gigatile.report.task_report import NewSamples, TaskReport


def read_sheet(path: Path) -> Sequence[Member]:
    """Read the sample sheet; the files of the cases may have been moved since the run."""
    return read_cases(path, (), may_be_missing=lambda file: True)


REPORT = TaskReport(
    unit="case",
    table="cases.tsv",
    records="volumes",
    kind=VOLUMES,
    model=TrainedSegmenter,
    columns=("warnings", "sources"),
    read_sheet=read_sheet,
    read_state=read_state_of,
    read_scored=read_scored,
    read_metrics=read_metrics,
    image_files=cohort.image_files,
    measure="dice",
    shows={
        "cases.tsv": "Cohort; Splits (recounted); Cases left out",
        "model/settings.json": "Settings; labels and regions",
        "evaluation/cases.tsv": "Test cases; Groups; Case pages: metrics",
        "evaluation/metrics.json": "Result, Metrics",
        "volumes/*.json": "Cohort: grids, warnings; Case pages: input",
    },
    page_files=FILES,
    pages=case_pages,
    evaluated=("model/settings.json", "cases.tsv", "evaluation/cases.tsv"),
    template=segmentation.TEMPLATES / "summary.html.j2",
    summary=segmentation.summary,
    sections=(
        segmentation.METRICS,
        groups_section(segmentation.figures_of_group),
        segmentation.TEST_CASES,
        cohort.REGIONS,
        cohort.COHORT,
        sections.left_out_section("case"),
        cohort.WARNINGS,
        sections.APPEARANCE_SECTION,
        sections.SPLITS_SECTION,
        sections.training_section(
            "cases",
            "after each epoch: train, solid, per patch; valid, dashed, per whole case. The dotted "
            "line is the model.",
        ),
        sections.SETTINGS_SECTION,
        sections.PROVENANCE_SECTION,
    ),
    new=NewSamples(
        template=segmentation.TEMPLATES / "new_cases.html.j2",
        shows={"cases.tsv": "New cases; Cases without a prediction"},
        read=read_new,
        values=segmentation.new_cases,
    ),
)
