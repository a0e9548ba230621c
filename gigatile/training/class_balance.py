"""The balance of classes: how often an epoch shows each, and the weight of each in the loss."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Rational

from gigatile.errors import UserError
from gigatile.settings.train import TrainSettings

# The smallest share in which a class is shown, and the largest denominator of a share.
LEAST_SHARE = Fraction(1, 1000)


def class_weights(
    settings: TrainSettings, classes: Sequence[str], counts: Iterable[Rational]
) -> list[float]:
    """Return the weight of each class in the loss; empty: 1.

    Args:
        settings: `class_weights` and `balance`.
        classes: names of the classes.
        counts: number of training samples of each class in an epoch.

    Raises:
        UserError: all samples have a weight of 0.
    """
    if settings.balance == "loss":
        return [float(share) for share in _balanced(counts)]
    if not settings.class_weights:
        return []
    weights = [settings.class_weights.get(name, 1.0) for name in classes]
    if not any(n * weight for n, weight in zip(counts, weights, strict=True)):
        raise UserError("train.class_weights: all samples have a weight of 0")
    return weights


def repetitions(
    settings: TrainSettings, classes: Sequence[str], counts: Iterable[Rational]
) -> tuple[Fraction, ...]:
    """Return how often an epoch shows the samples of each class; empty: each sample once.

    Args:
        settings: `boost` and `balance`.
        classes: names of the classes.
        counts: number of training samples of each class in an epoch.

    Raises:
        UserError: settings name labels that no sample has, or no sample is left.
    """
    if faults := settings.unknown_labels(classes):
        raise UserError("\n".join(faults))
    if settings.balance == "epoch":
        shares = (share.limit_denominator(LEAST_SHARE.denominator) for share in _balanced(counts))
        return tuple(max(LEAST_SHARE, share) for share in shares)
    if not settings.boost:
        return ()
    # From the decimal text, so that 0.1 is exactly a tenth.
    boost = tuple(Fraction(str(settings.boost.get(name, 1.0))) for name in classes)
    if not any(n * weight for n, weight in zip(counts, boost, strict=True)):
        raise UserError("train.boost: no tile is left to train on")
    return boost


def _balanced(counts: Iterable[Rational]) -> list[Fraction]:
    """Return weights with which all classes have the same sum, and the total stays as it is."""
    exact = [Fraction(n) for n in counts]
    present = sum(n > 0 for n in exact)
    return [sum(exact) / (present * n) if n else Fraction(1) for n in exact]
