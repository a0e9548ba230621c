"""Training on embeddings of slides: samples, networks, ranks, and resume."""

import json
from pathlib import Path

import numpy as np
import pytest
from trained import assert_same_bits, assert_same_to_rounding

from gigatile.embeddings.stored import embeddings_in
from gigatile.errors import START_AGAIN, UserError
from gigatile.files import read_json, sha256_of
from gigatile.models.bag_classifier import build_bag_classifier, parts_of
from gigatile.models.saving import load_model, save_model
from gigatile.records import write_records
from gigatile.records.embedding import Embedding, encode_embedding
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.slides import SlideReader
from gigatile.records.writing import write_shards
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.slide_embedding.records import record_id
from gigatile.tasks.slide_embedding.samples import EmbeddedSlides
from gigatile.tasks.slide_embedding.scoring import BagClassifier
from gigatile.tasks.slide_embedding.training import SlideEmbedding
from gigatile.training.sample_order import Samples

DIMENSIONS, EPOCHS = 12, 2
COUNTS = (1, 30, 7, 64, 12)


def source(folder: Path, number: int, label: str, encoder: bytes = b"e" * 16) -> Source:
    """Write the embeddings of a slide; a few of its tiles show the label."""
    random = np.random.default_rng(number)
    tiles = COUNTS[number % len(COUNTS)]
    values = random.normal(size=(tiles, DIMENSIONS)).astype(np.float32)
    values[: max(1, tiles // 10), 0] += 6 if label == "tumour" else -6
    records = [
        encode_embedding(Embedding(row, encoder, b"", f"S{number}", 100 * k, 0, 100.0))
        for k, row in enumerate(values)
    ]
    path = folder / f"S{number}.tfrecord"
    write_records(path, records)
    return Source(f"S{number}", f"P{number}", label, path, SlideGrid(tiles, 1, 100.0, 0.5))


def write_manifest(folder: Path, **options) -> Path:
    labels = ("tumour", "normal")
    made = [source(folder, number, labels[number % 2], **options) for number in range(14)]
    write_shards(
        {"train": made[:10], "valid": made[10:]},
        ShardSettings(target_mb=0.005),
        folder / "shards",
        record_id=record_id,
        lay_out=lay_out_slides,
    )
    return folder / "shards/manifest.json"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("embedded"))


def classes_of(reader: SlideReader) -> np.ndarray:
    return reader.classes_at(np.arange(len(reader)))


def filled(source: EmbeddedSlides, numbers: list[int], seeds: list[int] | None = None):
    """Return the arrays of a batch, which held arbitrary values before."""
    samples = Samples(
        np.array(numbers), np.zeros(len(numbers), np.int64), np.array(seeds or numbers, np.uint64)
    )
    specs, target = source.specs(samples)
    inputs = {
        name: np.full((len(numbers), *spec.shape), np.nan, spec.dtype)
        for name, spec in specs.items()
    }
    targets = np.full((len(numbers), *target.shape), -1, target.dtype)
    source.fill(samples, inputs, targets)
    return inputs, targets


def test_a_batch_has_the_embeddings_of_its_slides_and_padding(manifest: Path) -> None:
    reader = SlideReader(manifest, "train")
    inputs, targets = filled(EmbeddedSlides(reader, classes_of(reader)), list(range(10)))
    assert inputs["embeddings"].shape == (10, max(COUNTS), DIMENSIONS)
    for number, row in enumerate(inputs["embeddings"]):
        records = reader.records_of(number)
        np.testing.assert_array_equal(row[: len(records)], list(embeddings_in(reader, records)))
        assert (row[len(records) :] == 0).all()
        present = inputs["present"][number]
        assert present.sum() == len(records) and (present[: len(records)] == 1).all()
        # The source wrote -6 or 6 into the first number of the first tile.
        assert (row[0, 0] > 0) == (reader.classes[targets[number]] == "tumour")


def test_a_cap_chooses_other_tiles_with_each_seed(manifest: Path) -> None:
    reader = SlideReader(manifest, "train")
    capped = EmbeddedSlides(reader, classes_of(reader), 8)
    number = max(range(len(reader)), key=lambda slide: len(reader.records_of(slide)))
    every = np.array(list(embeddings_in(reader, reader.records_of(number))))
    chosen = []
    for seed in range(400):
        inputs, _ = filled(capped, [number], [seed])
        (rows,) = inputs["embeddings"]
        positions = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in rows]
        assert len(set(positions)) == 8 and positions == sorted(positions)
        chosen += positions
    again, _ = filled(capped, [number], [7])
    same, _ = filled(capped, [number], [7])
    np.testing.assert_array_equal(again["embeddings"], same["embeddings"])
    # Each of 64 tiles in an eighth of the draws: 50 of 400, with a standard deviation of 6.6.
    counts = np.bincount(chosen, minlength=len(every))
    assert abs(counts - 50).max() < 5 * 6.6


