"""The report of an instance segmentation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.images import read_images
from gigatile.cohort.sheet import Member
from gigatile.report import sections
from gigatile.report.groups import groups_section
from gigatile.report.instances import detection
from gigatile.report.instances.inputs import (
    TrainedDetector,
    file_of,
    image_files,
    read_metrics,
    read_scored,
    read_state_of,
)
from gigatile.report.instances.page import FILES, TEMPLATES, image_pages
from gigatile.report.instances.records import IMAGES
from gigatile.report.task_report import NewSamples, TaskReport
from gigatile.tasks.instance_segmentation.definition import CRITERION

# The losses and metrics of history.tsv, as the page calls them.
TITLES = {
    "objectness": "loss of objectness",
    "proposal_boxes": "loss of proposal boxes",
    "classes": "loss of classes",
    "boxes": "loss of boxes",
    "masks": "loss of masks",
} | {f"{part}_ap{iou}": f"{part} AP{iou}" for part in ("mask", "box") for iou in ("", "50", "75")}


def read_sheet(path: Path) -> Sequence[Member]:
    """Read the sample sheet; the files of the images may have been moved since the run."""
    return read_images(path, may_be_missing=lambda file: True, look=False)


def _read_new(folder: Path, model: Any, rows: Sequence[Any]) -> Mapping[str, None]:
    """Return None, for no scores, for each new image that was prepared."""
    return {row.id: None for row in rows if row.records}


REPORT = TaskReport(
    unit="image",
    table="images.tsv",
    records="images",
    kind=IMAGES,
    model=TrainedDetector,
    columns=("fingerprint", "part", "instances"),
    read_sheet=read_sheet,
    read_state=read_state_of,
    read_scored=read_scored,
    read_metrics=read_metrics,
    file_of=file_of,
    image_files=image_files,
    measure="masks",
    criterion=CRITERION,
    shows={
        "images.tsv": "Cohort; Splits (recounted); Images left out",
        "model/settings.json": "Settings; categories",
        "evaluation/images.tsv": "Test images; Image pages: metrics",
        "evaluation/metrics.json": "Result, Metrics",
        "evaluation/truth.json": "Groups; Image pages: annotated instances",
        "evaluation/detections.json": "Groups; Image pages: predicted instances",
        "images/*.json": "Cohort: instances",
    },
    page_files=FILES,
    pages=image_pages,
    evaluated=(
        *("model/settings.json", "images.tsv", "evaluation/images.tsv"),
        *("evaluation/truth.json", "evaluation/detections.json"),
    ),
    template=TEMPLATES / "summary.html.j2",
    summary=detection.summary,
    sections=(
        detection.METRICS,
        groups_section(detection.figures_of_group),
        detection.TEST_IMAGES,
        detection.COHORT,
        sections.left_out_section("image"),
        sections.APPEARANCE_SECTION,
        sections.SPLITS_SECTION,
        sections.training_section(
            "images",
            "after each epoch: train, solid, with augmentation; valid, dashed, without. The dotted "
            "line is the model.",
            TITLES,
        ),
        sections.SETTINGS_SECTION,
        sections.PROVENANCE_SECTION,
    ),
    new=NewSamples(
        template=TEMPLATES / "new_images.html.j2",
        shows={
            "images.tsv": "New images; Images without a prediction",
            "images.predicted.tsv": "New images",
            "detections.json": "Image pages",
        },
        read=_read_new,
        values=detection.new_images,
    ),
)
