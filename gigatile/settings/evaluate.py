"""The section `evaluate`."""

from pydantic import Field

from gigatile.settings.section import Section


class EvaluationSettings(Section):
    """How the test cohort is scored."""

    resamples: int = Field(
        1000,
        ge=1000,
        le=10_000,
        description="Draws of random weights of the patients, for the intervals.",
    )
    seed: int = Field(1, ge=0, description="Seed of the draws.")
