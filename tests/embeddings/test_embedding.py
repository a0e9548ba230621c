"""The embeddings of a slide: complete, readable by others, and never of damaged tiles."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_slides import draw_small_slide
from tiny_encoder import write_tiny_encoder

from gigatile.embeddings.embedding import EmbeddingFiles, embed_slide
from gigatile.embeddings.encoder_files import encoder_id
from gigatile.embeddings.encoders import open_encoder
from gigatile.embeddings.hdf5 import read_mean
from gigatile.embeddings.means import read_means
from gigatile.embeddings.sampled_tiles import sample_tiles
from gigatile.embeddings.state import EmbeddingState
from gigatile.embeddings.stored import read_embeddings
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json
from gigatile.json_models import read_model
from gigatile.records import read_records
from gigatile.records.embedding import decode_embedding
from gigatile.records.tfrecord import write_records
from gigatile.records.tile import read_tiles
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.tiles import TileSettings
from gigatile.slides.tiling import TilingFiles, tile_slide

SETTINGS = EncoderSettings(name="tiny, version 1", licence="MIT")


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> TilingFiles:
    """Return the files of a tiled slide."""
    folder = tmp_path_factory.mktemp("tiled")
    draw_small_slide("P01-1", folder / "P01-1.svs")
    files = TilingFiles(
        *(folder / f"tiles/P01-1.{kind}" for kind in ("tfrecord", "json", "jpg", "parquet"))
    )
    tile_slide(folder / "P01-1.svs", "P01-1", None, TileSettings(size=128), files)
    return files


def files_in(folder: Path) -> EmbeddingFiles:
    return EmbeddingFiles(*(folder / f"P01-1.{kind}" for kind in ("tfrecord", "h5", "json")))


def embed(tiled: TilingFiles, folder: Path, encoder: Path, **settings) -> EmbeddingState:
    given = SETTINGS.model_copy(update=settings)
    return embed_slide("P01-1", tiled.records, tiled.state, encoder, given, files_in(folder))


def test_each_tile_has_the_embedding_of_its_pixels(tiled: TilingFiles, tmp_path: Path) -> None:
    path = write_tiny_encoder(tmp_path / "tiny.onnx")
    state = embed(tiled, tmp_path, path)
    encoder = open_encoder(path, SETTINGS, 128)
    tiles = list(read_tiles(tiled.records))
    embedded = [decode_embedding(data) for data in read_records(files_in(tmp_path).records)]
    assert len(tiles) == len(embedded) == state.tiles.kept > 32
    for tile, each in zip(tiles, embedded, strict=True):
        assert (tile.slide, tile.x, tile.y, tile.extent) == (
            each.slide,
            each.x,
            each.y,
            each.extent,
        )
        expected = encoder.embed(encoder.input_of(tile.pixels()[None]))[0]
        np.testing.assert_array_equal(each.values, expected)
    assert state.encoder is not None
    assert (state.encoder.name, state.encoder.sha256) == ("tiny, version 1", sha256_of(path))
    assert state.encoder.dimensions == 48
    assert state.tiles_sha256 == sha256_of(tiled.records)
    assert state.records.sha256 == sha256_of(files_in(tmp_path).records)
    assert read_model(EmbeddingState, files_in(tmp_path).state) == state


@pytest.mark.parametrize("batch", ["n", 1, 8])
def test_the_number_of_cores_changes_no_byte(
    tiled: TilingFiles, tmp_path: Path, batch: int | str
) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx", batch=batch)
    checksums = set()
    for cores in (1, 2, 3, 16):
        embed(tiled, tmp_path / f"{cores}", encoder, cores=cores)
        files = files_in(tmp_path / f"{cores}")
        checksums.add(tuple(sha256_of(file) for file in vars(files).values()))
    assert len(checksums) == 1


def test_an_encoder_that_fails_leaves_no_file(tiled: TilingFiles, tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx", fails=True)
    with pytest.raises(UserError, match=r"tiny\.onnx: does not take 32 tiles of 128 px"):
        embed(tiled, tmp_path / "out", encoder, cores=2)
    assert not any((tmp_path / "out").iterdir())


def test_hdf5_is_that_of_trident_and_clam(tiled: TilingFiles, tmp_path: Path) -> None:
    """As both read it: CLAM takes `features` and `coords`, TRIDENT also attributes of `coords`."""
    embed(tiled, tmp_path, write_tiny_encoder(tmp_path / "tiny.onnx"))
    stored = read_embeddings(files_in(tmp_path).records)
    with h5py.File(files_in(tmp_path).hdf5) as file:
        np.testing.assert_array_equal(file["features"][:], stored.values)
        np.testing.assert_array_equal(file["coords"][:], np.stack([stored.x, stored.y], axis=1))
        assert file["features"].dtype == np.float32 and file["coords"].dtype == np.int64
        attributes = dict(file["coords"].attrs)
    mean = stored.values.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(read_mean(files_in(tmp_path).hdf5), mean, rtol=1e-6)
    assert attributes == {"name": "P01-1", "patch_size": 128, "patch_size_level0": 128}


def test_sampled_tiles_are_embeddings_of_the_slide(tiled: TilingFiles, tmp_path: Path) -> None:
    embed(tiled, tmp_path, write_tiny_encoder(tmp_path / "tiny.onnx"))
    stored = read_embeddings(files_in(tmp_path).records)
    count = len(stored.x)
    (some,) = sample_tiles(tmp_path, {"P01-1": count}, 7, 1)
    of_corner = dict(zip(zip(stored.x, stored.y, strict=True), stored.values, strict=True))
    assert len(some.corners) == len(set(map(tuple, some.corners))) == 7 < count
    for corner, values in zip(some.corners, some.values, strict=True):
        np.testing.assert_array_equal(values, of_corner[tuple(corner)])
    (other,) = sample_tiles(tmp_path, {"P01-1": count}, 7, 2)
    assert not np.array_equal(some.corners, other.corners)
    (every,) = sample_tiles(tmp_path, {"P01-1": count}, 10 * count, 1)
    assert len(every.corners) == count
    with pytest.raises(UserError, match=r"P01-1\.h5: damaged, or without embeddings"):
        sample_tiles(tmp_path, {"P01-1": count + 50}, 10 * count, 1)


def test_a_slide_that_was_not_tiled_has_empty_embeddings(
    tiled: TilingFiles, tmp_path: Path
) -> None:
    state = read_json(tiled.state) | {"state": "failed", "reason": "no tissue", "grid": None}
    records = tmp_path / "P01-1.tfrecord"
    records.touch()
    state["records"] = {"bytes": 0, "sha256": sha256_of(records)}
    write_json(tmp_path / "failed.json", state)
    out = files_in(tmp_path / "out")
    written = embed_slide(
        *("P01-1", records, tmp_path / "failed.json", tmp_path / "none.onnx", SETTINGS, out)
    )
    assert (written.state, written.reason, written.encoder) == ("failed", "no tissue", None)
    assert out.records.stat().st_size == 0
    with h5py.File(out.hdf5) as file:
        assert file["features"].shape == (0, 0)


def test_other_tiles_than_those_of_the_state_are_refused(
    tiled: TilingFiles, tmp_path: Path
) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx")
    fewer = tmp_path / "fewer.tfrecord"
    write_records(fewer, list(read_records(tiled.records))[:-1])
    with pytest.raises(UserError, match=r"fewer\.tfrecord: is not the file that P01-1\.json descr"):
        embed_slide("P01-1", fewer, tiled.state, encoder, SETTINGS, files_in(tmp_path))
    with pytest.raises(UserError, match=r"is the state of slide 'P01-1', not of 'P02-1'"):
        embed_slide("P02-1", tiled.records, tiled.state, encoder, SETTINGS, files_in(tmp_path))
    assert not files_in(tmp_path).state.exists()


def test_a_number_that_is_not_finite_is_refused(tiled: TilingFiles, tmp_path: Path) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx", bias=float("nan"))
    with pytest.raises(UserError, match=r"slide P01-1: the encoder returns numbers that are not f"):
        embed(tiled, tmp_path, encoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.onnx"]


def test_another_encoder_than_that_of_the_model_is_refused_before_it_is_opened(
    tiled: TilingFiles, tmp_path: Path
) -> None:
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx")
    identity = encoder_id(sha256_of(encoder), SETTINGS, 128)
    described = tmp_path / "settings.json"
    write_json(described, {"encoder_id": identity.hex()})
    given = ("P01-1", tiled.records, tiled.state, encoder, SETTINGS, files_in(tmp_path / "out"))
    assert embed_slide(*given, described).state == "tiled"
    (tmp_path / "out/P01-1.json").unlink()
    encoder.write_bytes(b"no encoder at all")
    with pytest.raises(UserError, match=r"tiny\.onnx: not an ONNX file"):
        embed_slide(*given, described)
    write_tiny_encoder(encoder, bias=1)
    with pytest.raises(
        UserError, match=r"tiny\.onnx: another encoder than .*settings\.json was tr"
    ):
        embed_slide(*given, described)
    assert not (tmp_path / "out/P01-1.json").exists()


def test_a_killed_job_leaves_no_half_file(tiled: TilingFiles, tmp_path: Path) -> None:
    """It is killed at its tenth tile; the next job removes what it left."""
    encoder = write_tiny_encoder(tmp_path / "tiny.onnx")
    files = list(vars(files_in(tmp_path)).values())
    program = f"""
