"""Baselines are evaluated and compared with the model as any two models are."""

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from tested_runs import SETTINGS, names, predictions_of

from gigatile.embeddings.sampled_tiles import SampledTiles
from gigatile.errors import UserError
from gigatile.evaluation.baselines import evaluate_baselines
from gigatile.evaluation.comparison import compare_models
from gigatile.evaluation.metrics import evaluate

COUNTS = {"train": 60, "valid": 30, "test": 60}


def cohort(signal: float) -> tuple[pd.DataFrame, np.ndarray]:
    """Return slides of three classes, and their mean embeddings."""
    random = np.random.default_rng(7)
    parts = [
        pd.DataFrame(
            {
                "slide": [f"{'S' if split == 'test' else split}{k:03}" for k in range(count)],
                "patient": [f"{'P' if split == 'test' else split}{k:03}" for k in range(count)],
                "label": [f"c{k % 3}" for k in range(count)],
                "split": split,
            }
        )
        for split, count in COUNTS.items()
    ]
    slides = pd.concat(parts, ignore_index=True)
    centres = random.normal(0, signal, (3, 20))
    numbers = slides["label"].str[1:].astype(int).to_numpy()
    return slides, centres[numbers] + random.normal(size=(len(slides), 20))


def test_figures_and_differences_are_those_of_any_two_models() -> None:
    slides, means = cohort(2.0)
    scored = predictions_of(60, 1, 1.0)
    result = evaluate_baselines(slides, means, [], scored, names(), SETTINGS, {"a": "b"})
    model, linear, nearest = result.figures
    level = evaluate(scored, names(), SETTINGS, {}).slide
    assert (model.accuracy, model.roc_auc) == (level.accuracy.mean_call, level.roc_auc.macro)
    assert model.differences == []
    for baseline in (linear, nearest):
        assert baseline.accuracy.value > 0.95  # the signal is strong
        assert [each.figure for each in baseline.differences] == [
            "accuracy",
            "ROC AUC, mean of the classes",
        ]
        first = baseline.differences[0]
        assert first.difference.value == pytest.approx(
            model.accuracy.value - baseline.accuracy.value, abs=1e-6
        )
        assert first.p is not None and first.p < 0.01
    same = compare_models(scored, scored, names(), SETTINGS)
    assert [each.test for each in linear.differences] == [each.test for each in same[:2]]
    assert (result.slides, result.inputs) == (60, {"a": "b"})


def test_only_scored_slides_are_tested_and_order_does_not_matter() -> None:
    slides, means = cohort(1.0)
    scored = predictions_of(60, 1, 1.0)
    result = evaluate_baselines(slides, means, [], scored[:-6], names(), SETTINGS, {})
    assert result.slides == 54
    assert len(result.components) == sum(COUNTS.values())
    turned = evaluate_baselines(
        slides, means, [], scored[:-6].sample(frac=1, random_state=1), names(), SETTINGS, {}
    )
    assert turned.figures == result.figures
    with pytest.raises(UserError, match="scored slides without embeddings: S059"):
        evaluate_baselines(slides[:-1], means[:-1], [], scored, names(), SETTINGS, {})


def test_tiles_of_train_decide_the_plane_of_the_tiles() -> None:
    slides, means = cohort(1.0)
    scored = predictions_of(60, 1, 1.0)
    random = np.random.default_rng(1)

    def tiles_of(slide: str, scale: float) -> SampledTiles:
        values = (random.normal(size=(30, 20)) * scale).astype(np.float32)
        return SampledTiles(slide, np.arange(60).reshape(30, 2), values)

    # The tiles of train vary along the first two axes most; those of test along others.
    axes = np.where(np.arange(20) < 2, [9.0] + [3.0] * 19, 0.1)
    train = [tiles_of(f"train{k:03}", axes) for k in range(10)]
    test = [tiles_of(f"S{k:03}", axes[::-1]) for k in range(4)]
    result = evaluate_baselines(slides, means, [*train, *test], scored, names(), SETTINGS, {})
    assert [some.slide for some in result.tiles] == ["S000", "S001", "S002", "S003"]
    for shown, sampled in zip(result.tiles, test, strict=True):
        pca = PCA(2).fit(np.concatenate([some.values for some in train]))
        expected = pca.transform(sampled.values)
        for axis, values in enumerate((shown.first, shown.second)):
            sign = np.sign(np.dot(values, expected[:, axis]))
            np.testing.assert_allclose(values, sign * expected[:, axis], atol=1e-3)
        assert (shown.x, shown.y) == (list(range(0, 60, 2)), list(range(1, 60, 2)))
    assert {some.label for some in result.tiles} == {"c0", "c1", "c2"}
