"""Assumptions about the stages of a task: which files they read, and how fast they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Stage:
    """Assumptions about a stage.

    Attributes:
        after: the stages that produce its input.
        start: seconds until a job starts its work.
        slide: seconds per slide, or case.
        megapixel: seconds of one core per megapixel of tiles, or per megavoxel of prepared cases.
        model: for a stage that runs a model: its time per megapixel, as a fraction of training
            (`Architecture.seconds`).
        storage: bytes of output per megapixel.
    """

    after: tuple[str, ...] = ()
    start: float = 1
    slide: float = 0
    megapixel: float = 0
    model: float = 0
    storage: float = 0


@dataclass(frozen=True)
class TaskPlan:
    """What an estimate needs to know of a task. Read megavoxels for megapixels of volumes.

    Attributes:
        stages: all stages in their order; see `with_shared_stages`.
        per_unit: stages with a job for each slide or case.
        divided: stages whose jobs divide the units between them; see `gigatile.records.parts`.
        column: column of the table of units that counts what was prepared of each. It also names
            the option of `make plan`, such as `--tiles-per-slide`.
        estimate: what that column will say, until it is known.
        megapixels: returns the megapixels of one count of `column`, from the settings as JSON.
        per_epoch: returns the megapixels of a unit that an epoch shows, from the settings as JSON;
            None: all.
        most_megapixels: returns an upper limit of the megapixels of a unit from the size of its
            files; None: not known.
    """

    stages: Mapping[str, Stage]
    per_unit: frozenset[str]
    column: str
    estimate: float
    megapixels: Callable[[Mapping[str, Any]], float]
    divided: frozenset[str] = frozenset()
    per_epoch: Callable[[Mapping[str, Any]], float | None] = lambda settings: None
    most_megapixels: Callable[[Any], float] | None = None


def with_shared_stages(
    demo: Mapping[str, Stage],
    prepare: Mapping[str, Stage],
    evaluate: Mapping[str, Stage],
    predict: Mapping[str, Stage],
    shards: Stage,
    validate: float,
    thresholds: Mapping[str, Stage] = MappingProxyType({}),
    external: Mapping[str, Stage] = MappingProxyType({}),
) -> dict[str, Stage]:
    """Return the stages of a task in their order, together with those that all tasks share.

    Args:
        demo: the stage that renders the demo data.
        prepare: the stages that prepare units, one after the other. They run for new data as
            `<name>_new`.
        evaluate: the stages of the evaluation.
        predict: the stages that predict new data.
        shards: seconds and bytes per megapixel of writing shards.
        validate: `Stage.model` of the validation.
        thresholds: the stages that choose thresholds, before the evaluation.
        external: the stages that evaluate new data with labels.
    """
    *_, last = prepare
    pages = Stage(start=3, slide=1)
    return {
        **demo,
        "split_patients": Stage(slide=0.001),
        **prepare,
        "collect": Stage((last,), slide=0.002),
        "collect_training": Stage((last,), slide=0.002),
        "write_shards": replace(shards, after=("collect_training",), start=2),
        "train": Stage(("write_shards",), start=10, model=1),
        "validate": Stage(("write_shards", "train"), start=8, model=validate),
        "choose_model": Stage(("write_shards", "train", "validate")),
        **thresholds,
        **evaluate,
        "report": replace(
            pages, after=("split_patients", "collect", "write_shards", "choose_model", *evaluate)
        ),
        **{
            f"{name}_new": replace(
                stage, after=tuple(f"{before}_new" for before in stage.after if before in prepare)
            )
            for name, stage in prepare.items()
        },
        "collect_new": Stage((f"{last}_new",), slide=0.002),
        **predict,
        "prediction_pages": replace(
            pages, after=("collect", "collect_new", "choose_model", *predict)
        ),
        **external,
    }
