"""Malformed requests: a clear answer each time, no bug, and the server goes on."""

import base64
import io
import json
import random
import socket
import struct
import time
import zlib
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

PREDICT = "/v1/models/tiny:predict"


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def picture(kind: str, size=(64, 64), mode="RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG whose header claims a size, with few bytes of pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


JPEG = picture("JPEG")
WHOLE = np.zeros((64, 64, 3), int).tolist()


def changed(row: int, value: object) -> list:
    copy = json.loads(json.dumps(WHOLE))
    copy[row] = value
    return copy


# Values of one tile.
TILES = {
    "null": None,
    "true": True,
    "a number": 7,
    "a text": "tile",
    "a text that is base64": base64.b64encode(JPEG).decode(),
    "an empty list": [],
    "an empty object": {},
    "another name": {"picture": b64(JPEG)},
    "two names": {"tiles": WHOLE, "image_bytes": b64(JPEG)},
    "b64 and a name": {"b64": "aaaa", "tiles": WHOLE},
    "b64 of null": {"b64": None},
    "b64 of a number": {"b64": 1},
    "b64 of a list": {"b64": [base64.b64encode(JPEG).decode()]},
    "b64 of b64": {"b64": b64(JPEG)},
    "nested name": {"tiles": {"tiles": WHOLE}},
    "not base64": {"b64": "***"},
    "base64 with a line end": {"b64": base64.b64encode(JPEG).decode() + "\n"},
    "base64 without its end": {"b64": base64.b64encode(JPEG).decode()[:-1]},
    "base64 that is not ASCII": {"b64": "ééé="},
    "no bytes": b64(b""),
    "two bytes": b64(b"\xff\xd8"),
    "a GIF": b64(picture("GIF", mode="P")),
    "a BMP": b64(picture("BMP")),
    "a TIFF": b64(picture("TIFF")),
    "a WebP": b64(picture("WEBP")),
    "text as file": b64(b"no picture at all"),
    "a page": b64(b"<html>"),
    "half a JPEG": b64(JPEG[: len(JPEG) // 2]),
    "a JPEG without its end": b64(JPEG[:-2]),
    "a JPEG with damage": b64(JPEG[:100] + bytes(80) + JPEG[180:]),
    "a JPEG of another size": b64(picture("JPEG", (32, 64))),
    "a JPEG in CMYK": b64(picture("JPEG", (32, 32), "CMYK")),
    "half a PNG": b64(picture("PNG")[:60]),
    "a PNG with a wrong checksum": b64(picture("PNG")[:-20] + b"x" * 20),
    "a PNG with alpha": b64(picture("PNG", mode="RGBA")),
    "a PNG with 16 bits": b64(picture("PNG", mode="I;16")),
    "a PNG with a palette": b64(picture("PNG", mode="P")),
    "a PNG of another size": b64(picture("PNG", (64, 65))),
    "a PNG of a billion pixels": b64(png_of_size(40_000, 40_000)),
    "a PNG of 2^31 columns": b64(png_of_size(2**31 - 1, 1)),
    "a PNG of no size": b64(png_of_size(0, 0)),
    "a PNG with too few pixels": b64(png_of_size(64, 64)[:80]),
    "flat pixels": [0] * (64 * 64 * 3),
    "pixels without channels": np.zeros((64, 64), int).tolist(),
    "four channels": np.zeros((64, 64, 4), int).tolist(),
    "channels first": np.zeros((3, 64, 64), int).tolist(),
    "a batch in a tile": [WHOLE],
    "too few rows": WHOLE[:-1],
    "a short row": changed(3, WHOLE[0][:-1]),
    "a number as row": changed(3, 0),
    "a text as row": changed(3, "row"),
    "null as row": changed(3, None),
    "an object as row": changed(3, {"0": 1}),
    "pixel 256": changed(0, [[256, 0, 0]] * 64),
    "pixel -1": changed(0, [[-1, 0, 0]] * 64),
    "pixel 0.5": changed(0, [[0.5, 0, 0]] * 64),
    "pixel 1e300": changed(0, [[1e300, 0, 0]] * 64),
    "pixel 10^30": changed(0, [[10**30, 0, 0]] * 64),
    "pixel as text": changed(0, [["0", "0", "0"]] * 64),
    "pixel null": changed(0, [[None, 0, 0]] * 64),
}
# Contents of a request.
CONTENTS = {
    "nothing": {},
    "both formats": {"instances": [WHOLE], "inputs": [WHOLE]},
    "instances null": {"instances": None},
    "instances a text": {"instances": "x"},
    "instances an object": {"instances": {"tiles": WHOLE}},
    "no instance": {"instances": []},
    "no input": {"inputs": []},
    "inputs null": {"inputs": None},
    "inputs a number": {"inputs": 3},
    "inputs without a name": {"inputs": {}},
    "inputs of another name": {"inputs": {"x": [WHOLE]}},
    "one tile as column": {"inputs": WHOLE},
    "unknown key": {"instances": [b64(JPEG)], "options": {}},
    "misspelt key": {"instance": [b64(JPEG)]},
    "unknown signature": {"instances": [b64(JPEG)], "signature_name": "train"},
    "signature a number": {"instances": [b64(JPEG)], "signature_name": 1},
    "signature a list": {"instances": [b64(JPEG)], "signature_name": ["encoded"]},
    "too many tiles": {"instances": [b64(JPEG)] * 201},
    "examples": {"examples": [{"image_bytes": b64(JPEG)}]},
}
# Bodies that are no JSON, or odd JSON.
BODIES = {
    "empty": b"",
    "blank": b" ",
    "text": b"hello",
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "cut": b'{"instances": [1, 2',
    "trailing": b'{"instances": [1]} x',
    "comma": b'{"instances": [1,]}',
    "single quotes": b"{'instances': [1]}",
    "NaN": b'{"instances": [NaN]}',
    "infinity": b'{"instances": [[-Infinity]]}',
    "huge number": b'{"instances": [1' + b"0" * 5000 + b"]}",
    "exponent": b'{"instances": [1e999999999]}',
    "latin-1": '{"instances": ["é"]}'.encode("latin-1"),
    "UTF-16": '{"instances": [1]}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "zeros": bytes(1000),
    "random": random.Random(1).randbytes(5000),
    "deep lists": b'{"instances": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "many lists": b'{"instances": [' + b"[]," * 500_000 + b"1]}",
    "many keys": json.dumps({str(number): 1 for number in range(100_000)}).encode(),
    "surrogate": b'{"instances": ["\\ud800"]}',
    "surrogate key": b'{"\\ud800": 1}',
    "form": b"instances=1&inputs=2",
    "multipart": b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
    "gzip": zlib.compress(b'{"instances": [1]}'),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
}
CLASSIFY = {
    "nothing": {},
    "no examples": {"examples": []},
    "examples an object": {"examples": {}},
    "an example that is a text": {"examples": ["x"]},
    "an example without features": {"examples": [{}]},
    "unknown feature": {"examples": [{"age": 3}]},
    "two pictures in one": {"examples": [{"image_bytes": [b64(JPEG), b64(JPEG)]}]},
    "context a list": {"context": [], "examples": [{"image_bytes": b64(JPEG)}]},
    "instances": {"instances": [b64(JPEG)]},
}
PATHS = {
    "unknown": "/v1/models/tiny:explain",
    "no verb": "/v1/models/tiny",
    "no model": "/v1/models/:predict",
    "version a word": "/v1/models/tiny/versions/latest:predict",
    "version negative": "/v1/models/tiny/versions/-1:predict",
    "version of a thousand digits": "/v1/models/tiny/versions/" + "9" * 1000 + ":predict",
    "version in other digits": "/v1/models/tiny/versions/%D9%A1:predict",
    "out of the folder": "/v1/models/..%2f..%2fetc%2fpasswd:predict",
    "zero byte": "/v1/models/tiny%00:predict",
    "two slashes": "//v1/models/tiny:predict",
    "end": "/v1/models/tiny:predict/",
}
KINDS = [
    *(
        ("tile", name, PREDICT, json.dumps({"instances": [v]}).encode())
        for name, v in TILES.items()
    ),
    *(("content", name, PREDICT, json.dumps(value).encode()) for name, value in CONTENTS.items()),
    *(("body", name, PREDICT, body) for name, body in BODIES.items()),
    *(
        ("classify", name, "/v1/models/tiny:classify", json.dumps(value).encode())
        for name, value in CLASSIFY.items()
    ),
    *(("path", name, path, b'{"instances": [1]}') for name, path in PATHS.items()),
]


def test_there_are_a_hundred_kinds():
    assert len(KINDS) >= 100


@pytest.mark.parametrize(
    ("kind", "name", "path", "body"), KINDS, ids=[f"{k}-{n}" for k, n, *_ in KINDS]
)
def test_malformed_request(server, kind, name, path, body):
    start = time.monotonic()
    answer = server.client.post(path, content=body)
    assert 400 <= answer.status_code < 500, answer.text
    message = answer.json()["error"]
    assert message and len(message) < 600
    for word in ("Traceback", 'File "', "site-packages", "internal error"):
        assert word not in message
    assert time.monotonic() - start < 20
    assert server.client.get("/readyz").is_success


def test_no_request_met_a_bug(server):
    """Runs after those above. The log has nothing of any request."""
    lines = [line for line in server.lines().splitlines() if line.startswith("{")]
    known = {"time", "method", "route", "status", "ms"}
    for line in lines:
        assert set(json.loads(line)) == known
    assert "Traceback" not in server.lines()
    for word in ("passwd", "hello", "picture", "tiny"):
        assert word not in server.lines()
    assert server.metric("gigatile_requests_total", status="500") == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_of_a_request(server, seed):
    """Bytes of good requests changed, removed and doubled: an answer each time, never 500."""
    chance = random.Random(seed)
    good = json.dumps({"instances": [b64(JPEG), {"image_bytes": b64(picture("PNG"))}]}).encode()
    for _ in range(100):
        body = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            position = chance.randrange(len(body))
            change = chance.randrange(3)
            if change == 0:
                body[position] = chance.randrange(256)
            elif change == 1:
                del body[position : position + chance.randint(1, 30)]
            else:
                part = body[position : position + chance.randint(1, 30)]
                body[position:position] = part * chance.randint(1, 3)
        answer = server.client.post(PREDICT, content=bytes(body))
        assert answer.status_code in (200, 400, 413), answer.text


# --- Below HTTP


def send(server, *parts: bytes, pause: float = 0, seconds: float = 15) -> bytes:
    """Send bytes one after the other; return everything that comes back until the end."""
    target = urlsplit(server.address)
    with socket.create_connection((target.hostname, target.port), timeout=seconds) as connection:
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while data := connection.recv(65536):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


def head(server, length: str = "", more: str = "", path: str = PREDICT) -> bytes:
    host = urlsplit(server.address).netloc
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{length}{more}\r\n".encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def test_declared_size_is_checked_first(server):
    assert status_of(send(server, head(server, "Content-Length: 99999999999\r\n"))) == 413
    assert status_of(send(server, head(server, f"Content-Length: {'9' * 300}\r\n"))) in (400, 413)


def test_size_of_chunks_is_counted(server):
    chunk = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    answer = send(server, head(server, "Transfer-Encoding: chunked\r\n"), *[chunk] * 20)
    assert status_of(answer) in (413, 0)
    assert server.metric("gigatile_requests_total", status="413") >= 1


def test_slow_body_is_given_up(server):
    start = time.monotonic()
    answer = send(server, head(server, "Content-Length: 1000\r\n"), b"{")
    assert status_of(answer) == 408 and b"within 3 s" in answer
    assert time.monotonic() - start < 10


def test_slow_headers_are_given_up(server):
    """One byte at a time, too: the limit is for all of them."""
    start = time.monotonic()
    assert send(server, b"POST ") == b""
    assert time.monotonic() - start < 6
    start = time.monotonic()
    assert send(server, *[bytes([byte]) for byte in b"GET / HTTP/1.1\r\n"], pause=0.3) == b""
    assert time.monotonic() - start < 10


def test_bytes_that_are_no_http(server):
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        random.Random(2).randbytes(3000),
    ):
        assert status_of(send(server, data)) in (400, 0)
    for more in (f"X: {'a' * 1_000_000}\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n"):
        answer = send(server, head(server, more=f"Connection: close\r\n{more}"))
        assert status_of(answer) in (400, 431, 0)


def test_client_that_leaves(server):
    """In the middle of a body, and before the answer."""
    target = urlsplit(server.address)
    body = json.dumps({"instances": [b64(JPEG)] * 100}).encode()
    for sent in (body[: len(body) // 2], body):
        connection = socket.create_connection((target.hostname, target.port))
        connection.sendall(head(server, f"Content-Length: {len(body)}\r\n") + sent)
        connection.close()
    assert server.client.post(PREDICT, json={"instances": [b64(JPEG)]}).is_success
    assert "Traceback" not in server.lines()


# --- Methods


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods(server, method):
    answer = server.client.request(method, PREDICT)
    assert answer.status_code in (404, 405) and "error" in answer.json()
