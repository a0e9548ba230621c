"""Segmentation and evaluation of cases: from their files to labels on their grids, and metrics."""

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
# Voxels of 1 × 1.5 × 2 mm, rotated by a few degrees.
ROTATION = Rotation.from_euler("zxy", (10, 3, -2), degrees=True).as_matrix()
AFFINE = nibabel.affines.from_matvec(ROTATION @ np.diag([1, 1.5, 2]), (-20, 10, 5))


def thresholding() -> keras.Model:
    """Return a model with a score near 1 where a channel is above 1.2, and near 0 elsewhere."""
    images = keras.Input((*WINDOW, 3))
    layer = keras.layers.Conv3D(3, 1, activation="sigmoid", dtype="float32")
    scores = layer(images)
    layer.set_weights([25 * np.eye(3)[None, None, None], np.full(3, -30)])
    return keras.Model(images, scores)


def tumour(shape=SHAPE, centre=(0.45, 0.5, 0.55)) -> np.ndarray:
    """Return three nested labels: (x, y, z) uint8."""
    positions = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    distance = np.linalg.norm((positions + 0.5) / shape - centre, axis=-1)
    return (distance[..., None] < (0.24, 0.18, 0.13)).sum(axis=-1).astype(np.uint8)


def write_as(path: Path, array: np.ndarray, code: str) -> Path:
    """Write a RAS array with the axes `code`; no voxel moves in millimetres."""
    image = nibabel.Nifti1Image(array, AFFINE)
    steps = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(AFFINE), nibabel.orientations.axcodes2ornt(code)
    )
    reoriented = image.as_reoriented(steps)
    reoriented.header.set_xyzt_units("mm")
    reoriented.set_sform(reoriented.affine, 1)
    reoriented.set_qform(reoriented.affine, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    reoriented.to_filename(path)
    return path


def write_case(folder: Path, case: str, code: str = "LPS", centre=(0.45, 0.5, 0.55)):
    """Write a head in which each modality is bright in one region; return the paths."""
    labels = tumour(centre=centre)
    positions = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"))
    head = (positions**2).sum(axis=0) < 0.95
    random = np.random.default_rng(len(case))
    images = {}
    for number, name in enumerate(NAMES):
        texture = ndimage.gaussian_filter(
            random.normal(0, 20, SHAPE), 1.5
        )  # pure noise would be refused
        image = 100 + 200 * (labels > number) + texture
        image = (image * head).astype(np.float32)
        images[name] = write_as(folder / case / f"{name}.nii.gz", image, code)
    return images, write_as(folder / case / "reference.nii.gz", labels, code)


def prepare(folder: Path, case: str, images, reference, volumes=VOLUMES) -> Path:
    record = folder / "volumes" / f"{case}.tfrecord"
    record.parent.mkdir(exist_ok=True)
    state = prepare_case(
        case, images, reference, volumes, PreparedFiles(record, record.with_suffix(".json"))
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
    """Segment a case; return the content of its state, and its segmentation."""
    paths = out / f"{case}.nii.gz", out / f"{case}.json"
    inputs = {"volumes/x.tfrecord": record}
    state = segment_case(segmenter, case, record, WINDOWS, *paths, inputs)
    content = json.loads(paths[1].read_text())
    assert content == state.to_json()
    return content, nibabel.load(paths[0])


def dice(mask, other) -> float:
    return 2 * (mask & other).sum() / (mask.sum() + other.sum())


# --- Segmentations


@pytest.mark.parametrize("code", ["RAS", "LPS", "IRP"])
def test_segmentation_is_on_the_grid_of_the_case_files(segmenter, tmp_path, code):
    """By construction, each region is where its modality is bright, voxel by voxel."""
    images, reference = write_case(tmp_path, "C1", code)
    record = prepare(tmp_path, "C1", images, None)
    state, segmentation = segment(segmenter, "C1", record, tmp_path)
    expected = nibabel.load(reference)
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


def test_components_are_removed_on_the_original_grid(tmp_path):
    """A second, smaller tumour is predicted; it goes if only the largest component is kept."""
    images, reference = write_case(tmp_path, "C1")
    labels = np.asarray(nibabel.load(reference).dataobj)
    speck = np.s_[2:4, 2:4, 2:4]
    for path in images.values():
        image = nibabel.load(path)
        values = image.get_fdata()
        centre = tuple(side // 2 for side in values.shape)
        brightest = values[labels == 3].mean()
        inside = values > 0
        # Two voxels from the edge of the head, along the first axis.
        first = int(np.flatnonzero(inside[:, centre[1], centre[2]])[0])
        speck = np.s_[first + 1 : first + 3, centre[1] : centre[1] + 2, centre[2] : centre[2] + 2]
        values[speck] = brightest
        nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), image.affine), path)
    record = prepare(tmp_path, "C1", images, None)
    results = {}
    for name, kept in (
        ("all", {}),
        ("largest", {"largest_only": True}),
        ("above", {"smallest_mm3": 25.0}),
        ("small", {"smallest_mm3": 24.0}),
    ):
        written = write_model(
            tmp_path / name, thresholding(), VOLUMES, PATCHES, postprocessing={**kept, "tried": []}
        )
        state, segmentation = segment(Segmenter(*written), "C1", record, tmp_path / name)
        results[name] = np.asarray(segmentation.dataobj), state["volumes_ml"]["whole_tumour"]
    # 8 voxels of 1 × 1.5 × 2 mm.
    assert (results["all"][0][speck] == 3).all()
    np.testing.assert_array_equal(results["small"][0], results["all"][0])
    expected = results["all"][0].copy()
    expected[speck] = 0
    for name in ("largest", "above"):
        np.testing.assert_array_equal(results[name][0], expected)
        assert results["all"][1] - results[name][1] == pytest.approx(0.024)


