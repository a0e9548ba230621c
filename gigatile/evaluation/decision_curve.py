"""Decision curves: the net benefit of acting on the scores, by threshold.

Vickers and Elkin 2006, https://doi.org/10.1177/0272989X06295361. At a threshold p, slides with a
score of at least p are called positive. The net benefit is the share of true positives minus that
of false positives times the odds p / (1 - p): a threshold of 0.2 says that missing a positive slide
is as bad as four false alarms. It is compared with calling all slides positive, and with calling
none positive: 0.

Each slide contributes between -p / (1 - p) and 1, so the interval is that of a mean between bounds.
"""

import numpy as np

from gigatile.evaluation.calibration_file import NetBenefit
from gigatile.evaluation.intervals import (
    Weights,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)

THRESHOLDS = tuple(number / 20 for number in range(1, 20))


def decision_curve(scores: np.ndarray, labels: np.ndarray, weights: Weights) -> list[NetBenefit]:
    """Return the net benefit of a class at `THRESHOLDS`; without slides, there are none.

    Args:
        scores: (n,) of the class.
        labels: (n,) 1 if the slide has the class, else 0.
        weights: of the slides.
    """
    if not len(scores):
        return []
    patients = weights.patients(np.ones(len(scores), bool))
    curve = []
    for threshold in THRESHOLDS:
        odds = threshold / (1 - threshold)
        benefits = np.where(labels > 0, 1.0, -odds)
        of_calls = np.where(scores >= threshold, benefits, 0.0)
        curve.append(
            NetBenefit(
                threshold=threshold,
                model=with_interval(
                    float(of_calls.mean()),
                    draw_mean(of_calls, weights, -odds, 1),
                    patients,
                    too_few_patients({"": patients}),
                ),
                all_positive=rounded(benefits.mean()),
            )
        )
    return curve
