"""`gigatile init`: sheets and configurations from folders."""

import json
import re
from pathlib import Path

import pytest
import yaml

from gigatile.cohort.cases import read_cases
from gigatile.cohort.images import read_images
from gigatile.cohort.samples import read_samples
from gigatile.cohort.splits import assign, check_labels
from gigatile.command import init
from gigatile.command.configuration import load
from gigatile.errors import UserError

CLASSES = [f"{label}/{label}{n}.svs" for label in ("luad", "lusc") for n in range(4)]


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_folders_of_classes_give_labels_and_a_seed(call, tmp_path, capsys):
    out = tmp_path / "my run"
    call(init, touch(tmp_path / "slides", *CLASSES), "--out", out)
    samples = read_samples(out / "samples.tsv")
    assert [s.label for s in samples] == ["luad"] * 4 + ["lusc"] * 4
    assert not any(Path(line.split("\t")[3]).is_absolute() for line in lines(out)[1:])
    settings = load(out / "config.yaml")
    assert (settings.run, settings.samples, settings.tiles.mpp) == ("my-run", "samples.tsv", 0.5)
    check_labels(samples, assign(samples, settings.split), out / "samples.tsv")
    printed = capsys.readouterr()
    assert printed.out.endswith(f"next: gigatile check {out}\n")
    assert "assumed to be another patient" in printed.err
    assert "luad (4), lusc (4)" in printed.err


def lines(out: Path) -> list[str]:
    return (out / "samples.tsv").read_text().splitlines()


def test_every_setting_has_a_comment(call, tmp_path):
    call(init, touch(tmp_path / "slides", *CLASSES), "--out", tmp_path / "run")
    text = (tmp_path / "run/config.yaml").read_text()
    assert set(yaml.safe_load(text)) <= {"run", "task", "samples", "tiles", "train", "split"}
    for line in ("task: ", "samples: ", "  mpp: ", "  model: "):
        assert re.search(rf"# .*\n{line}", text)


def test_task_of_the_settings_can_be_changed(call, tmp_path):
    call(init, touch(tmp_path / "slides", *CLASSES), "--out", tmp_path / "run")
    config = tmp_path / "run/config.yaml"
    assert load(config).train.model == "small_cnn"
    config.write_text(config.read_text().replace("task: tile_cl", "task: slide_cl"))
    assert load(config).task == "slide_classification"
    assert load(config).train.model == "whole_small"


@pytest.mark.parametrize(
    "names",
    [
        ["a.svs", "b.ndpi"],
        ["one/a.svs", "one/b.svs"],
        ["one/a.svs", "two/b.svs"],
        [f"{n:08x}-0000-4000-8000-000000000000/{s}.svs" for n in (1, 2) for s in "ab"],
    ],
)
def test_without_class_folders_the_label_is_a_placeholder(call, tmp_path, capsys, names):
    call(init, touch(tmp_path / "slides", *names), "--out", tmp_path / "run")
    assert {s.label for s in read_samples(tmp_path / "run/samples.tsv")} == {"FILL_IN"}
    assert f"the label of {len(names)} slide(s) is unknown" in capsys.readouterr().err


def test_patients_are_from_barcodes(call, tmp_path, capsys):
    names = ["x/TCGA-05-4244-01Z-00-DX1.d4ff.svs", "x/TCGA-05-4244-01Z-00-DX2.d4ff.svs", "y/c.svs"]
    call(init, touch(tmp_path / "slides", *names), "--out", tmp_path / "run")
    samples = read_samples(tmp_path / "run/samples.tsv")
    assert [s.patient for s in samples] == ["TCGA-05-4244", "TCGA-05-4244", "c"]
    printed = capsys.readouterr().err
    assert "patients of 2 slide(s) are from their TCGA barcodes" in printed
    assert "WARNING: 1 file name(s) do not contain a patient" in printed


def test_odd_names_get_safe_and_different_ids(call, tmp_path):
    names = ["x/S 1.svs", "x/s_1.tif", "y/S 1.svs", "y/_.svs", "y/äö.svs", f"y/{'l' * 200}.svs"]
    call(init, touch(tmp_path / "my slides", *names), "--out", tmp_path / "run")
    samples = read_samples(tmp_path / "run/samples.tsv")
    assert len({s.slide.casefold() for s in samples}) == len(names)
    assert all(s.path.exists() for s in samples)


def test_unusable_paths_are_left_out(call, tmp_path, capsys):
    names = [*CLASSES, "luad/{x}.svs", "luad/two  blanks.svs", "luad/a\tb.svs"]
    call(init, touch(tmp_path / "slides", *names), "--out", tmp_path / "run")
    assert len(read_samples(tmp_path / "run/samples.tsv")) == len(CLASSES)
    printed = capsys.readouterr().err
    assert "'{x}.svs': left out, since its path contains '{'" in printed
    assert "3 other file(s) skipped" in printed


