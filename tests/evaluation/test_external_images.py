"""External validation of instances: which images count, and how their figures differ."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image as Picture
from random_instances import annotation, detection
from small_images import SIDE, nuclei

from gigatile.cohort.images import Image
from gigatile.evaluation.detection_metrics import evaluate_detections
from gigatile.evaluation.external_images import figures_by_name
from gigatile.evaluation.two_cohorts import difference
from gigatile.files import write_json
from gigatile.instances.predicted_images import COLUMNS
from gigatile.instances.preparation import prepare_part
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.instances import InstanceSettings

SETTINGS = EvaluationSettings(resamples=1000)
INSTANCES = InstanceSettings(categories=("nucleus",))
CATEGORIES = [{"id": 1, "name": "nucleus"}]
TASK = ("--task", "instance_segmentation")
NAMES = [f"N{number}" for number in range(14)]
# All detections of this image are missed.
MISSED = "N9"


def scene(number, seed, error):
    """Return truth and detections of an image: nuclei that are moved by up to `error` pixels."""
    random = np.random.default_rng(seed)
    _, labels = nuclei(seed)
    masks = [labels == value for value in np.unique(labels[labels > 0])]
    detected = []
    for mask in masks:
        moved = np.roll(mask, random.integers(-error, error + 1, 2), (0, 1))
        detected.append(detection(number, 1, moved, round(float(random.uniform(0.3, 1)), 6)))
    return labels, [annotation(0, number, 1, mask) for mask in masks], detected


def cohort_of(numbers, scenes):
    """Return truth and detections of some scenes in COCO's formats."""
    annotations = [entry for n in numbers for entry in scenes[n][1]]
    truth = {
        "images": [{"id": n, "height": SIDE, "width": SIDE} for n in numbers],
        "annotations": [entry | {"id": i} for i, entry in enumerate(annotations, 1)],
        "categories": CATEGORIES,
    }
    return truth, [entry for n in numbers for entry in scenes[n][2]]


class Files:
    """The files of a prediction and of the model, and the two commands of the workflow."""

    def __init__(self, folder, command):
        self.folder, self.command = folder, command
        old = {number: scene(number, 100 + number, 1) for number in range(1, 11)}
        patients = {number: f"T{number}" for number in old}
        self.test = evaluate_detections(*cohort_of(old, old), patients, SETTINGS, 50, 0.4)
        write_model(folder / "metrics.json", self.test)
        described = {
            "task": "instance_segmentation", "sha256": "0" * 64, "detection": {}, "train": {},
            "instances": INSTANCES.model_dump(mode="json"), "inputs": {},
            "chosen": {"epoch": 1, "valid_loss": 1.0, "of": 1},
        }  # fmt: skip
        write_json(folder / "settings.json", described)
        self.scenes = {number: scene(number, number, 4) for number in range(1, len(NAMES) + 1)}
        self.scenes[NAMES.index(MISSED) + 1][2].clear()
        for name, (labels, *_) in zip(NAMES, self.scenes.values(), strict=True):
            Picture.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(folder / f"{name}.png")
            Picture.fromarray(labels).save(folder / f"{name}-labels.png")
        self.sheet = pd.DataFrame(
            {
                "image": NAMES,
                "patient": [f"P{n // 2}" for n in range(len(NAMES))],
                "path": [f"{name}.png" for name in NAMES],
                "annotations": [f"{name}-labels.png" for name in NAMES],
                "site": ["south" if n < 4 else "north" for n in range(len(NAMES))],
            }
        )
        images = [
            Image(name, "", folder / f"{name}.png", folder / f"{name}-labels.png", None, "", "", 2)
            for name in NAMES
        ]
        (folder / "images").mkdir()
        paths = (folder / f"images/new-0000.{suffix}" for suffix in ("tfrecord", "json"))
        states = prepare_part("new-0000", images, INSTANCES, *paths).images
        self.table = pd.DataFrame(
            {
                "image": NAMES, "patient": self.sheet["patient"], "split": "", "state": "prepared",
                "reason": "", "part": "new-0000", "sha256": [s.records.sha256 for s in states],
            }
        )  # fmt: skip
        self.matches = pd.DataFrame(columns=["image", "in_cohort", "patient", "split", "same"])
        self.predicted = pd.DataFrame(self.table, columns=COLUMNS).assign(regions=1)
        self.detections = [
            {"file_name": name, **entry}
            for name, (_, _, detected) in zip(NAMES, self.scenes.values(), strict=True)
            for entry in detected
        ]

    def expected(self, names):
        """Return the metrics of some images, computed from the scenes alone."""
        numbers = [NAMES.index(name) + 1 for name in names]
        patients = {number: f"P{(number - 1) // 2}" for number in numbers}
        return evaluate_detections(
            *cohort_of(numbers, self.scenes), patients, EvaluationSettings(), 50, 0.4
        )

    def run(self, *options, check=True):
        for name, table in (
            ("images.tsv", self.table), ("new.tsv", self.sheet), ("in_cohort.tsv", self.matches),
            ("predicted.tsv", self.predicted),
        ):  # fmt: skip
            table.to_csv(self.folder / name, sep="\t", index=False)
        write_json(self.folder / "detections.json", self.detections)
        files = {
            "table": "images.tsv", "samples": "new.tsv", "matches": "in_cohort.tsv",
            "metrics": "metrics.json", "described": "settings.json", "records": "images",
            "predicted": "predicted.tsv", "detections": "detections.json",
            "out": "external/metrics.json",
        }  # fmt: skip
        (self.folder / "external").mkdir(exist_ok=True)
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        return self.command("evaluate_external.py", *TASK, *paths, *options, check=check)

    def measured(self, *options):
        self.run(*options)
        return json.loads((self.folder / "external/metrics.json").read_text())

    def page(self):
        files = {
            "external": "external/metrics.json", "images": "external/images.tsv",
            "metrics": "metrics.json", "described": "settings.json", "out": "external/index.html",
        }  # fmt: skip
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        done = self.command("write_external_page.py", *TASK, *paths, check=False)
        return done, self.folder / "external/index.html"


