"""All of `config.yaml`: its model, and the commented file."""

from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from gigatile.models import ARCHITECTURES, names_of
from gigatile.paths import fault_of_path
from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.postprocessing import PostprocessingSettings
from gigatile.settings.predict import PredictSettings
from gigatile.settings.report import ReportSettings
from gigatile.settings.scores import ScoreSettings
from gigatile.settings.section import NULLS, RUN_NAME, Section, check_section
from gigatile.settings.shards import ShardSettings
from gigatile.settings.split import SplitSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks import TASKS, find_task


class _Run(Section):
    """The settings that are not in a section."""

    # YAML reads `run: 2026` as a number.
    run: Annotated[str, BeforeValidator(lambda v: str(v) if type(v) is int else v)] = Field(
        "demo",
        pattern=RUN_NAME,
        max_length=150,
        description="Name of this run; its results go to results/<run>/.",
    )
    task: str = Field(
        "tile_classification",
        description="What the model is trained for:\n"
        + "\n".join(f"`{name}`: {find_task(name).description}" for name in TASKS),
    )
    samples: str = Field(
        "demo/samples.tsv",
        min_length=1,
        description="The sample sheet: tab-separated. Columns:\n"
        + "\n".join(f"`{name}`: {find_task(name).columns}" for name in TASKS)
        + "\nPaths in the sheet are relative to the sheet.",
    )
    reuse: str | None = Field(
        None,
        pattern=RUN_NAME,
        description="Another run in results/: hard-link its tiles, embeddings, volumes or images "
        "instead of making them\nagain, if the files, the code and the settings are the same. "
        "null: none.",
    )


def _sections_of_tasks() -> dict[str, Any]:
    """Return the sections that tasks add, as fields of a model."""
    sections = {}
    for name in TASKS:
        for section, (model, description) in find_task(name).sections.items():
            sections[section] = (model, Field(model(), description=description))
    return sections


