"""A new task is its own package, its own rules file and one line of the registry."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from clones import Clone
from PIL import Image

TOY = Path(__file__).parent / "toy_task"
SETTINGS = """\
run: toy
task: image_brightness
samples: images/sheet.tsv
images: {side: 16}
train: {ranks_per_node: 1, epochs: 1, batch_size: 4}
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Clone:
    """A copy of the project with the toy task and its images."""
    clone = Clone(tmp_path_factory.mktemp("toy"))
    shutil.copytree(TOY / "image_brightness", clone.folder / "gigatile/tasks/image_brightness")
    shutil.copy(TOY / "image_brightness.smk", clone.folder / "rules")
    registry = clone.folder / "gigatile/tasks/__init__.py"
    text = registry.read_text()
    added, lines = re.subn(r"(?m)^(TASKS = \([^)]*)\)$", r'\1    "image_brightness",\n)', text)
    assert lines == 1
    registry.write_text(added)
    random = np.random.default_rng(1)
    rows = ["image\tpatient\tpath\tsplit"]
    (clone.folder / "images").mkdir()
    for number in range(12):
        split = ("train", "train", "valid", "test")[number % 4]
        pixels = random.integers(0, 20 * (number + 1), (20, 20, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(clone.folder / f"images/I{number}.png")
        rows.append(f"I{number}\tP{number}\tI{number}.png\t{split}")
    (clone.folder / "images/bad.png").write_text("not an image")
    rows.append("bad\tPB\tbad.png\ttest")
    clone.write("images/sheet.tsv", "\n".join(rows) + "\n")
    clone.write("toy.yaml", SETTINGS)
    return clone


def test_toy_task_from_images_to_report(toy: Clone):
    toy.snakemake("--cores", "2", "--configfile", "toy.yaml")
    run = toy.folder / "results/toy"
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    assert 0 <= metrics["error"] < 1
    report = (run / "report/index.html").read_text()
    assert "The mean absolute error is" in report and "bad" in report
    assert json.loads((run / "model/settings.json").read_text())["task"] == "image_brightness"
    again = toy.snakemake("-n", "--configfile", "toy.yaml").stdout
    assert "Nothing to be done" in again
    verified = toy.snakemake("verify", "--cores", "1", "--configfile", "toy.yaml").stdout
    assert "all files are current" in verified


def test_task_without_prediction_is_refused_new_images(toy: Clone):
    done = toy.snakemake(
        "-n", "--configfile", "toy.yaml", "--config", "predict={samples: images/sheet.tsv}",
        check=False,
    )  # fmt: skip
    message = "predict.samples: task: image_brightness cannot predict; remove it"
    assert done.returncode == 1 and message in done.stdout + done.stderr
    script = "from gigatile.model import Model; Model.open('results/toy/model')"
    done = toy.run("python", "-c", script, check=False)
    assert "models of task: image_brightness cannot be applied to new data" in done.stderr


def test_edit_of_another_task_runs_nothing(toy: Clone):
    path = toy.folder / "gigatile/tasks/tile_classification/training.py"
    path.write_text(path.read_text() + "\nEDITED = True\n")
    again = toy.snakemake("-n", "--configfile", "toy.yaml").stdout
    assert "Nothing to be done" in again
