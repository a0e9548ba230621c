"""The section `tiles`."""

from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from gigatile.settings.section import Section

Rule = Literal["off", "mark", "drop"]
# A method is a module in `gigatile/slides/stains/`; `gigatile.slides.stain.METHODS` has them all.
StainMethod = Literal["off", "macenko", "reinhard"]


class TileSettings(Section):
    """Tile size, scale, tissue detection, tile filter and encoding."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"cores", "stall_minutes", "copy_first"})

    size: int = Field(224, ge=16, le=4096, description="Side of a tile, in pixels.")
    mpp: float | None = Field(
        None,
        gt=0.01,
        le=100,
        description="Micrometres per pixel of the tiles (0.5 is about 20x, 0.25 about 40x). A "
        "slide without a\nlevel at this scale is resampled. null: level 0 of each slide.",
    )
    objectives: tuple[tuple[float, float], ...] = Field(
        ((5, 2.0), (10, 1.0), (20, 0.5), (40, 0.25), (60, 0.17), (80, 0.125)),
        description="Pairs of an objective and its micrometres per pixel, for slides whose scale "
        "is neither in\nthe sheet nor in the file. []: the scale of such slides is unknown.",
    )
    max_background: float = Field(
        0.5, ge=0, le=1, description="Tiles with a larger background fraction are dropped."
    )
    close_gaps_um: float = Field(
        50,
        ge=0,
        le=1000,
        description="Gaps in tissue up to this width, in micrometres, count as tissue. This joins "
        "thin walls\naround airspace or fat, or nuclei in fluorescence. 0: none.",
    )
    fill_holes_um2: float = Field(
        65_000,
        ge=0,
        le=1e8,
        description="Background enclosed by tissue counts as tissue if it is smaller than this, in "
        "square\nmicrometres. Tiles without stain are still dropped. 0: only pores.",
    )
    encoding: Literal["jpeg", "lossless"] = Field(
        "jpeg",
        description="Encoding of the stored tiles: `jpeg`, or `lossless`, which keeps the slide's "
        "native JPEG tiles\nunchanged and refuses a slide whose tiles are not aligned with this "
        "grid.",
    )
    quality: int = Field(90, ge=1, le=100, description="JPEG quality of the stored tiles, 1-100.")
    pen: Rule = Field(
        "mark",
        description="Tiles with pen marks: 'off', 'mark' them in the slide's table and on its "
        "page, or 'drop' them.",
    )
    pen_limit: float = Field(
        0.05, ge=0, le=1, description="Fraction of a tile's area under ink above which it counts."
    )
    folds: Rule = Field("mark", description="Tiles with tissue folds: as for pen.")
    folds_limit: float = Field(
        0.1, ge=0, le=1, description="Fraction of a tile's area in folds above which it counts."
    )
    blur: Rule = Field("mark", description="Tiles out of focus: as for pen.")
    blur_limit: float = Field(
        0.14, ge=0, le=1, description="Sharpness below which a tile is out of focus, 0-1."
    )
    uniform: Rule = Field("mark", description="Tiles that show almost nothing: as for pen.")
    uniform_limit: float = Field(
        8,
        ge=0,
        le=255,
        description="Contrast below which a tile shows almost nothing, in grey levels.",
    )
    clipped: Rule = Field("mark", description="Tiles too bright or too dark: as for pen.")
    clipped_limit: float = Field(
        0.5, ge=0, le=1, description="Fraction of white or black pixels above which it counts."
    )
    stripes: Rule = Field("mark", description="Tiles with scanner stripes: as for pen.")
    stripes_limit: float = Field(
        1,
        ge=0,
        le=255,
        description="Step between neighbouring lines of pixels above which it counts, in grey "
        "levels.",
    )
    stain: StainMethod = Field(
        "off", description="Stain normalisation of the tiles, fitted to each slide."
    )
    stain_target: dict[str, list[float | list[float]]] | None = Field(
        None,
        description="The target stain, as printed by scripts/fit_stain.py.\nnull: the published "
        "reference of the method.",
    )
    max_unreadable: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Unreadable tiles are left out; a slide with a larger fraction of them is "
        "refused.",
    )
    stall_minutes: float = Field(
        10,
        gt=0,
        le=10_000,
        description="A slide without progress for this many minutes is refused.",
    )
    cores: int = Field(1, ge=1, le=1024, description="Cores per slide.")
    copy_first: bool = Field(
        False,
        description="Copy a slide to the job's temporary folder first: for slides on a slow "
        "network, if that\nfolder is on a local disk.",
    )
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="For a slide that cannot be used: `record` the reason and continue, or `stop`.",
    )

    @field_validator("objectives")
    @classmethod
    def _check_objectives(cls, pairs: tuple[tuple[float, float], ...]) -> Any:
        for power, mpp in pairs:
            if not (power > 0 and 0.01 < mpp <= 100):
                raise ValueError(
                    f"found [{power:g}, {mpp:g}]; must be an objective and micrometres per pixel, "
                    "such as [20, 0.5]"
                )
        if len({power for power, _ in pairs}) < len(pairs):
            raise ValueError("an objective is listed twice")
        return pairs

    @model_validator(mode="before")
    @classmethod
    def _set_default_target(cls, values: Any) -> Any:
        # A model's settings have the numbers, so that a later release may change the reference.
        if isinstance(values, dict) and values.get("stain") in get_args(StainMethod)[1:]:
            # Imported here, because it takes a tenth of a second and is rarely needed.
            from gigatile.slides.stain import REFERENCE

            if values.get("stain_target") is None:
                return values | {"stain_target": dict(REFERENCE[values["stain"]].values)}
        return values

    @model_validator(mode="after")
    def _check_target(self) -> "TileSettings":
        if self.stain_target is None:
            return self
        if self.stain == "off":
            raise ValueError("stain_target: has no effect with stain: 'off'")
        from gigatile.slides.stain import Stain

        try:
            Stain(self.stain, self.stain_target)
        except ValueError as error:
            raise ValueError(f"stain_target: {error}") from None
        return self

    @model_validator(mode="after")
    def _check_lossless(self) -> "TileSettings":
        if self.encoding == "lossless" and self.stain != "off":
            raise ValueError(
                f"stain: {self.stain} changes pixels, but encoding: lossless stores them unchanged"
            )
        return self
