"""External validation of a segmentation of instances: images that had no part in its training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gigatile.evaluation.detection_metrics import DetectionMetrics, evaluate_detections
from gigatile.evaluation.external_file import Difference, ExternalFile, LeftOut
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.two_cohorts import difference, rows_by_site
from gigatile.json_models import Written
from gigatile.settings.evaluate import EvaluationSettings


class ImageSite(Written):
    """The figures of the images of a site.

    Attributes:
        n, patients: number of images or regions, and of their patients.
    """

    n: int
    patients: int
    mask_ap: Interval
    pq: Interval


class ExternalImageMetrics(ExternalFile):
    """The content of external/metrics.json of images with instances.

    Attributes:
        metrics: of the new cohort; None: no image was left.
        differences: from the test split, by the name of the figure (see `figures_by_name`).
        sites: by name, at most 40 with the most patients; empty if the sheet names fewer than two.
    """

    categories: list[str]
    metrics: DetectionMetrics | None
    differences: dict[str, Difference]
    sites: dict[str, ImageSite]


@dataclass(frozen=True)
class Scenes:
    """Truth and detections of some images.

    Attributes:
        truth, results: in COCO's formats.
        table: a row for each region of an image: `number`, its id in truth and results; `image`,
            the id in the sheet; `patient`.
    """

    truth: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    table: pd.DataFrame

    def of(self, table: pd.DataFrame) -> "Scenes":
        """Return the scenes of some rows of the table."""
        numbers = set(table["number"])
        truth = {
            "images": [entry for entry in self.truth["images"] if entry["id"] in numbers],
            "annotations": [
                entry for entry in self.truth["annotations"] if entry["image_id"] in numbers
            ],
            "categories": self.truth["categories"],
        }
        results = [entry for entry in self.results if entry["image_id"] in numbers]
        return Scenes(truth, results, table)


def figures_by_name(metrics: DetectionMetrics) -> dict[str, Interval]:
    """Return the figures that two cohorts are compared by, with their names."""
    separate = metrics.separate
    figures = {
        "mask AP": metrics.mask.ap,
        "mask AP50": metrics.mask.ap50,
        "mask AP75": metrics.mask.ap75,
        "box AP": metrics.box.ap,
        "panoptic quality": separate.pq.macro,
        "F1": separate.f1.macro,
        "precision": separate.precision.macro,
        "recall": separate.recall.macro,
        "AJI": separate.aji,
    }
    if len(metrics.categories) > 1:
        figures |= {f"mask AP, {name}": value for name, value in metrics.mask.per_category.items()}
    return figures


def evaluate_external_images(
    scenes: Scenes,
    sites: Mapping[str, str],
    left_out: Sequence[LeftOut],
    reference: DetectionMetrics,
    settings: EvaluationSettings,
    *,
    compared: bool,
    inputs: Mapping[str, str],
) -> ExternalImageMetrics:
    """Compute the figures of new images, and their differences from those of the test split.

    The limit of detections and the lowest score of a prediction are those of the test split.

    Args:
        scenes: the images that count.
        sites: the site of each image, by its id; empty: not given.
        left_out: images that count in no figure.
        reference: the figures of the test split.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new images were compared with the cohort of the model.
        inputs: the SHA-256 of the files, by name.
    """

    def evaluate(part: Scenes) -> DetectionMetrics:
        patients = dict(zip(part.table["number"], part.table["patient"], strict=True))
        return evaluate_detections(
            part.truth,
            part.results,
            patients,
            settings,
            reference.max_detections,
            reference.separate.score_threshold,
        )

    metrics, differences = None, {}
    if len(scenes.table):
        metrics = evaluate(scenes)
        old = figures_by_name(reference)
        for name, figure in figures_by_name(metrics).items():
            differences[name] = difference(figure, old[name])
    by_site = {}
    for site, rows in rows_by_site(scenes.table, "image", sites).items():
        of_site = evaluate(scenes.of(rows))
        by_site[site] = ImageSite(
            n=of_site.n,
            patients=of_site.patients,
            mask_ap=of_site.mask.ap,
            pq=of_site.separate.pq.macro,
        )
    return ExternalImageMetrics(
        categories=reference.categories,
        metrics=metrics,
        differences=differences,
        sites=by_site,
        left_out=list(left_out),
        compared=compared,
        inputs=dict(inputs),
    )
