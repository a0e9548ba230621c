"""Addresses in a sheet: what is one, and the path that represents it."""

from pathlib import Path

import pytest
from bundles import make_bundle

from gigatile.cohort.samples import read_samples
from gigatile.command.bundle_run import prepare_run
from gigatile.errors import UserError
from gigatile.stores.addresses import address_of, is_address, is_remote, parse_address


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/a.svs", "s3://bucket/a b/ü/a.svs", "https://host.org:8443/x/a.svs", "http://h/a"],
)
def test_a_path_represents_an_address(address):
    path = parse_address(address)
    assert is_address(address) and is_remote(path) and address_of(path) == address
    assert path.name == address.rpartition("/")[2]
    assert is_remote(Path(str(path)))


@pytest.mark.parametrize("path", ["a.svs", "/data/s3/a.svs", "s3/a.svs", "C:/a.svs", "x:/s3:/a"])
def test_other_paths_do_not(path):
    assert not is_address(path) and not is_remote(Path(path))


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("gs://bucket/a.svs", "unknown scheme 'gs'; can be s3://, https://, http://"),
        ("s3://bucket", "must be s3://bucket/key"),
        ("s3://bucket/", "must be s3://bucket/key"),
        ("s3:///a.svs", "must be s3://bucket/key"),
        ("s3://bucket//a.svs", "without empty parts"),
        ("s3://bucket/x/../a.svs", "must not have the parts . or .."),
        ("https://host/a.svs?X-Amz-Signature=1", "must not have credentials, a query"),
        ("https://me:secret@host/a.svs", "must not have credentials"),
    ],
)
def test_a_bad_address_is_a_message_without_its_secrets(address, fault):
    with pytest.raises(UserError) as error:
        parse_address(address)
    assert fault in str(error.value)
    assert "secret" not in str(error.value) and "Signature" not in str(error.value)


def test_faults_of_addresses_are_listed_with_their_rows(tmp_path):
    rows = ["slide\tpatient\tlabel\tpath", "A\tP1\tx\tgs://b/a.svs", "B\tP2\tx\ts3://b/b.mrxs"]
    (tmp_path / "s.tsv").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError) as error:
        read_samples(tmp_path / "s.tsv", look=False)
    assert "2 fault(s)" in str(error.value)
    assert "row 2: path gs://b/a.svs: unknown scheme" in str(error.value)
    assert "row 3: path s3://b/b.mrxs: a slide of several files" in str(error.value)


def test_a_bundle_predicts_slides_that_are_named_by_their_addresses(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    named = [Path(f"s3://bucket/{folder}/a.svs") for folder in ("x", "y")]
    (tmp_path / "a.svs").write_text("a slide")
    _, sheet = prepare_run(bundle, [*named, tmp_path / "a.svs"], tmp_path / "out")
    rows = read_samples(sheet, labelled=False, look=False)
    assert [address_of(row.path) for row in rows[:2]] == [address_of(path) for path in named]
    assert rows[2].path.resolve() == tmp_path / "a.svs"
    assert len({row.id for row in rows}) == 3
    with pytest.raises(UserError, match="must be s3://bucket/key"):
        prepare_run(bundle, [Path("s3://bucket")], tmp_path / "other")
