"""Tiles in the bodies of requests: JSON to pixels."""

import base64
import binascii
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gigatile.records.tile import decode_jpeg, jpeg_shape
from gigatile.serving.errors import RequestError

JPEG, PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
# Names of a tile in a request: pixels, or a file.
TILES, BYTES = "tiles", "image_bytes"


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RequestError: the body is no JSON object.
    """
    _check_lists(body)
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except RequestError:
        raise
    # Numbers of more than 4,300 digits are ValueErrors, too.
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"JSON Parse error: {_short(error)}") from None
    if not isinstance(content, dict):
        raise RequestError(400, "JSON Value: must be an object")
    return content


def _check_lists(body: bytes) -> None:
    """Refuse bodies of almost nothing but lists, which take 20 times their size in memory."""
    # The pixel [0,0,0], with its comma has eight characters.
    if (body.count(b"[") + body.count(b"{")) * 6 > len(body) + 10_000:
        raise RequestError(400, "JSON Parse error: too many lists and objects")


def _refuse_constant(name: str) -> None:
    raise RequestError(400, f"JSON Parse error: {name} is no JSON")


def decode_tiles(values: Sequence[Any], size: int, most: int) -> np.ndarray:
    """Return the pixels of the tiles of a request: (n, size, size, 3) uint8.

    Args:
        values: each is an array (size, size, 3) of whole numbers from 0 to 255, a file as
            {"b64": …}, or an object with one of them as `tiles` or `image_bytes`.
        size: side of the model's tiles.
        most: accepted number of tiles.

    Raises:
        RequestError: names the first tile that cannot be used.
    """
    if not isinstance(values, list) or not values:
        raise RequestError(400, "must be a list with at least one tile")
    if len(values) > most:
        raise RequestError(413, f"{len(values):,} tiles; a request may have at most {most:,}")
    pixels = np.empty((len(values), size, size, 3), np.uint8)
    for number, value in enumerate(values):
        where = f"tile {number}"
        if isinstance(value, Mapping) and "b64" not in value:
            value = _named_value(value, where)
        if isinstance(value, Mapping):
            _decode_file(decode_base64(value, where), pixels[number], where)
        else:
            pixels[number] = _array(value, size, where)
    return pixels


def decode_columns(values: Any, size: int, most: int) -> np.ndarray:
    """Return the pixels of the value of `inputs`; see `decode_tiles`."""
    if isinstance(values, Mapping) and "b64" not in values:
        values = _named_value(values, "inputs")
    if isinstance(values, Mapping):
        values = [values]
    return decode_tiles(values, size, most)


def _named_value(value: Mapping[str, Any], where: str) -> Any:
    if len(value) != 1 or not value.keys() <= {TILES, BYTES}:
        keys = ", ".join(map(repr, sorted(value)[:5])) or "nothing"
        raise RequestError(400, f"{where}: found {keys}; must be {TILES!r} or {BYTES!r}")
    return next(iter(value.values()))


def decode_base64(value: Mapping[str, Any], where: str) -> bytes:
    """Return the bytes of {"b64": …}.

    Raises:
        RequestError: names `where`.
    """
    text = value.get("b64")
    if len(value) != 1 or not isinstance(text, str):
        raise RequestError(400, f'{where}: must be {{"b64": "…"}}, with a text')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(400, f"{where}: not base64") from None


def _decode_file(data: bytes, into: np.ndarray, where: str) -> None:
    """Decode a JPEG or PNG file; its size is checked before its pixels are decoded."""
    try:
        if data.startswith(JPEG):
            _check_size(jpeg_shape(data)[:2], into, where)
            decode_jpeg(data, into)
        elif data.startswith(PNG):
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                _check_size((image.height, image.width), into, where)
                image.verify()  # checksums, and the end; it must be opened again to be decoded
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                if image.mode not in ("RGB", "L"):
                    raise RequestError(
                        400, f"{where}: a PNG of mode {image.mode}; must be RGB or grey"
                    )
                into[...] = np.asarray(image.convert("RGB"))
        else:
            raise RequestError(400, f"{where}: neither a JPEG nor a PNG file")
    # Libraries raise many kinds of errors for damaged files.
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(400, f"{where}: damaged image: {_short(error)}") from None


def _check_size(shape: tuple[int, int], into: np.ndarray, where: str) -> None:
    if shape != into.shape[:2]:
        raise RequestError(
            400,
            f"{where}: has {shape[1]} × {shape[0]} px; must be {into.shape[1]} × {into.shape[0]}",
        )


def _array(value: Any, size: int, where: str) -> np.ndarray:
    expected = f"must be an array ({size}, {size}, 3) of whole numbers from 0 to 255"
    if not isinstance(value, list):
        raise RequestError(400, f"{where}: found {_kind(value)}; {expected}, or a file as b64")
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # rows of different length; numbers of more than 64 bits
        raise RequestError(400, f"{where}: {expected}") from None
    if array.shape != (size, size, 3):
        raise RequestError(400, f"{where}: has the shape {array.shape}; {expected}")
    if array.dtype.kind not in "iuf" or not ((array >= 0) & (array <= 255)).all():
        raise RequestError(400, f"{where}: {expected}")
    whole = array.astype(np.uint8)
    if (whole != array).any():
        raise RequestError(400, f"{where}: {expected}; it has fractions")
    return whole


def _kind(value: Any) -> str:
    kinds = {str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null" if value is None else "an object")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
