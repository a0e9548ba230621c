"""The models that a training started from, one after the other."""

import pytest

from gigatile.earlier_models import checksum_of_weights, earlier_models
from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json


def make_model(folder, content: bytes, weights=None, sha256: str | None = None, **look):
    """Write a model; return its path.

    Args:
        weights: the file that it started from.
        sha256: of that file; default: its real one.
        look: of a bundle.
    """
    folder.mkdir(parents=True)
    model = folder / "model.keras"
    model.write_bytes(content)
    inputs = {"shards/manifest.json": "0" * 64}
    if weights is not None:
        inputs["the initial weights"] = sha256 or sha256_of(weights)
    train = {"model": "small_cnn", "weights": weights and str(weights)}
    write_json(folder / "settings.json", {"train": train, "inputs": inputs})
    if look:
        (folder / "cohort_images.npy").touch()
        write_json(folder / "cohort.json", look)
    return model


def test_a_chain_is_followed_to_its_first_model(tmp_path):
    first = make_model(tmp_path / "a/model", b"a")
    second = make_model(tmp_path / "b/model", b"b", first)
    third = make_model(tmp_path / "c/model", b"c", second)
    earlier = earlier_models(third)
    assert (earlier.models, earlier.doubt) == ([third, second, first], "")
    assert earlier_models(None).models == []


def test_a_missing_or_changed_model_is_a_doubt(tmp_path):
    first = make_model(tmp_path / "a/model", b"a")
    second = make_model(tmp_path / "b/model", b"b", first)
    for change in (lambda: first.write_bytes(b"other"), first.unlink):
        change()
        earlier = earlier_models(second)
        assert earlier.models == [second]
        assert earlier.doubt == "it started from model.keras, which is missing or has changed"


def test_unknown_data_are_a_doubt(tmp_path):
    weights = tmp_path / "resnet50.h5"
    weights.write_bytes(b"w")
    model = make_model(tmp_path / "a/model", b"a", weights)
    assert earlier_models(model).doubt == "the data of resnet50.h5 are not known"
    assert earlier_models(weights).models == []
    # Settings of an earlier release, without a checksum.
    old = make_model(tmp_path / "b/model", b"b", model)
    content = {"train": {"weights": str(model)}, "inputs": {}}
    write_json(old.parent / "settings.json", content)
    assert "is missing or has changed" in earlier_models(old).doubt
    for other in ({"a": 1}, [1], {"train": "x"}):
        write_json(old.parent / "settings.json", other)
        assert earlier_models(old).doubt == "settings.json is not that of a trained model"
    (old.parent / "settings.json").unlink()
    assert earlier_models(old).doubt == "model.keras has no settings.json"


def test_a_bundle_says_whether_its_hashes_are_complete(tmp_path):
    first = make_model(tmp_path / "a/model", b"a")
    whole = make_model(tmp_path / "b", b"b", first, earlier_doubt="")
    assert earlier_models(whole).doubt == ""
    doubtful = make_model(tmp_path / "c", b"c", first, earlier_doubt="some are missing")
    assert earlier_models(doubtful).doubt == "some are missing"
    old = make_model(tmp_path / "d", b"d", first, unit="slide")
    assert "are not known" in earlier_models(old).doubt
    # One that started from random weights needs no such words.
    assert earlier_models(make_model(tmp_path / "e", b"e", unit="slide")).doubt == ""


def test_missing_file_is_named(tmp_path):
    assert checksum_of_weights("imagenet") is None
    with pytest.raises(UserError, match=r"train\.weights: no such file: .*none\.keras"):
        checksum_of_weights(str(tmp_path / "none.keras"))
