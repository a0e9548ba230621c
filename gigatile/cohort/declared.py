"""Read `dataset.json` of a Decathlon or nnU-Net task, and compare its labels with the settings."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gigatile.cohort.cases import Case
from gigatile.errors import UserError, all_faults
from gigatile.files import read_json
from gigatile.settings.section import check_section
from gigatile.settings.volumes import CONVENTIONS, LABELS_REQUIRED, VolumeSettings
from gigatile.stores.addresses import is_remote

# Other names of modalities, and the names in the settings.
_MODALITIES = {"t1w": "t1", "t2w": "t2", "t1ce": "t1gd", "t1c": "t1gd", "t1_gd": "t1gd"}
_VALUES = range(1, 256)


@dataclasses.dataclass(frozen=True)
class Declared:
    """The channels, labels and cases of a data set.

    Attributes:
        modalities: the channels in their order, with the names of the settings.
        labels: value by name, without the background.
        regions: the labels of each region, if regions are declared.
        convention: the name in `CONVENTIONS` of these labels, or empty.
        training: ids of the cases that are listed with a segmentation.
        test: ids of the cases that are listed without one.
        reason: how the labels are known.
    """

    modalities: tuple[str, ...]
    labels: dict[str, int]
    regions: dict[str, tuple[str, ...]]
    convention: str
    training: tuple[str, ...]
    test: tuple[str, ...]
    reason: str = "dataset.json declares these values and names"


def read_declared(path: Path) -> Declared:
    """Read `dataset.json`.

    Raises:
        UserError: it is missing or damaged, or lacks channels or labels; lists all faults.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; it names the channels and labels of imagesTr")
    dataset = read_json(path)
    if not isinstance(dataset, dict):
        raise UserError(f"{path}: found {type(dataset).__name__}; must be a JSON object")
    faults: list[str] = []
    modalities = _modalities(dataset, faults)
    labels, regions = _labels(dataset.get("labels"), faults)
    if faults:
        raise all_faults(f"{path}: not a dataset.json of the Decathlon or nnU-Net", faults)
    convention = next((name for name, known in CONVENTIONS.items() if known == labels), "")
    training, test = (_listed(dataset.get(key)) for key in ("training", "test"))
    return Declared(modalities, labels, regions, convention, training, test)


def datasets_of(cases: Iterable[Case]) -> list[Path]:
    """Return the `dataset.json` files of cases whose segmentations are in a folder `labelsTr`."""
    files = (case.segmentation for case in cases if case.segmentation is not None)
    folders = {path.parent for path in files if not is_remote(path)}
    paths = {folder.parent / "dataset.json" for folder in folders if folder.name == "labelsTr"}
    return sorted(path for path in paths if path.is_file())


def check_declared(dataset: Path, settings: VolumeSettings) -> list[str]:
    """Compare the labels of the settings with those of a data set.

    Names may differ, values may not; and a name that is in both must have the same value.

    Args:
        dataset: the data set's `dataset.json`.
        settings: the settings' section.

    Returns:
        A remark for each value with two names.

    Raises:
        UserError: lists every value that only one of them has, and every name with two values.
    """
    if settings.labels is None:
        raise UserError(f"volumes.{LABELS_REQUIRED}")
    declared = read_declared(dataset).labels
    declared_names = {value: name for name, value in declared.items()}
    setting_names = {value: name for name, value in settings.label_values.items()}
    faults, remarks = [], []
    for value in sorted(set(declared_names) | set(setting_names)):
        name, declared_name = setting_names.get(value), declared_names.get(value)
        if name is None:
            faults.append(f"value {value} is {declared_name!r} there, but not in volumes.labels")
        elif declared_name is None:
            faults.append(f"value {value} is {name!r} in volumes.labels, but missing there")
        elif name in declared and declared[name] != value:
            faults.append(f"{name!r} is {value} in volumes.labels, but {declared[name]} there")
        elif name != declared_name:
            remarks.append(
                f"value {value} is {name!r} in volumes.labels, but {declared_name!r} there"
            )
    if faults:
        listed = ", ".join(f"{name}: {value}" for name, value in declared.items())
        raise all_faults(f"{dataset} declares {{{listed}}}; volumes.labels differs:", faults)
    return remarks


def _modalities(dataset: dict[str, Any], faults: list[str]) -> tuple[str, ...]:
    # `modality` in the Decathlon and nnU-Net version 1, `channel_names` in nnU-Net version 2.
    key = "channel_names" if "channel_names" in dataset else "modality"
    named = dataset.get(key)
    expected = f"{key}: found {named!r}; must be as {{'0': 'FLAIR', '1': 'T1w'}}, numbered from 0"
    if not isinstance(named, dict) or not named:
        faults.append(expected)
        return ()
    try:
        numbered = {int(number): str(name) for number, name in named.items()}
    except ValueError:
        numbered = {}
    if sorted(numbered) != list(range(len(named))):
        faults.append(expected)
        return ()
    plain = [_plain(numbered[number]) for number in range(len(numbered))]
    names = tuple(_MODALITIES.get(name, name) for name in plain)
    try:
        check_section(VolumeSettings, {"modalities": names}, key)
    except UserError as error:
        faults.append(str(error))
    return names


def _labels(named: Any, faults: list[str]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Return labels and regions.

    Labels are {"1": "edema"} in the Decathlon and {"edema": 1} in nnU-Net version 2, where a name
    with several values is a region.
    """
    if not isinstance(named, dict) or not named:
        faults.append(f"labels: found {named!r}; must be as {{'0': 'background', '1': 'edema'}}")
        return {}, {}
    by_name: dict[str, tuple[int, ...]] = {}
    for key, value in named.items():
        name, values = (value, key) if str(key).isdigit() else (key, value)
        try:
            numbers = tuple(map(int, values if isinstance(values, list) else [values]))
        except (TypeError, ValueError):
            numbers = (-1,)
        if numbers == (0,):
            continue
        name = _plain(str(name))
        if not all(number in _VALUES for number in numbers) or name in by_name:
            faults.append(f"labels: found {key!r}: {value!r}; must be names with values 1-255")
        if name == "ignore":
            faults.append(
                f"labels: 'ignore' of nnU-Net, {value!r}, is not supported: training uses every "
                "voxel; give those voxels a label, and delete it"
            )
        by_name[name] = numbers
    labels = {name: numbers[0] for name, numbers in by_name.items() if len(numbers) == 1}
    name_of = {value: name for name, value in labels.items()}
    if len(name_of) < len(labels):
        faults.append("labels: two names have the same value")
    for value in {value for numbers in by_name.values() for value in numbers}:
        name_of.setdefault(value, f"label_{value}")
    regions = {}
    if len(labels) < len(by_name):
        for name, numbers in by_name.items():
            regions[name] = tuple(name_of[value] for value in numbers)
    return {name: value for value, name in sorted(name_of.items())}, regions


def _listed(entries: Any) -> tuple[str, ...]:
    """Return the ids of the files in the list `training` or `test`; nnU-Net has no such lists."""
    ids = []
    for entry in entries if isinstance(entries, list) else ():
        path = entry.get("image") if isinstance(entry, dict) else entry
        if isinstance(path, str):
            ids.append(re.sub(r"\.nii(\.gz)?$", "", path.rsplit("/", 1)[-1]))
    return tuple(ids)


def _plain(name: str) -> str:
    """Return a name as in the settings: Non-enhancing tumour becomes non_enhancing."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    plain = re.sub(r"(.)_tumou?r$", r"\1", plain).replace("oedema", "edema")
    return plain if plain[:1].isalpha() else f"label_{plain}"
