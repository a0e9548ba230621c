"""Embeddings of TRIDENT and CLAM in place of slides: read exactly, or refused with the reason."""

import re
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from trident_files import EXTENT, corners_of, random_features, write_trident

from gigatile.embeddings.embedding import EmbeddingFiles, embed_slide
from gigatile.embeddings.imported import EmbeddingsError, open_imported
from gigatile.embeddings.imported_tiles import ImportedTiles
from gigatile.embeddings.state import EmbeddingState
from gigatile.embeddings.stored import embeddings_in, read_embeddings
from gigatile.errors import UserError
from gigatile.records import read_records
from gigatile.records.embedding import decode_embedding
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slides import SlideReader
from gigatile.records.writing import write_shards
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.slides.state import SlideState
from gigatile.slides.tiling import TilingFiles, tile_slide
from gigatile.tasks.slide_embedding.records import LAY_OUT, record_id

SETTINGS = EncoderSettings(embedded_with="UNI 2", licence="CC-BY-NC-ND-4.0")


def tiles_in(folder: Path) -> TilingFiles:
    folder.mkdir(exist_ok=True)
    return TilingFiles(*(folder / f"S.{kind}" for kind in ("tfrecord", "json", "jpg", "parquet")))


def embedded_in(folder: Path) -> EmbeddingFiles:
    folder.mkdir(exist_ok=True)
    return EmbeddingFiles(*(folder / f"S.{kind}" for kind in ("tfrecord", "h5", "json")))


def describe(source: Path, out: Path, mpp: float | None = None) -> SlideState:
    return tile_slide(
        source, "S", mpp, TileSettings(), tiles_in(out / "tiles"), tiles_of=ImportedTiles
    )


