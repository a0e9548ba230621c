"""A training in segments of a few epochs: what each leaves, and which of them is the model.

A segment is a job that goes on from the state in which the one before it ended. While the next one
trains, its model is validated by a job of its own; no GPU waits for that.
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
        """All that the next segment goes on from; as a checkpoint."""
        return self._file("npz")

    @property
    def model(self) -> Path:
        """The model at its end."""
        return self._file("keras")

    @property
    def described(self) -> Path:
        """How the model was made, and the history of all epochs before it."""
        return self._file("json")

    @property
    def validated(self) -> Path:
        """Loss and measure of the model on the validation cohort."""
        return self._file("valid.json")


def states(folder: Path) -> list[Path]:
    """Return the states that segments have left in a folder, the furthest first."""
    return sorted(folder.glob("[0-9][0-9][0-9][0-9].npz"), reverse=True)


def choose_model(segments: Sequence[Segment], out: Path) -> Segment:
    """Make the best segment's model that of the run; return which it is.

    The best has the least validation loss, and of equals the fewest epochs.

    Args:
        segments: all of a training, validated, in their order.
        out: folder for model.keras, history.tsv, settings.json and versions.json.

    Raises:
        UserError: a segment was validated with another model than the one that is there.
    """
    valid = [read_json(segment.validated) for segment in segments]
    for segment, found in zip(segments, valid, strict=True):
        if found["inputs"].get(f"segments/{segment.model.name}") != sha256_of(segment.model):
            raise UserError(
                f"{segment.validated}: is of another {segment.model.name} than the one beside it; "
                "delete it to have it remade"
            )
    _, (segment, chosen) = min(
        enumerate(zip(segments, valid, strict=True)), key=lambda one: (one[1][1]["loss"], one[0])
    )
    described: dict[str, Any] = read_json(segment.described)
    # The last segment's has every epoch, also those after the best.
    history = read_json(segments[-1].described)["history"]
    measure = described.pop("measure")
    measured = {found["epoch"]: (found["loss"], found[measure]) for found in valid}
    rows = [
        [epoch, *(_figure(value) for value in (*figures, *measured.get(epoch, (None, None))))]
        for epoch, *figures in history
    ]
    copy_whole(segment.model, out / "model.keras")
    columns = ("epoch", "loss", measure, "valid_loss", f"valid_{measure}")
    write_table(out / "history.tsv", columns, rows)
    write_json(out / "versions.json", described.pop("versions"))
    del described["history"], described["steps"]
    inputs = {
        f"segments/{path.name}": sha256_of(path)
        for path in (segment.model, *(one.validated for one in segments))
    }
    write_json(
        out / "settings.json",
        described
        | {
            "chosen": {"epoch": segment.epoch, "valid_loss": chosen["loss"], "of": len(segments)},
            "inputs": described["inputs"] | inputs,
        },
    )
    return segment


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
