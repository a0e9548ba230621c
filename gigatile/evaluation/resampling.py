"""Bootstrap over patients: who is drawn how often, and the interval around a figure.

Patients are the unit of resampling, since slides or cases of one patient are not independent (Field
and Welsh 2007, https://doi.org/10.1111/j.1467-9868.2007.00593.x).
"""

import numpy as np

from gigatile.records.shuffle import key64, random64
from gigatile.settings.evaluate import EvaluationSettings

INTERVAL = (2.5, 97.5)


def draw_patients(patients: np.ndarray, settings: EvaluationSettings) -> np.ndarray:
    """Draw patients with replacement; return how often each case counts: (resamples, n) int32.

    Args:
        patients: (n,) whose each case is.
        settings: number of resamples and their seed.
    """
    names, patient_of = np.unique(patients, return_inverse=True)
    shape = (settings.resamples, len(names))
    draws = random64(key64("bootstrap", settings.seed), np.arange(np.prod(shape)))
    # The remainder of 64 random bits by a number of patients is uniform for all practical ends.
    chosen = (draws % np.uint64(len(names))).astype(np.int64).reshape(shape)
    times = np.zeros(shape, np.int32)
    np.add.at(times, (np.arange(settings.resamples)[:, None], chosen), 1)
    return times[:, patient_of]


def interval(value: float, resampled: np.ndarray) -> dict[str, float | int | None]:
    """Return a figure and its 95 % interval; None where it is not defined, never a NaN.

    Args:
        value: the figure of the cohort.
        resampled: (resamples,) the same figure of each resample; NaN where it is not defined.
    """
    defined = resampled[~np.isnan(resampled)]
    found: dict[str, float | int | None] = dict.fromkeys(("value", "low", "high"))
    if not np.isnan(value):
        found["value"] = plain(value)
        if len(defined):
            low, high = np.percentile(defined, INTERVAL)
            found |= {"low": plain(low), "high": plain(high)}
    return found | {"resamples": len(defined)}


def plain(value: float) -> float:
    """Round for JSON: six decimals are beyond what a cohort can tell and the same everywhere."""
    return round(float(value), 6)
