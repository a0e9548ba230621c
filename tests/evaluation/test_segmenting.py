"""From a case's own files to a segmentation that lies over them, and to its figures."""

import gzip
import json
import shutil
from pathlib import Path

import keras
import nibabel
import numpy as np
import pytest
from scipy import ndimage
from scipy.spatial.transform import Rotation
from volume_set import blurring, write_model, write_record

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records import RecordError
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import canonical
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tables import read_table, write_table
from gigatile.tasks.volume_segmentation.case_scoring import score_cases
from gigatile.tasks.volume_segmentation.case_segmentation import segment_case
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter
from gigatile.volumes.preparation import PreparedFiles, prepare_case

NAMES = ("whole", "core", "rim")
VOLUMES = VolumeSettings(labels="decathlon", modalities=NAMES, spacing=None)
WINDOW = (16, 16, 16)
PATCHES = PatchSettings(size=WINDOW)
SHAPE = (30, 26, 22)
WINDOWS = WindowSettings(overlap=0.25)
# Voxels of 1 × 1.5 × 2 mm, turned by some degrees, in another order than RAS.
TURN = Rotation.from_euler("zxy", (10, 3, -2), degrees=True).as_matrix()
AFFINE = nibabel.affines.from_matvec(TURN @ np.diag([1, 1.5, 2]), (-20, 10, 5))


def thresholding() -> keras.Model:
    """Return a model whose scores tell where each channel is above 1.2."""
    images = keras.Input((*WINDOW, 3))
    layer = keras.layers.Conv3D(3, 1, activation="sigmoid", dtype="float32")
    scores = layer(images)
    layer.set_weights([25 * np.eye(3)[None, None, None], np.full(3, -30)])
    return keras.Model(images, scores)


def tumour(shape=SHAPE, middle=(0.45, 0.5, 0.55)) -> np.ndarray:
    """Return three nested labels: (x, y, z) uint8."""
    places = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    distance = np.linalg.norm((places + 0.5) / shape - middle, axis=-1)
    return (distance[..., None] < (0.24, 0.18, 0.13)).sum(axis=-1).astype(np.uint8)


