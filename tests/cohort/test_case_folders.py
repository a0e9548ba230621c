"""Sheets from folders of published data sets: the Decathlon, nnU-Net and BraTS."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import yaml
from published import DECATHLON, NNUNET, Command, write_task, write_volume

from gigatile.cohort.case_folders import read_case_folder, settings_of, write_case_sheet
from gigatile.cohort.case_labels import declared_by_names
from gigatile.cohort.cases import read_cases
from gigatile.errors import UserError
from gigatile.settings.whole import load_settings


def write_brats(
    folder: Path, case: str, *kinds: str, join: str = "_", end: str = ".nii.gz"
) -> Path:
    for kind in kinds:
        write_volume(folder / case / f"{case}{join}{kind}{end}")
    return folder


OLD = ("flair", "t1", "t1ce", "t2", "seg")
OF_2023 = ("t2f", "t1n", "t1c", "t2w", "seg")


def rows_of(sheet: Path) -> list[list[str]]:
    return [line.split("\t") for line in sheet.read_text().splitlines()]


# Decathlon


def test_decathlon_task(decathlon: Path, command: Command, tmp_path: Path) -> None:
    sheet = tmp_path / "sheets" / "cases.tsv"
    done = command("make_case_sheet.py", decathlon, "--out", sheet)
    assert done.returncode == 0, done.stderr
    assert rows_of(sheet) == [
        ["case", "patient", "image", "segmentation"],
        *(
            [
                *(case, case),
                f"../Task01_BrainTumour/imagesTr/{case}.nii.gz",
                f"../Task01_BrainTumour/labelsTr/{case}.nii.gz",
            ]
            for case in ("BRATS_306", "BRATS_457")
        ),
    ]
    cases = read_cases(sheet, ["flair", "t1", "t1gd", "t2"])  # every file exists
    assert cases[0].images["image"].samefile(decathlon / "imagesTr/BRATS_306.nii.gz")

    printed = yaml.safe_load(done.stdout)
    settings = load_settings(printed)
    assert settings.task == "volume_segmentation"
    assert settings.samples == str(sheet)
    assert settings.volumes.modalities == ("flair", "t1", "t1gd", "t2")
    assert settings.volumes.labels == "decathlon"
    assert settings.volumes.regions == "brats"
    # The data set has no patients, which the user must know.
    assert "2 case(s)" in done.stderr
    assert "each case is assumed to be another patient" in done.stderr


def test_decathlon_cases_without_labels_are_new(
    decathlon: Path, command: Command, tmp_path: Path
) -> None:
    sheet = tmp_path / "new.tsv"
    done = command("make_case_sheet.py", decathlon, "--new", "--out", sheet)
    assert done.returncode == 0, done.stderr
    assert rows_of(sheet) == [
        ["case", "patient", "image"],
        ["BRATS_557", "BRATS_557", "Task01_BrainTumour/imagesTs/BRATS_557.nii.gz"],
    ]
    assert yaml.safe_load(done.stdout) == {"predict": {"samples": str(sheet)}}
    assert [case.case for case in read_cases(sheet, ["flair"], labelled=False)] == ["BRATS_557"]


def test_unpaired_files_are_skipped_with_a_remark(decathlon: Path) -> None:
    (decathlon / "labelsTr/BRATS_457.nii.gz").unlink()
    write_volume(decathlon / "labelsTr/BRATS_999.nii.gz")
    dataset = DECATHLON | {"training": [*DECATHLON["training"], {"image": "imagesTr/B_1.nii.gz"}]}
    (decathlon / "dataset.json").write_text(json.dumps(dataset))
    content = read_case_folder(decathlon)
    assert [case.case for case in content.cases] == ["BRATS_306"]
    assert content.remarks[:3] == (
        "BRATS_457: skipped, since labelsTr has no segmentation of it",
        "BRATS_999: skipped, since imagesTr has no image of it",
        "B_1: skipped; dataset.json lists it, but there is no file",
    )


def test_unreadable_files_are_listed_in_the_sheet(shared_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    shutil.copytree(shared_data / "nifti/odd/html_saved_as_niigz", folder)
    (folder / "dataset.json").write_text(json.dumps(DECATHLON | {"training": []}))
    assert len(read_case_folder(folder).cases) == 3


def test_other_tasks_of_the_decathlon(tmp_path: Path) -> None:
    """One channel, and labels of no known convention; ids that end in digits."""
    dataset = {
        "modality": {"0": "CT"},
        "labels": {"0": "background", "1": "Liver", "2": "cancer of the liver"},
    }
    files = [f"{part}/liver_{n:04d}" for part in ("imagesTr", "labelsTr") for n in (0, 1)]
    content = read_case_folder(
        write_task(tmp_path / "task", dataset, *files, "imagesTs/liver_0002")
    )
    assert content.columns == ("image",)
    assert [case.case for case in content.cases] == ["liver_0000", "liver_0001"]
    settings = load_settings(yaml.safe_load(settings_of(content, Path("cases.tsv"))))
    assert settings.volumes.label_values == {"liver": 1, "cancer_of_the_liver": 2}
    assert settings.volumes.regions == "labels"
    new = read_case_folder(tmp_path / "task", new=True)
    assert [case.files["image"].name for case in new.cases] == ["liver_0002.nii.gz"]


def test_id_may_end_like_a_channel(tmp_path: Path) -> None:
    dataset = DECATHLON | {"training": [], "test": ["./imagesTs/liver_0001.nii.gz"]}
    files = ("imagesTr/liver_0000", "labelsTr/liver_0000", "imagesTs/liver_0001")
    folder = write_task(tmp_path, dataset, *files)
    for new, case in ((False, "liver_0000"), (True, "liver_0001")):
        content = read_case_folder(folder, new)
        assert content.columns == ("image",)
        assert [row.case for row in content.cases] == [case]


# nnU-Net


def test_nnunet_folder_has_one_file_per_channel(tmp_path: Path) -> None:
    files = ["labelsTr/p_1", "labelsTr/p_2", "imagesTr/p_1_0000", "imagesTr/p_1_0001"]
    files += ["imagesTr/p_2_0000", "imagesTs/p_3_0000", "imagesTs/p_3_0001"]
    folder = write_task(tmp_path / "task", NNUNET, *files)
    content = read_case_folder(folder)
    assert content.columns == content.modalities == ("t2", "adc")
    first, second = content.cases
    assert {column: path.name for column, path in first.files.items()} == {
        "t2": "p_1_0000.nii.gz",
        "adc": "p_1_0001.nii.gz",
        "segmentation": "p_1.nii.gz",
    }
    assert "adc" not in second.files
    assert "p_2: has no adc; the cell is empty" in content.remarks
    write_case_sheet(content, folder / "cases.tsv")
    assert rows_of(folder / "cases.tsv")[2] == [
        *("p_2", "p_2", "imagesTr/p_2_0000.nii.gz", "", "labelsTr/p_2.nii.gz")
    ]
    assert read_cases(folder / "cases.tsv", content.modalities)[1].images.keys() == {"t2"}
    assert [case.case for case in read_case_folder(folder, new=True).cases] == ["p_3"]


def test_nnunet_regions_become_regions(tmp_path: Path) -> None:
    labels = {
        "background": 0,
        "whole tumor": [1, 2, 3],
        "tumor core": [2, 3],
        "enhancing tumor": 3,
    }
    dataset = NNUNET | {"labels": labels}
    folder = write_task(tmp_path, dataset, "imagesTr/a_0000", "imagesTr/a_0001", "labelsTr/a")
    content = read_case_folder(folder)
    settings = load_settings(yaml.safe_load(settings_of(content, Path("cases.tsv"))))
    assert settings.volumes.label_values == {"label_1": 1, "label_2": 2, "enhancing": 3}
    assert settings.volumes.region_labels == {
        "whole": ("label_1", "label_2", "enhancing"),
        "tumor_core": ("label_2", "enhancing"),
        "enhancing": ("enhancing",),
    }


# BraTS


@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
def test_brats_2020_folder(tmp_path: Path, command: Command, end: str) -> None:
    for number in (2, 1):
        write_brats(tmp_path / "data", f"BraTS20_Training_00{number}", *OLD, end=end)
    (tmp_path / "data/name_mapping.csv").write_text("Grade,BraTS_2020_subject_ID\n")
    (tmp_path / "data/BraTS20_Training_001/._BraTS20_Training_001_t1.nii").write_bytes(b"Mac")
    for hidden in ("__MACOSX", ".Trash-1000"):
        write_brats(tmp_path / "data" / hidden, "BraTS20_Training_003", *OLD)
    sheet = tmp_path / "cases.tsv"
    done = command("make_case_sheet.py", tmp_path / "data", "--out", sheet)
    assert done.returncode == 0, done.stderr
    case = "BraTS20_Training_001"
    assert len(rows_of(sheet)) == 3
    assert rows_of(sheet)[:2] == [
        ["case", "patient", "flair", "t1", "t1gd", "t2", "segmentation"],
        [case, case, *(f"data/{case}/{case}_{kind}{end}" for kind in OLD)],
    ]
    settings = load_settings(yaml.safe_load(done.stdout))
    assert settings.volumes.labels == "brats2017"
    assert settings.volumes.regions == "brats"
    assert "these names have no patients" in done.stderr


def test_brats_2023_names_contain_patients(tmp_path: Path) -> None:
    for case in ("BraTS-GLI-00005-101", "BraTS-GLI-00005-100", "BraTS-GLI-00007-000"):
        write_brats(tmp_path, case, *OF_2023, join="-")
    content = read_case_folder(tmp_path)
    assert [(row.case, row.patient) for row in content.cases] == [
        ("BraTS-GLI-00005-100", "BraTS-GLI-00005"),
        ("BraTS-GLI-00005-101", "BraTS-GLI-00005"),
        ("BraTS-GLI-00007-000", "BraTS-GLI-00007"),
    ]
    assert {column: path.name[-11:-7] for column, path in content.cases[0].files.items()} == {
        "flair": "-t2f",
        "t1": "-t1n",
        "t1gd": "-t1c",
        "t2": "-t2w",
        "segmentation": "-seg",
    }
    assert content.declared.convention == "brats2023"
    assert len(content.remarks) == 1
    assert "those of BraTS 2023" in content.remarks[0]


def test_unknown_labels_must_be_named(tmp_path: Path) -> None:
    for case in ("BraTS-PED-00005-000", "BraTS-PED-00006-000"):
        write_brats(tmp_path, case, *OF_2023, join="-")
    text = settings_of(read_case_folder(tmp_path), Path("cases.tsv"))
    assert "The meaning of the label values is unknown" in text
    # There is no default.
    with pytest.raises(UserError, match=r"volumes\.labels.*NOT_KNOWN.*decathlon"):
        load_settings(yaml.safe_load(text))
    named = yaml.safe_load(text.replace("NOT_KNOWN", "{edema: 2, enhancing: 1}"))
    assert load_settings(named).volumes.label_values == {"enhancing": 1, "edema": 2}


def test_folder_with_several_data_sets_is_refused(decathlon: Path, tmp_path: Path) -> None:
    """In a run, a value has one meaning; and no case is skipped silently."""
    write_brats(tmp_path / "both", "BraTS-GLI-00005-100", *OF_2023, join="-")
    write_brats(tmp_path / "both", "BraTS20_Training_001", *OLD)
    with pytest.raises(UserError, match=r"different meanings: 1 of brats2017, 1 of brats2023"):
        read_case_folder(tmp_path / "both")
    write_brats(tmp_path / "2020", "BraTS20_Training_002", *OLD)
    with pytest.raises(UserError, match=r"(?s)several data sets.*3 case.*Task01_BrainTumour, with"):
        read_case_folder(tmp_path)
    # A data set inside another one is named.
    shutil.copytree(decathlon, decathlon / "copy")
    (remark,) = [text for text in read_case_folder(decathlon).remarks if "another data set" in text]
    assert remark.startswith(f"{decathlon / 'copy'}: skipped")


def test_files_with_unknown_names_are_reported(tmp_path: Path) -> None:
    write_brats(tmp_path, "BraTS20_Training_001", *OLD)
    for number in range(4):
        write_volume(tmp_path / f"OTHER/s{number}/MPRAGE.nii.gz")
    write_volume(tmp_path / "BraTS20_Training_001/pred.nii.gz")
    remarks = read_case_folder(tmp_path).remarks
    assert (
        "OTHER/s2: 1 NIfTI file(s) skipped, since their names are not those of BraTS: MPRAGE.nii.gz"
        in remarks
    )
    assert sum("skipped" in remark for remark in remarks) == 5


def write_labels(folder: Path, case: str, values: list[int], join: str = "_") -> None:
    labels = np.zeros((4, 5, 6), np.uint8)
    labels.flat[: len(values)] = values
    path = folder / case / f"{case}{join}seg.nii.gz"
    nib.save(nib.Nifti1Image(labels, np.eye(4)), path)


def test_labels_are_proposed_with_a_reason(
    decathlon: Path, command: Command, tmp_path: Path
) -> None:
    for case, join, kinds in (
        ("BraTS20_Training_001", "_", OLD),
        ("BraTS-GLI-00005-100", "-", OF_2023),
        ("TCGA-1", "_", OLD),
    ):
        write_brats(tmp_path / case, case, *kinds, join=join)
        write_labels(tmp_path / case, case, [1, 2, 3], join)
    out = tmp_path / "cases.tsv"
    done = command("make_case_sheet.py", tmp_path / "BraTS20_Training_001", "--out", out)
    assert "labels: brats2017 is proposed, since the names of the cases are those of" in done.stderr
    assert "1 in 1, 2 in 1, 3 in 1" in done.stderr
    assert "volumes.labels: 3 is not among these labels" in done.stderr
    assert "# Proposed, since the names of the cases are those of BraTS 2017" in done.stdout
    done = command("make_case_sheet.py", tmp_path / "BraTS-GLI-00005-100", "--out", out)
    assert "brats2023 is proposed, since the names" in done.stderr
    # The values fit three conventions, each with another meaning.
    done = command("make_case_sheet.py", tmp_path / "TCGA-1", "--out", out)
    assert "none is proposed" in done.stderr
    assert "have these values: decathlon, brats2013, brats2023. Look up" in done.stderr
    assert yaml.safe_load(done.stdout)["volumes"]["labels"] == "NOT_KNOWN"
    done = command("make_case_sheet.py", decathlon, "--out", out)
    assert "decathlon is proposed, since dataset.json declares these values" in done.stderr


def test_brats_2018_has_folders_by_grade(tmp_path: Path) -> None:
    write_brats(tmp_path / "HGG", "Brats18_CBICA_AAB_1", *OLD)
    write_brats(tmp_path / "LGG", "Brats18_TCIA09_141_1", *OLD)
    content = read_case_folder(tmp_path)
    assert [case.case for case in content.cases] == ["Brats18_CBICA_AAB_1", "Brats18_TCIA09_141_1"]
    write_brats(tmp_path / "LGG", "Brats18_CBICA_AAB_1", "t1")
    with pytest.raises(UserError, match=r"case Brats18_CBICA_AAB_1 is in .*HGG.* and in .*LGG"):
        read_case_folder(tmp_path)


def test_segmentation_with_another_name(tmp_path: Path) -> None:
    """Like BraTS20_Training_355."""
    write_brats(tmp_path, "BraTS20_Training_355", *OLD[:4])
    write_volume(tmp_path / "BraTS20_Training_355/W39_1998.09.19_Segm.nii.gz")
    content = read_case_folder(tmp_path)
    assert content.cases[0].files["segmentation"].name == "W39_1998.09.19_Segm.nii.gz"
    assert "W39_1998.09.19_Segm.nii.gz is assumed to be its segmentation" in content.remarks[0]


def test_brats_cases_with_missing_files(tmp_path: Path) -> None:
    write_brats(tmp_path, "BraTS20_a", *OLD)
    write_brats(tmp_path, "BraTS20_b", "flair", "t1", "seg")
    write_brats(tmp_path, "BraTS20_c", "flair", "t1", "t1ce", "t2")
    write_brats(tmp_path, "BraTS20_d", "seg")
    content = read_case_folder(tmp_path)
    assert [case.case for case in content.cases] == ["BraTS20_a", "BraTS20_b"]
    assert content.remarks[:3] == (
        "BraTS20_b: has no t1gd and no t2; the cell is empty",
        "BraTS20_c: skipped, since it has no segmentation",
        "BraTS20_d: skipped, since it has no image",
    )
    new = read_case_folder(tmp_path, new=True)
    assert [case.case for case in new.cases] == ["BraTS20_c"]
    assert "BraTS20_a: skipped, since it has a segmentation, unlike new cases" in new.remarks


def test_real_folder_of_tcga(shared_data: Path, tmp_path: Path) -> None:
    content = read_case_folder(shared_data / "nifti/tcga_brats_space", new=True)
    write_case_sheet(content, tmp_path / "new.tsv", new=True)
    cases = read_cases(tmp_path / "new.tsv", content.modalities, labelled=False)
    assert [case.case for case in cases] == ["TCGA-FG-6692"]
    assert {name: path.name for name, path in cases[0].images.items()} == {
        "flair": "fla.nii.gz",
        "t1": "t1.nii.gz",
        "t1gd": "t1c.nii.gz",
        "t2": "t2.nii.gz",
    }


# Faults


def test_all_duplicate_files_are_listed(tmp_path: Path) -> None:
    for case in ("a", "b"):
        write_brats(tmp_path / "brats", case, *OLD)
        write_volume(tmp_path / f"brats/{case}/{case}_t1.nii")
    with pytest.raises(UserError, match=r"(?s)a_t1\.nii.*two files for one t1.*b_t1\.nii"):
        read_case_folder(tmp_path / "brats")
    task = write_task(tmp_path / "task", DECATHLON, "imagesTr/a", "labelsTr/a")
    write_volume(task / "labelsTr/a.nii")
    with pytest.raises(UserError, match=r"two files for one volume:?\n  - .*a\.nii"):
        read_case_folder(task)


def test_folder_without_cases_is_refused(decathlon: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read_case_folder(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no case with images and a segmentation.*dataset\.json"):
        read_case_folder(tmp_path / "empty")
    with pytest.raises(UserError, match=r"is it .*Task01_BrainTumour\?"):
        read_case_folder(tmp_path)
    shutil.rmtree(decathlon / "imagesTs")
    with pytest.raises(UserError, match="no case without a segmentation; looked for imagesTs"):
        read_case_folder(decathlon, new=True)
    (decathlon / "dataset.json").unlink()
    with pytest.raises(UserError, match=r"dataset\.json: no such file; it names the channels"):
        read_case_folder(decathlon)


def test_unsafe_ids_are_listed(tmp_path: Path) -> None:
    for case in ("first case", "zweiter/Fall", "ü"):
        write_volume(tmp_path / case / "t1.nii.gz")
        write_volume(tmp_path / case / "seg.nii.gz")
    with pytest.raises(UserError, match=r"(?s)unsafe as file names.*'first case'.*'ü'"):
        read_case_folder(tmp_path)


def test_paths_with_tabs_or_double_blanks_are_refused(tmp_path: Path) -> None:
    write_brats(tmp_path / "two  blanks", "a", *OLD)
    content = read_case_folder(tmp_path / "two  blanks")
    with pytest.raises(UserError, match="double blanks"):
        write_case_sheet(content, tmp_path / "cases.tsv")
    assert not (tmp_path / "cases.tsv").exists()
    write_case_sheet(content, tmp_path / "two  blanks" / "cases.tsv")


def test_paths_are_valid_if_the_sheet_is_behind_a_link(tmp_path: Path) -> None:
    write_brats(tmp_path / "disk/deep/data", "a", *OLD)
    (tmp_path / "elsewhere/sheets").mkdir(parents=True)
    (tmp_path / "sheets").symlink_to(tmp_path / "elsewhere/sheets")
    (tmp_path / "data").symlink_to(tmp_path / "disk/deep/data")
    write_case_sheet(read_case_folder(tmp_path / "data"), tmp_path / "sheets/cases.tsv")
    assert read_cases(tmp_path / "sheets/cases.tsv", ["flair", "t1", "t1gd", "t2"])


def test_no_labels_if_one_case_has_another_name(tmp_path: Path) -> None:
    brats = ["BraTS-GLI-00001-000", "BraTS-GLI-00002-000"]
    proposed = declared_by_names(brats, tmp_path)
    assert proposed is not None
    assert proposed.convention == "brats2023"
    assert declared_by_names([*brats, "patient-7"], tmp_path) is None
