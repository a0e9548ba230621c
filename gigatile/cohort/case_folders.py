"""Folders of volumes as they are published, and what a sheet of cases says of them.

Two kinds are known: a task of the Medical Segmentation Decathlon, or of nnU-Net, which have
`dataset.json`; and the folders of BraTS, in which each case has one of its own.
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
# The last part of a file's name in the BraTS challenges, and in the TCGA collections that follow.
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
    "segm": "segmentation",  # one case of 2020 has it
}
_BRATS_FILE = re.compile(
    rf"((?P<case>.+)[_-])?(?P<kind>{'|'.join(_BRATS_NAMES)})\.nii(\.gz)?", re.IGNORECASE
)
_DEEPEST = 4  # folders below the one that was named; BraTS 2018 has HGG/<case>/


@dataclasses.dataclass(frozen=True)
class FoundCase:
    """One case of a folder: its id, whose it is, and its files by the sheet's columns."""

    case: str
    patient: str
    files: dict[str, Path]


@dataclasses.dataclass(frozen=True)
class CaseFolder:
    """What a folder holds.

    Attributes:
        modalities: the channels' names, in the order of a file's channels where it has several.
        columns: the sheet's columns of images: `image`, or one for each modality.
        cases: in the order of their ids.
        declared: what the labels' values stand for, where that is known.
        remarks: what a user is to know: what was left out and why, and what was assumed.
    """

    modalities: tuple[str, ...]
    columns: tuple[str, ...]
    cases: tuple[FoundCase, ...]
    declared: Declared | None
    remarks: tuple[str, ...]


