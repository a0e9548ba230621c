"""The settings: one typed model for all of `config.yaml`, and the slice that each stage reads.

The models are the only definition. `config.yaml` is written from them (`scripts/write_config.py`),
a run's settings are checked against them, and every command gets its own section as canonical JSON,
so that a stage depends on the settings that it reads and on nothing else.
"""

import difflib
import json
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gigatile.errors import UserError, all_faults

SPLITS = ("train", "valid", "test")


class Section(BaseModel):
    """A part of the settings: unknown keys are refused, values do not change."""

    # Defaults are validated so that a default and the same value given compare as equal text.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
    # Keys that a command gets as options of its own and not in its settings' text, as they say how
    # a stage is run, or how far, and not what it makes on its way; `canonical` leaves them out.
    EXECUTION: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes, no, on and off as true and false, which would pass for 1 and 0.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            words = "`yes` and `on`" if value else "`no` and `off`"
            raise ValueError(
                f"found {str(value).lower()}, as which YAML reads {words} too; must be a number, "
                "or a word in quotes"
            )
        return value


class TileSettings(Section):
    """How a slide is cut into tiles."""

    size: int = Field(224, ge=16, le=4096, description="Side of a tile, in pixels.")
    mpp: float | None = Field(
        None,
        gt=0.01,
        le=100,
        description="Micrometres per pixel of the tiles (0.5 is about 20x, 0.25 about 40x). Slides "
        "are\nresampled where they have no level at this scale. null: each slide's own level 0.",
    )
    max_background: float = Field(
        0.5, ge=0, le=1, description="A tile with a larger share of background is dropped."
    )
    quality: int = Field(90, ge=1, le=100, description="JPEG quality of the stored tiles, 1-100.")
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="A slide that gives no tiles: `record` the reason and go on, or `stop`.",
    )


class SplitSettings(Section):
    """How patients are divided into cohorts."""

    train: float = Field(0.6, gt=0, lt=1, description="Wanted share of the patients.")
    valid: float = Field(0.2, gt=0, lt=1, description="Wanted share of the patients.")
    test: float = Field(0.2, gt=0, lt=1, description="Wanted share of the patients.")
    seed: int = Field(
        44,
        ge=0,
        description="Another seed is another division. `scripts/choose_split_seed.py` finds a "
        "balanced\none for a small cohort.",
    )

    @model_validator(mode="after")
    def _shares_add_up(self) -> "SplitSettings":
        total = self.train + self.valid + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, valid and test must add up to 1; they add up to {total:g}")
        return self


