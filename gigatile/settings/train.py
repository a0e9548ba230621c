"""The section `train`."""

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gigatile.models import ARCHITECTURES, pretrained_names
from gigatile.settings.section import MAX_SEED, NULLS, Section

# The symmetries of a square; `training.sample_order.apply_view` applies them.
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
        fault = f"no such view: {unknown[0]!r}" if unknown else "a view is listed twice"
        raise ValueError(f"{fault}; must be random, or a list of {', '.join(VIEWS)}")
    return tuple(names)


def _describe_models() -> str:
    lines = [f"{name}: {model.description}." for name, model in ARCHITECTURES.items()]
    first = "Architecture of the model. It must suit the task.\nnull: {model}."
    return "\n".join([first, *lines])


class TrainSettings(Section):
    """How the model is trained."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset(
        {
            "nodes",
            "ranks_per_node",
            "cores_per_rank",
            "stall_limit",
            "save_minutes",
            "cache_gb",
            "epochs",
            "segment_epochs",
        }
    )

    nodes: int = Field(1, ge=1, le=10_000, description="Nodes that train together.")
    ranks_per_node: int = Field(
        2,
        ge=1,
        le=1024,
        description="Ranks on each node: one per GPU, or one per few cores.",
    )
    cores_per_rank: int = Field(
        1,
        ge=1,
        le=1024,
        description="Cores of a rank, for the model and for decoding its tiles.",
    )
    stall_limit: int = Field(
        300,
        ge=10,
        le=600_000,
        description="Abort if no step finishes within this many seconds; another rank has probably "
        "died.",
    )
    save_minutes: float = Field(
        10, gt=0, le=10_000, description="Minutes between checkpoints, also within an epoch."
    )
    cache_gb: float = Field(
        10,
        ge=0.001,
        le=1_000_000,
        description="Shards in a store: the most that each rank keeps of them in the temporary "
        "folder, in GB.\nMore than two shuffle windows (shuffle_mb) let each epoch read a shard "
        "once; as much as all\nshards of a rank let it read them in the first epoch only.",
    )
    epochs: int = Field(
        8,
        ge=1,
        le=9999,
        description="Passes over the training data. If increased later, training resumes from the "
        "last epoch.\nnull: {epochs}.",
    )
    segment_epochs: int = Field(
        4,
        ge=1,
        le=9999,
        description="Epochs per training job. After each job another job validates the model, "
        "while the\nnext epochs train. The model with the lowest validation loss is used.\n"
        "null: {segment_epochs}.",
    )
    batch_size: int = Field(
        32,
        ge=1,
        le=1_000_000,
        description="Tiles, patches or slides per step, over all ranks: the number of ranks "
        "changes the speed, not\nthe result. A multiple of nodes x ranks_per_node, except for "
        "slides.\nnull: {batch_size}.",
    )
    limit_batches: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="To try a configuration: train and validate on this many batches per epoch. "
        "null: all.",
    )
    optimizer: Literal["adam", "sgd"] = Field(
        "adam", description="adam, or sgd: stochastic gradient descent with momentum."
    )
    learning_rate: float = Field(
        0.001, ge=1e-12, le=1e30, description="Learning rate, before warm-up and decay."
    )
    reference_batch: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Batch size that learning_rate is meant for: it is multiplied by "
        "batch_size / reference_batch.\nnull: used as it is.",
    )
    schedule: Literal["constant", "cosine", "steps"] = Field(
        "constant",
        description="How the learning rate decays: constant (not at all), cosine (to 0), or steps "
        "(by a factor at\ngiven epochs).",
    )
    decay_epochs: tuple[Annotated[float, Field(gt=0, le=9999)], ...] | None = Field(
        None,
        description="cosine: the epoch at which the learning rate is 0, such as [12]. null: that "
        "of `epochs`.\nsteps: the epochs after which it is multiplied by decay_factor, such as "
        "[8, 11].",
    )
    decay_factor: float = Field(0.1, gt=0, le=1, description="Factor of the schedule `steps`.")
    warmup_steps: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Steps in which the learning rate rises linearly, from warmup_factor times its "
        "value.",
    )
    warmup_factor: float = Field(
        0.001, ge=0, le=1, description="Factor of the learning rate at the first step of warm-up."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd.")
    weight_decay: float = Field(
        0,
        ge=0,
        le=1,
        description="Weight decay of kernels, not of biases and norms. adam: decoupled (AdamW); "
        "sgd: L2.",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        le=1e30,
        description="Largest norm of the gradient of all weights together; a larger gradient is "
        "scaled down.\nnull: not limited.",
    )
    model: str = Field("small_cnn", description=_describe_models())
    weights: Annotated[str | None, BeforeValidator(lambda v: None if v == "none" else v)] = Field(
        None,
        description=f"Initial weights of {pretrained_names()}: none (random),\n"
        "`imagenet` (downloads), or a local .h5 file.",
    )
    boost: dict[str, Annotated[float, Field(ge=0, le=100)]] = Field(
        {},
        description="How often an epoch shows each tile of a label, such as {lusc: 2, "
        "normal: 0.5}.\n0.5 shows each tile every second epoch. Other labels: once.",
    )
    views: Annotated[Literal["random"] | tuple[str, ...], BeforeValidator(_named_views)] = Field(
        "random",
        description="random: flip each tile and rotate it by a multiple of 90 degrees, at random "
        "in each epoch. Or a\nlist of identity, rotate90, rotate180, rotate270, flip, "
        "rotate90_flip, rotate180_flip,\nrotate270_flip: an epoch shows each tile once in each of "
        "these views.",
    )
    shuffle_mb: float = Field(
        2000,
        gt=0,
        le=1_000_000_000,
        description="Size of the shuffle window, in megabytes (10^6 bytes) of shards.",
    )
    mixed_precision: bool = Field(
        False, description="Half-precision arithmetic (mixed_float16), for recent GPUs."
    )
    seed: int = Field(
        1,
        ge=0,
        le=MAX_SEED,
        description="Seed of the initial weights and of the order of the samples.",
    )

    @model_validator(mode="before")
    @classmethod
    def _cosine_ends_with_the_training(cls, values: Any) -> Any:
        # `epochs` may be increased without training again, and the schedule must not depend on it.
        if not isinstance(values, dict) or values.get("schedule") != "cosine":
            return values
        if values.get("decay_epochs") not in (None, *NULLS):
            return values
        epochs = values.get("epochs", cls.model_fields["epochs"].default)
        return values | {"decay_epochs": [epochs]}

    @model_validator(mode="after")
    def _epochs_of_the_schedule(self) -> "TrainSettings":
        given = self.decay_epochs or ()
        if self.schedule == "constant" and given:
            raise ValueError("decay_epochs: not used by schedule: constant; remove it")
        if self.schedule == "steps" and (not given or list(given) != sorted(set(given))):
            raise ValueError(
                f"decay_epochs: found {list(given)}; for schedule: steps it must be a list of "
                "rising epochs, such as [8, 11]"
            )
        if self.schedule == "cosine" and (len(given) != 1 or given[0] < self.epochs):
            raise ValueError(
                f"decay_epochs: found {list(given)}; for schedule: cosine it must be a single "
                f"epoch, at least train.epochs ({self.epochs}), where the learning rate is 0"
            )
        return self

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str) -> str:
        if model not in ARCHITECTURES:
            raise ValueError(f"found {model!r}; must be one of {', '.join(ARCHITECTURES)}")
        return model

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
        shared = ARCHITECTURES[self.model].kind == "slide_embeddings"
        if self.batch_size % self.ranks and not shared:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be a multiple of nodes x ranks_per_node "
                f"({self.nodes} x {self.ranks_per_node} = {self.ranks}): it counts the samples "
                "of all ranks together"
            )
        if self.weights is not None and not ARCHITECTURES[self.model].pretrained:
            raise ValueError(
                f"weights: only {pretrained_names()} can start from pretrained weights, not "
                f"{self.model}"
            )
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
