"""Make a sheet of cases from the folder of a published data set.

There are two kinds of folders: a task of the Medical Segmentation Decathlon or of nnU-Net, with a
`dataset.json`, and a BraTS folder, with one folder per case.
"""

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from gigatile.cohort.case_labels import EXAMINED, declared_by_names, label_remarks
from gigatile.cohort.declared import Declared, read_declared
from gigatile.cohort.sheet import SAFE_ID
from gigatile.errors import UserError, all_faults
from gigatile.settings.section import check_section
from gigatile.settings.volumes import CONVENTIONS, VolumeSettings
from gigatile.tables import write_table

_NIFTI = re.compile(r"(?P<name>.+)\.nii(\.gz)?", re.IGNORECASE)
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")
# The last part of a file name in the BraTS challenges and in TCGA collections with the same names.
_BRATS_NAMES = {
    "flair": "flair",
    "fla": "flair",
    "t2f": "flair",
    "t1": "t1",
    "t1n": "t1",
    "t1ce": "t1gd",
    "t1gd": "t1gd",
    "t1c": "t1gd",
    "t2": "t2",
    "t2w": "t2",
    "seg": "segmentation",
    "segm": "segmentation",  # of one case of 2020
}
_BRATS_FILE = re.compile(
    rf"((?P<case>.+)[_-])?(?P<kind>{'|'.join(_BRATS_NAMES)})\.nii(\.gz)?", re.IGNORECASE
)
_MAX_DEPTH = 4  # levels of subfolders; BraTS 2018 has HGG/<case>/


@dataclasses.dataclass(frozen=True)
class FolderCase:
    """A case of a folder: its id, its patient, and its files by column of the sheet."""

    case: str
    patient: str
    files: dict[str, Path]


@dataclasses.dataclass(frozen=True)
class CaseFolder:
    """The content of a folder.

    Attributes:
        modalities: the names of the channels, in their order if a file has several.
        columns: the columns of images in the sheet: `image`, or one per modality.
        cases: sorted by id.
        declared: the meaning of the label values, if known.
        remarks: for the user: which files were skipped and why, and what was assumed.
    """

    modalities: tuple[str, ...]
    columns: tuple[str, ...]
    cases: tuple[FolderCase, ...]
    declared: Declared | None
    remarks: tuple[str, ...]


