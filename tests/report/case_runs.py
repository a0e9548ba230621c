"""A small run on volumes that is consistent: its files are prepared and scored by the library."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff
from scipy import ndimage

from gigatile.cohort.collect import collect_states
from gigatile.files import checksums, read_json, sha256_of, write_json
from gigatile.json_models import write_model
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tables import write_table
from gigatile.volumes.grid import Grid
from gigatile.volumes.preparation import PreparedFiles, prepare_case
from gigatile.volumes.restoration import write_segmentation
from gigatile.volumes.segmentation_state import SegmentationState, Windows, skip_case

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = VolumeSettings(
    labels="decathlon", modalities=("flair", "t1gd"), spacing=None, missing="fill"
)
# Voxels from left to right, from back to front, upwards; and those of them that are head.
SHAPE = (24, 28, 20)
HEAD = ((2, 22), (3, 26), (2, 18))

Box = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


@dataclass
class CasePlan:
    """A case to write.

    Attributes:
        truth, predicted: boxes of voxels in RAS+ order, by label value; later boxes cover earlier
            ones.
        bright: a box that is brighter than all else, in the first modality.
        fault: `html`, `filled` or `label`.
    """

    case: str
    patient: str
    split: str
    truth: Mapping[int, Box] = field(default_factory=dict)
    predicted: Mapping[int, Box] = field(default_factory=dict)
    orientation: str = "RAS"
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    bright: Box | None = None
    fault: str = ""
    site: str = ""


EDEMA: Box = ((12, 18), (14, 22), (6, 12))
CORE: Box = ((13, 16), (16, 20), (7, 10))
LARGER: Box = ((12, 19), (14, 23), (6, 12))


def case_cohort() -> list[CasePlan]:
    """Three patients of train, one of valid, four of test; a bad case in train and one in test."""
    both = {1: EDEMA, 3: CORE}
    other = {1: LARGER, 3: CORE}
    # Another place on each head: equal segmentations in two splits would be a leak.
    moved = [{1: tuple((a - k, b - k) for a, b in EDEMA), 3: CORE} for k in range(1, 5)]
    plans = [
        CasePlan(f"C{number}", f"P{number}", "train", moved[number], site="north")
        for number in range(3)
    ]
    return [
        *plans,
        CasePlan("C3", "P3", "valid", moved[3], site="south"),
        CasePlan("C4", "P4", "test", both, other, "LPS", (1.0, 1.0, 2.0), site="south"),
        CasePlan("C5", "P5", "test", {1: EDEMA}, other, "ASR"),
        CasePlan("C6", "P6", "test", both, both, fault="filled"),
        CasePlan("C7", "P6", "test", both, {}, "PIR"),
        CasePlan("F1", "P1", "train", both, fault="html"),
        CasePlan("F2", "P7", "test", both, fault="label"),
    ]


def build_case_run(
    folder: Path,
    plans: Sequence[CasePlan] | None = None,
    settings: VolumeSettings = SETTINGS,
    seed: int = 1,
) -> Path:
    """Write the results of the stages before the report; the data are in the parent folder."""
    plans = case_cohort() if plans is None else plans
    rng = np.random.default_rng(seed)
    data = folder.parent / "data"
    sheet = data / "cases.tsv"
    made = [_make_files(data / plan.case, plan, rng) for plan in plans]
    columns = ("case", "patient", *settings.modalities, "segmentation", "split", "site")
    rows = [
        (
            plan.case,
            plan.patient,
            *(files[m].relative_to(data) if m in files else "" for m in settings.modalities),
            files["segmentation"].relative_to(data),
            plan.split,
            plan.site,
        )
        for plan, files in zip(plans, made, strict=True)
    ]
    write_table(sheet, columns, rows)
    for plan, files in zip(plans, made, strict=True):
        _prepare(folder / "volumes", plan.case, files, settings)
    _split(folder, sheet)
    collect_states(
        [{"case": p.case, "patient": p.patient, "split": p.split} for p in plans],
        folder / "volumes",
        folder / "cases.tsv",
    )
    _shards(folder)
    _model(folder, settings)
    for plan in plans:
        if plan.split == "test":
            _segment(folder, folder / "volumes", "evaluation/segmentations", plan, settings)
    evaluate(folder, sheet)
    return folder


def new_cases() -> list[CasePlan]:
    """Two new cases that can be segmented, and one that cannot."""
    return [
        CasePlan("N1", "Q1", "", {}, {1: EDEMA, 3: CORE}, "LPS"),
        CasePlan("N2", "Q2", "", fault="filled"),
        CasePlan("N3", "Q3", "", fault="html"),
    ]


def add_new_cases(folder: Path, plans: Sequence[CasePlan] | None = None) -> None:
    """Add new cases without labels, and predictions for them."""
    plans = new_cases() if plans is None else plans
    rng = np.random.default_rng(3)
    new = folder / "predictions/volumes"
    for plan in plans:
        files = _make_files(folder.parent / "new" / plan.case, plan, rng)
        files.pop("segmentation")
        _prepare(new, plan.case, files, SETTINGS)
        _segment(folder, new, "predictions/segmentations", plan, SETTINGS)
    rows = [{"case": plan.case, "patient": plan.patient} for plan in plans]
    collect_states(rows, new, folder / "predictions/cases.tsv")


def evaluate(folder: Path, sheet: Path) -> None:
    """Score the test cases with the command of the workflow."""
    arguments = {
        "--samples": sheet,
        "--table": folder / "cases.tsv",
        "--segmentations": folder / "evaluation/segmentations",
        "--described": folder / "model/settings.json",
        "--settings": '{"resamples": 1000, "seed": 1}',
        "--out": folder / "evaluation",
    }
    _run("evaluate", arguments)


def _run(name: str, arguments: Mapping[str, Any]) -> None:
    script = str(ROOT / "scripts" / f"{name}.py")
    line = [sys.executable, script, "--task", "volume_segmentation"]
    for option, value in arguments.items():
        line += [option, str(value)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def boxes(shape: Sequence[int], by_value: Mapping[int, Box]) -> np.ndarray:
    """Return labels: (x, y, z) uint8 in the order of RAS+."""
    labels = np.zeros(shape, np.uint8)
    for value, ((x, x1), (y, y1), (z, z1)) in by_value.items():
        labels[x:x1, y:y1, z:z1] = value
    return labels


def _make_files(folder: Path, plan: CasePlan, rng: np.random.Generator) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    head = boxes(SHAPE, {1: HEAD}) > 0
    files = {}
    # What all modalities of a head share. Noise alone would be refused.
    shared = ndimage.gaussian_filter(rng.normal(size=SHAPE), 1.5)
    for name in SETTINGS.modalities:
        texture = shared + 0.4 * ndimage.gaussian_filter(rng.normal(size=SHAPE), 1.5)
        image = np.where(head, 500 + 60 * texture / texture.std(), 0)
        if plan.bright and name == SETTINGS.modalities[0]:
            image[boxes(SHAPE, {1: plan.bright}) > 0] = 3000
        files[name] = folder / f"{name}.nii.gz"
        write_volume(files[name], image.astype(np.int16), plan)
    files["segmentation"] = folder / "segmentation.nii.gz"
    labels = boxes(SHAPE, plan.truth)
    if plan.fault == "label":
        labels[labels == 3] = 7
    write_volume(files["segmentation"], labels, plan)
    if plan.fault == "html":
        files["flair"].write_text("<!DOCTYPE html><html>Not found</html>")
    if plan.fault == "filled":
        files.pop("t1gd").unlink()
    return files


def write_volume(path: Path, array: np.ndarray, plan: CasePlan) -> None:
    """Write an array, which is in the order of RAS+, with the plan's order of axes."""
    affine = np.diag([*plan.spacing, 1.0])
    affine[:3, 3] = (-30, -40, -20)
    # From RAS+ to the file's axes.
    turned = nibabel.orientations.ornt_transform(
        axcodes2ornt("RAS"), axcodes2ornt(tuple(plan.orientation))
    )
    image = nibabel.Nifti1Image(
        np.ascontiguousarray(apply_orientation(array, turned)),
        affine @ inv_ornt_aff(turned, array.shape),
    )
    assert "".join(nibabel.aff2axcodes(image.affine)) == plan.orientation
    nibabel.save(image, path)


