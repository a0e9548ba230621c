"""The file of a study, and the runs that follow from it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from pydantic import Field, model_validator

from gigatile.errors import UserError
from gigatile.settings.section import MAX_SEED, RUN_NAME, Section

# The scores of the validation split of a run that classifies slides.
VALIDATED = "validation/slides.tsv"
# A study of more runs is a mistake.
MOST_RUNS = 500
# What the folder of a study has besides the folders of its variants.
RESERVED = ("configurations", "comparison", "index.html", "study.json", "study.tsv")
# Keys that the study decides.
DECIDED = ("run", "reuse", "split.folds", "split.fold")


class Study(Section):
    """The content of a study's file."""

    study: str = Field(pattern=RUN_NAME, max_length=60, description="Name of the study.")
    config: str = Field(min_length=1, description="The configuration that all runs begin with.")
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings that differ, by the name of the variant."
    )
    grid: dict[str, list[Any]] = Field(
        default_factory=dict, description="Values to combine, by key, such as train.learning_rate."
    )
    folds: int | None = Field(None, ge=3, le=100, description="Folds of each variant.")
    seeds: list[int] = Field(
        default_factory=list, description="Values of train.seed, with which each variant is run."
    )
    test: Literal["chosen", "all"] = Field("chosen", description="Which variants are tested.")

    @model_validator(mode="after")
    def _usable(self) -> "Study":
        for name in self.variants:
            if not re.fullmatch(RUN_NAME, name) or len(name) > 60:
                raise ValueError(f"variants: {name!r} must match {RUN_NAME}, with 60 at most")
        if twice := _equal_in_capitals(self.variants):
            raise ValueError(f"variants: {' and '.join(twice)} differ in capitals only")
        for key, values in self.grid.items():
            if not values:
                raise ValueError(f"grid.{key}: has no values")
            if len({_slug(value) for value in values}) < len(values):
                raise ValueError(f"grid.{key}: has a value twice, or two with the same letters")
        if len(set(self.seeds)) < len(self.seeds) or any(
            not 0 <= seed <= MAX_SEED for seed in self.seeds
        ):
            raise ValueError(f"seeds: must be different numbers from 0 to {MAX_SEED}")
        if self.seeds and "train.seed" in self.grid:
            raise ValueError("grid.train.seed: the seeds are in `seeds`")
        return self


@dataclass(frozen=True, eq=False)
class StudyRun:
    """A run of a study.

    Attributes:
        name: of the run.
        variant: name of the variant.
        seed, fold: None: of a study without them.
        values: its configuration, without those of the project.
    """

    name: str
    variant: str
    seed: int | None
    fold: int | None
    values: Mapping[str, Any]


def runs_of(study: Study, base: Mapping[str, Any]) -> list[StudyRun]:
    """Return the runs of a study: each variant with each seed and fold.

    Args:
        study: the study.
        base: content of the configuration that all runs begin with.

    Raises:
        UserError: a variant sets what the study decides, there are too many runs, or two would
            have the same name.
    """
    number = math.prod(
        [len(study.variants) or 1, len(study.seeds) or 1, study.folds or 1]
        + [len(values) for values in study.grid.values()]
    )
    if number > MOST_RUNS:
        raise UserError(f"study {study.study}: {number:,} runs; must be at most {MOST_RUNS}")
    runs = []
    for variant, changes in variants_of(study):
        for key, value in changes.items():
            if key in DECIDED or (key == "train.seed" and study.seeds):
                raise UserError(
                    f"study {study.study}, variant {variant}: {key} is {value!r}; the study "
                    "decides it"
                )
        for seed, fold in product(seeds_of(study), _folds(study)):
            decided: dict[str, Any] = {} if seed is None else {"train.seed": seed}
            if fold is not None:
                decided |= {"split.folds": study.folds, "split.fold": fold}
            name = "-".join(
                [study.study, tested_name(study, variant, seed)]
                + ([] if fold is None else [f"fold-{fold}"])
            )
            values: dict[str, Any] = deepcopy(dict(base))
            for key, value in {**changes, **decided, "run": name}.items():
                set_key(values, key, value)
            runs.append(StudyRun(name, variant, seed, fold, values))
    _check_names(study, runs)
    return runs


def _check_names(study: Study, runs: Sequence[StudyRun]) -> None:
    """Refuse names that are one folder, on some file systems, with another one of the study."""
    by_name: dict[str, StudyRun] = {}
    for run in runs:
        same = by_name.setdefault(run.name.lower(), run)
        if same is not run:
            raise UserError(
                f"study {study.study}: two runs would be named {run.name}, of the variants "
                f"{same.variant} and {run.variant}; rename one"
            )
        tested = tested_name(study, run.variant, run.seed)
        if tested.lower() in RESERVED:
            raise UserError(f"study {study.study}: a variant cannot be named {tested}")


def seeds_of(study: Study) -> Sequence[int | None]:
    """Return the seeds with which each variant is run; None: that of its settings."""
    return study.seeds or [None]


def tested_name(study: Study, variant: str, seed: int | None) -> str:
    """Return the name of what is tested: a variant, with one of the seeds."""
    return variant if seed is None or len(study.seeds) < 2 else f"{variant}-seed-{seed}"


def variants_of(study: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each variant, and its settings by key with dots."""
    combinations = list(product(*study.grid.values()))
    for name, settings in (study.variants or {"": {}}).items():
        for values in combinations:
            chosen = dict(zip(study.grid, values, strict=True))
            parts = [f"{key.rpartition('.')[2]}-{_slug(value)}" for key, value in chosen.items()]
            full = "-".join(filter(None, [name, *parts])) or "settings"
            yield full, {**_flat(settings), **chosen}


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key with dots."""
    section, _, rest = key.partition(".")
    if not rest:
        values[section] = value
        return
    if not isinstance(values.get(section), dict):
        values[section] = {}
    set_key(values[section], rest, value)


def _folds(study: Study) -> Sequence[int | None]:
    return [None] if study.folds is None else range(1, study.folds + 1)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _slug(value: Any) -> str:
    """Return a value as part of a name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(value)).strip("-.") or "none"


def _equal_in_capitals(names: Mapping[str, Any]) -> list[str]:
    """Return names that are one folder on some file systems."""
    for name in names:
        same = [other for other in names if other.lower() == name.lower()]
        if len(same) > 1:
            return same
    return []
