"""The section `split`."""

from typing import Literal

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

    by: Literal["patient", "site"] = Field(
        "patient",
        description="What stays together: `patient`, or `site`: all patients of a site.",
    )
    folds: int | None = Field(
        None,
        ge=3,
        le=100,
        description="Cross-validation: the patients are dealt to so many folds, balanced by "
        "label;\nthe shares do not count. null: none.",
    )
    fold: int = Field(
        1,
        ge=1,
        le=100,
        description="With `folds`: the fold that is the test split. The next one is the validation "
        "split,\nthe others are for training. With `held_out`: the fold that is the validation "
        "split.",
    )
    held_out: float = Field(
        0,
        ge=0,
        le=0.9,
        description="With `folds`: share of the patients that no fold has. They are the test split "
        "in all folds,\nfor the mean of the folds' models. 0: none.",
    )

    @property
    def shares(self) -> dict[str, float]:
        """The wanted share of the patients in each split."""
        if self.folds is None:
            return {"train": self.train, "valid": self.valid, "test": self.test}
        fold = (1 - self.held_out) / self.folds
        test = self.held_out or fold
        return {"train": 1 - fold - test, "valid": fold, "test": test}

    @model_validator(mode="after")
    def _fold_exists(self) -> "SplitSettings":
        if self.fold > (self.folds or 1):
            limit = f"at most folds, {self.folds}" if self.folds else "1 without folds"
            raise ValueError(f"fold is {self.fold}; must be {limit}")
        if self.held_out and self.folds is None:
            raise ValueError(f"held_out is {self.held_out:g}; must be 0 without folds")
        return self

    @model_validator(mode="after")
    def _shares_add_up(self) -> "SplitSettings":
        total = self.train + self.valid + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, valid and test must add up to 1; they add up to {total:g}")
        return self
