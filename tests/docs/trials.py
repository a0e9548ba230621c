"""How the blocks of a page are tried, and what a reader has that a fresh clone has not."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from clones import ROOT
from markdown_pages import Block, pattern
from PIL import Image
from small_images import nuclei
from small_slides import draw_small_slide
from tiny_encoder import write_tiny_encoder
from trident_files import corners_of, random_features, write_trident
from volume_set import blurring, write_model

from gigatile.demo.cases import MODALITIES
from gigatile.demo.cohort import COHORT
from gigatile.instances.label_images import instances_of_labels
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import check_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.whole import load_settings
from gigatile.studies.description import Study

BIN = Path(sys.executable).parent
OF_ANOTHER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does who has activated the environment."""
    env = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_MAKE}
    env["PATH"] = f"{BIN}:{env['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1000,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return done


# --- What a reader has and a clone has not


def draw(folder: Path, slides: dict[str, str]) -> None:
    """Render pieces of demo slides under other names; an empty id gives an unreadable file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in slides.items():
        target = folder / f"{name}.svs"
        if drawn:
            draw_small_slide(drawn, target)
        else:
            target.write_text("no slide")


def slides_of_the_sheet(folder: Path) -> None:
    """Draw the slides of mine/samples.tsv; S2 is a file that is no slide."""
    rows = [line.split("\t") for line in (folder / "mine/samples.tsv").read_text().splitlines()[1:]]
    drawn = {
        label: iter([s.slide for s in COHORT if s.label == label and s.oddity == "none"])
        for label in {row[2] for row in rows}
    }
    draw(folder / "mine/slides", {r[0]: next(drawn[r[2]]) if r[0] != "S2" else "" for r in rows})


def sheet_with_commas(folder: Path) -> None:
    text = (folder / "mine/samples.tsv").read_text()
    (folder / "mine/cohort.csv").write_text(text.replace("\t", ","))


def new_slides(folder: Path) -> None:
    draw(folder / "new/slides", {"N1": "N01-1", "N2": "N02-1"})


def model_alone(folder: Path) -> None:
    shutil.copytree(folder / "results/mine/model", folder / "model")


def another_run(folder: Path) -> None:
    shutil.copytree(folder / "results/mine", folder / "results/theirs")


def lung_sheet(folder: Path) -> None:
    labels = ("lung_aca", "lung_n", "lung_scc")
    rows = [f"{c}{n}\tp{c}{n}\t{c}\t{c}{n}.svs" for c in labels for n in range(10)]
    (folder / "lung").mkdir()
    for row in rows:
        (folder / "lung" / row.split("\t")[3]).touch()
    (folder / "lung/samples.tsv").write_text("\n".join(["slide\tpatient\tlabel\tpath", *rows, ""]))


def draw_cases(folder: Path, cases: dict[str, str]) -> None:
    """Render demo cases under other names."""
    for name, drawn in cases.items():
        script = ["scripts/make_demo_volume.py", "--case", drawn, "--out", str(folder / name)]
        assert run(["python", *script], ROOT).returncode == 0


def cases_of_the_sheet(folder: Path) -> None:
    """Draw the cases of head/cases.tsv, and lay three of them out as the Decathlon does."""
    names = ("V01-1", "V02-1", "V13-1", "V14-1", "V17-1", "V21-1")
    draw_cases(folder / "head", {f"C{number}": name for number, name in enumerate(names, 1)})
    task = folder / "Task01_BrainTumour"
    for subfolder in ("imagesTr", "labelsTr"):
        (task / subfolder).mkdir(parents=True)
    training = []
    for number in (1, 2, 3):
        name = f"BRATS_{number:03d}.nii.gz"
        # The names are what matters here; in the Decathlon an image has all modalities.
        shutil.copy(folder / f"head/C{number}/flair.nii.gz", task / "imagesTr" / name)
        shutil.copy(folder / f"head/C{number}/segmentation.nii.gz", task / "labelsTr" / name)
        training.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    described = {
        "modality": {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"},
        "labels": {
            "0": "background",
            "1": "edema",
            "2": "non-enhancing tumor",
            "3": "enhancing tumour",
        },
        "training": training,
        "test": [],
    }
    (task / "dataset.json").write_text(json.dumps(described))


def brats_folder(folder: Path) -> None:
    """Name files as BraTS 2023 does: one patient examined twice, and one once."""
    for case in ("BraTS-GLI-00005-100", "BraTS-GLI-00005-101", "BraTS-GLI-00006-100"):
        (folder / "BraTS-GLI" / case).mkdir(parents=True)
        for kind in ("t2f", "t1n", "t1c", "t2w", "seg"):
            (folder / "BraTS-GLI" / case / f"{case}-{kind}.nii.gz").touch()


def brats_cases(folder: Path) -> None:
    """Render three cases, with file names as in BraTS 2023."""
    kinds = {"flair": "t2f", "t1": "t1n", "t1gd": "t1c", "t2": "t2w", "segmentation": "seg"}
    for number, drawn in enumerate(("V01-1", "V14-1", "V17-1"), 5):
        case = f"BraTS-GLI-{number:05d}-000"
        draw_cases(folder / "brats", {case: drawn})
        for name, kind in kinds.items():
            file = folder / "brats" / case / f"{name}.nii.gz"
            file.rename(file.with_name(f"{case}-{kind}.nii.gz"))


def three_cases(folder: Path) -> None:
    draw_cases(folder / "head", {"C1": "V01-1", "C2": "V14-1", "C3": "V17-1"})


def new_cases(folder: Path) -> None:
    draw_cases(folder / "head", {"N1": "N01-1"})


def segmentation_model(folder: Path) -> None:
    """Write a model with random weights, and render a case for it."""
    draw_cases(folder / "head", {"C1": "V01-1"})
    _, described = write_model(
        folder / "head/model",
        blurring((32, 32, 32), len(MODALITIES), 3),
        VolumeSettings(labels="decathlon", modalities=MODALITIES, spacing=(2, 2, 2)),
        PatchSettings(size=(32, 32, 32)),
        task="volume_segmentation",
    )
    described.rename(described.with_name("settings.json"))


def cases_with_a_bad_one(folder: Path) -> None:
    names = ("V01-1", "V04-2", "V14-1", "V17-1")
    draw_cases(folder / "head", {f"C{number}": name for number, name in enumerate(names, 1)})


def annotated_nuclei(folder: Path) -> None:
    """Draw images of nuclei, annotated in COCO's format."""
    images = folder / "nuclei-images/images"
    images.mkdir(parents=True)
    content: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    for number in range(1, 17):
        pixels, labels = nuclei(number)
        Image.fromarray(pixels).save(images / f"N{number}.png")
        size = {"height": labels.shape[0], "width": labels.shape[1]}
        content["images"].append({"id": number, "file_name": f"N{number}.png", **size})
        annotated = instances_of_labels(labels)
        for index in range(len(annotated)):
            y1, x1, y2, x2 = annotated.boxes[index].tolist()
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": annotated.image_rle(index, *labels.shape),
                }
            )
    content["categories"] = [{"id": 1, "name": "nucleus"}]
    (folder / "nuclei-images/annotations.json").write_text(json.dumps(content))