def write_as(path: Path, array: np.ndarray, code: str) -> Path:
    """Write a RAS array with its axes as `code`; every voxel stays in its place."""
    image = nibabel.Nifti1Image(array, AFFINE)
    steps = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(AFFINE), nibabel.orientations.axcodes2ornt(code)
    )
    turned = image.as_reoriented(steps)
    turned.header.set_xyzt_units("mm")
    turned.set_sform(turned.affine, 1)
    turned.set_qform(turned.affine, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    turned.to_filename(path)
    return path


def write_case(folder: Path, case: str, code: str = "LPS", middle=(0.45, 0.5, 0.55)):
    """Write a head in which each modality is bright in one region; return the paths."""
    labels = tumour(middle=middle)
    places = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"))
    head = (places**2).sum(axis=0) < 0.95
    random = np.random.default_rng(len(case))
    images = {}
    for number, name in enumerate(NAMES):
        texture = ndimage.gaussian_filter(random.normal(0, 20, SHAPE), 1.5)  # noise is refused
        image = 100 + 200 * (labels > number) + texture
        image = (image * head).astype(np.float32)
        images[name] = write_as(folder / case / f"{name}.nii.gz", image, code)
    return images, write_as(folder / case / "truth.nii.gz", labels, code)


def prepare(folder: Path, case: str, images, truth, volumes=VOLUMES) -> Path:
    record = folder / "volumes" / f"{case}.tfrecord"
    record.parent.mkdir(exist_ok=True)
    state = prepare_case(
        case, images, truth, volumes, PreparedFiles(record, record.with_suffix(".json"))
    )
    assert state.state == "prepared", state.reason
    return record


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[Path, Path]:
    return write_model(tmp_path_factory.mktemp("model"), thresholding(), VOLUMES, PATCHES)


@pytest.fixture(scope="module")
def segmenter(model) -> Segmenter:
    return Segmenter(*model)


def segment(segmenter, case: str, record: Path, out: Path) -> tuple[dict, nibabel.Nifti1Image]:
    paths = out / f"{case}.nii.gz", out / f"{case}.json"
    inputs = {"volumes/x.tfrecord": record}
    state = segment_case(segmenter, case, record, WINDOWS, *paths, inputs)
    assert json.loads(paths[1].read_text()) == state
    return state, nibabel.load(paths[0])


def dice(mask, other) -> float:
    return 2 * (mask & other).sum() / (mask.sum() + other.sum())


# --- From files to files


@pytest.mark.parametrize("code", ["RAS", "LPS", "IRP"])
def test_a_segmentation_lies_over_the_files_of_its_case(segmenter, tmp_path, code):
    """Known by construction: each region is where its modality is bright, voxel by voxel."""
    images, truth = write_case(tmp_path, "C1", code)
    record = prepare(tmp_path, "C1", images, None)
    state, segmentation = segment(segmenter, "C1", record, tmp_path)
    expected = nibabel.load(truth)
    assert segmentation.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(segmentation.dataobj, expected.dataobj)
    for name in ("sform", "qform"):
        actual_affine, expected_affine = (
            getattr(image, f"get_{name}")(coded=True) for image in (segmentation, expected)
        )
        np.testing.assert_allclose(actual_affine[0], expected_affine[0], atol=1e-5)
        assert actual_affine[1] == expected_affine[1] == 1
    labels = np.asarray(expected.dataobj)
    ml = {
        name: (np.isin(labels, values).sum() * 1 * 1.5 * 2 / 1000).round(6)
        for name, values in {
            "edema": [1],
            "non_enhancing": [2],
            "enhancing": [3],
            "whole_tumour": [1, 2, 3],
            "tumour_core": [2, 3],
            "enhancing_tumour": [3],
        }.items()
    }
    assert state["volumes_ml"] == pytest.approx(ml, rel=1e-3)
    assert (state["case"], state["state"]) == ("C1", "segmented")
    assert state["windows"] == {"overlap": 0.25, "flips": False, "size": [16, 16, 16]}
    assert state["inputs"] == {"volumes/x.tfrecord": sha256_of(record)}


@pytest.mark.parametrize("spacing", [(1.2, 1.2, 1.2), (2, 2, 2)])
def test_resampled_cases_come_back_to_their_own_grid(model, tmp_path, spacing):
    images, truth = write_case(tmp_path, "C1")
    volumes = VOLUMES.model_copy(update={"spacing": spacing})
    record = prepare(tmp_path, "C1", images, truth, volumes)
    folder = tmp_path / "model"
    _, segmentation = segment(
        Segmenter(*write_model(folder, thresholding(), volumes, PATCHES)), "C1", record, tmp_path
    )
    expected = np.asarray(nibabel.load(truth).dataobj)
    assert segmentation.shape == expected.shape
    for value in (1, 2, 3):
        least = 0.88 if max(spacing) < 1.5 else 0.75
        actual_mask, other = np.asarray(segmentation.dataobj) >= value, expected >= value
        assert dice(actual_mask, other) > least
        middles = [np.argwhere(region).mean(axis=0) for region in (actual_mask, other)]
        np.testing.assert_allclose(*middles, atol=0.3)  # half a voxel would be a mistake


def test_the_same_case_gives_the_same_bytes(segmenter, tmp_path):
    record = prepare(tmp_path, "C1", *write_case(tmp_path, "C1"))
    segment(segmenter, "C1", record, tmp_path / "one")
    segment(segmenter, "C1", record, tmp_path / "two")
    for name in ("C1.nii.gz", "C1.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


# --- The commands


def run_segment(command, model, record, out, case="C1", windows="{}"):
    return command(
        *("predict.py", "--task", "volume_segmentation"),
        *("--case", case, "--records", record, "--model", model[0], "--described", model[1]),
        *("--windows", windows, "--cores", 2),
        *("--out", out / f"{case}.nii.gz", "--state", out / f"{case}.json"),
    )


@pytest.fixture(scope="module")
def run(command, model, tmp_path_factory):
    """Two cases from their files to their figures, by the commands; and one that failed."""
    folder = tmp_path_factory.mktemp("run")
    rows = []
    for case, middle in (("C1", (0.45, 0.5, 0.55)), ("C2", (0.55, 0.45, 0.5))):
        images, truth = write_case(folder, case, middle=middle)
        record = folder / "volumes" / f"{case}.tfrecord"
        record.parent.mkdir(exist_ok=True)
        given = [word for name, path in images.items() for word in ("--image", f"{name}={path}")]
        done = command(
            *("prepare.py", "--task", "volume_segmentation"),
            *("--case", case, *given, "--segmentation", truth, "--settings", canonical(VOLUMES)),
            *("--records", record, "--state", record.with_suffix(".json")),
        )
        assert done.returncode == 0, done.stderr
        done = run_segment(command, model, record, folder / "segmentations", case)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{case}: edema ") and " ml, whole_tumour " in done.stdout
        rows.append((case, f"P{case}", "test", "prepared", "", "x"))
    (folder / "volumes" / "C3.tfrecord").touch()
    done = run_segment(
        command, model, folder / "volumes" / "C3.tfrecord", folder / "segmentations", "C3"
    )
    assert (done.returncode, done.stdout) == (0, "C3: skipped, as it could not be prepared\n"), (
        done.stderr
    )
    rows.append(("C3", "PC3", "test", "failed", "cut short", "x"))
    rows.append(("C4", "PC4", "train", "prepared", "", "x"))
    columns = ("case", "patient", "split", "state", "reason", "sha256")
    write_table(folder / "table.tsv", columns, rows)
    header = ("case", "patient", *NAMES, "segmentation")
    sheet = [
        (case, f"P{case}", *(f"{case}/{name}.nii.gz" for name in NAMES), f"{case}/truth.nii.gz")
        for case in ("C1", "C2", "C3", "C4")
    ]
    write_table(folder / "sheet.tsv", header, sheet)
    return folder


def evaluate(command, folder, described, out, table="table.tsv", sheet="sheet.tsv"):
    return command(
        *("evaluate.py", "--task", "volume_segmentation"),
        *("--samples", folder / sheet, "--table", folder / table, "--described", described),
        *("--segmentations", folder / "segmentations", "--settings", '{"resamples":1000}'),
        *("--cores", 2, "--out", out),
    )


def test_a_case_that_could_not_be_prepared_goes_on_empty(run):
    assert (run / "segmentations/C3.nii.gz").read_bytes() == b""
    state = json.loads((run / "segmentations/C3.json").read_text())
    assert state == {"schema": 1, "case": "C3", "state": "failed"}


def test_the_way_from_files_to_figures(run, command, model, tmp_path):
    done = evaluate(command, run, model[1], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_table(tmp_path / "cases.tsv")
    assert [(row["case"], row["patient"]) for row in rows] == [
        (case, f"P{case}") for case in ("C1", "C2") for _ in range(3)
    ]
    assert {float(row["dice"]) for row in rows} == {1.0}
    assert {float(row["hd95_mm"]) for row in rows} == {0.0}
    figures = json.loads((tmp_path / "metrics.json").read_text())
    assert (figures["n"], figures["patients"]) == (2, 2)
    assert figures["dice"]["mean"]["value"] == 1
    assert figures["inputs"]["model/settings.json"] == sha256_of(model[1])
    assert figures["inputs"]["cases.tsv"] == sha256_of(run / "table.tsv")
    assert figures["inputs"]["evaluation/cases.tsv"] == sha256_of(tmp_path / "cases.tsv")


def test_figures_are_of_the_files_that_are_there(run, command, model, tmp_path):
    """Another segmentation gives other figures, as computed from the two arrays."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "segmentations/C1.nii.gz"
    image = nibabel.load(path)
    labels = np.roll(np.asarray(image.dataobj), 2, axis=0)
    labels[:14] = 0
    nibabel.Nifti1Image(labels, image.affine, image.header).to_filename(path)
    done = evaluate(command, folder, model[1], tmp_path)
    assert done.returncode == 0, done.stderr
    truth = np.asarray(nibabel.load(folder / "C1/truth.nii.gz").dataobj)
    row = read_table(tmp_path / "cases.tsv")[0]
    assert row["region"] == "whole_tumour"
    assert float(row["dice"]) == pytest.approx(dice(labels > 0, truth > 0), abs=1e-6)
    for name, volume in (("truth_ml", truth), ("predicted_ml", labels)):
        assert float(row[name]) == pytest.approx((volume > 0).sum() * 0.003, rel=1e-3)
    volume, there = labels > 0, truth > 0
    assert float(row["sensitivity"]) == pytest.approx(
        (volume & there).sum() / there.sum(), abs=1e-6
    )


def test_the_number_of_cores_changes_nothing(run):
    truths = {case: run / case / "truth.nii.gz" for case in ("C1", "C2")}
    rows = [{"case": case, "patient": case} for case in truths]
    first, two = (
        score_cases(rows, truths, run / "segmentations", VOLUMES, cores) for cores in (1, 2)
    )
    assert first == two and [row["case"] for row in first] == ["C1"] * 3 + ["C2"] * 3


# --- What is stale, foreign or damaged


def test_a_record_of_another_case_or_kind_is_refused(segmenter, tmp_path):
    images, truth = write_case(tmp_path, "C1")
    record = prepare(tmp_path, "C1", images, truth)
    with pytest.raises(UserError, match=r"C1\.tfrecord: is of case 'C1', not of 'C2'"):
        segment(segmenter, "C2", record, tmp_path)
    swapped = VolumeSettings(labels="decathlon", modalities=("core", "whole", "rim"), spacing=None)
    other = prepare(tmp_path, "C3", images, truth, swapped)
    with pytest.raises(UserError, match="case C3: has the channels core, whole, rim where the"):
        segment(segmenter, "C3", other, tmp_path)
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)
    with pytest.raises(RecordError, match="checksum of a block"):
        segment(segmenter, "C1", record, tmp_path)
    record.write_bytes(data[:3000])
    with pytest.raises(RecordError, match=r"C1\.tfrecord"):
        segment(segmenter, "C1", record, tmp_path)
    assert not list(tmp_path.glob("*.nii.gz")) and not list(tmp_path.glob("*.json"))


def test_the_command_refuses_a_model_that_does_not_fit(command, model, run, tmp_path):
    other = write_model(tmp_path, blurring(WINDOW, 3, 3), VOLUMES, PATCHES)
    record = run / "volumes/C1.tfrecord"
    done = run_segment(command, (other[0], model[1]), record, tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{other[0]}: is not the model that {model[1]} describes" in done.stderr
    done = run_segment(command, model, tmp_path / "gone.tfrecord", tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {tmp_path}/gone.tfrecord: ")
    assert not (tmp_path / "C1.nii.gz").exists()


def moved(image: nibabel.Nifti1Image, path: Path) -> None:
    """Write the same voxels, 1 mm further."""
    affine = image.affine.copy()
    affine[0, 3] += 1
    changed = nibabel.Nifti1Image(np.asarray(image.dataobj), affine)
    changed.to_filename(path)


def flipped(image: nibabel.Nifti1Image, path: Path) -> None:
    """Write the same picture with its voxels in another order."""
    image.as_reoriented(np.array([[0, -1], [1, 1], [2, 1]])).to_filename(path)


def smaller(image: nibabel.Nifti1Image, path: Path) -> None:
    image.slicer[1:].to_filename(path)


def undeclared(image: nibabel.Nifti1Image, path: Path) -> None:
    labels = np.asarray(image.dataobj).copy()
    labels[0, 0, :2] = 9
    nibabel.Nifti1Image(labels, image.affine, image.header).to_filename(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (moved, "the first at .* where truth.nii.gz has .*; one of the two is stale"),
        (flipped, "C1.nii.gz has 30×26×22 voxels .* RPS.* has .* LPS.*; one of the two is stale"),
        (smaller, "C1.nii.gz has 29×26×22 voxels .* where truth.nii.gz has 30×26×22 .* is stale"),
        (undeclared, "9 .*2 voxels"),
        (lambda image, path: path.write_bytes(b""), "empty"),
        (lambda image, path: path.unlink(), r"C1\.nii\.gz: the file does not exist"),
        (lambda image, path: path.write_bytes(gzip.compress(b"<html>" * 90)), "NIfTI"),
    ],
)
def test_a_segmentation_that_does_not_belong_to_its_truth_is_refused(
    run, tmp_path, change, message
):
    shutil.copytree(run / "segmentations", tmp_path / "segmentations")
    path = tmp_path / "segmentations/C1.nii.gz"
    image = nibabel.load(path)
    image = nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine, image.header)
    change(image, path)
    truths = {case: run / case / "truth.nii.gz" for case in ("C1", "C2")}
    rows = [{"case": case, "patient": case} for case in truths]
    with pytest.raises(UserError, match=f"^1 case.* cannot be scored\n  - case C1: .*({message})"):
        score_cases(rows, truths, tmp_path / "segmentations", VOLUMES, 1)


def test_all_cases_that_cannot_be_scored_are_told(run, command, model, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "segmentations/C1.nii.gz").write_bytes(b"")
    text = (folder / "sheet.tsv").read_text().splitlines()
    (folder / "less.tsv").write_text("\n".join([*text[:2], *text[3:]]) + "\n")
    done = evaluate(command, folder, model[1], tmp_path / "out", sheet="less.tsv")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "2 case(s) cannot be scored" in done.stderr
    assert "case C1: " in done.stderr
    assert "case C2: the sheet has no segmentation of it" in done.stderr
    assert not (tmp_path / "out").exists()
    described = tmp_path / "settings.json"
    described.write_text('{"classes": ["a"]}')
    done = evaluate(command, folder, described, tmp_path / "out")
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {described}: is not of a model of volumes\n",
    )


def test_a_foreign_record_has_no_grid_to_go_back_to(segmenter, tmp_path):
    image = np.random.default_rng(1).random((20, 20, 20, 3)).astype(np.float16)
    record = write_record(tmp_path / "C1.tfrecord", "C1", image, None, NAMES)
    with pytest.raises(UserError, match=r"C1\.tfrecord: .*grid"):
        segment(segmenter, "C1", record, tmp_path)