class Settings(create_model("_Tasks", __base__=_Run, **_sections_of_tasks())):  # type: ignore[misc]
    """Everything in `config.yaml`. The sections of tasks are attributes, too."""

    split: SplitSettings = Field(
        SplitSettings(), description="Patients into splits; no patient is ever in two."
    )
    shards: ShardSettings = Field(
        ShardSettings(), description="From records to shards of training samples."
    )
    train: TrainSettings = Field(TrainSettings(), description="From shards to a model.")
    evaluate: EvaluationSettings = Field(
        EvaluationSettings(), description="The model on the test split."
    )
    report: ReportSettings = Field(ReportSettings(), description="The report of the test split.")
    predict: PredictSettings = Field(
        PredictSettings(), description="The model on new slides or cases."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_task(cls, values: Any) -> Any:
        """Replace null by the default of the task, in the section `train`."""
        if not isinstance(values, dict):
            return values
        task, train = values.get("task"), values.get("train", {})
        if not isinstance(train, dict):
            return values
        # For an unknown task, any defaults will do: `_known_task` refuses it.
        defaults = find_task(task if task in TASKS else TASKS[0]).train_defaults
        missing = {key: defaults[key] for key in defaults if train.get(key) in (None, *NULLS)}
        return values | {"train": train | missing}

    @field_validator("task")
    @classmethod
    def _known_task(cls, task: str) -> str:
        if task not in TASKS:
            raise ValueError(f"found {task!r}; must be one of {', '.join(TASKS)}")
        return task

    @field_validator("samples")
    @classmethod
    def _usable_path(cls, path: str) -> str:
        if fault := fault_of_path(path):
            raise ValueError(f"path {path!r} {fault}")
        return path

    @model_validator(mode="after")
    def _demo_is_reserved(self) -> "Settings":
        if self.run == "demo" and self.samples != "demo/samples.tsv":
            raise ValueError(
                "run: 'demo' is reserved for the demo cohort; give the run of "
                f"{self.samples} another name, for example `run: my-cohort`"
            )
        return self

    @model_validator(mode="after")
    def _fit_the_task(self) -> "Settings":
        task = find_task(self.task)
        task.check(self)
        if ARCHITECTURES[self.train.model].kind != task.architecture:
            raise ValueError(
                f"train.model: found {self.train.model!r}; for task: {self.task} it must be "
                f"{' or '.join(names_of(task.architecture))}"
            )
        if self.predict.samples and not task.predicts:
            raise ValueError(f"predict.samples: task: {self.task} cannot predict; remove it")
        if self.predict.slides and not task.detects_on_slides:
            raise ValueError(
                f"predict.slides: not used by task: {self.task}; new slides are in predict.samples"
                if task.unit == "slide"
                else f"predict.slides: not used by task: {self.task}; remove it"
            )
        if self.predict.bundle and not (self.predict.samples or self.predict.slides):
            raise ValueError(
                "predict.bundle: there is no sheet to predict; set predict.samples"
                + (" or predict.slides" if task.detects_on_slides else "")
            )
        if self.report.compare and not task.compares:
            raise ValueError(f"report.compare: not used by task: {self.task}; remove it")
        if self.report.viewer and not (task.classifies_slides or task.predicts_outcomes):
            raise ValueError(f"report.viewer: not used by task: {self.task}; remove it")
        if self.report.compare == self.run:
            raise ValueError(f"report.compare: {self.run} is this run; name another one")
        if self.reuse == self.run:
            raise ValueError(f"reuse: {self.run} is this run; name another one")
        for name, unused in (
            ("augmentation", AugmentationSettings()),
            ("scores", ScoreSettings()),
            ("postprocessing", PostprocessingSettings()),
            ("encoder", EncoderSettings()),
        ):
            if name not in task.sections and getattr(self, name) != unused:
                raise ValueError(f"{name}: not used by task: {self.task}; remove it")
        if self.train.loss is not None and self.train.loss not in task.losses:
            raise ValueError(
                f"train.loss: found {self.train.loss!r}; for task: {self.task} it must be "
                f"{' or '.join(task.losses)}"
                if task.losses
                else f"train.loss: not used by task: {self.task}; remove it"
            )
        for key in sorted(TASK_OPTIONS - task.train_options):
            if getattr(self.train, key) != TrainSettings.model_fields[key].default:
                raise ValueError(f"train.{key}: not used by task: {self.task}; remove it")
        return self


# Keys of the section `train` that only some tasks use.
TASK_OPTIONS = frozenset().union(*(find_task(name).train_options for name in TASKS))


def load_settings(config: dict[str, Any], source: str = "the configuration") -> Settings:
    """Check a merged configuration.

    Raises:
        UserError: every fault at once, each with its key, what was found and what would be right.
    """
    return check_section(Settings, config, source)


def commented_yaml(settings: Settings) -> str:
    """Return `settings` as YAML in which a comment explains every key."""
    lines = [
        "# The settings of a run; this file describes the demo cohort.",
        "# Your own: put the keys that differ into mine.yaml and call",
        "#     snakemake --cores all --configfile mine.yaml",
        "# Written from gigatile/settings/ by scripts/write_config.py: edit it there.",
    ]
    defaults = find_task(settings.task).train_defaults
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        lines += ["", *_comment(field.description, "")]
        if isinstance(value, Section):
            lines.append(f"{name}:")
            for inner, inner_field in type(value).model_fields.items():
                lines += _comment(_with_defaults(inner, inner_field.description), "  ")
                shown = getattr(value, inner)
                if name == "train" and inner in defaults and shown == defaults[inner]:
                    shown = None
                lines.append(f"  {inner}: {_scalar(shown)}")
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _with_defaults(key: str, description: str | None) -> str | None:
    """Insert the default of each task into the description of a key of the section `train`."""
    if description is None or f"{{{key}}}" not in description:
        return description
    by_value: dict[str, list[str]] = {}
    for task in TASKS:
        by_value.setdefault(str(find_task(task).train_defaults[key]), []).append(task)
    values = []
    for value, tasks in by_value.items():
        *others, last = tasks
        values.append(
            f"{value} ({', '.join(others)} and {last})" if others else f"{value} ({last})"
        )
    # For lines that are not too long.
    separator = ", " if len(values) < 3 and len(", ".join(values)) < 90 else ",\n"
    return description.replace(f"{{{key}}}", separator.join(values))


def _comment(description: str | None, indent: str) -> list[str]:
    assert description, "every setting has a description"
    return [f"{indent}# {line}" for line in description.split("\n")]


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
