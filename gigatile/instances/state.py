"""The states of images: images/<part>.json."""

from typing import Any, Literal

from pydantic import Field, JsonValue

from gigatile.records.parts import Span
from gigatile.states import AppearanceFigures, RecordsFile, StateModel

SCHEMA = 1


class ImageFile(StateModel):
    """A file that was read: its name without folder, and its fingerprint."""

    name: str
    fingerprint: str


class ImageFacts(StateModel):
    """What is known about an image.

    Attributes:
        image: its id.
        state: `failed`: it cannot be used.
        reason: why it failed; else None.
        fingerprint: of its files; None: they could not be read.
        sources: these files, by the column of the sheet.
        annotated: whether annotations were read.
        height, width: of the file in pixels; None: not known.
        mpp: micrometres per pixel; None: not known.
        regions: number of records: 1, or the number of annotated regions of a slide.
        pixels: of all records.
        instances: number of instances by category, without crowds.
        crowds: number of crowds.
        appearance: how its pixels look; see `gigatile.slides.appearance`.
        stalled_minutes: the time limit that it exceeded.
    """

    image: str
    state: Literal["prepared", "failed"] = "failed"
    reason: str | None = None
    fingerprint: str | None = None
    sources: dict[str, ImageFile] = Field(default_factory=dict)
    annotated: bool = False
    height: int | None = None
    width: int | None = None
    mpp: float | None = None
    regions: int = 0
    pixels: int = 0
    instances: dict[str, int] = Field(default_factory=dict)
    crowds: int = 0
    appearance: AppearanceFigures = Field(default_factory=dict)
    stalled_minutes: float | None = Field(None, exclude_if=lambda minutes: minutes is None)

    @property
    def file(self) -> str | None:
        """Fingerprint of the file of the image or slide alone; None: it could not be read."""
        return self.sources["path"].fingerprint if self.sources else None


class ImageState(ImageFacts):
    """The state of an image. `records` says where its records are in the file of the part."""

    records: Span


class PartState(StateModel):
    """The states of the images of a part.

    Attributes:
        part: its name.
        images: in the order of the sheet.
        records: the file of their records.
        settings: the settings with which they were prepared.
        stalled_minutes: the time limit, if one of them exceeded it.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    part: str
    images: list[ImageState]
    records: RecordsFile
    settings: dict[str, JsonValue]
    stalled_minutes: float | None = Field(None, exclude_if=lambda minutes: minutes is None)

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written."""
        return self.model_dump(mode="json", by_alias=True)