def test_other_files_are_counted_and_named(call, tmp_path, capsys):
    others = [f"notes/{n}.txt" for n in range(7)]
    call(init, touch(tmp_path / "slides", *CLASSES, *others), "--out", tmp_path / "run")
    assert "7 other file(s) skipped: notes/0.txt, " in capsys.readouterr().err


def test_slides_of_several_files_are_one_row(call, tmp_path):
    folder = touch(tmp_path / "slides", "x/m.mrxs", "x/m/Data0.dat", "y/d/1.dcm", "y/d/2.dcm")
    (folder / "y/d/2.dcm").write_bytes(b"large")
    call(init, folder, "--out", tmp_path / "run")
    samples = read_samples(tmp_path / "run/samples.tsv")
    assert [(s.slide, s.path.name) for s in samples] == [("m", "m.mrxs"), ("d", "2.dcm")]


def test_folder_of_trident_gives_a_run_on_embeddings(call, tmp_path, capsys):
    folder = tmp_path / "20x_256px_0px_overlap/features_uni_v2"
    names = [f"TCGA-05-42{n:02}-01Z-00-DX1.{n:08}.h5" for n in range(12)]
    call(init, touch(folder, *names), "--out", tmp_path / "run")
    samples = read_samples(tmp_path / "run/samples.tsv", look=False)
    assert len(samples) == 12 and samples[0].patient == "TCGA-05-4200"
    settings = load(tmp_path / "run/config.yaml")
    assert settings.task == "slide_embedding" and settings.encoder.embedded_with == "uni_v2"
    assert "the encoder is assumed to be 'uni_v2'" in capsys.readouterr().err


def test_encoder_that_is_not_known_is_a_placeholder(call, tmp_path, capsys):
    call(init, touch(tmp_path / "h5", "a.h5", "b.h5"), "--out", tmp_path / "run")
    assert "replace FILL_IN in encoder.embedded_with" in capsys.readouterr().err
    with pytest.raises(UserError, match="must be the name of the encoder"):
        load(tmp_path / "run/config.yaml")


@pytest.mark.parametrize("name", ["samples.tsv", "config.yaml", "cases.tsv"])
def test_nothing_is_overwritten(call, tmp_path, name):
    out = touch(tmp_path / "run", name)
    with pytest.raises(UserError, match=f"already has {name}; nothing was written"):
        call(init, touch(tmp_path / "slides", *CLASSES), "--out", out)
    assert [path.name for path in out.iterdir()] == [name] and (out / name).read_bytes() == b""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "it is empty"),
        (
            ["a.txt", "b.png"],
            r"no slide, no embeddings .* and no annotated image .* 2 other file.* skipped: a.txt",
        ),
        (["a.svs", "b.nii.gz"], "name a folder with slides or volumes only"),
        (["b.nii.gz"], "no case with images and a segmentation"),
    ],
)
def test_folder_without_a_cohort_is_refused(call, tmp_path, names, message):
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=message):
        call(init, touch(tmp_path / "data", *names), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_folder_is_refused(call, tmp_path):
    with pytest.raises(UserError, match="gone: no such folder"):
        call(init, tmp_path / "gone", "--out", tmp_path / "run")


def test_loop_of_links_shows_no_slide_twice(call, tmp_path):
    folder = touch(tmp_path / "slides", *CLASSES)
    (folder / "loop").symlink_to(folder)
    call(init, folder, "--out", folder)
    samples = read_samples(folder / "samples.tsv")
    assert [(s.label, s.path.name) for s in samples] == [tuple(c.split("/")) for c in CLASSES]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("mine", "mine"),
        ("demo", "run-demo"),
        ("1e5", "run-1e5"),
        ("a b", "a-b"),
        ("ä", "my-cohort"),
    ],
)
def test_run_has_the_name_of_the_folder(tmp_path, name, run):
    assert init.run_name(tmp_path / name) == run


def test_few_patients_get_a_warning(call, tmp_path, capsys):
    names = [name for name in CLASSES if not name.endswith(("2.svs", "3.svs"))]
    call(init, touch(tmp_path / "slides", *names), "--out", tmp_path / "run")
    assert "WARNING: no seed gives every split each label" in capsys.readouterr().err


def test_brats_folder_gives_cases(call, tmp_path):
    kinds = ("flair", "t1", "t1ce", "t2", "seg")
    names = [f"BraTS20_{n:03}/BraTS20_{n:03}_{kind}.nii.gz" for n in range(6) for kind in kinds]
    call(init, touch(tmp_path / "brats", *names), "--out", tmp_path / "run")
    values = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert values["train"] == {"model": "small_unet"} and values["run"] == "run"
    modalities = values["volumes"]["modalities"]
    assert len(read_cases(tmp_path / "run/cases.tsv", modalities)) == 6


def test_coco_folder_gives_images(call, shared_data, tmp_path, capsys):
    call(init, shared_data / "coco", "--out", tmp_path / "run")
    images = read_images(tmp_path / "run/images.tsv")
    settings = load(tmp_path / "run/config.yaml")
    assert len(images) == 32 and settings.task == "instance_segmentation"
    assert settings.instances.categories[:3] == ("person", "bicycle", "car")
    assert len(settings.instances.categories) == 80
    assert "assumed to be of another patient" in capsys.readouterr().err