def tiny_encoder(folder: Path) -> None:
    """Write an encoder, which has nothing of a real one but its form."""
    write_tiny_encoder(folder / "models/encoder.onnx", 224)


def followed_patients(folder: Path) -> None:
    """Write an encoder, slides, and a sheet with times and events of their patients."""
    tiny_encoder(folder)
    rows = [
        ["slide", "patient", "path", "time", "event"],
        ["S1", "P1", "slides/S1.svs", "31.2", "1"],
    ]
    rows.append(["S2", "P2", "slides/S2.svs", "60", "0"])
    rows += [[f"S{n}", f"P{n}", f"slides/S{n}.svs", f"{7 * n}", str(n % 2)] for n in range(3, 25)]
    (folder / "survival.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (folder / "slides").mkdir()
    draw_small_slide("P01-1", folder / "slides/S1.svs")
    data = (folder / "slides/S1.svs").read_bytes()
    for number in range(2, 25):  # only planned: other bytes, so that no file is there twice
        (folder / f"slides/S{number}.svs").write_bytes(data + bytes([number]))


def given_embeddings(folder: Path) -> None:
    """Write embeddings as TRIDENT does, and a sheet that names them."""
    rows = [["slide", "patient", "label", "path"]]
    (folder / "features").mkdir()
    for number in range(1, 25):
        label = ("luad", "lusc")[(number + 1) % 2]
        rows.append([f"S{number}", f"P{number}", label, f"S{number}.h5"])
        features = random_features(6, seed=number)
        write_trident(folder / f"features/S{number}.h5", features, corners_of(2, 3))
    (folder / "features/samples.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))


SETUPS: dict[str, Callable[[Path], None]] = {
    "mine/slides": slides_of_the_sheet,
    "mine/cohort.csv": sheet_with_commas,
    "new/slides": new_slides,
    "model alone": model_alone,
    "lung/samples.tsv": lung_sheet,
    "results/theirs": another_run,
    "head/cases": cases_of_the_sheet,
    "head/three": three_cases,
    "head/new": new_cases,
    "head/model": segmentation_model,
    "head/bad": cases_with_a_bad_one,
    "nuclei": annotated_nuclei,
    "models/encoder.onnx": tiny_encoder,
    "survival.tsv": followed_patients,
    "features/samples.tsv": given_embeddings,
    "BraTS-GLI": brats_folder,
    "brats": brats_cases,
}


# --- Running a page


def try_block(block: Block, folder: Path) -> str:
    """Run or check one block; return what it printed."""
    if "setup" in block.marks:
        SETUPS[block.marks["setup"]](folder)
    if "file" in block.marks:
        path = folder / block.marks["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    if "excerpt" in block.marks:
        check_excerpt(block, folder / block.marks["excerpt"])
    elif block.language == "yaml":
        values = yaml.safe_load(block.text)
        if "study" in values:
            check_section(Study, values, block.where)
        else:
            load_settings(values, block.where)
    if block.language == "bash":
        text = block.text
        if "planned" in block.marks:
            text = re.sub(r"^snakemake ", "snakemake -n ", text, flags=re.MULTILINE)
        done = run(["bash", "-euo", "pipefail", "-c", text], folder)
        assert (done.returncode != 0) == ("fails" in block.marks), f"{block.where}\n{done.stdout}"
        return done.stdout
    if block.language == "python":
        done = run(["python", "-c", block.text], folder)
        assert done.returncode == 0, f"{block.where}\n{done.stdout}"
        return done.stdout
    return ""


def check_excerpt(block: Block, path: Path) -> None:
    """Check that what a block shows of a file is in the file, whatever the values are."""
    text = path.read_text()
    if block.language == "tsv":
        assert text.startswith(block.text), f"{block.where}: {path.name} has another heading"
    elif block.language == "yaml":
        lines = iter(text.splitlines())
        # In the file's order, though not every line; the search goes on where the last one ended.
        missing = [line for line in block.text.splitlines() if line.strip() and line not in lines]
        assert missing == [], f"{block.where}: not in {path.name}, or not in this order"
        shown, real = yaml.safe_load(block.text), yaml.safe_load(text)
        assert is_part(shown, real), f"{block.where}: {path.name} says it under another key"
    else:
        assert_shaped_like(json.loads(block.text), json.loads(text), block.where)


def is_part(shown: Any, real: Any) -> bool:
    """Return whether what is shown of a YAML file stands there, under the same keys."""
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            key in real and is_part(value, real[key]) for key, value in shown.items()
        )
    if isinstance(shown, list):
        return isinstance(real, list) and all(value in real for value in shown)
    return shown == real


def assert_shaped_like(shown: Any, real: Any, where: str) -> None:
    assert type(shown) is type(real), f"{where}: shown {shown!r}, found {real!r}"
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert key in real, f"{where}: no {key!r} in {list(real)}"
            assert_shaped_like(value, real[key], f"{where}, {key}")
    elif isinstance(shown, list):
        assert bool(shown) == bool(real), f"{where}: shown {shown}, found {real}"
        for value in shown[:1]:
            assert_shaped_like(value, real[0], where)


def try_blocks(chosen: list[Block], folder: Path) -> None:
    """Run blocks in their order; a block of text must be what the one above it printed."""
    printed: str | None = ""
    for block in chosen:
        if "not run" in block.marks:
            printed = None
        elif block.language == "text":
            if printed is None:
                continue  # what a command prints that was not run
            for line in block.text.splitlines():
                assert pattern(line).search(printed), f"{block.where}: {line}\nnot in:\n{printed}"
        else:
            printed = try_block(block, folder)
