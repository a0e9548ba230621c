"""The section `tiles`."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from gigatile.settings.section import Section

Rule = Literal["off", "mark", "drop"]


class TileSettings(Section):
    """How a slide is cut into tiles."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"cores", "stall_minutes", "copy_first"})

    size: int = Field(224, ge=16, le=4096, description="Side of a tile, in pixels.")
    mpp: float | None = Field(
        None,
        gt=0.01,
        le=100,
        description="Micrometres per pixel of the tiles (0.5 is about 20x, 0.25 about 40x). Slides "
        "are\nresampled where they have no level at this scale. null: each slide's own level 0.",
    )
    objectives: tuple[tuple[float, float], ...] = Field(
        ((5, 2.0), (10, 1.0), (20, 0.5), (40, 0.25), (60, 0.17), (80, 0.125)),
        description="Pairs of an objective and the micrometres per pixel that it stands for: used "
        "for a slide\nof which neither the sheet nor the file tells a scale. []: such a slide has "
        "none.",
    )
    max_background: float = Field(
        0.5, ge=0, le=1, description="A tile with a larger share of background is dropped."
    )
    close_gaps_um: float = Field(
        50,
        ge=0,
        le=1000,
        description="Gaps in tissue up to this width, in micrometres, count as tissue: thin walls "
        "around\nairspace or fat, or nuclei in fluorescence, are joined to one region. 0: none.",
    )
    fill_holes_um2: float = Field(
        65_000,
        ge=0,
        le=1e8,
        description="Background enclosed by tissue counts as tissue if it is smaller than this, in "
        "square\nmicrometres. Tiles that show nothing stained are dropped all the same. 0: pores "
        "alone.",
    )
    encoding: Literal["jpeg", "lossless"] = Field(
        "jpeg",
        description="Of the stored tiles: `jpeg`, or `lossless`, which takes the slide's own JPEG "
        "tiles as they\nare and refuses a slide whose tiles do not line up with this grid.",
    )
    quality: int = Field(90, ge=1, le=100, description="JPEG quality of the stored tiles, 1-100.")
    pen: Rule = Field(
        "mark",
        description="Tiles with ink of a pen: 'off', 'mark' them in the slide's table and on its "
        "page, or 'drop'.",
    )
    pen_limit: float = Field(
        0.05, ge=0, le=1, description="Share of a tile's area under ink from which on it counts."
    )
    folds: Rule = Field("mark", description="Tiles with folded tissue: as for pen.")
    folds_limit: float = Field(
        0.1, ge=0, le=1, description="Share of a tile's area that is folded."
    )
    blur: Rule = Field("mark", description="Tiles out of focus: as for pen.")
    blur_limit: float = Field(
        0.14, ge=0, le=1, description="Sharpness below which a tile is out of focus, 0-1."
    )
    uniform: Rule = Field("mark", description="Tiles that show nearly nothing: as for pen.")
    uniform_limit: float = Field(
        8,
        ge=0,
        le=255,
        description="Contrast below which a tile shows nearly nothing, in grey levels.",
    )
    clipped: Rule = Field("mark", description="Tiles too bright or too dark: as for pen.")
    clipped_limit: float = Field(
        0.5, ge=0, le=1, description="Share of a tile's pixels that are white or black."
    )
    stripes: Rule = Field("mark", description="Tiles with stripes of the scanner: as for pen.")
    stripes_limit: float = Field(
        1,
        ge=0,
        le=255,
        description="Step between lines of pixels that all of a line shows, in grey levels.",
    )
    stain: Literal["off", "macenko", "reinhard"] = Field(
        "off", description="Stain normalisation of the tiles, fitted to each slide."
    )
    stain_target: dict[str, list[float | list[float]]] | None = Field(
        None,
        description="What they are normalised to, as scripts/fit_stain.py prints it.\nnull: the "
        "method's published reference.",
    )
    max_unreadable: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Tiles that cannot be read are left out; a slide with a larger share of them "
        "is bad.",
    )
    stall_minutes: float = Field(
        10, gt=0, le=10_000, description="A slide that gives nothing for so many minutes is bad."
    )
    cores: int = Field(1, ge=1, le=1024, description="Cores that cut a slide together.")
    copy_first: bool = Field(
        False,
        description="Copy a slide to the job's temporary folder first: where slides lie on a slow "
        "network\nand that folder on a local disk.",
    )
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="A slide that gives no tiles: `record` the reason and go on, or `stop`.",
    )

    @field_validator("objectives")
    @classmethod
    def _one_scale_each(cls, pairs: tuple[tuple[float, float], ...]) -> Any:
        for power, mpp in pairs:
            if not (power > 0 and 0.01 < mpp <= 100):
                raise ValueError(
                    f"found [{power:g}, {mpp:g}]; must be an objective and micrometres per pixel, "
                    "such as [20, 0.5]"
                )
        if len({power for power, _ in pairs}) < len(pairs):
            raise ValueError("an objective stands twice")
        return pairs

    @model_validator(mode="before")
    @classmethod
    def _target_in_numbers(cls, values: Any) -> Any:
        # So they stand in a model's settings, whatever a later release takes for the reference.
        if isinstance(values, dict) and values.get("stain") in ("macenko", "reinhard"):
            # Here, as it takes a tenth of a second to load, and few need it.
            from gigatile.slides.stain import REFERENCE

            if values.get("stain_target") is None:
                return values | {"stain_target": dict(REFERENCE[values["stain"]].values)}
        return values

    @model_validator(mode="after")
    def _target_is_a_stain(self) -> "TileSettings":
        if self.stain_target is None:
            return self
        if self.stain == "off":
            raise ValueError("stain_target: is of no use with stain: 'off'")
        from gigatile.slides.stain import Stain

        try:
            Stain(self.stain, self.stain_target)
        except ValueError as error:
            raise ValueError(f"stain_target: {error}") from None
        return self

    @model_validator(mode="after")
    def _lossless_is_as_it_is(self) -> "TileSettings":
        if self.encoding == "lossless" and self.stain != "off":
            raise ValueError(
                f"stain: {self.stain} changes pixels, which encoding: lossless stores as they are"
            )
        return self
