"""Training on outcomes with a known answer, against Cox's model, with any number of ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from trained import assert_same_to_rounding

from gigatile.cohort.outcomes import Outcome
from gigatile.errors import UserError
from gigatile.evaluation.outcome_scale import OutcomeScale
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json
from gigatile.records import write_records
from gigatile.records.embedding import Embedding, encode_embedding
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tasks.slide_embedding.records import record_id
from gigatile.tasks.slide_outcome.scoring import OutcomeModel
from gigatile.tasks.slide_outcome.target_task import losses_of
from gigatile.tasks.slide_outcome.targets import OutcomeReader

DIMENSIONS, PATIENTS = 8, 240
# Log hazard ratio, or number, for each unit of the first two numbers of an embedding.
EFFECTS = (1.0, -1.0)


def features(number: int) -> np.ndarray:
    """Return the mean embedding of a slide."""
    return np.random.default_rng(number).normal(size=DIMENSIONS)


def true_risk(number: int) -> float:
    """Return the known answer: what the layer norm of the model leaves of the first numbers."""
    values = features(number)
    normed = (values - values.mean()) / np.sqrt(values.var() + 1e-3)
    return float(normed[:2] @ EFFECTS)


def label_of(number: int, kind: str) -> str:
    random = np.random.default_rng(10_000 + number)
    if kind == "number":
        return repr(float(50 + 10 * true_risk(number) + random.normal()))
    event, end = random.exponential(np.exp(-true_risk(number))), random.exponential(2)
    return f"{float(min(event, end))!r} {'event' if event <= end else 'censored'}"


def write_manifest(folder: Path, kind: str) -> Path:
    made = []
    for number in range(PATIENTS):
        random, values = np.random.default_rng(number), features(number)
        records = [
            encode_embedding(
                Embedding(values.astype(np.float32), b"e" * 16, b"", f"S{number}", 100 * k, 0, 100)
            )
            for k in range(int(random.integers(1, 4)))
        ]
        path = folder / f"S{number}.tfrecord"
        write_records(path, records)
        grid = SlideGrid(len(records), 1, 100.0, 0.5)
        made.append(Source(f"S{number}", f"P{number}", label_of(number, kind), path, grid))
    write_shards(
        {"train": made[:160], "valid": made[160:]},
        ShardSettings(target_mb=0.05),
        folder / "shards",
        record_id=record_id,
        lay_out=lay_out_slides,
    )
    return folder / "shards/manifest.json"


@pytest.fixture(scope="module", params=["number", "survival"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def manifest(kind, tmp_path_factory) -> Path:
    return write_manifest(tmp_path_factory.mktemp(kind), kind)


def train(launcher, manifest: Path, out: Path, ranks: int = 1, **settings) -> None:
    given = {"model": "mean_embedding", "batch_size": 8, "epochs": 40, "learning_rate": 0.01}
    words = launcher.train_arguments(manifest, out, ranks, **(given | settings))
    words[words.index("--task") + 1] = "slide_outcome"
    words[words.index("--task-settings") + 1] = json.dumps({"tiles": {"size": 64}, "encoder": {}})
    done = launcher.run(ranks, "scripts/train.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_model_finds_the_known_answer(launcher, manifest, kind, tmp_path):
    """Of the risks, as well as Cox's model: its concordance on valid is from lifelines 0.30.3."""
    train(launcher, manifest, tmp_path)
    described = tmp_path / "segments/0040.json"
    model = OutcomeModel(described.with_suffix(".keras"), described)
    reader = OutcomeReader(manifest, "valid")
    predicted, truth = [], []
    for number in range(len(reader)):
        slide = int(reader[number].slide.slide.removeprefix("S"))
        values = np.tile(features(slide).astype(np.float32), (2, 1))
        predicted.append(model.scale.prediction(np.array(model.output(values))))
        truth.append(true_risk(slide))
    predicted, truth = np.array(predicted), np.array(truth)
    assert np.corrcoef(predicted, truth)[0, 1] > (0.97 if kind == "number" else 0.95)
    outcomes = reader.outcomes
    values = np.array([outcome.value for outcome in outcomes])
    if kind == "number":
        assert np.abs(predicted - values).mean() < 1.5  # the noise alone gives 0.8
        assert read_json(described)["outcome"]["mean"] == pytest.approx(50, abs=3)
        return
    events = np.array([bool(outcome.event) for outcome in outcomes])
    agreement = concordance(predicted, values, events)
    assert agreement == pytest.approx(COX, abs=0.02)


COX = 0.7732484


@pytest.mark.long
def test_ranks_reach_the_same_weights(launcher, manifest, tmp_path):
    for ranks in (1, 2):
        train(launcher, manifest, tmp_path / str(ranks), ranks, epochs=2)
    assert_same_to_rounding(tmp_path / "1/segments", tmp_path / "2/segments")


def test_loss_is_the_likelihood_of_its_formula():
    reader_outcomes = [(2.0, True), (3.0, False), (1.0, True), (5.0, True)]
    outcomes = [Outcome(*each) for each in reader_outcomes]
    scale = OutcomeScale.of(outcomes)
    # Nelson-Aalen: 1/4 at 1, 1/3 at 2, 1/1 at 5.
    hazards = np.array([1 / 4 + 1 / 3, 1 / 4 + 1 / 3, 1 / 4, 1 / 4 + 1 / 3 + 1])
    targets = scale.targets(outcomes)
    np.testing.assert_allclose(targets[:, 0], hazards, rtol=1e-6)
    f = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    losses, residuals = losses_of("survival", tf.constant(f), tf.constant(targets))
    events = np.array([1, 0, 1, 1])
    np.testing.assert_allclose(losses, hazards * np.exp(f) - events * f, rtol=1e-5)
    np.testing.assert_allclose(residuals, np.abs(events - hazards * np.exp(f)), rtol=1e-5)
    # Without covariates, the best common risk is that of the baseline.
    assert hazards.sum() == pytest.approx(events.sum())


def test_outcomes_from_which_nothing_can_be_learned_are_refused():
    with pytest.raises(UserError, match="the same value"):
        OutcomeScale.of([Outcome(1.0), Outcome(1.0)])
    with pytest.raises(UserError, match="no event"):
        OutcomeScale.of([Outcome(1.0, False), Outcome(2.0, False)])
