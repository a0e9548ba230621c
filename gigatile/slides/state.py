"""The state of a slide, tiles/<slide>.json: the outcome of tiling, and the reason if it failed."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from gigatile.states import AppearanceFigures, OtherFile, RecordsFile, StateModel

SCHEMA = 3

Illumination = Literal["transmitted", "fluorescence"]


class Level(StateModel):
    """One level of a slide, as OpenSlide describes it."""

    width: int
    height: int
    downsample: float


class SlideSource(StateModel):
    """The slide's file. Fields are None if the slide could not be opened.

    Attributes:
        scanner: its vendor, model and number; None if the file has neither of the last two.
    """

    name: str
    bytes: int | None = None
    fingerprint: str | None = None
    vendor: str | None = None
    width: int | None = Field(None, gt=0)
    height: int | None = Field(None, gt=0)
    levels: list[Level] | None = None
    objective_power: str | None = None
    scanner: str | None = None


class TileGrid(StateModel):
    """The grid of the tiles; see `gigatile.slides.grid.Grid`."""

    size: int = Field(gt=0)
    mpp: float | None
    extent: float = Field(gt=0)
    level: int
    scale: tuple[float, float]
    resampled: bool
    columns: int = Field(ge=0)
    rows: int = Field(ge=0)


@dataclass(frozen=True)
class ReaderChoice:
    """The reader of a slide's tiles, or of its overview.

    Attributes:
        by: `native tiles` (the JPEG tiles of the file, decoded directly and once each) or
            `openslide`.
        why: the reason for `openslide`, else None.
        compared: number of regions in which the pixels of both readers were compared. For
            `native tiles`, at least `reader_selection.COMPARED`, or all if there are fewer.
    """

    by: str
    why: str | None
    compared: int


class StainNumbers(StateModel):
    """A stain; its numbers depend on the method, see `gigatile.slides.stain.Stain`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[float] | list[list[float]]]

    method: str


class StainState(StateModel):
    """Stain normalisation of a slide.

    Attributes:
        source: the slide's stain; None if it could not be estimated.
        target: the stain to which the tiles are normalised.
        why_not: why the tiles are not normalised, else None.
    """

    source: StainNumbers | None
    target: StainNumbers
    why_not: str | None


class TileCounts(StateModel):
    """Number of tiles kept, and dropped or marked by reason."""

    kept: int
    dropped: dict[str, int]
    marked: dict[str, int]


class UnreadableTile(StateModel):
    """A tile that cannot be read; `x` and `y` are its top-left corner in pixels of level 0."""

    x: int
    y: int
    reason: str


class SlideFacts(StateModel):
    """What is known about a slide while it is tiled.

    Attributes:
        schema_version: of the state's format.
        slide: the slide's id.
        state: `tiled` or `failed`.
        reason: why it failed.
        source: the slide's file.
        mpp: micrometres per pixel of level 0.
        mpp_from: the source of `mpp`, one of `gigatile.slides.scale.SOURCES`.
        mpp_by_source: the scale from each source.
        contradictions: sources of the scale that differ by more than the tolerance.
        grid: the tile grid.
        illumination: of the slide: transmitted light or fluorescence.
        tissue_threshold: of saturation, or of brightness in fluorescence, 0-255.
        overview: the reader of the overview.
        reading: the reader of the tiles.
        stain: None if stain normalisation is off.
        tiles: number of tiles.
        unreadable: the first tiles that cannot be read.
        appearance: how its tiles look; see `gigatile.slides.appearance`.
        stalled_minutes: the limit in minutes that the slide exceeded without progress, else None.
    """

    schema_version: int = Field(alias="schema")
    slide: str
    state: Literal["tiled", "failed"]
    reason: str | None
    source: SlideSource
    mpp: float | None
    mpp_from: str | None
    mpp_by_source: dict[str, float]
    contradictions: list[str]
    grid: TileGrid | None
    illumination: Illumination | None
    tissue_threshold: int | None
    overview: ReaderChoice | None
    reading: ReaderChoice | None
    stain: StainState | None
    tiles: TileCounts
    unreadable: list[UnreadableTile]
    appearance: AppearanceFigures = Field(default_factory=dict)
    stalled_minutes: float | None = Field(None, exclude_if=lambda minutes: minutes is None)

    @classmethod
    def unopened(cls, slide: str, file_name: str, sheet_mpp: float | None) -> "SlideFacts":
        """Return what is known before the slide is opened."""
        return cls(
            schema_version=SCHEMA,
            slide=slide,
            state="failed",
            reason=None,
            source=SlideSource(name=file_name),
            mpp=sheet_mpp,
            mpp_from=None if sheet_mpp is None else "sheet",
            mpp_by_source={},
            contradictions=[],
            grid=None,
            illumination=None,
            tissue_threshold=None,
            overview=None,
            reading=None,
            stain=None,
            tiles=TileCounts(kept=0, dropped={"background": 0}, marked={}),
            unreadable=[],
        )


class SlideState(SlideFacts):
    """The state of a slide.

    Attributes:
        records: the file of its tiles' records.
        files: its other files, so that the state changes if any of them does.
        settings: the settings with which it was tiled.
    """

    records: RecordsFile
    files: dict[str, OtherFile]
    settings: dict[str, JsonValue]

    @property
    def sha256_of_tiles(self) -> str:
        """The SHA-256 of the file of its tiles."""
        return self.records.sha256
