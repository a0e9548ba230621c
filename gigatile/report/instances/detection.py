"""The sections with the metrics of detected instances, and the test images."""

from typing import Any

import matplotlib
import numpy as np

from gigatile.evaluation.detection_metrics import CocoMetrics, DetectionMetrics, evaluate_detections
from gigatile.evaluation.instances import SCORE_THRESHOLD
from gigatile.files import read_json
from gigatile.report.figures import BLUE, GREEN, ORANGE, canvas, svg
from gigatile.report.groups import Figure
from gigatile.report.instances.inputs import ImageRun
from gigatile.report.instances.page import TEMPLATES, ImagePageInputs
from gigatile.report.pages import data_uri
from gigatile.report.sites import count_sites, site_notes
from gigatile.report.task_report import Content, Section
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table

# COCO's twelve figures: name in the file, title, and note.
COCO = (
    ("ap", "AP", "mean of the IoU thresholds 0.50 to 0.95"),
    ("ap50", "AP50", "IoU 0.50"),
    ("ap75", "AP75", "IoU 0.75"),
    ("ap_small", "AP, small", "below 32² pixels"),
    ("ap_medium", "AP, medium", "32² to 96² pixels"),
    ("ap_large", "AP, large", "above 96² pixels"),
    ("ar_1", "AR, 1", "at most 1 detection per image and category"),
    ("ar_10", "AR, 10", "at most 10 detections"),
    ("ar_max", "AR", "at most {max} detections"),
    ("ar_small", "AR, small", "below 32² pixels"),
    ("ar_medium", "AR, medium", "32² to 96² pixels"),
    ("ar_large", "AR, large", "above 96² pixels"),
)
# The figures of instances without overlap.
SEPARATE = (
    ("pq", "Panoptic quality (PQ)"),
    ("f1", "F1, detection quality (DQ)"),
    ("sq", "Segmentation quality (SQ)"),
    ("precision", "Precision"),
    ("recall", "Recall"),
)


def summary(run: ImageRun) -> dict[str, Any]:
    """Return the values of the top of the first page."""
    return {"metrics": run.metrics}


def _metrics(run: ImageRun) -> Content:
    return metrics_content(run.metrics)


def metrics_content(metrics: DetectionMetrics, kind: str = "test") -> Content:
    """Return the content of the section with the metrics.

    Args:
        metrics: of all images.
        kind: of the images; the files of truth are kept for those of the test split only.
    """
    rows = [
        {
            "title": title,
            "note": note.format(max=metrics.max_detections),
            "mask": getattr(metrics.mask, name),
            "box": getattr(metrics.box, name),
        }
        for name, title, note in COCO
    ]
    separate = [(title, getattr(metrics.separate, name)) for name, title in SEPARATE]
    return Content(
        {
            "metrics": metrics,
            "kind": kind,
            "rows": rows,
            "separate": separate,
            "pictures": [_curves(metrics.mask, "masks"), _curves(metrics.box, "boxes")],
        }
    )


def _curves(figures: CocoMetrics, what: str) -> dict[str, str]:
    """Plot precision over recall."""
    curves = figures.curves
    if curves.iou50 is None or curves.iou75 is None or curves.mean is None:
        return {"image": "", "alt": "", "caption": f"No {what} were annotated."}
    with matplotlib.rc_context():
        figure, axes = canvas(4.6, 3.6)
        for values, label, color, dashes in (
            (curves.iou50, "IoU 0.50", BLUE, (0, ())),
            (curves.iou75, "IoU 0.75", ORANGE, (0, (4, 2))),
            (curves.mean, "mean, 0.50 to 0.95", GREEN, (0, (1, 1.5))),
        ):
            axes.plot(curves.recall, values, color=color, linestyle=dashes, label=label)
        axes.set_xlim(0, 1.01)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("recall")
        axes.set_ylabel("precision")
        axes.set_title(what)
        axes.grid(color="#e5e7eb", linewidth=0.8)
        axes.legend(loc="lower left", handlelength=2.6)
        image = svg(figure)
    at_half = np.interp(0.5, curves.recall, curves.iou50)
    return {
        "image": data_uri(image, "image/svg+xml"),
        "alt": f"Precision over recall of {what}: at IoU 0.50 and recall 0.5, precision "
        f"{at_half:.2f}",
        "caption": f"Precision over recall of {what}, mean over the categories.",
    }


