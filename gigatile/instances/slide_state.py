"""The state of a whole slide, predictions/slides/<slide>.json: what was detected on it, and how."""

from typing import Any, Literal

from pydantic import Field, JsonValue

from gigatile.slides.state import Illumination, ReaderChoice, SlideSource, UnreadableTile
from gigatile.states import OtherFile, StateModel

SCHEMA = 1


class InputGrid(StateModel):
    """The pixels that the model saw; see `gigatile.instances.slide_input.SlideInput`.

    Attributes:
        height, width: of the slide, in these pixels.
        across, down: level-0 pixels per pixel.
        mpp: micrometres per pixel; None: not known.
        level: that was read.
        resampled: whether its pixels were resized.
    """

    height: int
    width: int
    across: float
    down: float
    mpp: float | None
    level: int
    resampled: bool


class Windows(StateModel):
    """The windows in which a slide was processed.

    Attributes:
        side, overlap: in pixels of the input.
        columns, rows: number of windows across and down.
        tissue: number of windows with tissue; the others are not read.
        unreadable: number of windows with tissue that cannot be read.
        full: number of windows with the highest number of detections that the settings allow, so
            that some instances may be missing.
        limit: this number.
    """

    side: int
    overlap: int
    columns: int
    rows: int
    tissue: int
    unreadable: int = 0
    full: int = 0
    limit: int = 0


class DetectionFacts(StateModel):
    """What is known about a slide while its instances are detected.

    Attributes:
        slide: its id.
        state: `failed`: it cannot be used.
        reason: why it failed; else None.
        source: the slide's file.
        mpp: micrometres per pixel of level 0; None: not known.
        mpp_from: the source of `mpp`, one of `gigatile.slides.scale.SOURCES`.
        contradictions: sources of the scale that differ by more than the tolerance.
        requested_mpp: micrometres per pixel at which it was to be read; None: those of level 0, as
            the scale of the training images is not known.
        input: the pixels that the model saw.
        windows: in which the slide was processed.
        illumination: transmitted light or fluorescence.
        tissue_threshold: of saturation, or of brightness in fluorescence, 0-255.
        tissue_pixels: area of the tissue in pixels of level 0.
        reading: the reader of the windows.
        unreadable: the first windows that cannot be read; their corners are in pixels of level 0.
        instances: number of instances by category.
        cut: number of instances that a border of a window cuts, as no other window shows them.
        stalled_minutes: the time limit that it exceeded.
    """

    slide: str
    state: Literal["detected", "failed"] = "failed"
    reason: str | None = None
    source: SlideSource
    mpp: float | None = None
    mpp_from: str | None = None
    contradictions: list[str] = Field(default_factory=list)
    requested_mpp: float | None = None
    input: InputGrid | None = None
    windows: Windows | None = None
    illumination: Illumination | None = None
    tissue_threshold: float | None = None
    tissue_pixels: float | None = None
    reading: ReaderChoice | None = None
    unreadable: list[UnreadableTile] = Field(default_factory=list)
    instances: dict[str, int] = Field(default_factory=dict)
    cut: int = 0
    stalled_minutes: float | None = Field(None, exclude_if=lambda minutes: minutes is None)


class DetectionState(DetectionFacts):
    """The state of a slide.

    Attributes:
        files: `table`, `outlines` and `overview`.
        settings: the section `slide_instances`.
        model: SHA-256 of the model's file.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    files: dict[str, OtherFile]
    settings: dict[str, JsonValue]
    model: str

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written."""
        return self.model_dump(mode="json", by_alias=True)
