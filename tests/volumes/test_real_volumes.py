"""Real cases: known properties, and the expected state of every file."""

import json

import nibabel
import numpy as np
import pytest
from known_volumes import dice

from gigatile.records.files import DiskFile
from gigatile.records.volume import VolumeRecord
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.geometry import geometry_of
from gigatile.volumes.grid import Grid, forward_labels, plan_grid
from gigatile.volumes.head_mask import box_of
from gigatile.volumes.preparation import PreparedFiles, prepare_case
from gigatile.volumes.reader import open_volume
from gigatile.volumes.restoration import Restorer, write_segmentation

# Voxels of necrosis, edema, non_enhancing and enhancing in the experts' segmentations, and of the
# brain masks in the same folders.
COUNTS = {
    1: (26371, 53050, 818, 31485),
    2: (163, 53736, 943, 8219),
    3: (1252, 148264, 3162, 21250),
}
MASKS = {1: 1487565, 2: 1585473, 3: 1690470}
BRATS = {"modalities": ("flair", "t1gd"), "labels": "brats2013"}


@pytest.fixture(scope="session")
def nifti(shared_data):
    return shared_data / "nifti"


def brats_2013(nifti, patient):
    folder = nifti / f"brats_2013_pat000{patient}_1"
    images = {
        "flair": folder / "Flair_subtrMeanDivStd.nii.gz",
        "t1gd": folder / "T1c_subtrMeanDivStd.nii.gz",
    }
    return images, folder / "OTMultiClass.nii.gz", folder / "brainmask.nii.gz"


def tcga(folder):
    folder = folder / "TCGA-FG-6692"
    files = {"flair": "fla", "t1": "t1", "t1gd": "t1c", "t2": "t2"}
    return {name: folder / f"{file}.nii.gz" for name, file in files.items()}


def prepare(out, images, segmentation=None, **settings):
    files = PreparedFiles(out / "c.tfrecord", out / "c.json")
    changed = VolumeSettings(**{"labels": "decathlon"} | settings)
    prepare_case("c", images, segmentation, changed, files)
    return json.loads(files.state.read_text())


def record(out):
    path = out / "c.tfrecord"
    shape = json.loads((out / "c.json").read_text())["prepared"]["shape"]
    with DiskFile(path) as file:
        return VolumeRecord(file, 0, file.size).read((0, 0, 0), shape)


def restored(labels, grid):
    restorer = Restorer(grid, lambda scores: scores.argmax(-1).astype(np.uint8))
    for first in range(0, len(labels), 8):
        restorer.add(np.eye(5, dtype=np.float32)[labels[first : first + 8]])
    return restorer.labels()


@pytest.mark.parametrize("patient", COUNTS)
def test_real_masks_and_labels_are_read(nifti, patient):
    """The mask is int32 with a slope of 2.3e-10, so its value is 0.99999997."""
    _, segmentation, mask = brats_2013(nifti, patient)
    values = np.bincount(open_volume(mask).read_labels({"brain": 1}).ravel())
    assert values.tolist()[1:] == [MASKS[patient]]
    truncated = np.asarray(nibabel.load(mask).dataobj).astype(int)
    assert not truncated.any()
    labels = open_volume(segmentation).read_labels(
        {name: int(name[1]) for name in ["v1", "v2", "v3", "v4"]}
    )
    assert np.bincount(labels.ravel()).tolist()[1:] == list(COUNTS[patient])


@pytest.mark.parametrize("patient", COUNTS)
def test_brats_2013_case_is_prepared_and_restored_exactly(nifti, tmp_path, patient):
    images, segmentation, mask = brats_2013(nifti, patient)
    state = prepare(tmp_path, images, segmentation, **BRATS)
    assert (state["state"], state["agreement"]) == ("prepared", "equal")
    assert tuple(state["labels"].values()) == COUNTS[patient]
    assert state["volumes_ml"]["edema"] == pytest.approx(COUNTS[patient][1] / 1000)
    assert state["background"]["flair"] < -3  # not 0
    # The head equals the mask in the same folder, except for cavities of the mask.
    assert 0 <= state["prepared"]["voxels_inside"] - MASKS[patient] < 20
    grid = Grid.from_json(state["grid"])
    image, labels = record(tmp_path)
    brain = open_volume(mask).read_labels({"brain": 1}) > 0
    inside = image.any(axis=-1)
    assert np.count_nonzero(grid.canonical(brain)[grid.cropped] & ~inside) < 10
    for channel in range(2):
        values = image[inside, channel].astype(np.float64)
        assert abs(values.mean()) < 1e-3
        # A few voxels are in the head of the other channel only; they are 0 in this channel.
        assert values.std() == pytest.approx(1, abs=3e-3)
    original = np.asarray(nibabel.load(segmentation).dataobj)
    labels_on_file = restored(labels, grid)
    np.testing.assert_array_equal(labels_on_file, original)
    out = tmp_path / "p.nii.gz"
    write_segmentation(out, labels_on_file, grid)
    written, reference = nibabel.load(out), nibabel.load(segmentation)
    np.testing.assert_array_equal(written.affine, reference.affine)
    for form in ("sform", "qform"):
        written_form, reference_form = (
            getattr(i.header, f"get_{form}")(coded=True) for i in (written, reference)
        )
        assert written_form[1] == reference_form[1] > 0
        np.testing.assert_array_equal(written_form[0], reference_form[0])


def test_real_labels_outside_the_brain_are_kept(nifti, tmp_path):
    images, segmentation, _ = brats_2013(nifti, 3)
    state = prepare(tmp_path, images, segmentation, **BRATS)
    assert state["warnings"] == ["labels outside of the head: 120 voxels of the prepared case"]
    assert np.count_nonzero(record(tmp_path)[1]) == sum(COUNTS[3])