class ShardSettings(Section):
    """How training records are grouped into files."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"nodes", "ranks_per_node"})

    nodes: int = Field(1, ge=1, description="Machines that write shards together.")
    ranks_per_node: int = Field(
        2, ge=1, description="Processes on each of them, of one core; each holds a shard in memory."
    )
    target_mb: float = Field(
        100, gt=0, le=10_000, description="Wanted size of a shard, in megabytes (10^6 bytes)."
    )
    seed: int = Field(1, ge=0, description="Decides which record goes to which shard.")

    @property
    def ranks(self) -> int:
        """Processes that write together."""
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_rank(self) -> int:
        """Cores of a process: it reads, checks and writes in turn."""
        return 1


# The symmetries of a square, by name; gigatile/training/order.py shows them.
VIEWS = (
    "identity",
    "rotate90",
    "rotate180",
    "rotate270",
    "flip",
    "rotate90_flip",
    "rotate180_flip",
    "rotate270_flip",
)


def _named_views(value: Any) -> Any:
    if value == "random":
        return value
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError(f"found {value!r}; must be random, or a list of {', '.join(VIEWS)}")
    unknown = [name for name in names if name not in VIEWS]
    if unknown or len(set(names)) < len(names):
        fault = f"no such view: {unknown[0]!r}" if unknown else "a view stands twice"
        raise ValueError(f"{fault}; must be random, or a list of {', '.join(VIEWS)}")
    return tuple(names)


class TrainSettings(Section):
    """How the model is trained."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset(
        {
            "nodes",
            "ranks_per_node",
            "cores_per_rank",
            "stall_limit",
            "save_minutes",
            "epochs",
            "segment_epochs",
        }
    )

    nodes: int = Field(1, ge=1, description="Machines that train together.")
    ranks_per_node: int = Field(
        2, ge=1, description="Processes on each of them: one per GPU, or one per few cores."
    )
    cores_per_rank: int = Field(
        1, ge=1, description="Cores of a process, for its arithmetic and to decode its tiles."
    )
    stall_limit: int = Field(
        300,
        ge=10,
        description="Seconds without a finished step after which a process ends, as another must "
        "be gone.",
    )
    save_minutes: float = Field(
        10, gt=0, description="A checkpoint at least this often, within an epoch too."
    )
    epochs: int = Field(
        8,
        ge=1,
        le=9999,
        description="Times that every training tile is shown. More of them later go on from here.",
    )
    segment_epochs: int = Field(
        4,
        ge=1,
        description="Epochs of one job. After each the model is validated, by a job of its own "
        "beside\nthe next one; the best of them is the model.",
    )
    batch_size: int = Field(
        32,
        ge=1,
        description="Tiles per step over all ranks together, so that more ranks change the speed\n"
        "and not the result. A multiple of nodes x ranks_per_node.",
    )
    limit_batches: int | None = Field(
        None,
        ge=1,
        description="To try a configuration: train and validate on so many batches of each epoch. "
        "null: all.",
    )
    learning_rate: float = Field(0.001, gt=0, description="Adam's step size.")
    model: Literal["small_cnn", "resnet50"] = Field(
        "small_cnn",
        description="small_cnn: learns on two cores. resnet50: needs GPUs.",
    )
    weights: Annotated[str | None, BeforeValidator(lambda v: None if v == "none" else v)] = Field(
        None,
        description="Start of resnet50: none (random), `imagenet` (downloads), or a local .h5 "
        "file.",
    )
    boost: dict[str, Annotated[float, Field(ge=0, le=100)]] = Field(
        {},
        description="How often an epoch shows each tile of a label, as {lusc: 2, normal: 0.5}:\n"
        "half a time is once in two epochs. Labels that are not named: once.",
    )
    views: Annotated[Literal["random"] | tuple[str, ...], BeforeValidator(_named_views)] = Field(
        "random",
        description="random: each tile flipped and turned by quarters, anew in every epoch. Or a "
        "list of\nidentity, rotate90, rotate180, rotate270, flip, rotate90_flip, rotate180_flip, "
        "rotate270_flip:\nan epoch shows each tile once under each.",
    )
    shuffle_mb: float = Field(
        2000,
        gt=0,
        description="Tiles that an epoch mixes at a time, in megabytes (10^6 bytes) of shards.",
    )
    mixed_precision: bool = Field(False, description="Half-precision arithmetic, for recent GPUs.")
    seed: int = Field(1, ge=0, description="Initial weights and the order of the tiles.")

    @field_validator("boost", mode="before")
    @classmethod
    def _boost_is_of_numbers(cls, value: Any) -> Any:
        for label, weight in value.items() if isinstance(value, dict) else ():
            if isinstance(weight, bool):
                raise ValueError(f"{label}: found {str(weight).lower()}; must be a number")
        return value

    @field_validator("boost")
    @classmethod
    def _three_decimals(cls, value: dict[str, float]) -> dict[str, float]:
        for label, weight in value.items():
            if Fraction(str(weight)).denominator > 1000:
                raise ValueError(f"{label}: found {weight!r}; must have three decimals at most")
        return value

    @model_validator(mode="after")
    def _batch_divides(self) -> "TrainSettings":
        if self.batch_size % self.ranks:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be a multiple of nodes x ranks_per_node "
                f"({self.nodes} x {self.ranks_per_node} = {self.ranks}): it counts the tiles of "
                "all ranks together"
            )
        if self.weights is not None and self.model == "small_cnn":
            raise ValueError("weights are for model: resnet50; small_cnn starts from random ones")
        return self

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.nodes * self.ranks_per_node

    @property
    def segments(self) -> list[int]:
        """Complete epochs at the end of each segment; the last one may be shorter."""
        whole = range(self.segment_epochs, self.epochs, self.segment_epochs)
        return [*whole, self.epochs]


class EvaluationSettings(Section):
    """How the test cohort is scored."""

    resamples: int = Field(
        1000, ge=10, le=10_000, description="Bootstrap resamples of patients for the intervals."
    )
    seed: int = Field(1, ge=0, description="Seed of the resampling.")