def _prepare(folder: Path, case: str, files: Mapping[str, Path], settings: VolumeSettings) -> None:
    images = {name: path for name, path in files.items() if name != "segmentation"}
    out = PreparedFiles(folder / f"{case}.tfrecord", folder / f"{case}.json")
    prepare_case(case, images, files.get("segmentation"), settings, out)


def _split(folder: Path, sheet: Path) -> None:
    arguments = {
        "--samples": sheet,
        "--settings": '{"train": 0.6, "valid": 0.2, "test": 0.2, "seed": 44}',
        "--table": folder / "splits.tsv",
        "--proof": folder / "splits.json",
    }
    _run("split_patients", arguments)


def _shards(folder: Path) -> None:
    arguments = {
        "--table": folder / "cases.tsv",
        "--records": folder / "volumes",
        "--settings": '{"target_mb": 100.0, "seed": 2}',
        "--out": folder / "shards",
    }
    _run("write_shards", arguments)


def _model(folder: Path, settings: VolumeSettings) -> None:
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "model.keras").write_bytes(b"no model is needed to write a report")
    rows = [(e + 1, 0.7**e, 1 - 0.8 ** (e + 1), "", "") for e in range(5)]
    rows.append((6, 0.1, 0.91, 0.25, 0.81))
    write_table(model / "history.tsv", ("epoch", "loss", "dice", "valid_loss", "valid_dice"), rows)
    text = {
        "outputs": list(settings.region_labels),
        "volumes": settings.model_dump(),
        "patches": {"size": [16, 16, 16], "targets": "regions"},
        "train": {"ranks": 2, "weights": None},
        "chosen": {"epoch": 6, "valid_loss": 0.25, "of": 1},
        "sha256": sha256_of(model / "model.keras"),
        "inputs": checksums(
            {
                "shards/manifest.json": folder / "shards/manifest.json",
                "segments/0006.keras": model / "model.keras",
            }
        ),
    }
    write_json(model / "settings.json", text)
    write_json(model / "versions.json", {"python": "3.11.7", "tensorflow": "2.21.0"})