def read_case_folder(folder: Path, new: bool = False) -> CaseFolder:
    """Find the cases of a folder; no volume is opened.

    Args:
        folder: of the Decathlon, of nnU-Net or of BraTS.
        new: find those to predict on, which have no segmentation, and not those that have one.

    Raises:
        UserError: the folder is of neither kind, holds no such case, or two files claim one place.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    task = (folder / "dataset.json").exists() or (folder / "imagesTr").is_dir()
    found = _read_task(folder, new) if task else _read_brats(folder, new)
    if not found.cases:
        wanted = "without a segmentation" if new else "with images and a segmentation"
        raise all_faults(
            f"{folder}: no case {wanted}; looked for "
            + (
                f"{'imagesTs' if new else 'imagesTr and labelsTr'} of a Decathlon task"
                if task
                else "dataset.json of a Decathlon task, and for BraTS files such as "
                "<case>/<case>_flair.nii.gz or <case>/<case>-t2f.nii.gz"
            ),
            [*found.remarks, *(f"is it {task}?" for task in _nested_tasks(folder))],
        )
    unsafe = [one.case for one in found.cases if not re.fullmatch(SAFE_ID, one.case)]
    if unsafe:
        raise all_faults(
            f"{folder}: ids that are unsafe as file names; use up to 150 letters, digits, '.', '_' "
            "and '-', starting with a letter or a digit",
            [repr(case) for case in unsafe],
        )
    return found


def write_case_sheet(found: CaseFolder, out: Path, new: bool = False) -> None:
    """Write a sheet of cases (TSV): case, patient, a column for each image, segmentation.

    Paths are relative to the sheet; a cell is empty where a case lacks a file. A sheet of new cases
    has no column `segmentation`.
    """
    columns = (*found.columns, *(() if new else ("segmentation",)))
    # A sheet that is reached through a link is read from where it lies.
    start = Path(out).parent.resolve()

    def cell(one: FoundCase, column: str) -> str | None:
        return os.path.relpath(one.files[column], start) if column in one.files else None

    rows = [
        (one.case, one.patient, *(cell(one, column) for column in columns)) for one in found.cases
    ]
    odd = sorted({str(c) for row in rows for c in row if c and c != " ".join(c.split())})
    if odd:
        raise all_faults("a sheet cannot tell paths with tabs, line ends or double blanks:", odd)
    write_table(out, ("case", "patient", *columns), rows)


def remarks_on_labels(found: CaseFolder) -> list[str]:
    """Say which labels `settings_of` proposes and why; reads some of the segmentations."""
    files = {one.case: one.files.get("segmentation") for one in found.cases}
    return label_remarks(found.declared, {case: path for case, path in files.items() if path})


def settings_of(found: CaseFolder, sheet: Path, new: bool = False) -> str:
    """Return settings (YAML) that go with a sheet, to be put into a configuration of one's own.

    Raises:
        UserError: no settings can take what the folder's names and labels are.
    """
    if new:
        return yaml.safe_dump({"predict": {"samples": str(sheet)}}, sort_keys=False)
    volumes: dict[str, Any] = {"modalities": list(found.modalities)}
    declared = found.declared
    if declared is None:
        volumes["labels"] = "NOT_KNOWN"
        comment = (
            "  # These files do not tell what their labels' values stand for. One of "
            f"{', '.join(CONVENTIONS)},\n  # or as {{edema: 1, enhancing: 3}}:\n"
        )
    else:
        volumes["labels"] = declared.convention or declared.labels
        regions = {name: list(labels) for name, labels in declared.regions.items()}
        volumes["regions"] = regions or ("brats" if declared.convention else "labels")
        comment = f"  # Proposed, since {declared.reason}.\n"
        check_section(VolumeSettings, volumes, "the settings that go with these cases")
    top = {"run": "my-cohort", "task": "volume_segmentation", "samples": str(sheet)}
    text = yaml.safe_dump({**top, "train": {"model": "unet"}}, sort_keys=False) + "volumes:\n"
    for key, value in volumes.items():
        plain = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
        plain = plain.removesuffix("...\n")  # which YAML puts after a word
        text += f"{comment if key == 'labels' else ''}  {key}: {plain}"
    return text


def _read_task(folder: Path, new: bool) -> CaseFolder:
    """Read a task of the Decathlon or of nnU-Net."""
    declared = read_declared(folder / "dataset.json")
    images, twice = _volumes_in(folder / ("imagesTs" if new else "imagesTr"))
    labels, labels_twice = ({}, []) if new else _volumes_in(folder / "labelsTr")
    if twice or labels_twice:
        raise all_faults(f"{folder}: two files for one volume", twice + labels_twice)
    whole = {*labels, *declared.training, *declared.test}
    channels = _by_channel(images, whole, declared.modalities)
    columns = declared.modalities if channels is not None else ("image",)
    of_case = {case: {"image": path} for case, path in images.items()}
    if channels is not None:
        of_case = channels

    remarks, cases = [], []
    for case, files in sorted(of_case.items()):
        if not new and case not in labels:
            remarks.append(f"{case}: left out, since labelsTr has no segmentation of it")
            continue
        lacks = [column for column in columns if column not in files]
        if lacks:
            remarks.append(f"{case}: has no {' and no '.join(lacks)}; the cell is empty")
        if not new:
            files = {**files, "segmentation": labels[case]}
        cases.append(FoundCase(case, case, files))
    for task in _nested_tasks(folder):
        remarks.append(f"{task}: left out, a data set of its own; call the command for it too")
    for case in sorted(set(labels) - set(of_case)):
        remarks.append(f"{case}: left out, since imagesTr has no image of it")
    known = set(of_case) | set(labels)
    for case in sorted(set(declared.test if new else declared.training) - known):
        remarks.append(f"{case}: left out; dataset.json lists it, but there is no file")
    if cases:
        remarks.append(
            "dataset.json does not tell patients: each case is taken for a patient of its own; "
            "correct the column `patient` where one has several cases"
        )
    return CaseFolder(declared.modalities, columns, tuple(cases), declared, tuple(remarks))


def _by_channel(
    images: Mapping[str, Path], whole: Set[str], modalities: tuple[str, ...]
) -> dict[str, dict[str, Path]] | None:
    """Return nnU-Net's files, <case>_0000 and so on, by case and modality; None if they are not so.

    The Decathlon's own are one file for all channels; an id of theirs may end in digits too, so
    names of `whole` cases are none of a channel.
    """
    of_case: dict[str, dict[str, Path]] = defaultdict(dict)
    for name, path in images.items():
        match = _CHANNEL.fullmatch(name)
        if match is None or name in whole or int(match["channel"]) >= len(modalities):
            return None
        of_case[match["case"]][modalities[int(match["channel"])]] = path
    return of_case or None


def _read_brats(folder: Path, new: bool) -> CaseFolder:
    groups: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    faults = []
    others: list[Path] = []
    for path in _files_below(folder):
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
            f"{folder}: holds several data sets; call the command once for each. There are "
            f"{len(groups)} case(s) with names as in BraTS, and:",
            [f"{task}, with a dataset.json" for task in tasks],
        )
    remarks = [*_join_stray_segmentations(groups), *_remarks_on_others(others, folder)]
    where: dict[str, Path] = {}
    for parent, case in sorted(groups):
        if case.casefold() in where:
            faults.append(f"case {case} is in {where[case.casefold()]} and in {parent}")
        where[case.casefold()] = parent
    if faults:
        raise all_faults(f"{folder}: the cases cannot be told apart", faults)

    present = {column for files in groups.values() for column in files}
    modalities = tuple(name for name in ("flair", "t1", "t1gd", "t2") if name in present)
    cases = []
    for (_, case), files in sorted(groups.items(), key=lambda one: one[0][1]):
        lacks = [column for column in modalities if column not in files]
        if len(lacks) == len(modalities):
            remarks.append(f"{case}: left out, since it has no image")
        elif new != ("segmentation" not in files):
            has = "a segmentation, which new cases have not" if new else "no segmentation"
            remarks.append(f"{case}: left out, since it has {has}")
        else:
            if lacks:
                remarks.append(f"{case}: has no {' and no '.join(lacks)}; the cell is empty")
            match = EXAMINED.fullmatch(case)
            cases.append(FoundCase(case, match["patient"] if match else case, files))
    if any(one.patient == one.case for one in cases):
        remarks.append(
            "these names do not tell patients: each folder is taken for a patient of its own; "
            "correct the column `patient` where one has several"
        )
    declared = declared_by_names([one.case for one in cases], folder)
    if declared and declared.convention == "brats2023":
        remarks.append(
            "the labels are taken for those of BraTS 2023; gliomas after treatment, of 2024, have "
            "also 4, the resection cavity: name all four in volumes.labels if yours are of them"
        )
    return CaseFolder(modalities, modalities, tuple(cases), declared, tuple(remarks))


def _join_stray_segmentations(groups: dict[tuple[Path, str], dict[str, Path]]) -> list[str]:
    """Give a segmentation with a name of its own to the one case of its folder that lacks it.

    In BraTS 2020 that is case 355.
    """
    remarks = []
    by_folder: dict[Path, dict[str, dict[str, Path]]] = defaultdict(dict)
    for (folder, case), files in groups.items():
        by_folder[folder][case] = files
    for folder, mine in by_folder.items():
        stray = [case for case, files in mine.items() if list(files) == ["segmentation"]]
        lacking = [case for case, files in mine.items() if "segmentation" not in files]
        if len(mine) == 2 and len(stray) == len(lacking) == 1:
            path = groups.pop((folder, stray[0]))["segmentation"]
            groups[folder, lacking[0]]["segmentation"] = path
            remarks.append(f"{lacking[0]}: {path.name} is taken for its segmentation")
    return sorted(remarks)


def _volumes_in(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the NIfTI files of a folder by their names without suffix, and which stand twice."""
    found: dict[str, Path] = {}
    twice = []
    for path in _files_below(folder, deepest=0) if folder.is_dir() else ():
        match = _NIFTI.fullmatch(path.name)
        if match and match["name"] in found:
            twice.append(f"{path} and {found[match['name']].name}")
        elif match:
            found[match["name"]] = path
    return found, twice


def _files_below(folder: Path, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Yield the files of a folder and of those below it, in the order of their names.

    Left out are hidden ones: macOS puts a ._<name> beside each <name> of an archive.
    """
    folder = folder.resolve()
    for at, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != "__MACOSX"
        )
        if len(Path(at).relative_to(folder).parts) >= deepest:
            folders.clear()
        yield from (Path(at) / name for name in sorted(names) if not name.startswith("."))


def _nested_tasks(folder: Path) -> list[Path]:
    """Return the folders below this one that have a dataset.json, as an unpacked archive has."""
    below = _files_below(folder)
    return sorted(
        path.parent
        for path in below
        if path.name == "dataset.json" and path.parent != folder.resolve()
    )


def _remarks_on_others(files: list[Path], folder: Path) -> list[str]:
    """Say which NIfTI files have names that tell no modality, folder by folder."""
    by_folder: dict[Path, list[str]] = defaultdict(list)
    for path in files:
        by_folder[path.parent].append(path.name)
    return [
        f"{parent.relative_to(folder.resolve())}: {len(names)} NIfTI file(s) left out, whose names "
        f"are not those of BraTS: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for parent, names in sorted(by_folder.items())
    ]
