"""The state of a predicted segmentation, segmentations/<case>.json."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from gigatile.files import write_whole
from gigatile.json_models import JsonModel, write_model

SCHEMA = 1


class Windows(JsonModel):
    """The windows in which the model segmented a case; `size` in voxels."""

    overlap: float
    flips: bool
    size: list[int]


class SegmentationState(JsonModel):
    """The state of a segmentation; a case that could not be prepared has no fields but the first.

    Attributes:
        schema_version: of the state's format.
        case: the case's id.
        volumes_ml: millilitres of each label and region.
        inputs: the SHA-256 of the model and of the case's record.
        sha256: of the segmentation.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    case: str
    state: Literal["segmented", "failed"]
    volumes_ml: dict[str, float] = Field(default_factory=dict, exclude_if=lambda ml: not ml)
    windows: Windows | None = None
    inputs: dict[str, str] = Field(default_factory=dict, exclude_if=lambda inputs: not inputs)
    sha256: str | None = None


def skip_case(case: str, segmentation: Path, state: Path) -> None:
    """Write an empty segmentation and the state of a case that could not be prepared."""
    with write_whole(segmentation):
        pass
    write_model(state, SegmentationState(case=case, state="failed"))
