"""Embed the tiles of one slide: write its embeddings as records and as HDF5, and its state."""

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from gigatile.embeddings.encoder_files import check_encoder, encoder_checksum, encoder_id
from gigatile.embeddings.encoders import Encoder, open_encoder
from gigatile.embeddings.hdf5 import write_hdf5
from gigatile.embeddings.imported import (
    EmbeddingsError,
    ImportedEmbeddings,
    fingerprints_of,
    open_imported,
)
from gigatile.embeddings.state import EmbeddingState, EncoderFacts
from gigatile.errors import UserError
from gigatile.files import remove_half_written, sha256_of, write_json
from gigatile.json_models import JsonModel, read_model
from gigatile.records.embedding import Embedding, encode_embedding
from gigatile.records.tfrecord import write_records
from gigatile.records.tile import Tile, has_few_colours, read_tiles
from gigatile.settings.encoder import EncoderSettings
from gigatile.slides.slide_files import fingerprint_of
from gigatile.slides.state import SlideState, TileGrid
from gigatile.states import OtherFile, RecordsFile


@dataclass(frozen=True)
class EmbeddingFiles:
    """The files that embedding a slide writes."""

    records: Path
    hdf5: Path
    state: Path


class _EncoderOfModel(JsonModel):
    """The part of a model's settings.json that names its encoder."""

    encoder_id: str


def embed_slide(
    slide: str,
    tiles: Path,
    tiled: Path,
    source: Path,
    settings: EncoderSettings,
    files: EmbeddingFiles,
    described: Path | None = None,
) -> EmbeddingState:
    """Embed the tiles of a slide; write records, HDF5 and, last, the state.

    With `settings.embedded_with`, the embeddings are read from a file. A slide that could not be
    tiled gets empty files and a state with the reason.

    Args:
        slide: its id.
        tiles: its tiles (.tfrecord).
        tiled: their state (.json).
        source: the file of the encoder, or with the embeddings.
        settings: the size of its input, and how pixels are scaled.
        files: to write.
        described: settings.json of the model that will score the slide; its encoder must be this
            one. None: there is no model yet.

    Raises:
        UserError: a file is missing or damaged, the encoder cannot be used or is not that of the
            model, or an embedding has a number that is not finite.
    """
    remove_half_written(*vars(files).values())  # of a job that was killed
    state = read_model(SlideState, tiled)
    if state.slide != slide:
        raise UserError(f"{tiled}: is the state of slide {state.slide!r}, not of {slide!r}")
    if (actual := sha256_of(tiles)) != state.records.sha256:
        raise UserError(
            f"{tiles}: is not the file that {tiled.name} describes; run the slide again"
        )
    facts, positions = None, None
    if state.grid is None or state.state == "failed":
        _write_nothing(files)
    elif settings.embedded_with is not None:
        facts, positions = _import_embeddings(slide, source, state, settings, files, described)
    else:
        checksum = encoder_checksum(source)
        identity = encoder_id(checksum, settings, state.grid.size)
        _check_model(identity, source, described)
        model = open_encoder(source, settings, state.grid.size, settings.cores)
        facts = EncoderFacts(
            name=settings.name,
            licence=settings.licence,
            sha256=checksum,
            size=model.size,
            mean=list(settings.mean) if settings.mean else None,
            deviation=list(settings.deviation) if settings.deviation else None,
            dimensions=model.dimensions,
        )
        _write_embeddings(slide, tiles, state, state.grid, model, identity, files)
    embedded = EmbeddingState(
        **dict(state)
        | {
            "records": RecordsFile.from_path(files.records),
            "files": state.files | {"hdf5": OtherFile.from_path(files.hdf5)},
        },
        tiles_sha256=actual,
        encoder=facts,
        positions=positions,
    )
    write_json(files.state, embedded.to_json())
    return embedded


def _check_model(identity: bytes, source: Path, described: Path | None) -> None:
    if described is not None:
        expected = bytes.fromhex(read_model(_EncoderOfModel, described).encoder_id)
        check_encoder(identity, expected, str(source), described)


def _import_embeddings(
    slide: str,
    source: Path,
    state: SlideState,
    settings: EncoderSettings,
    files: EmbeddingFiles,
    described: Path | None,
) -> tuple[EncoderFacts, str | None]:
    """Write the embeddings of a file that another program made; see `EmbeddingState`."""
    if state.source.fingerprint != fingerprint_of(source):
        raise UserError(f"{source}: was changed after its tiles were described; run it again")
    try:
        with open_imported(source) as embeddings:
            identity = embeddings.encoder_id(settings)
            _check_model(identity, source, described)
            _write_imported(slide, embeddings, identity, files)
            facts = EncoderFacts(
                name=settings.embedded_with or "",
                licence=settings.licence,
                sha256=None,
                size=embeddings.size,
                mean=None,
                deviation=None,
                dimensions=embeddings.dimensions,
            )
            return facts, embeddings.positions()
    except EmbeddingsError as error:
        raise UserError(f"{source}: {error}") from None