import os, signal
from pathlib import Path
from gigatile.embeddings import embedding
encode, calls = embedding.encode_embedding, []
def killed(*given):
    calls.append(1)
    if len(calls) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(*given)
embedding.encode_embedding = killed
embedding.embed_slide(
    "P01-1", Path({str(tiled.records)!r}), Path({str(tiled.state)!r}), Path({str(encoder)!r}),
    embedding.EncoderSettings(),
    embedding.EmbeddingFiles(*map(Path, {[str(path) for path in files]!r})),
)
"""
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not any(path.exists() for path in files)
    assert len(list(tmp_path.iterdir())) == 3  # the encoder, and two temporary files
    embed(tiled, tmp_path, encoder)
    assert sorted(tmp_path.iterdir()) == sorted([encoder, *files])


def test_means_of_damaged_files_or_two_encoders_are_refused(
    tiled: TilingFiles, tmp_path: Path
) -> None:
    embed(tiled, tmp_path, write_tiny_encoder(tmp_path / "tiny.onnx"))
    (mean,) = read_means(tmp_path, ["P01-1"])
    assert len(mean) == 48
    for kind in ("h5", "json"):
        (tmp_path / f"other.{kind}").write_bytes((tmp_path / f"P01-1.{kind}").read_bytes())
    state = tmp_path / "other.json"
    state.write_text(state.read_text().replace(sha256_of(tmp_path / "tiny.onnx"), "0" * 64))
    with pytest.raises(UserError, match=r"other\.json: embedded by another encoder than P01-1"):
        read_means(tmp_path, ["P01-1", "other"])
    path = tmp_path / "P01-1.h5"
    content = bytearray(path.read_bytes())
    begin = content.index(mean.astype("<f4").tobytes())
    content[begin + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"P01-1\.h5: damaged, or without embeddings"):
        read_means(tmp_path, ["P01-1"])
    path.write_bytes(content[:100])
    with pytest.raises(UserError, match=r"P01-1\.h5: damaged, or without embeddings"):
        read_means(tmp_path, ["P01-1"])
