"""Validation of segmentation models on whole volumes of the validation split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.records.shards import ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.settings.section import check_section
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter, score_volume
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation

# As in training.
SMOOTH = 1.0
# Scores are clipped to this distance from 0 and 1 before the logarithm.
MIN_SCORE = 1e-7


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean loss and Dice of the cases, each segmented as a whole.

    Both are defined as in training, over a case instead of a patch: the loss is the mean
    cross-entropy of the voxels plus one minus the mean soft Dice of the targets.

    Args:
        segment: the segment of the model.
        manifest: manifest of the shards, which must have the split valid.
        settings: contains the section `windows`.

    Raises:
        UserError: a file is missing or damaged, or a case has no labels, or other channels than
            the model.
    """
    windows = check_section(WindowSettings, settings["windows"], "windows")
    segmenter = Segmenter(segment.model, segment.described)
    reader = ShardReader(manifest, "valid")
    limit = read_json(segment.described)["train"]["limit_batches"]
    cases = min(len(reader), limit or len(reader))
    if not cases:
        raise UserError(f"{manifest}: has no case in the split valid")
    results = []
    for number in range(cases):
        record = VolumeRecord(*reader.locate(number))
        segmenter.check(record)
        if not record.head.labelled:
            raise UserError(f"case {record.head.case}: has no segmentation to validate with")
        results.append(_loss_and_dice(segmenter, record, windows))
    loss, *dice = np.mean(results, axis=0).tolist()
    names = segmenter.targets.names
    return Validation(
        "cases",
        cases,
        {"loss": loss, "dice": float(np.mean(dice))},
        details={f"dice/{name}": value for name, value in zip(names, dice, strict=True)},
    )


def _loss_and_dice(
    segmenter: Segmenter, record: VolumeRecord, windows: WindowSettings
) -> list[float]:
    """Return the loss of a case and the Dice of each target, summed slab by slab."""
    targets = segmenter.targets
    entropy, first = 0.0, 0
    # Intersection and sum of sizes: of the scores (soft) and of the predicted labels (hard).
    soft, hard = np.zeros((2, len(targets.names))), np.zeros((2, len(targets.names)))
    for slab in score_volume(segmenter, record, windows):
        _, labels = record.read((first, 0, 0), slab.shape[:3])
        first += len(slab)
        # Plane by plane, as a slab in double precision would be large.
        for scores, reference in zip(slab, map(targets.table.__getitem__, labels), strict=True):
            clipped = np.clip(scores.astype(np.float64), MIN_SCORE, 1 - MIN_SCORE)
            terms = reference * np.log(clipped)
            if targets.activation == "sigmoid":
                terms += (1 - reference) * np.log(1 - clipped)
            entropy -= terms.sum()
            predicted = scores > 0.5
            if targets.activation == "softmax":
                predicted = np.eye(targets.outputs, dtype=bool)[scores.argmax(axis=-1)]
            for sums, values in ((soft, scores), (hard, predicted)):
                # Without background, which only softmax has.
                p, r = (v[..., -len(targets.names) :] for v in (values, reference))
                sums[0] += (p * r).sum(axis=(0, 1), dtype=np.float64)
                sums[1] += p.sum(axis=(0, 1), dtype=np.float64)
                sums[1] += r.sum(axis=(0, 1), dtype=np.float64)
    # A softmax has one cross-entropy per voxel, sigmoids have one per output.
    terms_per_voxel = 1 if targets.activation == "softmax" else len(targets.names)
    count = np.prod(record.head.shape) * terms_per_voxel
    soft_dice = ((2 * soft[0] + SMOOTH) / (soft[1] + SMOOTH)).mean()
    dice = (2 * hard[0] + 1e-6) / (hard[1] + 1e-6)
    return [float(entropy / count + 1 - soft_dice), *dice.tolist()]
