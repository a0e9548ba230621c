"""The registry of tasks, by the values of the setting `task`.

A task is a package here, with

- `definition.TASK`: its definition, which planning reads; see `tasks.task`;
- modules for the stages: `cohort`, `records`, `preparation`, `training`, `validation`, `choice`,
  `prediction`, `model`, `evaluation`, `external`, `external_page`, `report` and `planning`, which
  the scripts load by name; see docs/architecture.md;
- a rules file of the same name in `rules/`.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gigatile.tasks.task import Task

TASKS = (
    "tile_classification",
    "slide_classification",
    "slide_embedding",
    "slide_outcome",
    "whole_slide_outcome",
    "volume_segmentation",
    "instance_segmentation",
)

Part = Literal[
    "cohort",
    "records",
    "preparation",
    "training",
    "validation",
    "choice",
    "prediction",
    "model",
    "evaluation",
    "external",
    "external_page",
    "report",
    "planning",
]


def find_task(name: str) -> "Task":
    """Return the definition of a task."""
    return import_module(f"{__name__}.{name}.definition").TASK


def task_part(name: str, part: Part) -> ModuleType:
    """Import the module of a task for a stage.

    Call it with a literal `part`: the code hash of a command looks for these calls.
    """
    return import_module(f"{__name__}.{name}.{part}")
