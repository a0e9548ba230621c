"""What the states of slides (tiles/<slide>.json) and cases (volumes/<case>.json) have in common."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gigatile.files import sha256_of
from gigatile.json_models import JsonModel


class StateModel(JsonModel):
    """A state or a part of one. The preparation fills in its fields as it learns them."""

    # A NaN stays one, which `write_json` refuses; pydantic would write null.
    model_config = ConfigDict(strict=False, frozen=False, ser_json_inf_nan="constants")

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written; None becomes null."""
        return self.model_dump(mode="json")


# How a slide, case or image looks, in figures that can be compared with others; empty: not known.
AppearanceFigures = Annotated[dict[str, float], Field(exclude_if=lambda figures: not figures)]


class RecordsFile(StateModel):
    """The file of a slide's or case's records."""

    bytes: int
    sha256: str

    @classmethod
    def from_path(cls, path: Path) -> "RecordsFile":
        """Describe a file."""
        return cls(bytes=path.stat().st_size, sha256=sha256_of(path))


class OtherFile(StateModel):
    """Another file that belongs to the state."""

    sha256: str

    @classmethod
    def from_path(cls, path: Path) -> "OtherFile":
        """Describe a file."""
        return cls(sha256=sha256_of(path))