class PredictSettings(Section):
    """New slides for the trained model."""

    samples: str | None = Field(
        None,
        description="Sheet of new slides (columns slide, path; optional patient, mpp); null: none."
        "\nTheir calls go to results/<run>/predictions/.",
    )


class Settings(Section):
    """Everything in `config.yaml`."""

    # `run: 2026` is a number to YAML; as a name it is as good as any.
    run: Annotated[str, BeforeValidator(lambda v: str(v) if type(v) is int else v)] = Field(
        "demo",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of this run; its results go to results/<run>/.",
    )
    samples: str = Field(
        "demo/samples.tsv",
        min_length=1,
        description="The sample sheet: tab-separated, columns slide, patient, label, path; "
        "optional mpp, split, site.\nPaths in the sheet are relative to the sheet.",
    )
    tiles: TileSettings = Field(TileSettings(), description="From slides to tiles.")
    split: SplitSettings = Field(
        SplitSettings(), description="Patients into cohorts; no patient is ever in two."
    )
    shards: ShardSettings = Field(ShardSettings(), description="From tiles to training input.")
    train: TrainSettings = Field(TrainSettings(), description="From shards to a model.")
    evaluate: EvaluationSettings = Field(
        EvaluationSettings(), description="The model on the test cohort."
    )
    predict: PredictSettings = Field(PredictSettings(), description="The model on new slides.")

    @model_validator(mode="after")
    def _own_name(self) -> "Settings":
        if self.run == "demo" and self.samples != "demo/samples.tsv":
            raise ValueError(
                "run: 'demo' belongs to the demo cohort; give a run over "
                f"{self.samples} a name of its own, for example `run: my-cohort`"
            )
        return self


S = TypeVar("S", bound=Section)


def load_settings(config: dict[str, Any], source: str = "the configuration") -> Settings:
    """Check a merged configuration.

    Raises:
        UserError: every fault at once, each with its key, what was found and what would be right.
    """
    return check_section(Settings, config, source)


def canonical(section: Section) -> str:
    """Return a section as JSON that is equal exactly when a stage makes the same of it.

    The section's `EXECUTION` is left out: a training on more nodes makes the same model, and where
    the text is a rule's parameter, another layout must not train again what is trained, nor must
    more epochs those that are done.
    """
    values = section.model_dump(exclude=set(section.EXECUTION))
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def parse_section(model: type[S], text: str, **execution: Any) -> S:
    """Read back what `canonical` wrote, as a command gets it on its command line.

    Args:
        model: the kind of section.
        text: the JSON.
        execution: what `canonical` leaves out, and what else has an option of its own; else the
            defaults.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings: not JSON ({error})") from None
    return check_section(
        model, values | execution if isinstance(values, dict) else values, "--settings"
    )


def check_section(model: type[S], values: Any, source: str) -> S:
    """Turn plain values into a section.

    Raises:
        UserError: every fault at once, under a heading that names `source`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_describe(model, dict(fault)) for fault in error.errors()]
        raise all_faults(f"{source}: {len(faults)} wrong setting(s)", faults) from None


def _describe(model: type[BaseModel], fault: dict[str, Any]) -> str:
    """Turn one of pydantic's faults into a line that tells what would be right."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    if fault["type"] == "extra_forbidden":
        owner = _section_at(model, path[:-1])
        known = list(owner.model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{key}: no such key; {hint}"
    if fault["type"] == "value_error":
        return f"{key + ': ' if key else ''}{fault['ctx']['error']}"
    if fault["type"] in ("model_type", "model_attributes_type"):
        where = f"{key}: " if key else ""
        return f"{where}found {fault['input']!r}; must be a section with keys of its own"
    message = fault["msg"].replace("Input should be", "must be").replace("String should", "must")
    return f"{key}: found {fault['input']!r}; {message}"


def _section_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            break
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind]
        sections = [k for k in inner if isinstance(k, type) and issubclass(k, BaseModel)]
        if not sections:
            break
        model = sections[0]
    return model


def commented_yaml(settings: Settings) -> str:
    """Return `settings` as YAML in which a comment explains every key."""
    lines = [
        "# The settings of a run; this file describes the demo cohort.",
        "# Your own: put the keys that differ into mine.yaml and call",
        "#     snakemake --cores all --configfile mine.yaml",
        "# Written from gigatile/settings.py by scripts/write_config.py: edit it there.",
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
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
