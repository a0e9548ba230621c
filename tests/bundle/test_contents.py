"""A bundle is opened if it is whole, and refused with all its faults."""

import json

import pytest
from bundles import make_bundle

from gigatile.bundle.configuration import merge_manifest
from gigatile.bundle.contents import MANIFEST, is_bundle, open_bundle
from gigatile.bundle.copying import copy_bundle, write_manifest
from gigatile.errors import UserError
from gigatile.model_files import DESCRIBED, MODEL


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle. Do not change it."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "tiny")


def edit(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_whole_bundle_is_opened(bundle):
    assert is_bundle(bundle.folder) and not is_bundle(bundle.folder.parent)
    assert bundle.manifest.classes == ["luad", "lusc"] and bundle.metrics is None
    (bundle.folder / ".snakemake_timestamp").touch()
    assert open_bundle(bundle.folder).manifest == bundle.manifest


def test_all_faults_are_in_one_message(bundle, tmp_path):
    copy = copy_bundle(bundle, tmp_path / "copy").folder
    with (copy / MODEL).open("r+b") as file:
        file.seek(500)
        byte = file.read(1)
        file.seek(500)
        file.write(bytes([byte[0] ^ 1]))
    (copy / DESCRIBED).unlink()
    (copy / "more.py").write_text("print(1)")
    with pytest.raises(UserError) as raised:
        open_bundle(copy)
    for fault in (
        f"{MODEL}: its content differs",
        f"{DESCRIBED}: missing",
        "more.py: not a file of the bundle",
    ):
        assert fault in str(raised.value)


@pytest.mark.parametrize(
    "name", ["../other", "/etc/hostname", "a/../../b", ".hidden", "", "a//b", "a\nb", "x/./y"]
)
def test_names_cannot_leave_the_folder(bundle, tmp_path, name):
    """Otherwise a checksum would show whether a file elsewhere has some content."""
    copy = copy_bundle(bundle, tmp_path / "copy").folder
    (tmp_path / "other").write_text("content")
    from gigatile.files import sha256_of

    edit(copy, files=bundle.manifest.files | {name: sha256_of(tmp_path / "other")})
    with pytest.raises(UserError, match="missing"):
        open_bundle(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema"),
        ({"task": "sculpture"}, "task: found 'sculpture'"),
        ({"name": "../x"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"version": 0}, "version"),
        ({"model_sha256": "0" * 64}, "another checksum"),
        ({"files": {}}, "not a file of the bundle"),
        ({"classes": "luad"}, "classes"),
    ],
)
def test_wrong_manifest_is_refused(bundle, tmp_path, changes, message):
    copy = copy_bundle(bundle, tmp_path / "copy").folder
    edit(copy, **changes)
    with pytest.raises(UserError, match=message):
        open_bundle(copy)


def test_link_to_a_file_elsewhere_is_refused(bundle, tmp_path):
    copy = copy_bundle(bundle, tmp_path / "copy").folder
    target = tmp_path / "elsewhere"
    (copy / MODEL).rename(target)
    (copy / MODEL).symlink_to(target)
    with pytest.raises(UserError, match=f"{MODEL}: a link"):
        open_bundle(copy)


def test_copies_have_their_own_name_and_version(bundle, tmp_path):
    copy = copy_bundle(bundle, tmp_path / "copy", name="lung", version=7)
    assert (copy.manifest.name, copy.manifest.version) == ("lung", 7)
    assert copy.manifest.model_sha256 == bundle.manifest.model_sha256
    with pytest.raises(UserError, match="exists; name a new folder"):
        copy_bundle(bundle, copy.folder)
    for wrong in ({"name": "a/b"}, {"name": ""}, {"version": -1}, {"version": 0}):
        with pytest.raises(UserError):
            copy_bundle(bundle, tmp_path / "wrong", **wrong)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_settings_of_the_bundle_win(bundle):
    config = {"run": "x", "tiles": {"size": 512, "cores": 3}, "task": "volume_segmentation"}
    merged = merge_manifest(config, bundle.manifest)
    assert merged["tiles"]["size"] == 64 and merged["task"] == "tile_classification"
    assert merged["tiles"]["cores"] == 3
    assert config["tiles"] == {"size": 512, "cores": 3}


@pytest.mark.parametrize(
    ("settings", "section"),
    [
        ({"predict": {"samples": "/etc/passwd"}}, "predict"),
        ({"samples": {}}, "samples"),
        ({"train": {"weights": "/etc/passwd"}}, "train"),
        ({"volumes": {}}, "volumes"),
    ],
)
def test_settings_that_are_not_of_the_task_are_refused(bundle, settings, section):
    manifest = bundle.manifest.model_copy(update={"settings": settings})
    with pytest.raises(UserError, match=f"has the section '{section}'"):
        merge_manifest({}, manifest)


def test_settings_of_the_machine_are_not_those_of_the_bundle(bundle):
    tiles = {"size": 64, "copy_first": True, "cores": 99, "stall_minutes": 0.001}
    manifest = bundle.manifest.model_copy(update={"settings": {"tiles": tiles}})
    assert merge_manifest({}, manifest)["tiles"] == {"size": 64}


def test_manifest_lists_all_files(bundle, tmp_path):
    copy = copy_bundle(bundle, tmp_path / "copy").folder
    (copy / "saved_model/variables").mkdir(parents=True)
    (copy / "saved_model/variables/x").write_text("x")
    write_manifest(copy, bundle.manifest)
    assert "saved_model/variables/x" in open_bundle(copy).manifest.files