def _segment(
    folder: Path, volumes: Path, out: str, plan: CasePlan, settings: VolumeSettings
) -> None:
    """Write the plan's prediction, as `segment_case` would."""
    segmentation, state = (folder / out / f"{plan.case}{end}" for end in (".nii.gz", ".json"))
    record = volumes / f"{plan.case}.tfrecord"
    if not record.stat().st_size:
        skip_case(plan.case, segmentation, state)
        return
    grid = Grid.from_json(read_json(volumes / f"{plan.case}.json")["grid"])
    canonical = boxes(grid.canonical_shape, plan.predicted)
    labels = np.zeros(grid.original_shape, np.uint8)
    grid.canonical(labels)[...] = canonical  # a view of the file's own axes
    write_segmentation(segmentation, labels, grid)
    millilitres = float(np.prod(grid.canonical_spacing)) / 1000
    values = settings.label_values
    labels_of = {name: (name,) for name in values} | settings.region_labels
    segmented = SegmentationState(
        case=plan.case,
        state="segmented",
        volumes_ml={
            name: round(millilitres * int(np.isin(labels, [values[n] for n in names]).sum()), 6)
            for name, names in labels_of.items()
        },
        windows=Windows(**WindowSettings().model_dump(), size=[16, 16, 16]),
        inputs=checksums(
            {
                "model/model.keras": folder / "model/model.keras",
                f"volumes/{plan.case}.tfrecord": record,
            }
        ),
    )
    write_model(state, segmented)
