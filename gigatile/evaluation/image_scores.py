"""The scores of each image: images.tsv."""

from collections.abc import Mapping, Sequence
from typing import Any

from gigatile.evaluation.coco_input import read_coco
from gigatile.evaluation.instances import count_instances

# `instances` are annotated, without crowds; `predictions` are detections with at least
# `evaluate.score_threshold`, of which each pixel belongs to one; `matched` have an IoU above 0.5.
COLUMNS = (
    "image",
    "patient",
    "regions",
    "instances",
    "detections",
    "predictions",
    "matched",
    "f1",
    "pq",
    "aji",
)


def image_rows(
    truth: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    patients: Mapping[int, str],
    score_threshold: float,
) -> list[list[object]]:
    """Return the rows of images.tsv; the regions of a slide are one row.

    Args:
        truth, results: in COCO's formats.
        patients: the patient of each image, by its id in `truth`.
        score_threshold: lowest score of a prediction.
    """
    counts, predictions = count_instances(read_coco(truth, results), score_threshold)
    detections = dict.fromkeys(patients, 0)
    for result in results:
        detections[result["image_id"]] += 1
    indices: dict[str, list[int]] = {}
    for index, image in enumerate(truth["images"]):
        indices.setdefault(image["file_name"], []).append(index)
    rows: list[list[object]] = []
    for name, of_image in indices.items():
        matched, false, missed = (
            int(getattr(counts, part)[of_image].sum()) for part in ("matched", "false", "missed")
        )
        both = matched + (false + missed) / 2
        union = int(counts.union[of_image].sum())
        rows.append(
            [
                name,
                patients[of_image[0] + 1],
                len(of_image),
                matched + missed,
                sum(detections[index + 1] for index in of_image),
                int(predictions[of_image].sum()),
                matched,
                _fraction(matched, both),
                _fraction(float(counts.iou[of_image].sum()), both),
                _fraction(float(counts.intersection[of_image].sum()), union),
            ]
        )
    return rows


def _fraction(numerator: float, denominator: float) -> str:
    return f"{numerator / denominator:.6f}" if denominator else ""