@pytest.fixture
def files(tmp_path, command):
    return Files(tmp_path, command)


def check_figures(measured, expected, test):
    assert measured["metrics"] == json.loads(json.dumps(expected.to_json()))
    old = figures_by_name(test)
    assert measured["differences"] == {
        name: difference(figure, old[name]).to_json()
        for name, figure in figures_by_name(expected).items()
    }


def test_figures_are_those_of_an_evaluation_of_the_same_images(files):
    """With the limits of the test split, whatever those of the settings are."""
    measured = files.measured("--settings", '{"score_threshold": 0.9}')
    expected = files.expected(NAMES)
    check_figures(measured, expected, files.test)
    assert measured["metrics"]["separate"]["score_threshold"] == 0.4
    assert measured["differences"]["mask AP"]["high"] < 0
    for site, names in (("south", NAMES[:4]), ("north", NAMES[4:])):
        part = files.expected(names)
        figures = measured["sites"][site]
        assert (figures["n"], figures["patients"]) == (part.n, part.patients)
        assert figures["mask_ap"] == part.mask.ap.model_dump(mode="json")
        assert figures["pq"] == part.separate.pq.macro.model_dump(mode="json")
    assert measured["left_out"] == [] and measured["compared"] is True
    done, out = files.page()
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    assert "the model is worse on the new images" in page and "north" in page
    assert "None." in page.split('id="left-out"')[1]


def test_images_that_do_not_count(files):
    """The detections of the others are still theirs, also behind images without any."""
    files.table.loc[1, ["state", "reason"]] = ["failed", "/data/x/N1.png: is damaged"]
    files.predicted = files.predicted.astype({"regions": object})
    files.predicted.loc[1, "regions"] = ""
    files.detections = [entry for entry in files.detections if entry["file_name"] != "N1"]
    for entry in files.detections:
        entry["image_id"] -= entry["image_id"] > 2
    files.matches.loc[0] = ["N6", "T1", "", "", "pixels"]
    measured = files.measured()
    reasons = {item["id"]: item["reason"] for item in measured["left_out"]}
    assert reasons == {
        "N1": "/data/x/N1.png: is damaged",
        "N6": "in the cohort: same pixels",
        "N7": "in the cohort: its patient, by image N6",
    }
    check_figures(measured, files.expected([n for n in NAMES if n not in reasons]), files.test)
    page = files.page()[1].read_text()
    assert "2 new images or their patients are in the cohort of the model" in page
    assert "/data/x" not in page and "is damaged" in page and "Not compared" not in page
    assert files.measured("--not-compared")["compared"] is False
    assert "Not compared with the cohort" in files.page()[1].read_text()


@pytest.mark.long
def test_no_image_that_counts_is_said_and_is_no_error(files):
    files.matches = pd.DataFrame(
        [[name, "", "", "", "id"] for name in NAMES], columns=files.matches.columns
    )
    measured = files.measured()
    assert measured["metrics"] is None and measured["differences"] == {}
    done, out = files.page()
    assert done.returncode == 0 and "No new image counts" in out.read_text()


def test_all_faults_of_the_annotations_are_one_message(files):
    files.sheet.loc[0, "annotations"] = ""
    files.sheet.loc[3, "patient"] = ""
    done = files.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for fault in ("2 fault(s)", "row 2: annotations is empty", "row 5: patient is empty"):
        assert fault in done.stderr


def other_table(files):
    files.table = files.table.drop(index=3)
    return "image 'N3' is in only one of this table"


def other_regions(files):
    files.predicted.loc[3, "regions"] = 2
    return "its images are not those of predicted.tsv"


def other_order(files):
    files.predicted = files.predicted.iloc[::-1]
    return "its images are not those of predicted.tsv"


def not_predicted(files):
    files.predicted = files.predicted[:-1]
    files.detections = [entry for entry in files.detections if entry["file_name"] != NAMES[-1]]
    return f"image {NAMES[-1]}: 1 regions, but detections of 0"


def no_number(files):
    files.predicted = files.predicted.astype({"regions": object})
    files.predicted.loc[3, "regions"] = "-1"
    return "row 5: regions '-1' is not a whole number"


@pytest.mark.parametrize(
    "change", [other_table, other_regions, other_order, not_predicted, no_number]
)
def test_files_that_do_not_belong_together_are_refused(files, change):
    message = change(files)
    done = files.run(check=False)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (files.folder / "external/metrics.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["metrics.json", "settings.json", "external/images.tsv"])
def test_page_of_other_figures_is_refused(files, name):
    files.measured()
    path = files.folder / name
    path.write_text(path.read_text() + "\n")
    done, out = files.page()
    assert done.returncode == 2 and f"another version of {path.name}" in done.stderr
    assert not out.exists()


def test_what_the_page_shows_is_escaped(files):
    evil = "<img src=x onerror=alert(1)>"
    files.sheet["site"] = np.where(files.sheet.index % 2, evil, "south")
    files.measured()
    page = files.page()[1].read_text()
    assert evil not in page and "&lt;img src=x" in page
