"""The files of an encoder and their checksum."""

import hashlib
import json
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import combined_checksum, sha256_of
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import canonical


def encoder_files(path: Path) -> list[Path]:
    """Return the files of an encoder: an ONNX file can have its weights in others next to it.

    Raises:
        UserError: a file is missing, is not an ONNX file, or names one in another folder.
    """
    if not path.is_file():
        raise UserError(f"encoder.file: no such file: {path}")
    if path.suffix != ".onnx":
        return [path]
    names = sorted(_names_of_weights(path))
    for name in names:
        if Path(name).name != name:
            raise UserError(
                f"{path}: has weights in {name!r}; they must be in a file in the same folder"
            )
        if not (path.parent / name).is_file():
            raise UserError(f"{path}: has weights in {name}, which does not exist")
    return [path, *(path.parent / name for name in names)]


def _names_of_weights(path: Path) -> set[str]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, OSError) as error:
        raise UserError(f"{path}: not an ONNX file ({error})") from None
    tensors = list(model.graph.initializer)
    for node in model.graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
    return {
        entry.value
        for tensor in tensors
        for entry in tensor.external_data
        if entry.key == "location"
    }


def encoder_checksum(path: Path) -> str:
    """Return the SHA-256 of an encoder; of one in several files, a combined one.

    Raises:
        UserError: see `encoder_files`.
    """
    files = encoder_files(path)
    if len(files) == 1:
        return sha256_of(path)
    return combined_checksum({file.name: sha256_of(file) for file in files})


def encoder_id(checksum: str, settings: EncoderSettings, tile_size: int) -> bytes:
    """Return what makes embeddings comparable: 16 bytes of the encoder and of its input.

    Args:
        checksum: of the encoder.
        settings: the size of its input, and how pixels are scaled.
        tile_size: side of the tiles, in pixels.
    """
    text = json.dumps([checksum, canonical(settings), tile_size])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def check_encoder(encoder: bytes, expected: bytes, source: str, described: Path) -> None:
    """Refuse an encoder, or its embeddings, that is not the one of a model.

    Args:
        encoder: 16 bytes that identify it; see `encoder_id`.
        expected: those of the model.
        source: where it is from, for the message.
        described: settings.json of the model, for the message.

    Raises:
        UserError: they differ.
    """
    if encoder != expected:
        raise UserError(
            f"{source}: another encoder than {described} was trained with, or tiles of another "
            "size; use those of the training (encoder.file, or encoder.embedded_with)"
        )
