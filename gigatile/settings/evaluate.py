"""The section `evaluate`."""

from pydantic import Field

from gigatile.settings.section import MAX_SEED, Section


class EvaluationSettings(Section):
    """How the test cohort is scored."""

    resamples: int = Field(
        1000, ge=10, le=10_000, description="Bootstrap resamples of patients for the intervals."
    )
    seed: int = Field(1, ge=0, le=MAX_SEED, description="Seed of the resampling.")
