"""Training that starts from a trained model, or from a file of weights."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.model_files import DESCRIBED
from gigatile.models.networks import Networks
from gigatile.models.saving import load_model
from gigatile.settings.initial_weights import is_model
from gigatile.settings.train import TrainSettings
from gigatile.training.learner import check_network
from gigatile.training.ranks import Ranks
from gigatile.training.task import TrainingTask

# The least share of the weights that a model must have in common with the one it starts from.
# Another architecture has only a few of equal shape.
LEAST_SHARE = 0.9


def initial_networks(
    task: TrainingTask,
    reader: Any,
    settings: TrainSettings,
    ranks: Ranks,
    log: Callable[[str], None],
) -> Networks:
    """Build the networks of a training with their initial weights, which only rank 0 loads.

    Args:
        task, settings: of the training.
        reader: of the training split.
        ranks: the processes that train together.
        log: takes a line, on rank 0, if the weights are those of a trained model.

    Raises:
        UserError: the file of the weights is missing, damaged or of another model.
    """
    trained = is_model(settings.weights)
    networks = task.networks(reader, settings, ranks.writes and not trained)
    if trained and ranks.writes:
        _start_from_model(networks, settings, {**task.metadata(reader), **task.settings()}, log)
    check_network(networks.trained, ranks)
    return networks


def _start_from_model(
    networks: Networks,
    settings: TrainSettings,
    described: Mapping[str, Any],
    log: Callable[[str], None],
) -> None:
    """Copy the weights of the trained model `settings.weights`.

    The last layers keep their random weights if the classes differ.

    Args:
        networks: to change.
        settings: of this training.
        described: what the outputs are: `classes` or `outputs`.
        log: takes a line.
    """
    path = Path(str(settings.weights))
    source = path.parent / DESCRIBED
    if not source.is_file():
        raise UserError(
            f"train.weights: {path} needs its {DESCRIBED} in the same folder; use the model in "
            "the folder of a bundle, or in results/<run>/model"
        )
    content = read_json(source)
    try:
        name, sha256 = content["train"]["model"], content["sha256"]
    except (KeyError, TypeError):
        raise UserError(f"{source}: not the settings of a trained model") from None
    if name != settings.model:
        raise UserError(
            f"train.weights: {path} is a {name}, but train.model is {settings.model}; they must be "
            "equal"
        )
    same = all(content.get(key) == described.get(key) for key in ("classes", "outputs"))
    model = load_model(path, str(sha256), source)
    kept = () if same else networks.outputs
    share = _copy(model, networks.model, {v.path for layer in kept for v in layer.variables}, path)
    log(f"starts from {path}: {share:.1%} of the weights")


def _copy(source: keras.Model, model: keras.Model, kept: set[str], path: Path) -> float:
    """Copy the variables of equal shape, in their order; return their share of all weights.

    Names of layers are not compared: Keras counts them in each process.
    """
    if len(source.variables) != len(model.variables):
        raise _other_layers(path)
    pairs = zip(source.variables, model.variables, strict=True)
    expected = [(old, new) for old, new in pairs if new.path not in kept]
    copied = [(old, new) for old, new in expected if old.shape == new.shape]
    size = _size(new for _, new in copied)
    if size < LEAST_SHARE * _size(new for _, new in expected):
        raise _other_layers(path)
    for old, new in copied:
        new.assign(old)
    return size / _size(model.variables)


def _size(variables: Iterable[keras.Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _other_layers(path: Path) -> UserError:
    return UserError(
        f"train.weights: {path} has other layers than this model; it must be of this release, and "
        "its tiles, patches, channels and aggregator those of this run"
    )
