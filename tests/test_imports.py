"""Commands that keep libraries out import nothing that needs them."""

import pkgutil
import subprocess
import sys

import pytest

import gigatile.models
import gigatile.tasks
import gigatile.training

PROGRAM = """\
import importlib, sys
from gigatile.software import import_less
used, *names = sys.argv[1:]
import_less(*used.split())
for name in names:
    importlib.import_module(name)
print([name for name in ("matplotlib", "pandas", "sklearn") if sys.modules.get(name)])
"""


def modules_in(package, *names: str) -> list[str]:
    there = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [f"{package.__name__}.{name}" for name in there if not names or name in names]


def of_tasks(*names: str) -> list[str]:
    tasks = [task for task in pkgutil.iter_modules(gigatile.tasks.__path__) if task.ispkg]
    return [f"gigatile.tasks.{task.name}.{name}" for task in tasks for name in names]


SEGMENTATION = ("case_segmentation", "model", "prediction", "proposal", "step_memory")


@pytest.mark.parametrize(
    ("used", "modules"),
    [
        ([], modules_in(gigatile.training) + modules_in(gigatile.models)),
        ([], of_tasks("training", "samples")),
        ([], [f"gigatile.tasks.volume_segmentation.{name}" for name in SEGMENTATION]),
        (["pandas"], of_tasks("validation", "prediction")),
        (["pandas"], ["gigatile.tasks.tile_classification.slide_predictions"]),
        (["pandas"], ["gigatile.tasks.slide_classification.scoring"]),
    ],
    ids=["training", "training of tasks", "volumes", "validation", "slides", "whole slides"],
)
def test_commands_import_only_the_libraries_that_they_use(used, modules):
    line = [sys.executable, "-c", PROGRAM, " ".join(used), *modules]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(used)