def load(source: Path, out: Path, encoder: EncoderSettings = SETTINGS) -> EmbeddingState:
    files = tiles_in(out / "tiles")
    written = embedded_in(out / "embeddings")
    return embed_slide("S", files.records, files.state, source, encoder, written)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with 35 tiles."""
    return write_trident(tmp_path / "S.h5", random_features(35), corners_of(5, 7))


def test_values_order_and_corners_are_those_of_the_file(source: Path, tmp_path: Path) -> None:
    tiled, state = describe(source, tmp_path), load(source, tmp_path)
    stored = read_embeddings(tmp_path / "embeddings/S.tfrecord")
    np.testing.assert_array_equal(stored.values, random_features(35).astype(np.float32))
    np.testing.assert_array_equal(np.stack([stored.x, stored.y], axis=1), corners_of(5, 7))
    assert (tiled.tiles.kept, tiled.source.width, tiled.source.height) == (35, 2560, 3584)
    assert (tiled.mpp, tiled.mpp_from) == (0.25, "objective")
    assert tiled.grid is not None and (tiled.grid.size, tiled.grid.mpp) == (256, 0.5)
    assert state.encoder is not None
    assert (state.encoder.name, state.encoder.sha256, state.encoder.dimensions) == (
        "UNI 2",
        None,
        8,
    )
    assert (state.state, state.sha256_of_tiles) == ("tiled", tiled.records.sha256)
    # What is written can be read in the same way.
    with open_imported(tmp_path / "embeddings/S.h5") as again:
        np.testing.assert_array_equal(np.concatenate(list(again.parts())), stored.values)
        assert (again.extent, again.size) == (EXTENT, 256)


def test_overview_and_table_show_where_the_tiles_are(tmp_path: Path) -> None:
    corners = np.array([[0, 0], [512, 512]])
    source = write_trident(tmp_path / "S.h5", random_features(2), corners, level0_width=2048)
    state = describe(source, tmp_path)
    assert (state.source.width, state.source.height) == (2048, 1024)
    table = pd.read_parquet(tmp_path / "tiles/S.parquet")
    kept = table[table["dropped"] == ""]
    assert list(zip(kept["x"], kept["y"], strict=True)) == [(0, 0), (512, 512)]
    assert len(table) == 8 and state.tiles.dropped == {"background": 6}
    overview = np.asarray(Image.open(tmp_path / "tiles/S.jpg")).astype(int)
    height, width, _ = overview.shape
    assert width == 2 * height
    assert (
        overview[height // 4, width // 8].mean() < 230 < overview[height // 4, 7 * width // 8].min()
    )


@pytest.mark.parametrize("step", [256, 700, 513])
def test_overlapping_and_spaced_tiles_keep_their_corners(tmp_path: Path, step: int) -> None:
    """Each contour of CLAM has its own origin, and TRIDENT can overlap tiles."""
    corners = corners_of(5, 5, step) + 37
    source = write_trident(tmp_path / "S.h5", random_features(25), corners, overlap=256)
    tiled = describe(source, tmp_path)
    assert tiled.tiles.kept == 25 and tiled.grid is not None
    load(source, tmp_path)
    path = tmp_path / "embeddings/S.tfrecord"
    stored = read_embeddings(path)
    np.testing.assert_array_equal(np.stack([stored.x, stored.y], axis=1), corners)
    assert set(np.atleast_1d(stored.extent).tolist()) == {EXTENT}
    # All of them are in the shards, too.
    grid = SlideGrid(tiled.grid.columns, tiled.grid.rows, tiled.grid.extent, tiled.grid.mpp)
    sources = {"train": [Source("S", "P", "a", path, grid)]}
    how = {"lay_out": LAY_OUT, "record_id": record_id}
    write_shards(sources, ShardSettings(), tmp_path / "shards", **how)
    reader = SlideReader(tmp_path / "shards/manifest.json", "train")
    values = np.stack(list(embeddings_in(reader, reader.records_of(0))))
    np.testing.assert_array_equal(values, stored.values)


def test_files_of_clam_have_no_attributes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "S.h5", "w") as file:
        file["features"] = random_features(6).astype(np.float32)[None]
        file["coords"] = corners_of(3, 2, 1024).astype(np.int32)[None]
    state = describe(tmp_path / "S.h5", tmp_path)
    assert state.mpp is None and state.grid is not None
    assert (state.grid.extent, state.tiles.kept, state.source.width) == (1024, 6, 3072)
    assert load(tmp_path / "S.h5", tmp_path).encoder is not None
    assert describe(tmp_path / "S.h5", tmp_path, mpp=0.5).mpp_from == "sheet"


def test_pieces_of_tissue_have_corners_that_are_off_the_grid(tmp_path: Path) -> None:
    """In files of CLAM, which do not say how large a tile is."""
    pieces = [corners_of(3, 4) + offset for offset in ((0, 0), (5001, 3), (2077, 6502))]
    corners = np.concatenate(pieces)
    with h5py.File(tmp_path / "S.h5", "w") as file:
        file["features"], file["coords"] = random_features(len(corners)), corners
    state = describe(tmp_path / "S.h5", tmp_path)
    assert state.grid is not None, state.reason
    assert (state.state, state.grid.extent, state.tiles.kept) == ("tiled", EXTENT, 36)


def test_equal_tiles_have_equal_hashes_but_plain_ones_have_none(tmp_path: Path) -> None:
    features = random_features(6)
    features[4] = features[5]
    hashes = []
    for number, order in enumerate(([0, 1, 2, 3, 4, 5], [3, 2, 1, 0, 4, 5])):
        out = tmp_path / str(number)
        out.mkdir()
        source = write_trident(out / "S.h5", features[order], corners_of(3, 2))
        describe(source, out)
        load(source, out)
        records = read_records(out / "embeddings/S.tfrecord")
        hashes.append([decode_embedding(data).pixels for data in records])
    assert hashes[0][:4] == hashes[1][:4][::-1]
    assert len(set(hashes[0][:4])) == 4 and all(len(value) == 16 for value in hashes[0][:4])
    assert hashes[0][4:] == hashes[1][4:] == [b"", b""]


def _without(name: str):
    def change(file: h5py.File) -> None:
        del file[name]

    return change


def _with(name: str, values: np.ndarray):
    def change(file: h5py.File) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)

    return change


def _linked(link):
    def change(file: h5py.File) -> None:
        del file["features"]
        file["features"] = link

    return change


def _in_another_file(file: h5py.File) -> None:
    del file["features"]
    file.create_dataset(
        "features",
        (35, 8),
        np.float32,
        external=[(str(Path(file.filename).with_name("secret")), 0, 1120)],
    )


def _virtual(file: h5py.File) -> None:
    del file["features"]
    layout = h5py.VirtualLayout((35, 8), np.float32)
    layout[:] = h5py.VirtualSource(
        str(Path(file.filename).with_name("other.h5")), "features", (35, 8)
    )
    file.create_virtual_dataset("features", layout)


def _placed(x: int, y: int):
    corners = corners_of(5, 7)
    corners[3] = x, y
    return _with("coords", corners)


NAN = random_features(35).astype(np.float32)
NAN[11, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without("features"), "has no dataset 'features'"),
        (_without("coords"), "has no dataset 'coords'"),
        (_with("features", NAN), r"the embedding of the tile at \(512, 2048\) is not finite"),
        (_with("features", random_features(34)), r"must be \(34, 2\) numbers"),
        (_with("features", np.zeros((0, 8), np.float32)), "must be"),
        (_with("features", np.zeros(35, np.float32)), r"must be \(tiles, numbers\)"),
        (_with("features", np.zeros((35, 8), np.int32)), "floating point"),
        (_with("features", np.zeros((35, 0), np.float32)), "tiles of 0 numbers"),
        (_with("coords", corners_of(5, 7).astype("S8")), "numbers"),
        (_placed(-1, 0), "no pixels of level 0"),
        (_placed(2**31, 0), "no pixels of level 0"),
        (_placed(2**31 - 1, 2**31 - 1), "are spread over"),
        (_linked(h5py.ExternalLink("other.h5", "features")), "not a dataset of this file"),
        (_linked(h5py.SoftLink("/coords")), "not a dataset of this file"),
        (_in_another_file, "stored in another file"),
        (_virtual, "stored in another file"),
    ],
)
def test_wrong_file_is_recorded_with_its_reason(source, tmp_path, change, reason) -> None:
    write_trident(tmp_path / "other.h5", random_features(35), corners_of(5, 7))
    (tmp_path / "secret").write_bytes(bytes(1120))
    with h5py.File(source, "a") as file:
        change(file)
    state = describe(source, tmp_path)
    assert state.state == "failed" and state.reason is not None
    assert re.search(reason, state.reason), state.reason
    assert load(source, tmp_path).encoder is None
    assert list(read_records(tmp_path / "embeddings/S.tfrecord")) == []


def test_other_content_is_recorded_with_its_reason(tmp_path: Path) -> None:
    for content in (b"", b"no HDF5", b"\x89HDF\r\n\x1a\n" + bytes(500)):
        (tmp_path / "S.h5").write_bytes(content)
        state = describe(tmp_path / "S.h5", tmp_path)
        assert state.state == "failed" and "cannot be read as HDF5" in str(state.reason)
    state = describe(tmp_path / "gone.h5", tmp_path)
    assert state.state == "failed" and "No such file" in str(state.reason)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_is_never_a_crash(source: Path, data: st.DataObject) -> None:
    """A byte is changed, or the end is missing: the same values, or an error with a reason."""
    whole = source.read_bytes()
    damaged = bytearray(whole)
    for offset in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        damaged[offset] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    path = source.with_name("damaged.h5")
    path.write_bytes(damaged[:cut])
    try:
        with open_imported(path) as embeddings:
            count = sum(len(part) for part in embeddings.parts())
            assert count == len(embeddings.corners)
    except EmbeddingsError as error:
        assert str(error)


def test_another_file_since_is_refused(source: Path, tmp_path: Path) -> None:
    describe(source, tmp_path)
    write_trident(source, random_features(35, seed=2), corners_of(5, 7))
    with pytest.raises(UserError, match="was changed after its tiles were described"):
        load(source, tmp_path)


def test_other_encoders_and_tiles_are_told_apart(tmp_path: Path) -> None:
    """By their name, their numbers, and the size and scale of the tiles."""
    identities = set()
    for number, (name, dimensions, attributes) in enumerate(
        [
            ("UNI 2", 8, {}),
            ("CONCH", 8, {}),
            ("UNI 2", 9, {}),
            ("UNI 2", 8, {"patch_size": 512}),
            ("UNI 2", 8, {"target_magnification": 40}),
        ]
    ):
        path = tmp_path / f"{number}.h5"
        write_trident(path, random_features(6, dimensions), corners_of(3, 2), **attributes)
        with open_imported(path) as embeddings:
            identities.add(embeddings.encoder_id(EncoderSettings(embedded_with=name)))
    assert len(identities) == 5


def test_positions_are_those_of_the_tissue(tmp_path: Path) -> None:
    """Wherever it is on the slide; not of few tiles, and not of a full rectangle."""
    tissue = np.delete(corners_of(6, 7), [0, 5, 17], axis=0)

    def positions(corners: np.ndarray) -> str | None:
        path = tmp_path / "S.h5"
        write_trident(path, random_features(len(corners)), corners)
        with open_imported(path) as embeddings:
            return embeddings.positions()

    assert positions(tissue) == positions(tissue[::-1] + 700) != positions(tissue[1:])
    assert positions(tissue) is not None
    assert positions(corners_of(6, 7)) is None and positions(tissue[:19]) is None
