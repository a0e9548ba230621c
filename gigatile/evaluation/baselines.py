"""Baselines of a classification of embeddings, with intervals and compared with the model."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
from pydantic import Field

from gigatile.embeddings.sampled_tiles import SampledTiles
from gigatile.errors import UserError
from gigatile.evaluation.comparison import compare_models
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Interval, Intervals
from gigatile.evaluation.probes import Fitted, fit_baselines, principal_components
from gigatile.json_models import Written
from gigatile.settings.evaluate import EvaluationSettings

SCHEMA = 1


class Difference(Written):
    """A figure of the model and of a baseline, on the same patients; see `PairedFigure`.

    Attributes:
        difference: the model minus the baseline, with its interval.
        p: of no difference, two-sided, not corrected; None: not defined.
    """

    figure: str
    difference: Interval
    test: str
    p: float | None


class Figures(Written):
    """The figures of the model or of a baseline, by slide.

    Attributes:
        name: of it.
        setting: what was chosen on valid; empty for the model.
        accuracy, roc_auc: the mean over the classes of the second.
        differences: of the model and this baseline, by patient; none for the model itself.
    """

    name: str
    setting: str
    accuracy: Interval
    roc_auc: Interval
    differences: list[Difference]


class Component(Written):
    """The first two principal components of the mean embedding of a slide."""

    slide: str
    split: str
    label: str
    values: list[float] = Field(min_length=2, max_length=2)


class TileComponents(Written):
    """The first two principal components of the embeddings of some tiles of a test slide.

    Attributes:
        slide, label: of the tiles.
        x, y: top-left corners in pixels of level 0.
        first, second: the components.
    """

    slide: str
    label: str
    x: list[int]
    y: list[int]
    first: list[float]
    second: list[float]


class Baselines(Written):
    """The content of baselines.json.

    Attributes:
        classes: of the model.
        slides: the number of test slides.
        intervals: how they were computed.
        figures: of the model and of each baseline.
        components: of all slides; train alone decides the axes.
        tiles: of tiles of the test slides; tiles of train decide the axes.
        inputs: SHA-256 of the files.
    """

    schema_version: int = SCHEMA
    classes: list[str]
    slides: int
    intervals: Intervals
    figures: list[Figures]
    components: list[Component]
    tiles: list[TileComponents]
    inputs: dict[str, str]


def evaluate_baselines(
    slides: pd.DataFrame,
    means: np.ndarray,
    tiles: Sequence[SampledTiles],
    scored: pd.DataFrame,
    classes: Sequence[str],
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
) -> Baselines:
    """Fit baselines to train, choose on valid, and compare them with the model on test.

    Args:
        slides: a row per usable slide: slide, patient, label, split.
        means: their mean embeddings, (n, dimensions).
        tiles: tiles of slides of train and test.
        scored: the test slides with the scores of the model; see `read_slide_table`.
        classes: in the order of the scores.
        settings: of the intervals.
        inputs: SHA-256 of the files.

    Raises:
        UserError: a scored slide has no embedding.
    """
    position = {slide: number for number, slide in enumerate(slides["slide"])}
    if missing := [slide for slide in scored["slide"] if slide not in position]:
        raise UserError(f"scored slides without embeddings: {', '.join(missing)}")
    labels = slides["label"].map({name: k for k, name in enumerate(classes)}).to_numpy()
    rows = {name: np.flatnonzero(slides["split"] == name) for name in ("train", "valid")}
    tested = np.array([position[slide] for slide in scored["slide"]], np.int64)
    fitted = fit_baselines(
        means[rows["train"]],
        labels[rows["train"]],
        means[rows["valid"]],
        labels[rows["valid"]],
        means[tested],
        len(classes),
    )
    components = principal_components(means, means[rows["train"]]).round(4)
    own = evaluate(scored, classes, settings, {})
    columns = ["slide", "patient", "label", *(f"p_{name}" for name in classes), "call_mean"]
    return Baselines(
        classes=list(classes),
        slides=len(scored),
        intervals=own.intervals,
        figures=[
            _figures("this model", "", scored, classes, settings, None),
            *(
                _figures(
                    some.name,
                    some.setting,
                    _scored_by(some, scored, classes),
                    classes,
                    settings,
                    scored[columns],
                )
                for some in fitted
            ),
        ],
        components=[
            Component(slide=slide, split=split, label=label, values=values)
            for slide, split, label, values in zip(
                *(slides[name].tolist() for name in ("slide", "split", "label")),
                components.tolist(),
                strict=True,
            )
        ],
        tiles=_tile_components(tiles, slides, set(scored["slide"])),
        inputs=dict(inputs),
    )


def _tile_components(
    tiles: Sequence[SampledTiles], slides: pd.DataFrame, tested: Collection[str]
) -> list[TileComponents]:
    rows = {row["slide"]: row for row in slides.to_dict("records")}
    train = [some.values for some in tiles if rows[some.slide]["split"] == "train"]
    shown = [some for some in tiles if some.slide in tested]
    if not train or not shown:
        return []
    values = np.concatenate([some.values for some in shown]).astype(np.float64)
    plane = principal_components(values, np.concatenate(train).astype(np.float64)).round(4)
    ends = np.cumsum([len(some.values) for some in shown])
    components = []
    for some, in_plane in zip(shown, np.split(plane, ends[:-1]), strict=True):
        (first, second), (x, y) = in_plane.T.tolist(), some.corners.T.tolist()
        label = rows[some.slide]["label"]
        components.append(
            TileComponents(slide=some.slide, label=label, x=x, y=y, first=first, second=second)
        )
    return components


def _scored_by(fitted: Fitted, scored: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """Return the test slides with the scores of a baseline."""
    table = scored[["slide", "patient", "label"]].reset_index(drop=True)
    for number, name in enumerate(classes):
        table[f"p_{name}"] = fitted.scores[:, number]
    table["call_mean"] = [classes[number] for number in fitted.scores.argmax(axis=1)]
    return table


def _figures(
    name: str,
    setting: str,
    scored: pd.DataFrame,
    classes: Sequence[str],
    settings: EvaluationSettings,
    model: pd.DataFrame | None,
) -> Figures:
    level = evaluate(scored, classes, settings, {}).slide
    differences = []
    if model is not None:
        differences = [
            Difference(figure=each.name, difference=each.difference, test=each.test, p=each.p)
            for each in compare_models(model, scored, list(classes), settings)
            if each.name.startswith(("accuracy", "ROC AUC, mean")) or len(classes) == 2
        ]
    return Figures(
        name=name,
        setting=setting,
        accuracy=level.accuracy.mean_call,
        roc_auc=level.roc_auc.macro,
        differences=differences,
    )
