"""Training in segments of a few epochs: the files of each, and the choice of the model.

A segment is one job, which starts from the state at the end of the segment before. While the next
segment trains, another job validates its model, so no GPU waits for validation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.files import copy_whole, read_json, sha256_of, write_json
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


def segment_states(folder: Path) -> list[Path]:
    """Return the states of the segments in a folder, those with most epochs first."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9].npz"), reverse=True)


def choose_model(segments: Sequence[Segment], out: Path) -> Segment:
    """Copy the best segment's model to `out`, and return the segment.

    The best has the lowest validation loss; among equals, the fewest epochs.

    Args:
        segments: all segments of a training in their order, validated.
        out: folder for model.keras, history.tsv, settings.json and versions.json.

    Raises:
        UserError: a segment was validated with another model than its own.
    """
    validated = [read_json(segment.validated) for segment in segments]
    for segment, values in zip(segments, validated, strict=True):
        if values["inputs"].get(f"segments/{segment.model.name}") != sha256_of(segment.model):
            raise UserError(
                f"{segment.validated}: validates another {segment.model.name} than the one beside "
                "it; delete this file and run again"
            )
    losses = [values["loss"] for values in validated]
    best = losses.index(min(losses))
    segment = segments[best]
    described: dict[str, Any] = read_json(segment.described)
    # The description of the last segment has all epochs, including those after the best.
    history = read_json(segments[-1].described)["history"]
    names = ("loss", *described.pop("metrics"))
    valid = {values["epoch"]: [values.get(name) for name in names] for values in validated}
    rows = [
        [epoch, *map(_format, (*means, *valid.get(epoch, [None] * len(names))))]
        for epoch, *means in history
    ]
    copy_whole(segment.model, out / "model.keras")
    columns = ("epoch", *names, *(f"valid_{name}" for name in names))
    write_table(out / "history.tsv", columns, rows)
    write_json(out / "versions.json", described.pop("versions"))
    del described["history"], described["steps"]
    inputs = {
        f"segments/{path.name}": sha256_of(path)
        for path in (segment.model, *(each.validated for each in segments))
    }
    chosen = {"epoch": segment.epoch, "valid_loss": losses[best], "of": len(segments)}
    inputs = described["inputs"] | inputs
    write_json(out / "settings.json", described | {"chosen": chosen, "inputs": inputs})
    return segment


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
