"""Ranges of files in a real object store, and faults of the store while they are read."""

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from object_store import Proxy

from gigatile.files import fingerprint
from gigatile.stores import remote_file, sources
from gigatile.stores.addresses import parse_address
from gigatile.stores.errors import StoreError
from gigatile.stores.partial_copy import PartialCopy, PartialReader
from gigatile.stores.remote_file import open_remote

SIZE = 3_000_001


def content_of(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


def test_ranges_are_those_of_the_file(store):
    content = content_of(1)
    remote = open_remote(parse_address(store.put("a/ü b.bin", content)))
    assert remote.size == SIZE and remote.etag
    chance = random.Random(2)
    ranges = [tuple(sorted(chance.sample(range(SIZE + 1), 2))) for _ in range(40)]
    ranges += [(0, SIZE), (0, 0), (SIZE - 1, SIZE), (5, 6), (5, 6)]
    assert remote.read_ranges(ranges) == [content[begin:end] for begin, end in ranges]
    assert remote.read(0, SIZE) == content


@pytest.mark.parametrize("size", [0, 1, 65_536, 1 << 20, (1 << 20) + 1, SIZE])
def test_the_fingerprint_is_that_of_the_same_file_on_a_disk(store, tmp_path, size):
    path = tmp_path / "a.svs"
    path.write_bytes(content_of(size, size))
    remote = parse_address(store.put(f"f{size}.svs", path))
    assert sources.fingerprint(remote) == fingerprint(path)
    assert sources.first_bytes(remote, 3) == path.read_bytes()[:3]
    assert sources.size_and_time(remote)[0] == size


def test_partial_copies_have_what_was_fetched_and_nothing_else(store, tmp_path):
    """Random ranges, also empty, overlapping and beyond the end; threads fetch at once."""
    content = content_of(3)
    remote = open_remote(parse_address(store.put("p.bin", content)))
    for seed in range(30):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        copy = PartialCopy(remote, folder)
        wanted = []
        for _ in range(chance.randrange(1, 6)):
            ranges = []
            for _ in range(chance.randrange(0, 6)):
                begin = chance.randrange(SIZE)
                ranges.append((begin, begin + chance.choice([0, 1, 100, 20_000, 900_000])))
            wanted.append(ranges)
        threads = [threading.Thread(target=copy.fetch, args=(ranges,)) for ranges in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        local = copy.path.read_bytes()
        assert len(local) == SIZE
        there = bytearray(SIZE)
        for begin, end in (pair for ranges in wanted for pair in ranges):
            assert local[begin:end] == content[begin:end]
            there[begin:end] = b"\1" * len(there[begin:end])
        assert copy.fetched == sum(there)
        holes = [index for index in range(0, SIZE, 997) if not there[index]]
        assert not any(local[index] for index in holes)
        copy.close()
        assert not copy.path.exists()


def test_a_reader_of_a_partial_copy_reads_like_a_file(store, tmp_path):
    content = content_of(4)
    copy = PartialCopy(open_remote(parse_address(store.put("r.bin", content))), tmp_path)
    reader = PartialReader(copy)
    assert reader.seek(-10, os.SEEK_END) == SIZE - 10 and reader.read() == content[-10:]
    assert reader.read(5) == b"" and reader.seek(1000) == 1000
    assert reader.read(20_000) == content[1000:21_000] and reader.tell() == 21_000
    assert reader.seek(9, os.SEEK_CUR) == 21_009 and reader.readable() and reader.seekable()
    assert copy.fetched < 100_000


def test_a_changed_object_is_an_error(store):
    """Of the same size, too; a new reader sees the new content."""
    address = store.put("changed.bin", content_of(5))
    remote = open_remote(parse_address(address))
    assert len(remote.read(0, 100)) == 100
    store.put("changed.bin", content_of(6))
    with pytest.raises(StoreError, match=r"changed.bin: it was changed while it was read"):
        remote.read(0, 100)
    assert open_remote(parse_address(address)).read(0, 100) == content_of(6)[:100]


@pytest.mark.parametrize("address", ["s3://slides/none.svs", "s3://no-such-bucket/a.svs"])
def test_what_is_not_there_is_said_at_once(store, address):
    begin = time.monotonic()
    with pytest.raises(StoreError, match=f"{address}: no such object, or no such bucket"):
        open_remote(parse_address(address))
    assert time.monotonic() - begin < remote_file.RETRY.total_seconds() / 4
    path = parse_address(address)
    assert sources.unreadable([path, path]).keys() == {path}


@pytest.mark.parametrize("key", ["wrong-key", ""])
def test_refused_credentials_are_said_at_once(store, monkeypatch, key):
    store.put("secret.svs", b"1234")
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    else:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="access denied; check the credentials"):
        open_remote(parse_address("s3://slides/secret.svs"))


def test_credentials_of_a_profile_are_used(store, monkeypatch, tmp_path):
    """Keys, endpoint and region from AWS's two files."""
    address = store.put("profile.svs", b"12345")
    for name in store.environment:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id = {store.environment['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {store.environment['AWS_SECRET_ACCESS_KEY']}\n"
    )
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = eu-west-1\nendpoint_url = {store.endpoint}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert open_remote(parse_address(address)).read(0, 5) == b"12345"


def test_reading_goes_on_after_the_gateway_was_killed(store, tmp_path):
    """It is killed in the middle of a read, and started again some seconds later."""
    content = content_of(7, 60_000_000)
    remote = open_remote(parse_address(store.put("large.bin", content)))
    read: list[str] = []
    reader = threading.Thread(
        target=lambda: read.extend(
            hashlib.sha256(remote.read(begin, begin + 6_000_000)).hexdigest()
            for begin in range(0, 60_000_000, 6_000_000)
        )
    )
    reader.start()
    while not read:
        time.sleep(0.002)
    store.kill_gateway()
    killed = len(read)
    time.sleep(2)
    assert len(read) <= killed + 1 < 10
    store.start_gateway()
    reader.join(60)
    assert read == [
        hashlib.sha256(content[begin : begin + 6_000_000]).hexdigest()
        for begin in range(0, 60_000_000, 6_000_000)
    ]


def test_a_store_that_stays_away_is_an_error_in_time(store, monkeypatch):
    remote = open_remote(parse_address(store.put("away.bin", b"123")))
    monkeypatch.setattr(remote_file, "RETRY", timedelta(seconds=3))
    store.kill_gateway()
    try:
        begin = time.monotonic()
        with pytest.raises(StoreError, match="no answer in 3 seconds of tries"):
            remote.read(0, 3)
        assert time.monotonic() - begin < 30
    finally:
        store.start_gateway()


def test_a_fork_does_not_wait_for_threads_that_it_lacks(store):
    """A store that was opened before a fork is an error in the child."""
    address = store.put("fork.bin", b"123")
    script = f"""
import os, sys
from gigatile.stores.addresses import parse_address
from gigatile.stores.remote_file import open_remote
remote = open_remote(parse_address({address!r}))
if not os.fork():
    try:
        remote.read(0, 3)
    except OSError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "a store was opened before this process was forked" in done.stdout


def test_short_and_broken_answers_are_asked_for_again(store, monkeypatch):
    """A proxy cuts the first answers after a part of them, and closes the connection."""
    content = content_of(8)
    address = store.put("cut.bin", content)
    with Proxy(store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        remote = open_remote(parse_address(address))
        proxy.cut_after = [0, 200, 70_000, 1_000_000]
        assert remote.read(0, SIZE) == content
        assert proxy.cut_after == []


def test_a_store_that_stops_in_the_middle_is_an_error_in_time(store, monkeypatch):
    """It sends a part of each answer, and then nothing, without closing the connection."""
    address = store.put("slow.bin", content_of(9))
    monkeypatch.setattr(remote_file, "TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(remote_file, "RETRY", timedelta(seconds=4))
    with Proxy(store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        remote = open_remote(parse_address(address))
        proxy.stop_after = 50_000
        begin = time.monotonic()
        with pytest.raises(StoreError, match="no answer in 4 seconds of tries"):
            remote.read(0, SIZE)
        assert time.monotonic() - begin < 60
        proxy.stop_after = None
        assert remote.read(0, 10) == content_of(9)[:10]


def test_a_public_object_is_read_over_the_web_and_without_credentials(store, monkeypatch):
    content = content_of(10)
    address = store.publish("public.svs", content)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for where in (address, "s3://slides/public.svs"):
        remote = open_remote(parse_address(where))
        assert remote.read_ranges([(5, 90_000), (0, 3)]) == [content[5:90_000], content[:3]]
    with pytest.raises(StoreError, match=r"none.svs: (no such file|access denied)"):
        open_remote(parse_address(address.replace("public.svs", "none.svs")))


@pytest.fixture
def web(tmp_path):
    """Return the address of a server that knows no ranges and no ETags, and its folder."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


def test_a_server_without_ranges_is_said_at_once(web):
    address, folder = web
    (folder / "a.svs").write_bytes(b"1234567890")
    remote = open_remote(parse_address(f"{address}/a.svs"))
    assert remote.size == 10 and remote.etag == "" and remote.version
    with pytest.raises(StoreError, match="the server does not support it"):
        remote.read(2, 4)
