"""Training in segments of a few epochs: the files of each, and the choice of the model.

A segment is one job, which starts from the state at the end of the segment before. While the next
segment trains, another job validates its model, so no GPU waits for validation. With early
stopping, each segment waits for the validation of the one before. The segments after the end of the
training have the files of its last one.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from gigatile.errors import UserError
from gigatile.files import copy_whole, read_json, sha256_of, write_json, write_whole
from gigatile.json_models import JsonModel, read_model
from gigatile.tables import write_table


@dataclass(frozen=True)
class Segment:
    """The files of one segment.

    Attributes:
        folder: of all segments.
        epoch: complete epochs at its end.
    """

    folder: Path
    epoch: int

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.epoch:04d}.{suffix}"

    @property
    def state(self) -> Path:
        """The state from which the next segment starts; a checkpoint."""
        return self._file("npz")

    @property
    def model(self) -> Path:
        """The model at its end."""
        return self._file("keras")

    @property
    def described(self) -> Path:
        """How the model was trained, and the history of all epochs."""
        return self._file("json")

    @property
    def validated(self) -> Path:
        """Loss and metrics of the model on the validation split."""
        return self._file("valid.json")


class SegmentRecord(JsonModel):
    """What `Segment.described` says about the training; settings of the model are further keys.

    Attributes:
        inputs: the SHA-256 of the files that the training read.
        versions: of Python and the libraries.
        steps: number of training steps.
        metrics: names of the columns of `history` after the loss.
        history: for each epoch its number, loss and metrics.
        stopped_after: epochs at which the training stopped early, before this segment; else None.
    """

    inputs: dict[str, str]
    versions: dict[str, str]
    steps: int
    metrics: list[str]
    history: list[list[int | float]]
    stopped_after: int | None = None


class ValidationRecord(JsonModel):
    """The content of `Segment.validated`; further keys are the metrics and the number of samples.

    Attributes:
        epoch: complete epochs of the validated model.
        loss: mean over the validation split.
        criterion: the metric by which the model is chosen; see `Validation`.
        inputs: the SHA-256 of the model and of the manifest.
    """

    model_config = ConfigDict(extra="allow")

    epoch: int
    loss: float
    criterion: str = "loss"
    inputs: dict[str, str]

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics but the loss, by name."""
        extra = (self.model_extra or {}).items()
        return {name: value for name, value in extra if isinstance(value, float)}

    @property
    def cost(self) -> float:
        """What the best model has least of."""
        return self.loss if self.criterion == "loss" else -self.metrics[self.criterion]

    def mean(self, name: str) -> float | None:
        """Return the mean `loss` or metric; None if it was not computed."""
        return self.loss if name == "loss" else (self.model_extra or {}).get(name)


def segment_states(folder: Path) -> list[Path]:
    """Return the states of the segments in a folder, those with most epochs first."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9].npz"), reverse=True)


def stops_early(validated: Sequence[ValidationRecord], patience: int | None) -> bool:
    """Return whether the training ends with the last of these segments.

    Args:
        validated: of all segments so far; at least one.
        patience: the most epochs without a better result; None: no limit.
    """
    if patience is None:
        return False
    return max(record.epoch for record in validated) - best_of(validated).epoch >= patience


def best_of(validated: Sequence[ValidationRecord]) -> ValidationRecord:
    """Return the best result; among equals, that of the fewest epochs."""
    return min(validated, key=lambda record: (record.cost, record.epoch))


def repeat_segment(last: Segment, segment: Segment) -> int:
    """Write the files of the last segment as those of a segment that is not trained.

    Returns:
        The epochs after which the training stopped.
    """
    described = read_json(last.described)
    stopped_after = described.get("stopped_after") or last.epoch
    for source, path in ((last.state, segment.state), (last.model, segment.model)):
        with write_whole(path) as temporary:
            temporary.unlink()
            try:
                os.link(source, temporary)
            except OSError:  # a file system without hard links
                shutil.copyfile(source, temporary)
    # Written last, as after training.
    write_json(segment.described, described | {"stopped_after": stopped_after})
    return stopped_after


def repeat_validation(segment: Segment) -> bool:
    """Write the last segment's result as that of a segment that was not trained.

    Returns:
        Whether it was so; else the segment has to be validated.
    """
    stopped_after = read_model(SegmentRecord, segment.described).stopped_after
    if stopped_after is None:
        return False
    last = Segment(segment.folder, stopped_after)
    result = read_json(last.validated)
    key = f"segments/{last.model.name}"
    inputs = {
        f"segments/{segment.model.name}" if name == key else name: sha256
        for name, sha256 in result["inputs"].items()
    }
    write_json(segment.validated, result | {"inputs": inputs})
    return True


def choose_model(segments: Sequence[Segment], out: Path) -> Segment:
    """Copy the best segment's model to `out`, and return the segment.

    The best has the lowest validation loss, or the highest value of the metric that the validation
    names as its criterion; among equals, the fewest epochs.

    Args:
        segments: all segments of a training in their order, validated.
        out: folder for model.keras, history.tsv, settings.json and versions.json.

    Raises:
        UserError: a segment was validated with another model than its own.
    """
    validated = [read_model(ValidationRecord, segment.validated) for segment in segments]
    for segment, record in zip(segments, validated, strict=True):
        if record.inputs.get(f"segments/{segment.model.name}") != sha256_of(segment.model):
            raise UserError(
                f"{segment.validated}: validates another {segment.model.name} than the one in "
                "this folder; delete this file and run again"
            )
    best = best_of(validated)
    segment = next(each for each in segments if each.epoch == best.epoch)
    trained = read_model(SegmentRecord, segment.described)
    # The record of the last segment has all epochs, including those after the best.
    history = read_model(SegmentRecord, segments[-1].described).history
    names = ("loss", *trained.metrics)
    # A metric of the validation that the training does not have, such as COCO's AP.
    more = [name for name in validated[0].metrics if name not in names]
    columns_valid = (*names, *more)
    valid = {record.epoch: [record.mean(name) for name in columns_valid] for record in validated}
    rows = [
        [epoch, *map(_format, (*means, *valid.get(int(epoch), [None] * len(columns_valid))))]
        for epoch, *means in history
    ]
    copy_whole(segment.model, out / "model.keras")
    columns = ("epoch", *names, *(f"valid_{name}" for name in columns_valid))
    write_table(out / "history.tsv", columns, rows)
    write_json(out / "versions.json", trained.versions)
    inputs = {
        f"segments/{path.name}": sha256_of(path)
        for path in (segment.model, *(each.validated for each in segments))
    }
    chosen: dict[str, object] = {
        "epoch": segment.epoch,
        "valid_loss": best.loss,
        "of": len({record.epoch for record in validated}),
    }
    if best.criterion != "loss":
        chosen |= {"criterion": best.criterion, "value": -best.cost}
    omitted = ("versions", "steps", "metrics", "history")
    settings = {k: v for k, v in read_json(segment.described).items() if k not in omitted}
    inputs = trained.inputs | inputs
    write_json(out / "settings.json", settings | {"chosen": chosen, "inputs": inputs})
    return segment


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
