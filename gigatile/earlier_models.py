"""The file of the initial weights, and the models that a training started from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of
from gigatile.model_files import COHORT, COHORT_IMAGES, DESCRIBED
from gigatile.settings.initial_weights import INITIAL_WEIGHTS, PUBLISHED, is_model, weights_file


def checksum_of_weights(weights: str | None) -> str | None:
    """Return the SHA-256 of the file of initial weights; None: there is none.

    Args:
        weights: `train.weights`.

    Raises:
        UserError: the file is missing.
    """
    path = weights_file(weights)
    if path is None:
        return None
    if not path.is_file():
        raise UserError(f"train.weights: no such file: {path}")
    return sha256_of(path)


@dataclass(frozen=True)
class EarlierModels:
    """The models that a training started from.

    Attributes:
        models: the file of `train.weights`, the one that this model started from, and so on.
        doubt: why the first of all may be missing; empty: it is not.
    """

    models: Sequence[Path]
    doubt: str = ""


def earlier_models(weights: Path | None) -> EarlierModels:
    """Return the models that a training started from, as far as their files are found.

    Args:
        weights: the file of `train.weights`; None: the weights were random or published.

    Raises:
        UserError: settings of a model are damaged.
    """
    models: list[Path] = []
    while weights is not None:
        if not is_model(str(weights)):
            return EarlierModels(models, f"the data of {weights.name} are not known")
        models.append(weights)
        described = weights.parent / DESCRIBED
        if not described.is_file():
            return EarlierModels(models, f"{weights.name} has no {DESCRIBED}")
        content = read_json(described)
        train = content.get("train") if isinstance(content, dict) else None
        if not isinstance(train, dict):
            return EarlierModels(models, f"{described.name} is not that of a trained model")
        started_from = train.get("weights")
        if started_from in (None, PUBLISHED):
            break
        if (weights.parent / COHORT_IMAGES).exists():
            # A bundle has hashes of the images of all earlier cohorts, or says why not.
            return EarlierModels(models, doubt_of_bundle(weights.parent))
        weights = Path(str(started_from))
        expected = dict(content.get("inputs") or {}).get(INITIAL_WEIGHTS)
        if not weights.is_file() or sha256_of(weights) != expected:
            doubt = f"it started from {weights.name}, which is missing or has changed"
            return EarlierModels(models, doubt)
    return EarlierModels(models)


def doubt_of_bundle(folder: Path) -> str:
    """Return why the hashes of a bundle may lack images of earlier cohorts; empty: they do not.

    Args:
        folder: of the bundle; its model started from another one.
    """
    path = folder / COHORT
    look = read_json(path) if path.is_file() else {}
    doubt = look.get("earlier_doubt", "the models that its training started from are not known")
    return str(doubt)
