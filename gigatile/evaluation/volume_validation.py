"""A segment's model on the whole volumes of the validation cases, while the next segment trains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.evaluation.windows import Segmenter, score_volume
from gigatile.files import checksums, read_json, write_json
from gigatile.records.shards import ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.settings.windows import WindowSettings
from gigatile.training.segments import Segment
from gigatile.training.watching import Events

# As in training: it keeps the Dice of a region that is hardly there from being decided by little.
SMOOTH = 1.0
# Scores count as no less than this, and no more than 1 less it, where a logarithm is taken.
LEAST = 1e-7


def validate(
    segment: Segment,
    manifest: Path,
    windows: WindowSettings,
    tell: Callable[[str], None],
    events: Path | None = None,
) -> None:
    """Segment the cases of the split valid, each whole, and write the means of loss and Dice.

    Both are defined as in training (`gigatile/training/segmentation.py`), over a case in place of a
    patch: the loss is the mean cross-entropy of its voxels and one less its soft Dice.

    Args:
        segment: what was trained; its `validated` is written.
        manifest: of the shards.
        windows: how the model goes over a case.
        tell: takes a line with the result.
        events: folder for files of TensorBoard; None: none are written.

    Raises:
        UserError: a file is missing or damaged, or a case has no labels, or other channels than
            the model takes.
    """
    segmenter = Segmenter(segment.model, segment.described)
    reader = ShardReader(manifest, "valid")
    described = read_json(segment.described)
    cases = min(len(reader), described["train"]["limit_batches"] or len(reader))
    if not cases:
        raise UserError(f"{manifest}: has no case to validate with")
    figures = []
    for number in range(cases):
        record = VolumeRecord(*reader.locate(number))
        segmenter.check(record)
        if not record.head.labelled:
            raise UserError(f"case {record.head.case}: has no segmentation to validate with")
        figures.append(_figures(segmenter, record, windows))
    loss, dice = np.mean(figures, axis=0).tolist()
    inputs = {f"segments/{segment.model.name}": segment.model, "shards/manifest.json": manifest}
    write_json(
        segment.validated,
        {"epoch": segment.epoch, "cases": cases, "loss": loss, "dice": dice}
        | {"inputs": checksums(inputs)},
    )
    if events:
        Events(events).write(described["steps"], {"epoch/loss": loss, "epoch/dice": dice})
    tell(
        f"epoch {segment.epoch}: valid loss {loss:.4f}, dice {dice:.3f} on {cases} whole case"
        f"{'s' * (cases > 1)}"
    )


def _figures(
    segmenter: Segmenter, record: VolumeRecord, windows: WindowSettings
) -> tuple[float, float]:
    """Return loss and Dice of one case, gathered slab by slab."""
    targets = segmenter.targets
    entropy, first = 0.0, 0
    # Of scores and of what is decided by them: what both have, and what either has.
    soft, hard = np.zeros((2, len(targets.names))), np.zeros((2, len(targets.names)))
    for slab in score_volume(segmenter, record, windows):
        _, labels = record.read((first, 0, 0), slab.shape[:3])
        first += len(slab)
        # Plane by plane, as double precision of a whole slab is large.
        for scores, truth in zip(slab, map(targets.table.__getitem__, labels), strict=True):
            likely = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
            terms = truth * np.log(likely)
            if targets.activation == "sigmoid":
                terms += (1 - truth) * np.log(1 - likely)
            entropy -= terms.sum()
            decided = scores > 0.5
            if targets.activation == "softmax":
                decided = np.eye(targets.outputs, dtype=bool)[scores.argmax(axis=-1)]
            for sums, found in ((soft, scores), (hard, decided)):
                found, there = (v[..., -len(targets.names) :] for v in (found, truth))
                sums[0] += (found * there).sum(axis=(0, 1), dtype=np.float64)
                sums[1] += found.sum(axis=(0, 1), dtype=np.float64)
                sums[1] += there.sum(axis=(0, 1), dtype=np.float64)
    # A softmax has one cross-entropy for all its outputs, each sigmoid its own.
    terms_of_voxel = 1 if targets.activation == "softmax" else len(targets.names)
    each = np.prod(record.head.shape) * terms_of_voxel
    dice = ((2 * soft[0] + SMOOTH) / (soft[1] + SMOOTH)).mean()
    measured = ((2 * hard[0] + 1e-6) / (hard[1] + 1e-6)).mean()
    return float(entropy / each + 1 - dice), float(measured)