@pytest.mark.parametrize("patient", COUNTS)
def test_finer_grid_restores_the_tumour(nifti, patient):
    volume = open_volume(brats_2013(nifti, patient)[1])
    labels = volume.read_labels({f"v{n}": n for n in range(1, 5)})
    for spacing, minimum in (((0.8, 0.8, 0.8), 0.99), ((0.9, 0.9, 0.9), 0.99)):
        whole = plan_grid(geometry_of(volume), spacing)
        grid = whole.crop_to(*box_of(whole.canonical(labels) > 0))
        assert grid.resampled
        restored_labels = restored(forward_labels(labels, grid), grid)
        assert dice(restored_labels > 0, labels > 0) >= minimum
        assert dice(restored_labels == 2, labels == 2) >= minimum - 0.01


def test_int16_modalities_are_prepared(nifti, tmp_path):
    images = tcga(nifti / "tcga_brats_space")
    segmentation = images["t1"].with_name("seg_fused_mav.nii.gz")
    state = prepare(tmp_path, images, segmentation, labels="brats2017")
    assert state["labels"] == {"necrotic_core": 2477, "edema": 20862, "enhancing": 6840}
    assert state["background"] == dict.fromkeys(images, 0.0)
    original = np.asarray(nibabel.load(segmentation).dataobj)
    labels_on_file = restored(record(tmp_path)[1], Grid.from_json(state["grid"]))
    np.testing.assert_array_equal(labels_on_file, original)
    state = prepare(tmp_path, images, segmentation)
    assert state["reason"].startswith(
        "segmentation (seg_fused_mav.nii.gz): it has values that volumes.labels does not declare: "
        "4 (6,840 voxels)"
    )


def test_unregistered_case_is_refused(nifti, tmp_path):
    state = prepare(tmp_path, tcga(nifti / "tcga_native_mismatched"))
    assert (state["state"], state["agreement"]) == ("failed", "different")
    for part in (
        "they differ in shape, direction by 14.0°",
        "flair: 208×256×26 voxels of 0.8984×0.8984×5.5 mm, LAS rotated by 16.9°",
        "t1: 256×224×26 voxels",
        "t1gd: 256×224×26 voxels of 0.8984×0.8984×5.5 mm, LAS rotated by 5.5°",
        "t2: 224×256×26 voxels",
        "volumes.resample: true",
    ):
        assert part in state["reason"]


def test_unregistered_case_is_resampled_on_request(nifti, tmp_path):
    state = prepare(tmp_path, tcga(nifti / "tcga_native_mismatched"), resample=True)
    assert (state["state"], state["reference"]) == ("prepared", "flair")
    assert state["background"] == dict.fromkeys(tcga(nifti), None)
    # The volume of a head with skin and neck is 3-5 litres.
    litres = state["prepared"]["voxels_inside"] * np.prod(state["prepared"]["spacing"]) / 1e6
    assert 3 < litres < 4.5
    image, _ = record(tmp_path)
    heads = image != 0
    common = heads.all(axis=-1)
    # The heads overlap, except at the bottom, where the scans end at different heights.
    for channel in range(1, 4):
        assert dice(heads[..., 0], heads[..., channel]) > 0.85
    t1, t1gd = (image[common, channel].astype(np.float64) for channel in (1, 2))
    assert np.corrcoef(t1, t1gd)[0, 1] > 0.35  # T1 before and after the contrast agent
    shifted = np.roll(image[..., 2], 8, axis=0)[common].astype(np.float64)
    assert np.corrcoef(t1, shifted)[0, 1] < np.corrcoef(t1, t1gd)[0, 1] - 0.1


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("html_saved_as_niigz/imagesTr/BRATS_001.nii.gz", "it is an HTML page, not a NIfTI file"),
        ("zero_byte/sub-001_T1w.nii.gz", "the file is empty (0 bytes)"),
        ("functional.nii", "it has 20 channels, expected 1"),
        ("example4d.nii.gz", "it has 2 channels, expected 1"),
    ],
)
def test_unusual_files_are_refused(nifti, tmp_path, file, reason):
    path = nifti / "odd" / file
    state = prepare(tmp_path, {"t1": path}, modalities=("t1",))
    assert state["state"] == "failed"
    assert state["reason"].startswith(f"t1 ({path.name}): {reason}")


def test_unusual_files_are_prepared(nifti, tmp_path):
    state = prepare(tmp_path, {"t1": nifti / "odd/anatomical.nii"}, modalities=("t1",))
    source = state["sources"]["t1"]
    assert (state["state"], source["byte_order"]) == ("prepared", "big")
    # It is a part of a head, without air.
    assert state["prepared"]["shape"] == [66, 82, 50]
    assert state["prepared"]["voxels_inside"] == 66 * 82 * 50
    path = nifti / "odd/example4d.nii.gz"
    state = prepare(tmp_path, {"image": path}, modalities=("first", "second"))
    assert state["state"] == "prepared"
    assert state["sources"]["image"]["shape"] == [128, 96, 24, 2]
    assert state["background"] == {"first": 0, "second": 0}


def test_every_real_file_equals_nibabel(nifti):
    for path in sorted(nifti.rglob("*.nii*")):
        if "html" in str(path) or "zero" in str(path):
            continue
        image = nibabel.load(path)
        volume = open_volume(path)
        np.testing.assert_allclose(geometry_of(volume).affine, image.affine, atol=1e-6)
        for number, channel in enumerate(volume.read_channels()):
            expected = np.asarray(image.dataobj[..., number] if image.ndim == 4 else image.dataobj)
            np.testing.assert_allclose(channel, expected, rtol=1e-6)
