"""Write the result of a validation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gigatile.files import checksums, write_json
from gigatile.json_models import read_model
from gigatile.training.monitoring import EventWriter, describe_means
from gigatile.training.segments import Segment, SegmentRecord


@dataclass(frozen=True)
class Validation:
    """The result of a model on the validation split.

    Attributes:
        units: what was scored, in the plural, for example `tiles`.
        count: how many of them.
        means: the mean `loss` and the mean of each metric.
        criterion: the metric by which the model is chosen: the lowest `loss`, or the highest value
            of another metric.
        details: further figures for TensorBoard, by name.
        pictures: for TensorBoard, by name: (height, width, 3) uint8.
    """

    units: str
    count: int
    means: Mapping[str, float]
    criterion: str = "loss"
    details: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, np.ndarray] = field(default_factory=dict)


def record_validation(
    segment: Segment,
    manifest: Path,
    validation: Validation,
    log: Callable[[str], None],
    events: Path | None,
) -> None:
    """Write `segment.validated`, scalars and pictures for TensorBoard, and a line of log.

    Args:
        segment: of the validated model.
        manifest: of the shards.
        validation: the result.
        log: takes a line.
        events: folder for TensorBoard; None: none.
    """
    inputs = {f"segments/{segment.model.name}": segment.model, "shards/manifest.json": manifest}
    result: dict[str, object] = {"epoch": segment.epoch, validation.units: validation.count}
    result |= validation.means
    if validation.criterion != "loss":
        result["criterion"] = validation.criterion
    write_json(segment.validated, result | {"inputs": checksums(inputs)})
    if events:
        scalars = {f"epoch/{name}": mean for name, mean in validation.means.items()}
        steps, writer = read_model(SegmentRecord, segment.described).steps, EventWriter(events)
        writer.write(steps, scalars | dict(validation.details))
        writer.write_pictures(steps, validation.pictures)
    log(
        f"epoch {segment.epoch}: validation {describe_means(validation.means)} on "
        f"{validation.count} {validation.units}"
    )
