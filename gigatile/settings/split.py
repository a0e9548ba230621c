"""The section `split`."""

from pydantic import Field, model_validator

from gigatile.settings.section import MAX_SEED, Section

SPLITS = ("train", "valid", "test")


class SplitSettings(Section):
    """How patients are split into train, valid and test."""

    train: float = Field(0.6, gt=0, lt=1, description="Share of the patients.")
    valid: float = Field(0.2, gt=0, lt=1, description="Share of the patients.")
    test: float = Field(0.2, gt=0, lt=1, description="Share of the patients.")
    seed: int = Field(
        44,
        ge=0,
        le=MAX_SEED,
        description="Another seed gives other splits. For a small cohort, "
        "`scripts/choose_split_seed.py`\nfinds a seed with balanced splits.",
    )

    @model_validator(mode="after")
    def _shares_add_up(self) -> "SplitSettings":
        total = self.train + self.valid + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, valid and test must add up to 1; they add up to {total:g}")
        return self
