"""The section `postprocessing`."""

from typing import Literal

from pydantic import Field

from gigatile.settings.section import Section


class PostprocessingSettings(Section):
    """What is removed from a segmented volume."""

    components: Literal["all", "validation"] = Field(
        "all",
        description="all: nothing is removed. validation: only the largest component of the "
        "labelled voxels is kept,\nor those above a volume, if that improves the Dice of the "
        "validation cases.",
    )