def test_coco_folder_with_missing_and_ambiguous_images(call, tmp_path, capsys):
    coco = touch(tmp_path / "coco", "a/1.jpg", "b/1.jpg", "b/2.jpg", "notes.txt")
    content = {
        "images": [
            {"id": n, "file_name": name} for n, name in enumerate(("1.jpg", "2.jpg", "3.jpg"))
        ],
        "annotations": [],
        "categories": [{"id": 7, "name": "yes"}, {"id": 2, "name": "b: c"}],
    }
    (coco / "all.json").write_text(json.dumps(content))
    call(init, coco, "--out", tmp_path / "run")
    printed = capsys.readouterr().err
    assert "1 image(s) of the annotations are not in" in printed
    assert "several files are named 1.jpg, as 1 image(s); left out" in printed
    (image,) = read_images(tmp_path / "run/images.tsv")
    assert image.path.resolve() == coco / "b/2.jpg"
    assert load(tmp_path / "run/config.yaml").instances.categories == ("b: c", "yes")


def test_validation_images_of_coco_are_test_images(call, tmp_path):
    coco = touch(tmp_path / "coco", "train2017/1.jpg", "val2017/2.jpg")
    (coco / "annotations").mkdir()
    for number, name in ((1, "instances_train2017"), (2, "instances_val2017"), (3, "captions")):
        images = [{"id": number, "file_name": f"{number}.jpg"}]
        content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
        (coco / f"annotations/{name}.json").write_text(json.dumps(content))
    call(init, coco, "--out", tmp_path / "run")
    images = read_images(tmp_path / "run/images.tsv")
    assert [(image.id, image.split) for image in images] == [("1", ""), ("2", "test")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"images": [], "annotations": []}', "categories is missing or not a list of objects"),
        ('{"images": [], "annotations": [], "categories": []}', "has no image that"),
        (
            '{"images": [{"id": 1}, {"id": 1}], "annotations": [], "categories": []}',
            "appears twice",
        ),
        ('{"images": [', "not valid JSON"),
    ],
)
def test_damaged_coco_folder_is_refused(call, tmp_path, text, fault):
    (touch(tmp_path / "coco", "1.jpg") / "all.json").write_text(text)
    with pytest.raises(UserError, match=fault):
        call(init, tmp_path / "coco", "--out", tmp_path / "run")


def test_geojson_of_qupath_gives_images_and_slides(call, tmp_path, capsys):
    folder = touch(tmp_path / "project", "slides/a.svs", "slides/b.tif", "slides/c.svs")

    def feature(name, kind):
        ring = [[0, 0], [9, 0], [9, 9], [0, 0]]
        classified = {} if name is None else {"classification": {"name": name}}
        return {
            "type": "Feature",
            "geometry": {"type": "Polygon", "coordinates": [ring]},
            "properties": {"objectType": kind, **classified},
        }

    (folder / "export").mkdir()
    objects = [feature("Region*", "annotation"), feature("Tumor", "cell"), feature(None, "cell")]
    for name in ("a.geojson", "b.tif.geojson", "other.geojson"):
        (folder / "export" / name).write_text(json.dumps(objects))
    call(init, folder, "--out", tmp_path / "run")
    images = read_images(tmp_path / "run/images.tsv")
    assert [(image.id, image.annotations.name) for image in images] == [
        ("a", "a.geojson"), ("b", "b.tif.geojson"),
    ]  # fmt: skip
    assert load(tmp_path / "run/config.yaml").instances.categories == ("Tumor",)
    printed = capsys.readouterr().err
    assert "1 GeoJSON file(s) have no image or slide; left out" in printed
    assert "2 annotated region(s), 4 instances" in printed
    (folder / "export/a.geojson").write_text('{"type": "Feature", "geometry": 1}')
    with pytest.raises(UserError, match=r"a\.geojson: objects that cannot be used"):
        call(init, folder, "--out", tmp_path / "again")


@pytest.mark.parametrize(
    "names",
    [
        ("images/a.png", "labels/a.png", "images/b.tif", "labels/b.npy", "images/c.png"),
        ("images/a.png", "masks/a_mask.png", "images/b.tif", "masks/b-label.tif", "images/c.png"),
        ("a.png", "a_instances.png", "b.tif", "b_label.tiff", "c.png"),
    ],
)
def test_label_images_give_images(call, tmp_path, capsys, names):
    folder = touch(tmp_path / "nuclei", *names)
    call(init, folder, "--out", tmp_path / "run")
    images = read_images(tmp_path / "run/images.tsv")
    assert [image.id for image in images] == ["a", "b"]
    pairs = {str(path.resolve().relative_to(folder)) for image in images for path in image.files}
    assert pairs == set(names[:4])
    assert load(tmp_path / "run/config.yaml").instances.categories == ("object",)
    assert "1 image(s) have no label image; left out" in capsys.readouterr().err
