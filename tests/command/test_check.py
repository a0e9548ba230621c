"""`gigatile check`: what a run would refuse or leave out, before any job."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from trident_files import corners_of, random_features, write_trident

from gigatile.command import check, headers, init
from gigatile.errors import UserError

NAMES = [f"{label}/{label} {n}.svs" for label in ("luad", "lusc") for n in range(5)]


@pytest.fixture
def cohort(call, write_slides, tmp_path, capsys) -> Path:
    """A folder that `init` wrote for ten good slides."""
    call(init, write_slides(tmp_path / "my slides", *NAMES), "--out", tmp_path / "my run")
    capsys.readouterr()
    return tmp_path / "my run"


def refused(call, capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        call(check, *arguments)
    assert stop.value.code == 1
    printed = capsys.readouterr().err
    assert printed.endswith("The run cannot start. Correct the errors and check again.\n")
    return printed


def test_good_cohort_can_start(call, cohort, capsys, monkeypatch):
    monkeypatch.chdir(cohort)
    call(check)
    printed = capsys.readouterr()
    assert printed.out.startswith("config.yaml: run my-run, task tile_classification\n")
    assert "10 slides of 10 patient(s)" in printed.out
    assert [line.split()[0] for line in printed.out.splitlines()[2:5]] == ["label", "luad", "lusc"]
    assert printed.out.endswith("The run can start.\n") and printed.err == ""


def test_bad_slides_are_left_out_with_their_reasons(call, cohort, capsys):
    sheet = cohort / "samples.tsv"
    slides = cohort.parent / "my slides"
    (slides / "text.svs").write_text("no slide at all")
    (slides / "empty.svs").touch()
    whole = (slides / NAMES[0]).read_bytes()
    (slides / "cut.svs").write_bytes(whole[:100])
    rows = [f"{name}\t{name}\tluad\t../my slides/{name}.svs" for name in ("text", "empty", "cut")]
    sheet.write_text(sheet.read_text() + "\n".join(rows) + "\n")
    call(check, cohort)
    printed = capsys.readouterr()
    assert printed.out.endswith("The run can start.\n")
    assert "warning: 3 slides of 13 would be left out:" in printed.err
    assert "row 12, text: not a slide format that OpenSlide supports (15 bytes)" in printed.err


def test_label_without_a_usable_slide_cannot_start(call, cohort, capsys):
    for path in (cohort.parent / "my slides/luad").iterdir():
        path.write_bytes(b"broken" + path.name.encode())
    printed = refused(call, capsys, cohort)
    assert "label 'luad' has no usable slide left in train; failed:" in printed
    assert "label 'lusc'" not in printed


def test_setting_stop_refuses_a_bad_slide(call, cohort, capsys):
    (cohort.parent / "my slides" / NAMES[0]).write_text("broken")
    config = cohort / "config.yaml"
    config.write_text(config.read_text().replace("\ntiles:", "\ntiles:\n  on_error: stop"))
    assert "tiles.on_error is `stop`, and 1 row(s)" in refused(call, capsys, cohort)


def test_too_coarse_slides_are_left_out(call, cohort, capsys):
    config = cohort / "config.yaml"
    config.write_text(config.read_text().replace("mpp: 0.5", "mpp: 0.1"))
    printed = refused(call, capsys, cohort)
    assert "its level 0 has 0.5 µm per pixel, too coarse for tiles.mpp = 0.1" in printed


def test_placeholder_is_named(call, write_slides, tmp_path, capsys):
    call(init, write_slides(tmp_path / "slides", "a.svs", "b.svs"), "--out", tmp_path / "run")
    capsys.readouterr()
    assert "2 slide(s) have the label FILL_IN" in refused(call, capsys, tmp_path / "run")


def test_split_without_a_label_names_a_seed(call, cohort, capsys):
    config = cohort / "config.yaml"
    text = config.read_text().split("\nsplit:")[0]
    for seed in range(100):
        config.write_text(f"{text}\nsplit: {{seed: {seed}}}\n")
        try:
            call(check, cohort)
        except SystemExit:
            break
        capsys.readouterr()
    assert "set `split: {seed: " in capsys.readouterr().err


def test_missing_slides_and_wrong_settings_are_listed(call, cohort, capsys):
    (cohort.parent / "my slides" / NAMES[0]).unlink()
    assert "row 2: no file" in refused(call, capsys, cohort)
    (cohort / "config.yaml").write_text("trian: {}\n")
    assert "trian: no such key; did you mean 'train'?" in refused(call, capsys, cohort)


def test_one_slide_of_two_patients_cannot_start(call, cohort, capsys):
    folder = cohort.parent / "my slides"
    shutil.copy(folder / NAMES[0], folder / NAMES[1])
    assert "my slides" in refused(call, capsys, cohort)


def test_missing_configuration_is_an_error(call, tmp_path):
    with pytest.raises(UserError, match="no such configuration"):
        call(check, tmp_path)


def test_number_of_threads_is_checked(call, cohort):
    with pytest.raises(UserError, match="--threads 0: must be at least 1"):
        call(check, cohort, "--threads", 0)


@pytest.mark.parametrize("name", ["config.yaml", "demo/volumes.yaml"])
def test_demo_need_not_exist(call, capsys, name):
    call(check, check.project_folder() / name)
    assert capsys.readouterr().out.endswith("The run can start.\n")


def test_unusable_new_slides_cannot_start(call, cohort, capsys):
    (cohort / "new.svs").write_text("no slide")
    (cohort / "new.tsv").write_text("slide\tpath\nn\tnew.svs\n")
    config = cohort / "config.yaml"
    config.write_text(config.read_text() + "\npredict: {samples: new.tsv}\n")
    assert "new.tsv: no slide can be used" in refused(call, capsys, cohort)


def test_cases_are_checked(call, tmp_path, capsys):
    np, nib = pytest.importorskip("numpy"), pytest.importorskip("nibabel")
    folder = tmp_path / "brats"
    for n in range(12):
        case = folder / f"BraTS20_Training_{n:03}"
        case.mkdir(parents=True)
        for k, kind in enumerate(("flair", "t1", "t1ce", "t2", "seg")):
            values = np.full((4, 4, 4), n * 5 + k, np.int16) if kind != "seg" else None
            image = np.ones((4, 4, 4), np.int16) if values is None else values
            nib.save(nib.Nifti1Image(image, np.eye(4)), case / f"{case.name}_{kind}.nii.gz")
    (case / f"{case.name}_t1.nii.gz").write_bytes(b"<html>")
    call(init, folder, "--out", tmp_path / "run")
    capsys.readouterr()
    call(check, tmp_path / "run")
    printed = capsys.readouterr()
    assert "12 cases of 12 patient(s)" in printed.out
    assert "warning: 1 case of 12 would be left out" in printed.err


def test_embeddings_are_checked(call, tmp_path, capsys):
    """Of TRIDENT, in place of slides: files that cannot be used are named with their reasons."""
    folder = tmp_path / "features_uni_v2"
    for number in range(12):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        path = folder / "ab"[number % 2] / f"S{number}.h5"
        write_trident(path, random_features(12, seed=number), corners_of(3, 4))
    call(init, folder, "--out", tmp_path / "run")
    capsys.readouterr()
    call(check, tmp_path / "run")
    printed = capsys.readouterr()
    assert printed.out.endswith("The run can start.\n") and printed.err == ""
    (folder / "a/S0.h5").write_bytes(b"no HDF5")
    call(check, tmp_path / "run")
    printed = capsys.readouterr()
    assert "it cannot be read as HDF5" in printed.out + printed.err


def test_column_of_groups_must_be_in_the_sheet(call, cohort, capsys):
    configuration = cohort / "config.yaml"
    configuration.write_text(configuration.read_text() + "report: {group_by: [label, sex]}\n")
    message = "samples.tsv has no column 'sex'; its columns are slide, patient, label, path\n"
    assert message in refused(call, capsys, cohort)


def test_real_slides_are_checked(call, shared_data, tmp_path, capsys):
    call(init, shared_data / "wsi", "--out", tmp_path / "run")
    capsys.readouterr()
    assert "would be left out" in refused(call, capsys, tmp_path / "run")


def test_crash_or_hang_of_one_file_leaves_the_others():
    def opening(member: str) -> str:
        if member == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if member == "hang":
            time.sleep(60)
        return "bad" if member == "bad" else ""

    members = ["good", "crash", "bad", "hang", "good", "crash"]
    faults = headers.check_chunk(members, opening, stall_minutes=0.01)
    crash, hang = "opening it crashes the library (SIGKILL)", "no answer for 0.01 minutes"
    assert faults[:3] == ["", crash, "bad"] and faults[4:] == ["", crash]
    assert faults[3].startswith(hang)
