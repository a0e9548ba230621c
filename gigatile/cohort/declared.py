"""What `dataset.json` of a Decathlon or nnU-Net task declares, and whether the settings agree."""

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

# Other names of what the settings' own names stand for.
_MODALITIES = {"t1w": "t1", "t2w": "t2", "t1ce": "t1gd", "t1c": "t1gd", "t1_gd": "t1gd"}
_VALUES = range(1, 256)


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a data set says of its files.

    Attributes:
        modalities: the channels, in their order, as the settings name them.
        labels: what the values stand for, without the background.
        regions: the labels that each region consists of, where regions are declared.
        convention: which of `CONVENTIONS` the labels are, or empty.
        training: the ids of the cases that are listed with a segmentation.
        test: and of those without.
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
        UserError: it is missing or damaged, or lacks channels or labels; all faults at once.
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
        raise all_faults(f"{path}: not as the Decathlon or nnU-Net write it", faults)
    convention = next((name for name, known in CONVENTIONS.items() if known == labels), "")
    training, test = (_listed(dataset.get(key)) for key in ("training", "test"))
    return Declared(modalities, labels, regions, convention, training, test)


def datasets_of(cases: Iterable[Case]) -> list[Path]:
    """Return the `dataset.json` files that lie beside the folders `labelsTr` of some cases."""
    folders = {case.segmentation.parent for case in cases if case.segmentation is not None}
    found = {one.parent / "dataset.json" for one in folders if one.name == "labelsTr"}
    return sorted(path for path in found if path.is_file())


def check_declared(dataset: Path, settings: VolumeSettings) -> list[str]:
    """Compare the labels of the settings with those that a data set declares.

    Names may differ; values may not, nor may a name have another value than there.

    Args:
        dataset: the data set's `dataset.json`.
        settings: the settings' section.

    Returns:
        a remark for each value that the two name differently.

    Raises:
        UserError: every value that only one of them has, and every name with two values.
    """
    if settings.labels is None:
        raise UserError(f"volumes.{LABELS_REQUIRED}")
    theirs, ours = read_declared(dataset).labels, settings.label_values
    their_names, our_names = ({value: n for n, value in of.items()} for of in (theirs, ours))
    faults, remarks = [], []
    for value in sorted(set(their_names) | set(our_names)):
        one, other = our_names.get(value), their_names.get(value)
        if one is None:
            faults.append(f"value {value} is {other!r} there and is not in volumes.labels")
        elif other is None:
            faults.append(f"value {value} is {one!r} in volumes.labels and is not there")
        elif one in theirs and theirs[one] != value:
            faults.append(f"{one!r} is {value} in volumes.labels and {theirs[one]} there")
        elif one != other:
            remarks.append(f"value {value} is {one!r} in volumes.labels and {other!r} there")
    if faults:
        there = ", ".join(f"{name}: {value}" for name, value in theirs.items())
        raise all_faults(f"{dataset} declares {{{there}}}; volumes.labels differ from it:", faults)
    return remarks


def _modalities(dataset: dict[str, Any], faults: list[str]) -> tuple[str, ...]:
    # The Decathlon and nnU-Net's first version have the one, its second version has the other.
    key = "channel_names" if "channel_names" in dataset else "modality"
    named = dataset.get(key)
    wanted = f"{key}: found {named!r}; must be as {{'0': 'FLAIR', '1': 'T1w'}}, numbered from 0"
    if not isinstance(named, dict) or not named:
        faults.append(wanted)
        return ()
    try:
        numbered = {int(number): str(name) for number, name in named.items()}
    except ValueError:
        numbered = {}
    if sorted(numbered) != list(range(len(named))):
        faults.append(wanted)
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

    Labels are {"1": "edema"} in the Decathlon and {"edema": 1} in nnU-Net's second version, where
    a name may have several values: that is a region.
    """
    if not isinstance(named, dict) or not named:
        faults.append(f"labels: found {named!r}; must be as {{'0': 'background', '1': 'edema'}}")
        return {}, {}
    by_name: dict[str, tuple[int, ...]] = {}
    for key, value in named.items():
        name, values = (value, key) if str(key).isdigit() else (key, value)
        try:
            numbers = tuple(int(one) for one in (values if isinstance(values, list) else [values]))
        except (TypeError, ValueError):
            numbers = (-1,)
        if numbers == (0,):
            continue
        name = _plain(str(name))
        if not all(number in _VALUES for number in numbers) or name in by_name:
            faults.append(f"labels: found {key!r}: {value!r}; must be names with values 1-255")
        if name == "ignore":
            faults.append(
                f"labels: 'ignore' of nnU-Net, {value!r}, makes no sense here: every voxel is "
                "learnt from; give those voxels a label, and delete it"
            )
        by_name[name] = numbers
    labels = {name: numbers[0] for name, numbers in by_name.items() if len(numbers) == 1}
    of_value = {value: name for name, value in labels.items()}
    if len(of_value) < len(labels):
        faults.append("labels: two names have the same value")
    for value in {value for numbers in by_name.values() for value in numbers}:
        of_value.setdefault(value, f"label_{value}")
    regions = {}
    if len(labels) < len(by_name):
        for name, numbers in by_name.items():
            regions[name] = tuple(of_value[value] for value in numbers)
    return {name: value for value, name in sorted(of_value.items())}, regions


def _listed(entries: Any) -> tuple[str, ...]:
    """Return the ids of the files that `training` or `test` list; nnU-Net lists none."""
    ids = []
    for entry in entries if isinstance(entries, list) else ():
        path = entry.get("image") if isinstance(entry, dict) else entry
        if isinstance(path, str):
            ids.append(re.sub(r"\.nii(\.gz)?$", "", path.rsplit("/", 1)[-1]))
    return tuple(ids)


def _plain(name: str) -> str:
    """Return a name as the settings take it: Non-enhancing tumour becomes non_enhancing."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    plain = re.sub(r"(.)_tumou?r$", r"\1", plain).replace("oedema", "edema")
    return plain if plain[:1].isalpha() else f"label_{plain}"