def _test_images(run: ImageRun) -> Content:
    """Return a row for each test image, the one with the least F1 first."""
    ordered = sorted(run.scored, key=lambda row: (1.0 if row.f1 is None else row.f1, row.id))
    return Content({"images": ordered, "pages": set(run.states)})


def _cohort(run: ImageRun) -> Content:
    names: list[str | None] = [name for name in SPLITS if name in run.splits.splits]
    rows = []
    for name in [*names, None]:
        images = [row for row in run.cohort if name is None or row.split == name]
        states = [run.states[row.id] for row in images]
        stated = run.splits.splits.get(name) if name else None
        rows.append(
            {
                "split": name,
                "patients": len({row.patient for row in images}),
                "images": len(images),
                "failed": sum(state.state == "failed" for state in states),
                "empty": sum(
                    state.state == "prepared" and not any(state.instances.values())
                    for state in states
                ),
                "instances": {
                    category: sum(state.instances.get(category, 0) for state in states)
                    for category in run.model.categories
                },
                "share": stated.share if stated else None,
                "wanted": run.splits.shares.get(name) if name else None,
            }
        )
    return Content(
        {
            "splits": rows,
            "categories": run.model.categories,
            "sites": count_sites(run.cohort),
            "site_notes": site_notes(run.cohort),
        }
    )


def figures_of_group(run: ImageRun, images: frozenset[str]) -> dict[str, Figure]:
    """Return the main figures of some test images."""
    folder = run.files["evaluation_dir"]
    truth, results = read_json(folder / "truth.json"), read_json(folder / "detections.json")
    patients = {row.id: row.patient for row in run.scored}
    chosen = {
        entry["id"]: patients[entry["file_name"]]
        for entry in truth["images"]
        if entry["file_name"] in images
    }
    if not chosen:
        return {}
    part = {
        "images": [entry for entry in truth["images"] if entry["id"] in chosen],
        "annotations": [entry for entry in truth["annotations"] if entry["image_id"] in chosen],
        "categories": truth["categories"],
    }
    metrics = evaluate_detections(
        part,
        [entry for entry in results if entry["image_id"] in chosen],
        chosen,
        EvaluationSettings(**run.metrics.settings()),
        run.metrics.max_detections,
        run.metrics.separate.score_threshold,
    )
    why = "no instance is annotated"
    return {
        "mask AP": Figure(interval=metrics.mask.ap, why=why),
        "mask AP50": Figure(interval=metrics.mask.ap50, why=why),
        "PQ": Figure(interval=metrics.separate.pq.macro, why=why),
    }


def new_images(inputs: ImagePageInputs) -> dict[str, Any]:
    """Return the values of the first page of new images."""
    table = read_table(inputs.files.results / "images.predicted.tsv")
    detections = {row["image"]: row["detections"] for row in table}
    rows = [
        {
            "image": image,
            "patient": inputs.rows[image].patient,
            "detections": int(detections.get(image) or 0),
        }
        for image in inputs.scored
    ]
    return {
        "rows": rows,
        "categories": inputs.model.categories,
        "threshold": SCORE_THRESHOLD,
    }


METRICS = Section(
    "metrics", "Metrics and their intervals", TEMPLATES / "metrics.html.j2", _metrics, "Metrics"
)
TEST_IMAGES = Section("images", "Test images", TEMPLATES / "test_images.html.j2", _test_images)
COHORT = Section("cohort", "Cohort", TEMPLATES / "cohort.html.j2", _cohort)