def reference(weights: dict[str, np.ndarray], slide: np.ndarray) -> np.ndarray:
    """Return the logits of ABMIL by its equations, in double precision."""

    def of(name: str) -> np.ndarray:
        return weights[name].astype(np.float64)

    mean, variance = slide.mean(axis=1, keepdims=True), slide.var(axis=1, keepdims=True)
    normed = (slide - mean) / np.sqrt(variance + 1e-3)
    h = np.maximum(normed @ of("vector/kernel") + of("vector/bias"), 0)
    gate = 1 / (1 + np.exp(-(h @ of("gate/kernel") + of("gate/bias"))))
    scores = (np.tanh(h @ of("value/kernel") + of("value/bias")) * gate) @ of("score/kernel")
    attention = np.exp(scores) / np.exp(scores).sum()
    return (attention * h).sum(axis=0) @ of("logits/kernel") + of("logits/bias")


def test_abmil_is_that_of_its_paper_with_any_padding() -> None:
    networks = build_bag_classifier(TrainSettings(model="abmil"), DIMENSIONS, 3)
    random = np.random.default_rng(1)
    for weight in networks.trained.weights:
        weight.assign(random.normal(0, 0.5, weight.shape))
    weights = {
        "/".join(weight.path.split("/")[-2:]): weight.numpy() for weight in networks.trained.weights
    }
    slides = [random.normal(size=(tiles, DIMENSIONS)) for tiles in (1, 5, 40)]
    embeddings = np.full((3, 40, DIMENSIONS), 1e4, np.float32)
    present = np.zeros((3, 40), np.float32)
    for number, slide in enumerate(slides):
        embeddings[number, : len(slide)], present[number, : len(slide)] = slide, 1
    logits = networks.trained({"embeddings": embeddings, "present": present}).numpy()
    for number, slide in enumerate(slides):
        np.testing.assert_allclose(
            logits[number], reference(weights, slide.astype(np.float32)), rtol=1e-3, atol=1e-3
        )


