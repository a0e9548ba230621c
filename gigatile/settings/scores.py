"""The section `scores`."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gigatile.settings.section import Section
from gigatile.settings.view_names import VIEWS, named_views


class ScoreSettings(Section):
    """How the chosen model scores tiles."""

    views: Annotated[tuple[str, ...], BeforeValidator(named_views)] = Field(
        VIEWS[:1],
        description="Views of a tile over which its scores are averaged: identity, rotate90, …, as "
        "in train.views; or\nall. Scoring takes so many times as long.",
    )
    temperature: bool = Field(
        False,
        description="Choose the temperature of the scores on the tiles of the validation split.",
    )
