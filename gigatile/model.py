"""A trained model in memory: open it once, and apply it to files."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.tasks import TASKS, find_task, task_part


class TaskOfModel(JsonModel):
    """The task in a model's settings.json."""

    task: str


class Model(ABC):
    """A trained model. Each task has a subclass, with its own arguments of `predict`."""

    @staticmethod
    def open(folder: Path | str) -> "Model":
        """Open the model of a run.

        Args:
            folder: contains `model.keras` and `settings.json`, as `results/<run>/model` does.

        Returns:
            A model of its task: `gigatile.tasks.tile_classification.model.SlideModel`,
            `gigatile.tasks.slide_classification.model.WholeSlideModel`,
            `gigatile.tasks.slide_embedding.model.EmbeddingModel`,
            `gigatile.tasks.slide_outcome.model.SlideOutcomeModel`,
            `gigatile.tasks.whole_slide_outcome.model.WholeSlideOutcomeModel`,
            `gigatile.tasks.volume_segmentation.model.CaseModel`, or
            `gigatile.tasks.instance_segmentation.model.InstanceModel`.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        model, described = Path(folder) / MODEL, Path(folder) / DESCRIBED
        task = read_model(TaskOfModel, described).task
        if task not in TASKS:
            raise UserError(f"{described}: task: found {task!r}; must be one of {', '.join(TASKS)}")
        if not find_task(task).predicts:
            raise UserError(f"{described}: models of task: {task} cannot be applied to new data")
        opened: Model = task_part(task, "model").open_model(model, described)
        return opened

    @abstractmethod
    def predict(self, *args: Any, **options: Any) -> Any:
        """Apply the model to the files of one slide or case."""
