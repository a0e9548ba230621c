"""A model in memory predicts the same as the commands of the workflow, and writes nothing."""

import json
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
from volume_set import blurring, write_model

from gigatile.demo.cases import find_case
from gigatile.demo.cohort import find_slide
from gigatile.demo.svs import write_svs
from gigatile.demo.tissue import draw_slide
from gigatile.demo.volumes import write_case
from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.json_models import read_model
from gigatile.model import Model
from gigatile.models.classifier import build_classifier
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import canonical
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.slides.state import SlideState
from gigatile.tasks.tile_classification.scoring import TileClassifier, score_slides
from gigatile.tasks.volume_segmentation.case_segmentation import segment_case
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter

TILES = TileSettings(size=64, stain="macenko")
CLASSES = ["a", "b", "c"]
MODALITIES = ("flair", "t1", "t1gd", "t2")
VOLUMES = VolumeSettings(labels="decathlon", modalities=MODALITIES, spacing=(2, 2, 2))


@pytest.fixture(scope="module")
def slide(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("slide") / "S1.svs"
    write_svs(path, draw_slide(find_slide("P01-1"))[:1500, :1500], mpp=0.5, objective_power=20)
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    """A folder with an untrained classifier."""
    folder = tmp_path_factory.mktemp("classifier")
    build_classifier(TrainSettings(), 64, 3).model.save(folder / "model.keras")
    settings = {
        "task": "tile_classification",
        "classes": CLASSES,
        "tiles": TILES.model_dump(exclude=set(TileSettings.EXECUTION)),
        "sha256": sha256_of(folder / "model.keras"),
    }
    write_json(folder / "settings.json", settings)
    return folder


@pytest.fixture(scope="module")
def segmentation_model(tmp_path_factory) -> Path:
    """A folder with a segmentation model of random weights."""
    folder = tmp_path_factory.mktemp("segmentation")
    patches = PatchSettings(size=(32, 32, 32))
    _, described = write_model(
        folder, blurring((32, 32, 32), 4, 3), VOLUMES, patches, task="volume_segmentation"
    )
    described.rename(folder / "settings.json")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("case")
    write_case(find_case("V01-1"), folder)
    return {name: folder / f"{name}.nii.gz" for name in MODALITIES}


@pytest.mark.parametrize("cores", [1, 3])
def test_slide_in_memory_equals_the_workflow(command, classifier, slide, tmp_path, cores):
    kinds = {"records": "tfrecord", "state": "json", "overview": "jpg"}
    files = {name: tmp_path / f"S1.{kind}" for name, kind in (kinds | {"index": "parquet"}).items()}
    done = command(
        "prepare.py",
        *("--task", "tile_classification", "--source", slide, "--slide", "S1"),
        *("--settings", canonical(TILES)),
        *(word for name, path in files.items() for word in (f"--{name}", path)),
    )
    assert done.returncode == 0, done.stderr
    state = read_model(SlideState, files["state"])
    assert state.reason is None
    scorer = TileClassifier(classifier / "model.keras", classifier / "settings.json")
    rows = [{"slide": "S1", "patient": "P", "label": "a"}]
    score_slides(scorer, rows, tmp_path, tmp_path / "tiles.parquet", log=print)
    expected = pd.read_parquet(tmp_path / "tiles.parquet")
    before = sorted(slide.parent.iterdir())
    predicted = Model.open(classifier).predict(slide, cores=cores)
    assert sorted(slide.parent.iterdir()) == before
    pd.testing.assert_frame_equal(
        predicted.tiles, expected.drop(columns=["slide", "patient", "label"]), check_exact=True
    )
    assert len(expected) == state.tiles.kept > 64, "more than a batch"
    assert predicted.facts.tiles == state.tiles and predicted.facts.stain == state.stain
    means = expected[[f"p_{name}" for name in CLASSES]].to_numpy(np.float64).mean(axis=0)
    assert predicted.scores == dict(zip(CLASSES, means.round(6).tolist(), strict=True))
    assert predicted.by_mean == CLASSES[means.argmax()]


def test_given_scale_overrides_that_of_the_file(classifier, slide):
    assert Model.open(classifier).predict(slide, mpp=0.25).facts.mpp == 0.25


def test_case_in_memory_equals_the_workflow(command, segmentation_model, images, tmp_path):
    record = tmp_path / "C1.tfrecord"
    done = command(
        "prepare.py",
        *("--task", "volume_segmentation", "--case", "C1", "--settings", canonical(VOLUMES)),
        *(word for name, path in images.items() for word in ("--image", f"{name}={path}")),
        *("--records", record, "--state", record.with_suffix(".json")),
    )
    assert done.returncode == 0 and record.stat().st_size, done.stdout + done.stderr
    segmenter = Segmenter(segmentation_model / "model.keras", segmentation_model / "settings.json")
    windows = WindowSettings(overlap=0.25, flips=True)
    out = tmp_path / "C1.nii.gz"
    written = segment_case(
        segmenter, "C1", record, windows, out, tmp_path / "C1.segmentation.json", {}
    )
    before = sorted(images["t1"].parent.iterdir())
    segmented = Model.open(segmentation_model).predict(images, windows=windows)
    assert sorted(images["t1"].parent.iterdir()) == before
    assert len(np.unique(segmented.labels)) > 2, "more than one label"
    np.testing.assert_array_equal(segmented.labels, nibabel.load(out).dataobj)
    np.testing.assert_array_equal(segmented.affine, nibabel.load(images["t1"]).affine)
    assert segmented.volumes_ml == written.volumes_ml
    segmented.save(tmp_path / "again.nii.gz")
    assert (tmp_path / "again.nii.gz").read_bytes() == out.read_bytes()


def test_errors_name_the_file(classifier, segmentation_model, images, tmp_path):
    bad = tmp_path / "bad.svs"
    bad.write_text("no slide")
    with pytest.raises(UserError, match=r"bad\.svs: not a slide format"):
        Model.open(classifier).predict(bad)
    model = Model.open(segmentation_model)
    bad = tmp_path / "t1.nii.gz"
    bad.write_text("no volume")
    with pytest.raises(UserError, match=r"t1 \(t1\.nii\.gz\): "):
        model.predict(images | {"t1": bad})
    with pytest.raises(UserError, match="it has no t2"):
        model.predict({name: images[name] for name in MODALITIES[:3]})
    with pytest.raises(UserError, match=r"found the images t3; must be only image, or"):
        model.predict({"t3": images["t1"]})
    with pytest.raises(UserError, match=r"it has 1 channel, expected 4 \(flair, t1, t1gd, t2\)"):
        model.predict(images["t1"])


def test_folder_without_a_known_model_is_refused(classifier, tmp_path):
    with pytest.raises(UserError, match=r"settings\.json: no such file"):
        Model.open(tmp_path)
    settings = json.loads((classifier / "settings.json").read_text())
    write_json(tmp_path / "settings.json", settings | {"task": "unknown"})
    with pytest.raises(UserError, match=r"json: task: found 'unknown'; must be one of tile_class"):
        Model.open(tmp_path)
    write_json(tmp_path / "settings.json", settings | {"task": ["tile_classification"]})
    with pytest.raises(UserError, match=r"settings\.json: damaged.* \(task: Input"):
        Model.open(tmp_path)
    write_json(tmp_path / "settings.json", ["tile_classification"])
    with pytest.raises(UserError, match=r"settings\.json: "):
        Model.open(tmp_path)
    write_json(tmp_path / "settings.json", settings)
    with pytest.raises(UserError, match=r"model\.keras: "):
        Model.open(tmp_path)
    (tmp_path / "model.keras").write_bytes((classifier / "model.keras").read_bytes())
    for fault in ({"tiles": 3}, {"tiles": {"size": "big"}}, {"classes": 7}, {"sha256": "0"}):
        write_json(tmp_path / "settings.json", settings | fault)
        with pytest.raises(UserError, match=rf"{tmp_path}/.*\.(json|keras)"):
            Model.open(tmp_path)
    for missing in ("tiles", "classes", "sha256"):
        kept = {name: value for name, value in settings.items() if name != missing}
        write_json(tmp_path / "settings.json", kept)
        with pytest.raises(UserError, match=rf"{tmp_path}/.*\.(json|keras)"):
            Model.open(tmp_path)
