"""The section `windows`."""

from pydantic import Field

from gigatile.settings.section import Section


class WindowSettings(Section):
    """How a model goes over a whole volume, in windows of the size of its patches."""

    overlap: float = Field(
        0.5, ge=0, le=0.875, description="Share of its side by which a window overlaps the next."
    )
    flips: bool = Field(
        False, description="Average over all flips of each window: eight times the work."
    )
