"""The report of a volume segmentation."""

from collections.abc import Sequence
from pathlib import Path

from gigatile.cohort.cases import read_cases
from gigatile.cohort.sheet import Member
from gigatile.report.cases.cohort import (
    cohort_section,
    image_files,
    regions_section,
    warnings_section,
)
from gigatile.report.cases.inputs import (
    CaseModel,
    read_cohort,
    read_new,
    read_scored,
    read_state_of,
)
from gigatile.report.cases.metrics import read_metrics
from gigatile.report.cases.page import FILES, case_pages
from gigatile.report.cases.records import VOLUMES
from gigatile.report.cases.segmentation import (
    TEMPLATES,
    figures_section,
    new_cases,
    scored_cases_section,
    summary,
)
from gigatile.report.sections import (
    left_out_section,
    provenance_section,
    settings_section,
    splits_section,
    training_section,
)
from gigatile.report.task_report import NewSamples, TaskReport


def read_sheet(path: Path) -> Sequence[Member]:
    """Read the sample sheet; the files of the cases may have been moved since the run."""
    return read_cases(path, (), may_be_missing=lambda file: True)


REPORT = TaskReport(
    unit="case",
    table="cases.tsv",
    records="volumes",
    kind=VOLUMES,
    model=CaseModel,
    read_cohort=read_cohort,
    read_sheet=read_sheet,
    read_state=read_state_of,
    read_scored=read_scored,
    read_metrics=read_metrics,
    image_files=image_files,
    measure="dice",
    shows={
        "cases.tsv": "Cohort; Splits (recounted); Cases left out",
        "model/settings.json": "Settings; labels and regions",
        "evaluation/cases.tsv": "Test cases; Case pages: figures",
        "evaluation/metrics.json": "Result, Figures",
        "volumes/*.json": "Cohort: grids, warnings; Case pages: input",
    },
    page_files=FILES,
    pages=case_pages,
    evaluated=("model/settings.json", "cases.tsv", "evaluation/cases.tsv"),
    template=TEMPLATES / "summary.html.j2",
    summary=summary,
    sections=(
        figures_section(),
        scored_cases_section(),
        regions_section(),
        cohort_section(),
        left_out_section("case"),
        warnings_section(),
        splits_section(),
        training_section(
            "cases",
            "after each epoch: train, solid, per patch; valid, dashed, per whole case. The dotted "
            "line is the model.",
        ),
        settings_section(),
        provenance_section(),
    ),
    new=NewSamples(
        template=TEMPLATES / "new_cases.html.j2",
        shows={"cases.tsv": "New cases; Cases without a prediction"},
        read=read_new,
        values=new_cases,
    ),
)
