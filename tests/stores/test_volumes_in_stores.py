"""Volumes and images in a real store are read as on a disk.

Of the faults, only a missing object is a reason to leave one out.
"""

import gzip
import json

import numpy as np
import obstore
import pytest
from PIL import Image

from gigatile.errors import UserError
from gigatile.stores import remote_file, stream
from gigatile.stores.addresses import parse_address
from gigatile.stores.stream import RemoteStream
from gigatile.stores.whole_copy import local_file
from gigatile.volumes.bytestream import ByteStream, VolumeError


def random_bytes(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("size", [1, 2, 1000, (1 << 18) + 1, 3 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_streams_have_the_bytes_of_a_file(store, size, packed, monkeypatch):
    monkeypatch.setattr(stream, "LARGEST_BYTES", 1 << 20)
    content = random_bytes(size)
    path = parse_address(store.put("streams/x", gzip.compress(content) if packed else content))
    for step in (1 << 17, size + 5):
        with ByteStream(path) as opened:
            opened.check_size(size)
            read = b""
            while data := opened.peek(step):
                read += data
            opened.drain()
        assert read == content


def test_a_short_file_is_named_as_on_a_disk(store, tmp_path):
    content = gzip.compress(random_bytes(300_000))[:-20_000]
    (tmp_path / "x").write_bytes(content)
    faults = []
    for path in (tmp_path / "x", parse_address(store.put("streams/short", content))):
        with ByteStream(path) as opened, pytest.raises(VolumeError) as error:
            opened.read(300_000, 300_000)
        faults.append(str(error.value))
    assert faults[0] == faults[1] and "truncated" in faults[0]
    for path in (tmp_path / "x", parse_address(store.put("streams/short", content[:50]))):
        path.write_bytes(content[:50]) if path.exists() else None
        remote_file._KNOWN.clear()
        with ByteStream(path) as opened, pytest.raises(VolumeError, match="can contain at most"):
            opened.check_size(300_000)


def test_an_empty_object_is_an_empty_file(store):
    with pytest.raises(VolumeError, match="empty"):
        ByteStream(parse_address(store.put("streams/empty", b"")))


def test_only_a_missing_object_is_a_fault_of_the_case(store, monkeypatch):
    with pytest.raises(VolumeError, match="it cannot be read from its store: no such object"):
        ByteStream(parse_address("s3://slides/streams/nothing"))
    path = parse_address(store.put("streams/changed", random_bytes(2 << 20)))
    opened = ByteStream(path)
    store.put("streams/changed", random_bytes(2 << 20, seed=2))
    with pytest.raises(UserError, match="streams/changed: it was changed while it was read"):
        opened.read(2 << 20, 2 << 20)
    path = parse_address(store.put("streams/away", random_bytes(2 << 20)))
    opened = ByteStream(path)
    monkeypatch.setattr(remote_file, "RETRY", remote_file.timedelta(seconds=1))
    store.kill_gateway()
    try:
        with pytest.raises(UserError, match="streams/away: no answer in 1 seconds of tries"):
            opened.read(2 << 20, 2 << 20)
    finally:
        store.start_gateway()
    with ByteStream(path) as opened:
        assert opened.read(2 << 20, 2 << 20) == random_bytes(2 << 20)


def test_requests_grow(store, monkeypatch):
    """The header of a large volume costs one small request."""
    path = parse_address(store.put("streams/large", random_bytes(9 << 20)))
    asked = []
    read = remote_file.RemoteFile.read

    def counted(self, begin, end):
        asked.append(end - begin)
        return read(self, begin, end)

    monkeypatch.setattr(remote_file.RemoteFile, "read", counted)
    opened = RemoteStream(path)
    opened.read(348)
    assert asked == [stream.FIRST_BYTES]
    while opened.read(1 << 20):
        pass
    assert sum(asked) == 9 << 20 and len(asked) < 6


def test_whole_copies_are_deleted(store, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content = random_bytes(5000)
    with local_file(parse_address(store.put("images/a.png", content))) as path:
        assert path.read_bytes() == content and path.name == "a.png"
    assert list(tmp_path.iterdir()) == []
    with local_file(tmp_path) as path:
        assert path == tmp_path


def test_images_have_the_records_of_files(store, tmp_path, command):
    """Also a damaged one, one that is missing, and the region of a slide."""
    random = np.random.default_rng(1)
    pixels, labels = random.integers(0, 256, (60, 50, 3), np.uint8), np.zeros((60, 50), np.uint8)
    labels[5:20, 6:30] = 1
    for name in ("a", "b", "c"):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        Image.fromarray(labels).save(tmp_path / f"{name}-labels.png")
        pixels = pixels[::-1]
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:500])
    written = {}
    for storage in ("disk", "store"):
        rows = ["image\tpatient\tpath\tannotations\tsplit"]
        for name in ("a", "b", "c"):
            path = tmp_path / f"{name}.png"
            if storage == "store":
                path = store.put(f"images/{name}.png", path)
            rows.append(f"{name}\tP{name}\t{path}\t{name}-labels.png\ttrain")
        sheet = tmp_path / f"{storage}.tsv"
        sheet.write_text("\n".join(rows) + "\n")
        if storage == "store":
            obstore.delete(store.bucket(), "images/c.png")
        out = tmp_path / storage
        options = {
            "task": "instance_segmentation",
            "samples": sheet,
            "splits": "{}",
            "part": "train-0000",
            "parts": 1,
            "settings": json.dumps({"categories": ["nucleus"]}),
            "records": f"{out}.tfrecord",
            "state": f"{out}.json",
        }
        done = command("prepare.py", *(f"--{name}={value}" for name, value in options.items()))
        assert done.returncode == 0, done.stderr
        written[storage] = json.loads((tmp_path / f"{storage}.json").read_text())["images"]
    disk, stored = written["disk"], written["store"]
    assert stored[:2] == disk[:2]
    assert disk[1]["reason"] and stored[2]["reason"].startswith("it cannot be read from its store")
    size = stored[0]["records"]["bytes"]
    first = [(tmp_path / f"{storage}.tfrecord").read_bytes()[:size] for storage in written]
    assert first[0] == first[1] and size > 1000
