"""All of `config.yaml`: its model, and the file that explains it."""

from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, field_validator, model_validator

from gigatile.paths import fault_of_path
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.patches import PatchSettings
from gigatile.settings.predict import PredictSettings
from gigatile.settings.section import Section, check_section
from gigatile.settings.shards import ShardSettings
from gigatile.settings.split import SplitSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import MODELS, TrainSettings
from gigatile.settings.volumes import LABELS_REQUIRED, VolumeSettings
from gigatile.settings.windows import WindowSettings


class Settings(Section):
    """Everything in `config.yaml`."""

    # `run: 2026` is a number to YAML; as a name it is as good as any.
    run: Annotated[str, BeforeValidator(lambda v: str(v) if type(v) is int else v)] = Field(
        "demo",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=150,
        description="Name of this run; its results go to results/<run>/.",
    )
    task: Literal["tile_classification", "volume_segmentation"] = Field(
        "tile_classification",
        description="What is learnt: `tile_classification` of slides, which have a label each, or "
        "`volume_segmentation`\nof NIfTI volumes.",
    )
    samples: str = Field(
        "demo/samples.tsv",
        min_length=1,
        description="The sample sheet: tab-separated. Of slides: columns slide, patient, label, "
        "path; optional mpp, split, site.\nOf volumes: case, patient, a column for each modality "
        "or one `image`, segmentation; optional split, site.\nPaths in the sheet are relative to "
        "the sheet.",
    )
    tiles: TileSettings = Field(TileSettings(), description="From slides to tiles.")
    volumes: VolumeSettings = Field(
        VolumeSettings(), description="From NIfTI volumes to prepared cases."
    )
    patches: PatchSettings = Field(
        PatchSettings(), description="From prepared cases to what training is shown."
    )
    split: SplitSettings = Field(
        SplitSettings(), description="Patients into cohorts; no patient is ever in two."
    )
    shards: ShardSettings = Field(ShardSettings(), description="From tiles to training input.")
    train: TrainSettings = Field(TrainSettings(), description="From shards to a model.")
    windows: WindowSettings = Field(
        WindowSettings(), description="From a model to the segmentation of a whole volume."
    )
    evaluate: EvaluationSettings = Field(
        EvaluationSettings(), description="The model on the test cohort."
    )
    predict: PredictSettings = Field(PredictSettings(), description="The model on new slides.")

    @field_validator("samples")
    @classmethod
    def _path_that_can_be_passed_on(cls, path: str) -> str:
        if fault := fault_of_path(path):
            raise ValueError(f"path {path!r} {fault}")
        return path

    @model_validator(mode="after")
    def _own_name(self) -> "Settings":
        if self.run == "demo" and self.samples != "demo/samples.tsv":
            raise ValueError(
                "run: 'demo' belongs to the demo cohort; give a run over "
                f"{self.samples} a name of its own, for example `run: my-cohort`"
            )
        return self

    @model_validator(mode="after")
    def _labels_of_volumes(self) -> "Settings":
        if self.task == "volume_segmentation" and self.volumes.labels is None:
            raise ValueError(f"volumes.{LABELS_REQUIRED}")
        return self

    @model_validator(mode="after")
    def _training_of_the_task(self) -> "Settings":
        models, of_tiles = MODELS[self.task], self.task == "tile_classification"
        if self.train.model not in models:
            raise ValueError(
                f"train.model: found {self.train.model!r}; for task: {self.task} it must be "
                f"{' or '.join(models)}"
            )
        if not of_tiles and (self.train.boost or self.train.views != "random"):
            raise ValueError(
                "train.boost and train.views are for tiles; what is shown of volumes stands in "
                "`patches`"
            )
        return self


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
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        lines += ["", *_comment(field.description, "")]
        if isinstance(value, Section):
            lines.append(f"{name}:")
            for inner, inner_field in type(value).model_fields.items():
                lines += _comment(inner_field.description, "  ")
                lines.append(f"  {inner}: {_scalar(getattr(value, inner))}")
        else:
            lines.append(f"{name}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _comment(description: str | None, indent: str) -> list[str]:
    assert description, "every setting has a description"
    return [f"{indent}# {line}" for line in description.split("\n")]


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
