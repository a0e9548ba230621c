"""The section `whole_slides`."""

from typing import ClassVar, Literal

from pydantic import Field

from gigatile.settings.section import Section

AggregatorName = Literal["max", "mean", "attention"]


class WholeSlideSettings(Section):
    """How a model sees whole slides."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"window"})

    aggregator: AggregatorName = Field(
        "max",
        description="From the embeddings of all positions with tissue to one: `max` or `mean` of "
        "each channel, or gated\n`attention` (Ilse et al. 2018). `max` suits findings in a small "
        "part of the tissue.",
    )
    window: int = Field(
        2048,
        ge=64,
        le=65_536,
        description="Side of the windows in which a slide is read, in pixels. It changes memory "
        "and speed, not the result.",
    )