def _write_imported(
    slide: str, embeddings: ImportedEmbeddings, identity: bytes, files: EmbeddingFiles
) -> None:
    attributes: dict[str, str | int] = {
        "name": slide,
        "patch_size_level0": round(embeddings.extent),
    }
    if embeddings.size is not None:
        attributes["patch_size"] = embeddings.size
    corners = embeddings.corners.tolist()
    with write_hdf5(files.hdf5, len(corners), embeddings.dimensions, attributes) as hdf5:

        def records() -> Iterator[bytes]:
            hashes = fingerprints_of(embeddings)
            for part in embeddings.parts():
                some = corners[hdf5.written : hdf5.written + len(part)]
                hdf5.write(part, some)
                for values, (x, y) in zip(part, some, strict=True):
                    record = Embedding(
                        values, identity, next(hashes), slide, x, y, embeddings.extent
                    )
                    yield encode_embedding(record)

        write_records(files.records, records())


def _write_nothing(files: EmbeddingFiles) -> None:
    write_records(files.records, ())
    with write_hdf5(files.hdf5, 0, 0, {}):
        pass


def _write_embeddings(
    slide: str,
    tiles: Path,
    state: SlideState,
    grid: TileGrid,
    model: Encoder,
    identity: bytes,
    files: EmbeddingFiles,
) -> None:
    attributes: dict[str, str | int] = {
        "name": slide,
        "patch_size": grid.size,
        "patch_size_level0": round(grid.extent),
    }
    with write_hdf5(files.hdf5, state.tiles.kept, model.dimensions, attributes) as hdf5:

        def records() -> Iterator[bytes]:
            for batch in embed_tiles(model, read_tiles(tiles)):
                hdf5.write(batch.embeddings, [(tile.x, tile.y) for tile in batch.tiles])
                for tile, pixels, values in zip(*vars(batch).values(), strict=True):
                    if not np.isfinite(values).all():
                        raise UserError(
                            f"slide {slide}: the encoder returns numbers that are not finite for "
                            f"the tile at ({tile.x}, {tile.y}); check encoder.mean and "
                            "encoder.deviation, or leave the slide out"
                        )
                    yield encode_embedding(_record_of(tile, pixels, values, identity))

        write_records(files.records, records())


def _record_of(tile: Tile, pixels: bytes, values: np.ndarray, identity: bytes) -> Embedding:
    return Embedding(
        values=values,
        encoder=identity,
        pixels=pixels,
        slide=tile.slide,
        x=tile.x,
        y=tile.y,
        extent=tile.extent,
    )


@dataclass(frozen=True)
class EmbeddedBatch:
    """Some tiles of a slide.

    Attributes:
        tiles: as they were read.
        pixels: hashes of them, as in their records; see `Embedding`.
        embeddings: (n, dimensions) float32.
    """

    tiles: tuple[Tile, ...]
    pixels: list[bytes]
    embeddings: np.ndarray


def embed_tiles(model: Encoder, tiles: Iterator[Tile]) -> Iterator[EmbeddedBatch]:
    """Yield the tiles, with their embeddings, in batches and in their order.

    Threads decode tiles and call the encoder, which decides how many batches it computes at once.
    """
    memory = threading.local()

    def embed(batch: tuple[Tile, ...]) -> EmbeddedBatch:
        if not hasattr(memory, "inputs"):
            memory.inputs = model.new_input()
        pixels = [tile.pixels() for tile in batch]
        hashes = [_hash_of(tile, some) for tile, some in zip(batch, pixels, strict=True)]
        return EmbeddedBatch(batch, hashes, model.embed(model.input_of(pixels, memory.inputs)))

    ready: deque[Future[EmbeddedBatch]] = deque()
    pool = ThreadPoolExecutor(model.threads)
    try:
        while batch := tuple(islice(tiles, model.batch)):
            ready.append(pool.submit(embed, batch))
            if len(ready) > model.threads:
                yield ready.popleft().result()
        while ready:
            yield ready.popleft().result()
    finally:
        # After an error, batches that wait are not computed: one can take a minute.
        pool.shutdown(cancel_futures=True)


def _hash_of(tile: Tile, pixels: np.ndarray) -> bytes:
    if has_few_colours(pixels):
        return b""
    return hashlib.blake2b(tile.image, digest_size=16).digest()
