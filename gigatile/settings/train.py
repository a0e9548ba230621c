"""The section `train`."""

import textwrap
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gigatile.models import ARCHITECTURES, GOOGLE, KERAS, pretrained_names
from gigatile.settings.initial_weights import PUBLISHED, is_model
from gigatile.settings.section import MAX_SEED, NULLS, Section
from gigatile.settings.view_names import named_views

# Schedules that end with a learning rate of 0, at `decay_epochs`.
TO_ZERO = ("cosine", "polynomial")


def _train_views(value: Any) -> Any:
    return value if value == "random" else named_views(value, "random")


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
            "validate_steps",
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
    validate_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="Validate also after each so many steps, on up to 100 batches, for the log and "
        "TensorBoard only.\nnull: only after each segment.",
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
    patience: int | None = Field(
        None,
        ge=1,
        le=9999,
        description="Stop if the validation has not improved for this many epochs. Then each "
        "segment waits for\nthe validation of the one before. null: train all epochs.",
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
    accumulate: int = Field(
        1,
        ge=1,
        le=1_000_000,
        description="Parts in which each rank processes its share of a batch, to use less memory. "
        "Their gradients\nare added: the step is that of the whole batch.",
    )
    optimizer: Literal["adam", "sgd", "lamb"] = Field(
        "adam",
        description="adam; sgd: stochastic gradient descent with momentum; or lamb, for large "
        "batches.",
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
    schedule: Literal["constant", "cosine", "polynomial", "steps"] = Field(
        "constant",
        description="How the learning rate decays: constant (not at all), cosine or polynomial "
        "(to 0), or steps (by a\nfactor at given epochs).",
    )
    decay_epochs: tuple[Annotated[float, Field(gt=0, le=9999)], ...] | None = Field(
        None,
        description="cosine, polynomial: the epoch at which the learning rate is 0, such as [12]. "
        "null: that of `epochs`.\nsteps: the epochs after which it is multiplied by decay_factor, "
        "such as [8, 11].",
    )
    decay_power: float = Field(
        0.9, gt=0, le=100, description="Power of the schedule `polynomial`; 1: linear."
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
    backbone_rate: float = Field(
        1,
        ge=0,
        le=1,
        description="Factor of the learning rate of the backbone: all layers but the head. See "
        "freeze_epochs.",
    )
    freeze_epochs: int = Field(
        0,
        ge=0,
        le=9999,
        description="First epochs, in which only the head is trained: the last layers; of slides "
        "and instances, all\nafter the encoder or backbone.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd.")
    nesterov: bool = Field(False, description="Nesterov momentum of sgd.")
    weight_decay: float = Field(
        0,
        ge=0,
        le=1,
        description="Weight decay of kernels, not of biases and norms. adam: decoupled (AdamW); "
        "sgd: L2;\nlamb: part of the update.",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        le=1e30,
        description="Largest norm of the gradient of all weights together; a larger gradient is "
        "scaled down.\nnull: not limited.",
    )
    average: bool = Field(
        True,
        description="Validate and save the moving average of the weights, not those of the last "
        "step.",
    )
    model: str = Field("small_cnn", description=_describe_models())
    weights: Annotated[str | None, BeforeValidator(lambda v: None if v == "none" else v)] = Field(
        None,
        description=textwrap.fill(
            "Initial weights: none (random); the model.keras of a bundle or another run, to "
            f"fine-tune it; or, of {pretrained_names(KERAS)}, `imagenet` (downloads) or a local "
            f".h5 file; of {pretrained_names(GOOGLE)}, a local .npz file.",
            95,
        ),
    )
    loss: str | None = Field(
        None,
        description="What is minimised. Of classifiers: cross_entropy, or focal. Of volumes: "
        "dice_cross_entropy,\ndice_focal, or boundary_cross_entropy. null: the first of these.",
    )
    label_smoothing: float = Field(
        0, ge=0, lt=1, description="cross_entropy: share of each label that all classes divide."
    )
    focal_gamma: float = Field(
        2,
        ge=0,
        le=10,
        description="focal, dice_focal: how much less easy samples count; 0: cross-entropy.",
    )
    class_weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        {},
        description="Weight of the samples of a label in the loss, such as {lusc: 2}. Others: 1.",
    )
    balance: Literal["off", "epoch", "loss"] = Field(
        "off",
        description="Labels with different numbers of samples. epoch: all labels are shown equally "
        "often.\nloss: all labels have the same weight in the loss.",
    )
    boost: dict[str, Annotated[float, Field(ge=0, le=100)]] = Field(
        {},
        description="How often an epoch shows each tile of a label, such as {lusc: 2, "
        "normal: 0.5}.\n0.5 shows each tile every second epoch. Other labels: once.",
    )
    tiles_per_slide: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="The most tiles of a slide that an epoch shows: others in each epoch, in turn. "
        "null: all.",
    )
    tiles_per_patient: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="The most tiles of a patient that an epoch shows, divided evenly among its "
        "slides. null: all.",
    )
    slides_per_patient: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="Whole slides: the most slides of a patient that an epoch shows: others in "
        "each epoch, in turn.\nnull: all.",
    )
    views: Annotated[Literal["random"] | tuple[str, ...], BeforeValidator(_train_views)] = Field(
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
    mixed_precision: Literal["off", "float16", "bfloat16"] = Field(
        "off",
        description="Half-precision arithmetic, for recent GPUs: float16 (also `true`), with loss "
        "scaling, or bfloat16.",
    )
    seed: int = Field(
        1,
        ge=0,
        le=MAX_SEED,
        description="Seed of the initial weights and of the order of the samples.",
    )

    @model_validator(mode="before")
    @classmethod
    def _true_is_float16(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("mixed_precision") is not True:
            return values
        return values | {"mixed_precision": "float16"}

    @model_validator(mode="before")
    @classmethod
    def _decay_ends_with_the_training(cls, values: Any) -> Any:
        # `epochs` may be increased without training again, and the schedule must not depend on it.
        if not isinstance(values, dict) or values.get("schedule") not in TO_ZERO:
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
        if self.schedule in TO_ZERO and (len(given) != 1 or given[0] < self.epochs):
            raise ValueError(
                f"decay_epochs: found {list(given)}; for schedule: {self.schedule} it must be a "
                f"single epoch, at least train.epochs ({self.epochs}), where the learning rate is 0"
            )
        return self

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str) -> str:
        if model not in ARCHITECTURES:
            raise ValueError(f"found {model!r}; must be one of {', '.join(ARCHITECTURES)}")
        return model

    @field_validator("boost", "class_weights", mode="before")
    @classmethod
    def _weights_are_numbers(cls, value: Any) -> Any:
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
        if shared and self.accumulate > 1:
            raise ValueError(
                f"accumulate: not used by {self.model}, which takes the slides of a batch one by "
                "one; remove it"
            )
        if self.batch_size % (self.ranks * self.accumulate) and not shared:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be a multiple of ranks x accumulate "
                f"({self.ranks} x {self.accumulate} = {self.ranks * self.accumulate})"
            )
        published = ARCHITECTURES[self.model].pretrained
        if not published and self.weights is not None and not is_model(self.weights):
            raise ValueError(
                f"weights: {self.model} can start from a trained model (.keras) only; "
                f"{pretrained_names(KERAS)} also from imagenet or a .h5 file"
            )
        if published != KERAS and self.weights == PUBLISHED:
            raise ValueError(
                f"weights: found {PUBLISHED}; {self.model} can start from a local {published} file "
                "or a trained model (.keras)"
            )
        return self

    @model_validator(mode="after")
    def _one_balance(self) -> "TrainSettings":
        other = {"epoch": "boost", "loss": "class_weights"}.get(self.balance)
        if other and getattr(self, other):
            raise ValueError(f"balance: {self.balance} sets {other} itself; remove one of the two")
        if self.loss not in (None, "cross_entropy") and self.label_smoothing:
            raise ValueError(f"label_smoothing: not used by loss: {self.loss}; remove it")
        return self

    def unknown_labels(self, labels: Sequence[str]) -> list[str]:
        """Return a fault for each key that names labels that are not in the cohort."""
        return [
            f"train.{key}: no such label: {', '.join(unknown)}; the cohort has {', '.join(labels)}"
            for key in ("boost", "class_weights")
            if (unknown := sorted(set(getattr(self, key)) - set(labels)))
        ]

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return self.nodes * self.ranks_per_node

    @property
    def segments(self) -> list[int]:
        """Complete epochs at the end of each segment; the last one may be shorter."""
        whole = range(self.segment_epochs, self.epochs, self.segment_epochs)
        return [*whole, self.epochs]
