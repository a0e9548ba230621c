"""Scores of tiles: each tile once, independent of the other tiles of its batch."""

import json

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.models.classifier import build_classifier
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.tile import encode_jpeg
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.scoring import BATCH, TileClassifier, score_slides

SIZE = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with an untrained model and the tiles of three slides."""
    folder = tmp_path_factory.mktemp("scoring")
    build_classifier(TrainSettings(), SIZE, 3).model.save(folder / "model.keras")
    settings = {"classes": ["a", "b", "c"], "sha256": sha256_of(folder / "model.keras")}
    (folder / "settings.json").write_text(json.dumps(settings))
    random = np.random.default_rng(1)
    for slide, tiles, size in (("one", 1, SIZE), ("many", BATCH + 5, SIZE), ("other", 1, 48)):
        write_records(
            folder / f"{slide}.tfrecord",
            [
                encode_tile(
                    Tile(
                        image=encode_jpeg(random.integers(0, 255, (size, size, 3), np.uint8), 90),
                        slide=slide,
                        x=number,
                        y=7,
                        extent=float(size),
                        mpp=None,
                        tissue=0.5,
                    )
                )
                for number in range(tiles)
            ],
        )
    return folder


@pytest.fixture(scope="module")
def scorer(folder):
    return TileClassifier(folder / "model.keras", folder / "settings.json")


def slides(*names):
    return [{"slide": name, "patient": "P", "label": "a"} for name in names]


def test_every_tile_has_the_scores_of_the_model_once(folder, scorer, tmp_path):
    out = tmp_path / "tiles.parquet"
    score_slides(scorer, slides("many", "one"), folder, out, log=lambda line: None)
    file = pq.ParquetFile(out)
    assert file.num_row_groups == 2
    table = file.read().to_pandas()
    assert table["x"].tolist() == [*range(BATCH + 5), 0]
    assert set(table["y"]) == {7} and set(table["slide"]) == {"many", "one"}

    from gigatile.records import decode_tile, read_records

    model = keras.models.load_model(folder / "model.keras")
    tiles = [decode_tile(data).pixels() for data in read_records(folder / "many.tfrecord")]
    expected = model.predict(np.stack(tiles), verbose=0)
    actual = table[table["slide"] == "many"][["p_a", "p_b", "p_c"]].to_numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_scores_do_not_depend_on_other_tiles(folder, scorer, tmp_path):
    paths = [tmp_path / "alone.parquet", tmp_path / "after.parquet"]
    score_slides(scorer, slides("one"), folder, paths[0], log=lambda line: None)
    score_slides(scorer, slides("many", "one"), folder, paths[1], log=lambda line: None)
    alone, after = (pq.read_table(path).to_pandas().query("slide == 'one'") for path in paths)
    assert alone.reset_index(drop=True).equals(after.reset_index(drop=True))


def test_tiles_of_another_size_are_refused(folder, scorer, tmp_path):
    out = tmp_path / "tiles.parquet"
    with pytest.raises(UserError, match=r"slide other: has tiles of 48×48 px, .* 32×32;"):
        score_slides(scorer, slides("other"), folder, out, log=lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04 truncated"])
def test_error_names_a_damaged_model_file(folder, tmp_path, content):
    path = tmp_path / "broken.keras"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.keras: cannot be loaded"):
        TileClassifier(path, folder / "settings.json")


def test_other_model_than_the_described_one_is_refused(folder, tmp_path):
    """It takes the same tiles, but its outputs may be other classes."""
    path = tmp_path / "model.keras"
    build_classifier(TrainSettings(seed=2), SIZE, 3).model.save(path)
    with pytest.raises(UserError, match=r"model\.keras: is not the model that .*settings\.json"):
        TileClassifier(path, folder / "settings.json")


def test_model_that_contains_code_is_refused(folder, tmp_path):
    """A Lambda layer contains Python code, which loading would run."""
    tiles = keras.Input((SIZE, SIZE, 3))
    scores = keras.layers.Lambda(lambda x: x[:, 0, 0, :])(tiles)
    path = tmp_path / "lambda.keras"
    keras.Model(tiles, scores).save(path)
    with pytest.raises(UserError, match=r"lambda\.keras: cannot be loaded"):
        TileClassifier(path, folder / "settings.json")
