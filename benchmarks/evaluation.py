#!/usr/bin/env python3
"""Figures with random weights: ours against scikit-learn called for each draw, in one run.

The figures are the same to 1e-9, which is checked first; the ratio is of the time for all
draws of ROC AUC and average precision of one class.
"""

import argparse
import statistics
import time

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from gigatile.evaluation.ranking import average_precision, curve_counts, roc_auc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    positive = random.integers(0, 2, args.cases).astype(bool)
    scores = random.random(args.cases) + 0.5 * positive
    drawn = random.exponential(size=(args.resamples, args.cases))

    def ours() -> np.ndarray:
        counts = curve_counts(positive, scores, drawn)
        return np.stack([roc_auc(*counts), average_precision(*counts)])

    def reference() -> np.ndarray:
        rows = []
        for weights in drawn:
            rows.append(
                [
                    measure(positive, scores, sample_weight=weights)
                    for measure in (roc_auc_score, average_precision_score)
                ]
            )
        return np.array(rows).T

    np.testing.assert_allclose(ours(), reference(), atol=1e-9)
    seconds: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for compute in (ours, reference):
            begun = time.perf_counter()
            compute()
            seconds.setdefault(compute.__name__, []).append(time.perf_counter() - begun)
    ratio = statistics.median(seconds["reference"]) / statistics.median(seconds["ours"])
    print(f"{args.resamples} draws of {args.cases} cases, median of {args.rounds} rounds")
    print(f"ours / scikit-learn per draw: {ratio:.0f} times as fast")


if __name__ == "__main__":
    main()
