"""Writes the reports and prediction pages of the small runs."""

from pathlib import Path
from typing import Any

from gigatile.report import write_prediction_pages, write_report
from gigatile.tasks.tile_classification.report import REPORT as SLIDES
from gigatile.tasks.volume_segmentation.report import REPORT as CASES


def write_slides(
    run: Path, out: Path, samples: Path | None = None, title: str = "Demo", **options: Any
) -> None:
    files = {name: run / path for name, path in SLIDES.inputs.items()}
    write_report(SLIDES, files, out, title, samples, **options)


def write_new_slides(
    run: Path, out: Path, cohort: Path | None = None, matches: Path | None = None
) -> None:
    files = {name: run / path for name, path in SLIDES.new_inputs.items()}
    write_prediction_pages(SLIDES, files, out, "New slides", cohort, matches)


def sheet_of_cases(run: Path) -> Path:
    return run.parent / "data/cases.tsv"


def write_cases(run: Path, out: Path, title: str = "Demo") -> None:
    files = {name: run / path for name, path in CASES.inputs.items()}
    write_report(CASES, files, out, title, sheet_of_cases(run))


def write_new_cases(
    run: Path, out: Path, cohort: Path | None = None, matches: Path | None = None
) -> None:
    files = {name: run / path for name, path in CASES.new_inputs.items()}
    write_prediction_pages(CASES, files, out, "New cases", cohort, matches)