def read_case_folder(folder: Path, new: bool = False) -> CaseFolder:
    """Find the cases of a folder without opening any volume.

    Args:
        folder: a folder of the Decathlon, nnU-Net or BraTS.
        new: False: cases with a segmentation; True: cases without one, for prediction.

    Raises:
        UserError: the folder is of neither kind or has no such case, or two files are for the same
            volume.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    task = (folder / "dataset.json").exists() or (folder / "imagesTr").is_dir()
    content = _read_task(folder, new) if task else _read_brats(folder, new)
    if not content.cases:
        wanted = "without a segmentation" if new else "with images and a segmentation"
        raise all_faults(
            f"{folder}: no case {wanted}; looked for "
            + (
                f"{'imagesTs' if new else 'imagesTr and labelsTr'} of a Decathlon task"
                if task
                else "dataset.json of a Decathlon task, and for BraTS files such as "
                "<case>/<case>_flair.nii.gz or <case>/<case>-t2f.nii.gz"
            ),
            [*content.remarks, *(f"is it {task}?" for task in _nested_tasks(folder))],
        )
    unsafe = [case.case for case in content.cases if not re.fullmatch(SAFE_ID, case.case)]
    if unsafe:
        raise all_faults(
            f"{folder}: ids that are unsafe as file names; use up to 150 letters, digits, '.', '_' "
            "and '-', starting with a letter or a digit",
            [repr(case) for case in unsafe],
        )
    return content


def write_case_sheet(content: CaseFolder, out: Path, new: bool = False) -> None:
    """Write a sheet of cases: case, patient, the columns of images, segmentation.

    Paths are relative to the sheet. If a case lacks a file, its cell is empty. A sheet of new cases
    has no column `segmentation`.
    """
    columns = (*content.columns, *(() if new else ("segmentation",)))
    # Paths are relative to the real folder of the sheet, even if it is reached through a link.
    start = Path(out).parent.resolve()

    def cell(case: FolderCase, column: str) -> str | None:
        return os.path.relpath(case.files[column], start) if column in case.files else None

    rows = [
        (case.case, case.patient, *(cell(case, column) for column in columns))
        for case in content.cases
    ]
    odd = sorted({str(c) for row in rows for c in row if c and c != " ".join(c.split())})
    if odd:
        raise all_faults("paths in a sheet cannot contain tabs, line ends or double blanks:", odd)
    write_table(out, ("case", "patient", *columns), rows)


def remarks_on_labels(content: CaseFolder) -> list[str]:
    """Return which labels `settings_of` proposes and why; reads some of the segmentations."""
    files = {case.case: case.files.get("segmentation") for case in content.cases}
    return label_remarks(content.declared, {case: path for case, path in files.items() if path})


def settings_of(
    content: CaseFolder,
    sheet: Path,
    new: bool = False,
    run: str = "my-cohort",
    model: str = "unet",
) -> str:
    """Return settings (YAML) for a sheet, to be copied into a configuration.

    Args:
        content: of the folder.
        sheet: the sheet that was written.
        new: whether the sheet is for prediction.
        run: the name of the run.
        model: the architecture.

    Raises:
        UserError: the names or labels of the folder are not valid in the settings.
    """
    if new:
        return yaml.safe_dump({"predict": {"samples": str(sheet)}}, sort_keys=False)
    volumes: dict[str, Any] = {"modalities": list(content.modalities)}
    declared = content.declared
    if declared is None:
        volumes["labels"] = "NOT_KNOWN"
        comment = (
            "  # The meaning of the label values is unknown. Choose one of "
            f"{', '.join(CONVENTIONS)},\n  # or name them, as in {{edema: 1, enhancing: 3}}:\n"
        )
    else:
        volumes["labels"] = declared.convention or declared.labels
        regions = {name: list(labels) for name, labels in declared.regions.items()}
        volumes["regions"] = regions or ("brats" if declared.convention else "labels")
        comment = f"  # Proposed, since {declared.reason}.\n"
        check_section(VolumeSettings, volumes, "the settings for these cases")
    top = {"run": run, "task": "volume_segmentation", "samples": str(sheet)}
    text = yaml.safe_dump({**top, "train": {"model": model}}, sort_keys=False) + "volumes:\n"
    for key, value in volumes.items():
        plain = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
        plain = plain.removesuffix("...\n")  # YAML adds it after a plain word
        text += f"{comment if key == 'labels' else ''}  {key}: {plain}"
    return text


def _read_task(folder: Path, new: bool) -> CaseFolder:
    """Return the content of a task of the Decathlon or of nnU-Net."""
    declared = read_declared(folder / "dataset.json")
    images, twice = _volumes_in(folder / ("imagesTs" if new else "imagesTr"))
    labels, labels_twice = ({}, []) if new else _volumes_in(folder / "labelsTr")
    if twice or labels_twice:
        raise all_faults(f"{folder}: two files for one volume", twice + labels_twice)
    ids = {*labels, *declared.training, *declared.test}
    channels = _by_channel(images, ids, declared.modalities)
    columns = declared.modalities if channels is not None else ("image",)
    by_case = {case: {"image": path} for case, path in images.items()}
    if channels is not None:
        by_case = channels

    remarks, cases = [], []
    for case, files in sorted(by_case.items()):
        if not new and case not in labels:
            remarks.append(f"{case}: skipped, since labelsTr has no segmentation of it")
            continue
        lacks = [column for column in columns if column not in files]
        if lacks:
            remarks.append(f"{case}: has no {' and no '.join(lacks)}; the cell is empty")
        if not new:
            files = {**files, "segmentation": labels[case]}
        cases.append(FolderCase(case, case, files))
    for task in _nested_tasks(folder):
        remarks.append(
            f"{task}: skipped, since it is another data set; call the command for it too"
        )
    for case in sorted(set(labels) - set(by_case)):
        remarks.append(f"{case}: skipped, since imagesTr has no image of it")
    known = set(by_case) | set(labels)
    for case in sorted(set(declared.test if new else declared.training) - known):
        remarks.append(f"{case}: skipped; dataset.json lists it, but there is no file")
    if cases:
        remarks.append(
            "dataset.json has no patients: each case is assumed to be another patient; if a "
            "patient has several cases, correct the column `patient`"
        )
    return CaseFolder(declared.modalities, columns, tuple(cases), declared, tuple(remarks))


def _by_channel(
    images: Mapping[str, Path], ids: Set[str], modalities: tuple[str, ...]
) -> dict[str, dict[str, Path]] | None:
    """Return the files by case and modality if there is one file per channel, otherwise None.

    nnU-Net names these <case>_0000 and so on. The Decathlon has one file for all channels, and its
    ids may also end in digits, so the known `ids` are not split.
    """
    by_case: dict[str, dict[str, Path]] = defaultdict(dict)
    for name, path in images.items():
        match = _CHANNEL.fullmatch(name)
        if match is None or name in ids or int(match["channel"]) >= len(modalities):
            return None
        by_case[match["case"]][modalities[int(match["channel"])]] = path
    return by_case or None


def _read_brats(folder: Path, new: bool) -> CaseFolder:
    groups: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    faults = []
    others: list[Path] = []
    for path in files_below(folder):
        match = _BRATS_FILE.fullmatch(path.name)
        if match is None:
            if _NIFTI.fullmatch(path.name):
                others.append(path)
            continue
        files = groups[path.parent, match["case"] or path.parent.name]
        column = _BRATS_NAMES[match["kind"].lower()]
        if column in files:
            faults.append(f"{path} and {files[column].name}: two files for one {column}")
        files.setdefault(column, path)
    tasks = _nested_tasks(folder)
    if tasks and groups:
        raise all_faults(
            f"{folder}: contains several data sets; call the command once for each. There are "
            f"{len(groups)} case(s) with names as in BraTS, and:",
            [f"{task}, with a dataset.json" for task in tasks],
        )
    remarks = [*_join_stray_segmentations(groups), *_remarks_on_others(others, folder)]
    folder_of: dict[str, Path] = {}
    for parent, case in sorted(groups):
        if case.casefold() in folder_of:
            faults.append(f"case {case} is in {folder_of[case.casefold()]} and in {parent}")
        folder_of[case.casefold()] = parent
    if faults:
        raise all_faults(f"{folder}: the cases are ambiguous", faults)

    present = {column for files in groups.values() for column in files}
    modalities = tuple(name for name in ("flair", "t1", "t1gd", "t2") if name in present)
    cases = []
    for (_, case), files in sorted(groups.items(), key=lambda group: group[0][1]):
        lacks = [column for column in modalities if column not in files]
        if len(lacks) == len(modalities):
            remarks.append(f"{case}: skipped, since it has no image")
        elif new != ("segmentation" not in files):
            has = "a segmentation, unlike new cases" if new else "no segmentation"
            remarks.append(f"{case}: skipped, since it has {has}")
        else:
            if lacks:
                remarks.append(f"{case}: has no {' and no '.join(lacks)}; the cell is empty")
            match = EXAMINED.fullmatch(case)
            cases.append(FolderCase(case, match["patient"] if match else case, files))
    if any(case.patient == case.case for case in cases):
        remarks.append(
            "these names have no patients: each folder is assumed to be another patient; if a "
            "patient has several, correct the column `patient`"
        )
    declared = declared_by_names([case.case for case in cases], folder)
    if declared and declared.convention == "brats2023":
        remarks.append(
            "the labels are assumed to be those of BraTS 2023; gliomas after treatment (2024) also "
            "have 4, the resection cavity: for these, name all four in volumes.labels"
        )
    return CaseFolder(modalities, modalities, tuple(cases), declared, tuple(remarks))


def _join_stray_segmentations(groups: dict[tuple[Path, str], dict[str, Path]]) -> list[str]:
    """Assign a segmentation with another name to the one case of its folder that lacks it.

    In BraTS 2020 this is case 355.
    """
    remarks = []
    by_folder: dict[Path, dict[str, dict[str, Path]]] = defaultdict(dict)
    for (folder, case), files in groups.items():
        by_folder[folder][case] = files
    for folder, cases in by_folder.items():
        stray = [case for case, files in cases.items() if list(files) == ["segmentation"]]
        lacking = [case for case, files in cases.items() if "segmentation" not in files]
        if len(cases) == 2 and len(stray) == len(lacking) == 1:
            path = groups.pop((folder, stray[0]))["segmentation"]
            groups[folder, lacking[0]]["segmentation"] = path
            remarks.append(f"{lacking[0]}: {path.name} is assumed to be its segmentation")
    return sorted(remarks)


def _volumes_in(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the NIfTI files of a folder by name without suffix, and the names that occur twice."""
    volumes: dict[str, Path] = {}
    twice = []
    for path in files_below(folder, max_depth=0) if folder.is_dir() else ():
        match = _NIFTI.fullmatch(path.name)
        if match and match["name"] in volumes:
            twice.append(f"{path} and {volumes[match['name']].name}")
        elif match:
            volumes[match["name"]] = path
    return volumes, twice


def files_below(folder: Path, max_depth: int = _MAX_DEPTH) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted by name.

    Hidden files are skipped: macOS adds a file ._<name> for each <name> of an archive.
    """
    folder = folder.resolve()
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != "__MACOSX"
        )
        if len(Path(parent).relative_to(folder).parts) >= max_depth:
            folders.clear()
        yield from (Path(parent) / name for name in sorted(names) if not name.startswith("."))


def _nested_tasks(folder: Path) -> list[Path]:
    """Return the subfolders with a dataset.json, such as an unpacked archive."""
    below = files_below(folder)
    return sorted(
        path.parent
        for path in below
        if path.name == "dataset.json" and path.parent != folder.resolve()
    )


def _remarks_on_others(files: list[Path], folder: Path) -> list[str]:
    """Return a remark for each folder with NIfTI files whose names are not those of BraTS."""
    by_folder: dict[Path, list[str]] = defaultdict(list)
    for path in files:
        by_folder[path.parent].append(path.name)
    return [
        f"{parent.relative_to(folder.resolve())}: {len(names)} NIfTI file(s) skipped, since their "
        f"names are not those of BraTS: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for parent, names in sorted(by_folder.items())
    ]
