"""What `train.weights` is: nothing, published weights, or a file."""

from pathlib import Path

PUBLISHED = "imagenet"
# The name of the file among the inputs in a model's settings.json and in a report.
INITIAL_WEIGHTS = "the initial weights"


def weights_file(weights: str | None) -> Path | None:
    """Return the file of initial weights; None: they are random, or downloaded."""
    return None if weights in (None, PUBLISHED) else Path(str(weights))


def is_model(weights: str | None) -> bool:
    """Return whether training starts from a trained model of Gigatile."""
    path = weights_file(weights)
    return path is not None and path.suffix == ".keras"