def attended(weight, name: str, queries: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a block of attention (MAB) by the equations of the Set Transformer."""

    def projected(part: str, rows: np.ndarray) -> np.ndarray:
        return np.einsum("nd,dhk->hnk", rows, weight(f"{name}_attention/{part}/kernel")) + weight(
            f"{name}_attention/{part}/bias"
        ).reshape(4, 1, -1)

    def norm(rows: np.ndarray, layer: str) -> np.ndarray:
        mean, variance = rows.mean(axis=1, keepdims=True), rows.var(axis=1, keepdims=True)
        return (rows - mean) / np.sqrt(variance + 1e-3) * weight(f"{layer}/gamma") + weight(
            f"{layer}/beta"
        )

    q, k, v = projected("query", queries), projected("key", values), projected("value", values)
    scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
    heads = scores / scores.sum(axis=2, keepdims=True) @ v
    output = np.einsum("hnk,hkd->nd", heads, weight(f"{name}_attention/attention_output/kernel"))
    hidden = norm(
        queries + output + weight(f"{name}_attention/attention_output/bias"), f"{name}_norm"
    )
    dense = np.maximum(hidden @ weight(f"{name}_dense/kernel") + weight(f"{name}_dense/bias"), 0)
    return norm(hidden + dense, f"{name}_dense_norm")


def set_transformer(weights: dict[str, np.ndarray], slide: np.ndarray) -> np.ndarray:
    """Return the logits of the Set Transformer by its equations, in double precision."""

    def weight(name: str) -> np.ndarray:
        (path,) = [path for path in weights if path == name or path.endswith(f"/{name}")]
        return weights[path].astype(np.float64)

    mean, variance = slide.mean(axis=1, keepdims=True), slide.var(axis=1, keepdims=True)
    normed = (slide - mean) / np.sqrt(variance + 1e-3)
    vectors = normed @ weight("vector/kernel") + weight("vector/bias")
    for block in range(2):
        summary = attended(weight, f"in_{block}", weight(f"points_{block}/embeddings"), vectors)
        vectors = attended(weight, f"out_{block}", vectors, summary)
    scores = np.exp(vectors @ weight("score/kernel"))
    pooled = (scores / scores.sum() * vectors).sum(axis=0)
    return pooled @ weight("logits/kernel") + weight("logits/bias")


def test_the_set_transformer_is_that_of_its_paper_with_any_padding() -> None:
    networks = build_bag_classifier(TrainSettings(model="set_transformer"), DIMENSIONS, 3)
    random = np.random.default_rng(4)
    for weight in networks.trained.weights:
        weight.assign(random.normal(0, 0.2, weight.shape))
    weights = {weight.path: weight.numpy() for weight in networks.trained.weights}
    slides = [random.normal(size=(tiles, DIMENSIONS)) for tiles in (1, 5, 40)]
    embeddings = np.full((3, 40, DIMENSIONS), 1e4, np.float32)
    present = np.zeros((3, 40), np.float32)
    for number, slide in enumerate(slides):
        embeddings[number, : len(slide)], present[number, : len(slide)] = slide, 1
    logits = networks.trained({"embeddings": embeddings, "present": present}).numpy()
    for number, slide in enumerate(slides):
        expected = set_transformer(weights, slide.astype(np.float32))
        np.testing.assert_allclose(logits[number], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["abmil", "mean_embedding", "set_transformer"])
def test_scores_of_a_slide_are_those_of_the_saved_model(name: str, tmp_path: Path) -> None:
    networks = build_bag_classifier(TrainSettings(model=name), DIMENSIONS, 3)
    random = np.random.default_rng(2)
    for weight in networks.trained.weights:
        weight.assign(random.normal(0, 0.5, weight.shape))
    save_model(networks.model, tmp_path / "model.keras")
    described = {
        "classes": ["a", "b", "c"],
        "sha256": sha256_of(tmp_path / "model.keras"),
        "encoder_id": (b"e" * 16).hex(),
        "tiles": TileSettings().model_dump(mode="json"),
        "encoder": EncoderSettings().model_dump(mode="json", include={"size", "mean", "deviation"}),
    }
    (tmp_path / "settings.json").write_text(json.dumps(described))
    classifier = BagClassifier(tmp_path / "model.keras", tmp_path / "settings.json")
    slide = random.normal(size=(9000, DIMENSIONS)).astype(np.float32)  # several parts
    whole = load_model(tmp_path / "model.keras", described["sha256"], tmp_path / "settings.json")
    expected = whole({"embeddings": slide[None], "present": np.ones((1, 9000), np.float32)})
    np.testing.assert_allclose(classifier.score(slide), expected[0], atol=1e-5)
    _, weights, alone = classifier._scored(slide)
    assert (weights is None) == (name == "mean_embedding")
    first = whole({"embeddings": slide[:1][None], "present": np.ones((1, 1), np.float32)})
    # In the transformer, the vector of a tile depends on the other tiles.
    assert np.allclose(alone[0], first[0], atol=1e-5) == (name != "set_transformer")
    with pytest.raises(UserError, match="another encoder than"):
        classifier.check_encoder(b"f" * 16, "x")


def test_parts_are_those_of_the_network() -> None:
    networks = build_bag_classifier(TrainSettings(model="abmil"), DIMENSIONS, 3)
    tiles, logits = parts_of(networks.model)
    assert sorted(output.shape[-1] for output in tiles.outputs) == [1, 512]
    assert logits.units == 3


def arguments(launcher, manifest: Path, out: Path, ranks: int, **settings) -> list[str]:
    settings = {"model": "abmil", "batch_size": 2, "epochs": EPOCHS, **settings}
    words = launcher.train_arguments(manifest, out, ranks, **settings)
    words[words.index("--task") + 1] = "slide_embedding"
    words[words.index("--task-settings") + 1] = json.dumps({"tiles": {"size": 64}, "encoder": {}})
    return words


def train(launcher, manifest, out, ranks=1, program="scripts/train.py", before=(), **settings):
    return launcher.run(
        ranks, program, *before, *arguments(launcher, manifest, out, ranks, **settings)
    )


def trained(launcher, manifest, out, ranks=1, **settings) -> Path:
    done = train(launcher, manifest, out, ranks, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "segments"


def test_ranks_reach_the_same_weights(launcher, manifest, tmp_path) -> None:
    alone = trained(launcher, manifest, tmp_path / "alone", 1, tiles_per_slide=20)
    together = trained(launcher, manifest, tmp_path / "together", 2, tiles_per_slide=20)
    assert_same_to_rounding(alone, together)
    described = read_json(alone / f"{EPOCHS:04d}.json")
    assert (described["encoder_id"], described["classes"]) == (
        (b"e" * 16).hex(),
        ["normal", "tumour"],
    )


@pytest.mark.long
def test_stopped_training_ends_with_the_same_model(launcher, manifest, tmp_path) -> None:
    """A rank gets a signal within an epoch."""
    options = {"ranks": 2, "tiles_per_slide": 20}
    uninterrupted = trained(launcher, manifest, tmp_path / "uninterrupted", **options)
    program = "tests/training/programs/at_a_moment.py"
    moment = ("--moment", "in epoch 2, step 2 of 5", "--send", "SIGUSR2", "--to", 1)
    done = train(
        launcher, manifest, tmp_path / "stopped", program=program, before=moment, **options
    )
    assert done.returncode == START_AGAIN, done.stdout + done.stderr
    done = train(launcher, manifest, tmp_path / "stopped", **options)
    assert done.returncode == 0, done.stderr
    assert "resuming after epoch 1 of 2, step 3 of 5" in done.stdout
    assert_same_bits(uninterrupted, tmp_path / "stopped/segments")


def test_slides_of_two_encoders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    some = [source(tmp_path, number, "tumour") for number in range(2)]
    other = source(tmp_path / "more", 2, "normal", encoder=b"f" * 16)
    write_shards(
        {"train": [*some, other]},
        ShardSettings(),
        tmp_path / "shards",
        record_id=record_id,
        lay_out=lay_out_slides,
    )
    reader = SlideReader(tmp_path / "shards/manifest.json", "train")
    task = SlideEmbedding(TileSettings(), EncoderSettings())
    for use in (task.metadata, lambda reader: task.networks(reader, TrainSettings(), False)):
        with pytest.raises(UserError, match="are of another encoder than those of most") as error:
            use(reader)
        assert str(error.value).endswith("\n  - S2")