@pytest.mark.parametrize("spacing", [(1.2, 1.2, 1.2), (2, 2, 2)])
def test_resampled_case_is_segmented_on_its_original_grid(model, tmp_path, spacing):
    images, reference = write_case(tmp_path, "C1")
    volumes = VOLUMES.model_copy(update={"spacing": spacing})
    record = prepare(tmp_path, "C1", images, reference, volumes)
    folder = tmp_path / "model"
    _, segmentation = segment(
        Segmenter(*write_model(folder, thresholding(), volumes, PATCHES)), "C1", record, tmp_path
    )
    expected = np.asarray(nibabel.load(reference).dataobj)
    assert segmentation.shape == expected.shape
    for value in (1, 2, 3):
        min_dice = 0.88 if max(spacing) < 1.5 else 0.75
        actual_mask, expected_mask = np.asarray(segmentation.dataobj) >= value, expected >= value
        assert dice(actual_mask, expected_mask) > min_dice
        centres = [np.argwhere(region).mean(axis=0) for region in (actual_mask, expected_mask)]
        np.testing.assert_allclose(*centres, atol=0.3)  # a grid off by half a voxel fails


def test_second_run_writes_the_same_bytes(segmenter, tmp_path):
    record = prepare(tmp_path, "C1", *write_case(tmp_path, "C1"))
    for folder in ("first", "second"):
        segment(segmenter, "C1", record, tmp_path / folder)
    for name in ("C1.nii.gz", "C1.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


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
    """Two cases, prepared and segmented by the commands, and a third that failed."""
    folder = tmp_path_factory.mktemp("run")
    rows = []
    for case, centre in (("C1", (0.45, 0.5, 0.55)), ("C2", (0.55, 0.45, 0.5))):
        images, reference = write_case(folder, case, centre=centre)
        record = folder / "volumes" / f"{case}.tfrecord"
        record.parent.mkdir(exist_ok=True)
        options = [word for name, path in images.items() for word in ("--image", f"{name}={path}")]
        done = command(
            *("prepare.py", "--task", "volume_segmentation", "--case", case),
            *(*options, "--segmentation", reference, "--settings", canonical(VOLUMES)),
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
    rows.append(("C3", "PC3", "test", "failed", "truncated", "x"))
    rows.append(("C4", "PC4", "train", "prepared", "", "x"))
    columns = ("case", "patient", "split", "state", "reason", "sha256")
    write_table(folder / "table.tsv", columns, rows)
    header = ("case", "patient", *NAMES, "segmentation")
    sheet = [
        (case, f"P{case}", *(f"{case}/{name}.nii.gz" for name in (*NAMES, "reference")))
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


def test_failed_case_has_an_empty_segmentation(run):
    assert (run / "segmentations/C3.nii.gz").read_bytes() == b""
    state = json.loads((run / "segmentations/C3.json").read_text())
    assert state == {"schema": 1, "case": "C3", "state": "failed"}


def test_evaluation_writes_cases_and_metrics(run, command, model, tmp_path):
    done = evaluate(command, run, model[1], tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_table(tmp_path / "cases.tsv")
    assert [(row["case"], row["patient"]) for row in rows] == [
        (case, f"P{case}") for case in ("C1", "C2") for _ in range(3)
    ]
    assert {float(row["dice"]) for row in rows} == {1.0}
    assert {float(row["hd95_mm"]) for row in rows} == {0.0}
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["n"], metrics["patients"]) == (2, 2)
    assert metrics["dice"]["mean"]["value"] == 1
    assert metrics["inputs"]["model/settings.json"] == sha256_of(model[1])
    assert metrics["inputs"]["cases.tsv"] == sha256_of(run / "table.tsv")
    assert metrics["inputs"]["evaluation/cases.tsv"] == sha256_of(tmp_path / "cases.tsv")


def test_metrics_follow_from_the_segmentation_files(run, command, model, tmp_path):
    """A changed segmentation has other metrics, those of the two arrays."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "segmentations/C1.nii.gz"
    image = nibabel.load(path)
    labels = np.roll(np.asarray(image.dataobj), 2, axis=0)
    labels[:14] = 0
    nibabel.Nifti1Image(labels, image.affine, image.header).to_filename(path)
    done = evaluate(command, folder, model[1], tmp_path)
    assert done.returncode == 0, done.stderr
    predicted = labels > 0
    reference = np.asarray(nibabel.load(folder / "C1/reference.nii.gz").dataobj) > 0
    row = read_table(tmp_path / "cases.tsv")[0]
    assert row["region"] == "whole_tumour"
    assert float(row["dice"]) == pytest.approx(dice(predicted, reference), abs=1e-6)
    for name, volume in (("truth_ml", reference), ("predicted_ml", predicted)):
        assert float(row[name]) == pytest.approx(volume.sum() * 0.003, rel=1e-3)
    sensitivity = (predicted & reference).sum() / reference.sum()
    assert float(row["sensitivity"]) == pytest.approx(sensitivity, abs=1e-6)


def test_scores_do_not_depend_on_the_number_of_cores(run):
    references = {case: run / case / "reference.nii.gz" for case in ("C1", "C2")}
    rows = [{"case": case, "patient": case} for case in references]
    single, double = (
        score_cases(rows, references, run / "segmentations", VOLUMES, cores) for cores in (1, 2)
    )
    assert single == double
    assert [(case.case, len(case.regions)) for case in single] == [("C1", 3), ("C2", 3)]


# --- Errors


def test_record_that_does_not_fit_is_refused(segmenter, tmp_path):
    images, reference = write_case(tmp_path, "C1")
    record = prepare(tmp_path, "C1", images, reference)
    with pytest.raises(UserError, match=r"C1\.tfrecord: contains case 'C1', expected 'C2'"):
        segment(segmenter, "C2", record, tmp_path)
    swapped = VolumeSettings(labels="decathlon", modalities=("core", "whole", "rim"), spacing=None)
    other = prepare(tmp_path, "C3", images, reference, swapped)
    with pytest.raises(UserError, match="case C3: has the channels core, whole, rim, but the"):
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


def test_command_refuses_an_undescribed_model_and_a_missing_record(command, model, run, tmp_path):
    other = write_model(tmp_path, blurring(WINDOW, 3, 3), VOLUMES, PATCHES)
    record = run / "volumes/C1.tfrecord"
    done = run_segment(command, (other[0], model[1]), record, tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"{other[0]}: is not the model that {model[1]} describes" in done.stderr
    done = run_segment(command, model, tmp_path / "gone.tfrecord", tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {tmp_path}/gone.tfrecord: ")
    assert not (tmp_path / "C1.nii.gz").exists()


def moved(image: nibabel.Nifti1Image, path: Path) -> None:
    """Write the same voxels, shifted by 1 mm."""
    affine = image.affine.copy()
    affine[0, 3] += 1
    changed = nibabel.Nifti1Image(np.asarray(image.dataobj), affine)
    changed.to_filename(path)


def flipped(image: nibabel.Nifti1Image, path: Path) -> None:
    """Write the same volume with its first axis reversed."""
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
        (moved, "the first at .* but reference.nii.gz .*; one of the two is out of date"),
        (flipped, "C1.nii.gz has 30×26×22 voxels .* RPS.* has .* LPS.*; .* out of date"),
        (smaller, "C1.nii.gz has 29×26×22 voxels .* but reference.nii.gz has 30×26×22 .* of date"),
        (undeclared, "9 .*2 voxels"),
        (lambda image, path: path.write_bytes(b""), "empty"),
        (lambda image, path: path.unlink(), r"C1\.nii\.gz: the file does not exist"),
        (lambda image, path: path.write_bytes(gzip.compress(b"<html>" * 90)), "NIfTI"),
    ],
)
def test_segmentation_that_does_not_fit_its_reference_is_refused(run, tmp_path, change, message):
    shutil.copytree(run / "segmentations", tmp_path / "segmentations")
    path = tmp_path / "segmentations/C1.nii.gz"
    image = nibabel.load(path)
    image = nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine, image.header)
    change(image, path)
    references = {case: run / case / "reference.nii.gz" for case in ("C1", "C2")}
    rows = [{"case": case, "patient": case} for case in references]
    with pytest.raises(UserError, match=f"^1 case.* cannot be scored\n  - case C1: .*({message})"):
        score_cases(rows, references, tmp_path / "segmentations", VOLUMES, 1)


def test_error_lists_all_cases_that_cannot_be_scored(run, command, model, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "segmentations/C1.nii.gz").write_bytes(b"")
    text = (folder / "sheet.tsv").read_text().splitlines()
    (folder / "without_c2.tsv").write_text("\n".join([*text[:2], *text[3:]]) + "\n")
    done = evaluate(command, folder, model[1], tmp_path / "out", sheet="without_c2.tsv")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "2 case(s) cannot be scored" in done.stderr
    assert "case C1: " in done.stderr
    assert "case C2: has no segmentation in the sample sheet" in done.stderr
    assert not (tmp_path / "out").exists()
    described = tmp_path / "settings.json"
    described.write_text('{"classes": ["a"]}')
    done = evaluate(command, folder, described, tmp_path / "out")
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {described}: does not describe a model of volumes\n",
    )


def test_record_without_the_grid_of_its_files_is_refused(segmenter, tmp_path):
    image = np.random.default_rng(1).random((20, 20, 20, 3)).astype(np.float16)
    record = write_record(tmp_path / "C1.tfrecord", "C1", image, None, NAMES)
    with pytest.raises(UserError, match=r"C1\.tfrecord: .*grid"):
        segment(segmenter, "C1", record, tmp_path)
