"""Sizes and versions of many objects come from listings, and are those of single requests."""

import obstore
import pytest

from gigatile.stores import listing, remote_file, sources
from gigatile.stores.addresses import address_of, parse_address
from gigatile.stores.remote_file import open_remote


@pytest.fixture
def requests(monkeypatch) -> list[str]:
    """Return the keys that single requests ask for."""
    asked = []
    head = obstore.head

    def counted(store, key):
        asked.append(key)
        return head(store, key)

    monkeypatch.setattr(obstore, "head", counted)
    return asked


def put_many(store, folder, count):
    names = [f"s{number} ä+%20.svs" for number in range(count)]
    addresses = [store.put(f"{folder}/{name}", bytes(10 + i)) for i, name in enumerate(names)]
    return [parse_address(address) for address in addresses]


def test_listed_versions_are_those_of_single_requests(store, requests):
    paths = put_many(store, "listed", 30)
    store.put("listed/other.svs", b"x")
    store.put("listed/deeper/s1.svs", b"xy")
    store.put("listed-too/s0.svs", b"xyz")
    large = "listed/parts.svs"
    # In parts: its ETag is no hash of its content.
    obstore.put(store.bucket(), large, bytes(6 << 20), use_multipart=True, chunk_size=5 << 20)
    paths.append(parse_address(f"s3://slides/{large}"))
    assert sources.unreadable(paths) == {}
    assert requests == []
    listed = [open_remote(path) for path in paths]
    remote_file._KNOWN.clear()
    asked = [open_remote(path) for path in paths]
    assert len(requests) == len(paths)
    for one_listed, one_asked in zip(listed, asked, strict=True):
        assert one_listed.address == one_asked.address and one_listed.size == one_asked.size
        assert one_listed.etag == one_asked.etag != ""
        assert one_listed.read(0, 5) == bytes(5)
    assert "-" in listed[-1].etag


def test_missing_objects_are_asked_for_and_named(store, requests):
    paths = put_many(store, "missing", 25)
    gone = parse_address("s3://slides/missing/gone.svs")
    assert sources.unreadable([*paths, gone]).keys() == {gone}
    assert requests == ["missing/gone.svs"]


def test_few_objects_are_not_listed(store, requests):
    paths = put_many(store, "few", listing.LEAST_FILES - 1)
    assert sources.unreadable(paths) == {}
    assert len(requests) == len(paths)


def test_a_folder_with_many_other_objects_is_not_listed_to_its_end(store, requests, monkeypatch):
    monkeypatch.setattr(listing, "PAGE", 2)
    for number in range(100):
        store.put(f"crowded/a{number}.svs", b"x")
    paths = put_many(store, "crowded", 20)
    assert sources.unreadable(paths) == {}
    assert sorted(requests) == sorted(address_of(path).partition("slides/")[2] for path in paths)


def test_without_access_each_object_is_named(store, monkeypatch):
    paths = put_many(store, "secret", 20)
    remote_file._KNOWN.clear()
    remote_file._store.cache_clear()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    try:
        faults = sources.unreadable(paths)
    finally:
        remote_file._store.cache_clear()
    assert faults.keys() == set(paths)
    assert all("access denied" in reason for reason in faults.values())
