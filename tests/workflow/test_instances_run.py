"""The whole workflow on images with instances, as a user runs it."""

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from clones import Clone
from drawn_slides import draw_slide
from opened import check_declared
from PIL import Image
from small_images import BAD, SPLITS, box, image_settings, write_geojson
from test_files_opened import SHARED

from gigatile.files import read_json
from gigatile.instances.geojson import read_geojson
from gigatile.tables import read_table

# The keys of `detection` in small_images.py that detection depends on.
DETECTION = '{"detection": {"score_threshold": 0.001}}'
ASKED = ("--cores", "2", "--configfile", "images.yaml")


def test_each_image_has_a_state_and_the_run_continues(instances_run: Clone):
    run = instances_run.folder / "results/small"
    rows = {row["image"]: row for row in read_table(run / "images.tsv")}
    assert set(rows) == {name for names in SPLITS.values() for name in names}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == BAD
    assert "damaged" in rows["TB"]["reason"]
    reason = "label image EB-labels.png has 96 × 95 pixels, but the image has 96 × 96"
    assert rows["EB"]["reason"] == reason
    assert {row["part"] for row in rows.values()} == {"train-0000", "valid-0000", "test-0000"}
    scored = {row["image"] for row in read_table(run / "evaluation/images.tsv")}
    assert scored == {"E1", "E2", "E3"}
    assert {path.stem for path in (run / "report/images").glob("*.html")} == scored
    metrics = read_json(run / "evaluation/metrics.json")
    assert metrics["n"] == 3 and metrics["instances"] == sum(
        int(rows[name]["instances"]) for name in scored
    )
    truth = read_json(run / "evaluation/truth.json")
    assert len(truth["annotations"]) == metrics["instances"]
    report = (run / "report/index.html").read_text()
    assert "No test image could be scored" not in report and "EB-labels.png" in report
    assert instances_run.jobs("--configfile", "images.yaml") == {}


def test_commands_on_images_read_declared_files_only(instances_run: Clone):
    check_declared(instances_run, "prepare", *SHARED)


@pytest.mark.long
def test_group_of_parts_that_starts_again_prepares_only_what_it_lacks(instances_run, tmp_path):
    copy = instances_run.copy(tmp_path)
    run = copy.folder / "results/small"
    parts = [f"{split}-0000" for split in ("train", "valid", "test")]
    states = {path: path.read_bytes() for path in sorted((run / "images").iterdir())}

    def repeated() -> list[str]:
        """Return the splits of the parts that were prepared."""
        logs = [run / f"logs/prepare/{part}.log" for part in parts]
        for log in logs:
            log.unlink(missing_ok=True)
        jobs = (f"prepare:part={part}" for part in parts)
        copy.repeat_jobs(*jobs, settings="images.yaml")
        return [log.stem[:-5] for log in logs if "done before" not in log.read_text()]

    # Parts with images that cannot be read are not prepared again.
    assert BAD & set(SPLITS["train"]) and BAD & set(SPLITS["test"])
    assert repeated() == []
    (run / "provenance/prepare/train-0000.json").unlink()
    (run / "images/valid-0000.tfrecord").unlink()
    assert repeated() == ["train", "valid"]
    # Another image of the same size, and other annotations.
    image, annotations = (copy.folder / "cohort" / name for name in ("T1.png", "E1-labels.png"))
    kept = {path: path.read_bytes() for path in (image, annotations)}
    image.write_bytes(kept[image][:-1] + b" ")
    assert repeated() == ["train"]
    annotations.write_bytes(kept[annotations] + b" ")
    assert repeated() == ["test"]
    for path, content in kept.items():
        path.write_bytes(content)
    assert repeated() == ["train", "test"]
    assert repeated() == []
    assert {path: path.read_bytes() for path in sorted((run / "images").iterdir())} == states


def test_verify_finds_a_damaged_detection(instances_run: Clone, tmp_path):
    copy = instances_run.copy(tmp_path)
    done = copy.snakemake("verify", *ASKED)
    assert "all files are current and undamaged" in done.stdout
    path = copy.folder / "results/small/evaluation/detections.json"
    path.write_text(path.read_text().replace('"image_id": 1,', '"image_id": 2,', 1))
    done = copy.snakemake("verify", *ASKED, check=False)
    assert done.returncode == 1
    assert re.search(r"damaged +evaluate: .*detections\.json", done.stdout + done.stderr)


def test_new_images_are_predicted(predicted_images: Clone):
    of_images = ("prepare_new", "collect_new", "predict", "prediction_pages")
    external = ("external", "external_page")
    check_declared(predicted_images, *of_images, *external, "detect_slide", "slide_pages")
    run = predicted_images.folder / "results/small"
    truth = read_json(run / "evaluation/truth.json")
    (number,) = (image["id"] for image in truth["images"] if image["file_name"] == "E1")
    evaluated = read_json(run / "evaluation/detections.json")
    predicted = read_json(run / "predictions/detections.json")
    compared = ("bbox", "segmentation", "score", "category_id")
    of_first = [entry for entry in predicted if entry["file_name"] == "N1"]
    assert [[entry[key] for key in compared] for entry in of_first] == [
        [entry[key] for key in compared] for entry in evaluated if entry["image_id"] == number
    ]
    rows = {row["image"]: row for row in read_table(run / "predictions/images.predicted.tsv")}
    assert int(rows["N1"]["detections"]) == len(of_first) > 0
    assert rows["N2"]["detections"] == "" and "damaged" in rows["N2"]["reason"]
    (match,) = read_table(run / "predictions/in_cohort.tsv")
    assert (match["image"], match["in_cohort"], match["same"]) == ("N1", "E1", "file, pixels")
    assert "This image is in the cohort." in (run / "predictions/pages/images/N1.html").read_text()


def test_new_images_with_annotations_are_an_external_validation(predicted_images: Clone):
    predictions = predicted_images.folder / "results/small/predictions"
    measured = read_json(predictions / "external/metrics.json")
    assert {item["id"]: item["reason"] for item in measured["left_out"]} == {
        "N1": "in the cohort: same file, pixels",
        "N2": "it is damaged: image file is truncated",
        "N5": "label image N5-labels.png has 96 × 95 pixels, but the image has 96 × 96",
    }
    images = {row["image"]: row for row in read_table(predictions / "images.tsv")}
    # Two regions of slide S1, and image N3.
    assert (measured["metrics"]["n"], measured["metrics"]["patients"]) == (3, 2)
    assert measured["metrics"]["instances"] == sum(
        int(images[n]["instances"]) for n in ("N3", "N4")
    )
    scored = {row["image"]: row for row in read_table(predictions / "external/images.tsv")}
    assert {name: row["regions"] for name, row in scored.items()} == {"N3": "1", "N4": "2"}
    assert {name: site["n"] for name, site in measured["sites"].items()} == {"north": 1, "south": 2}
    page = (predictions / "external/index.html").read_text()
    assert "1 new image or its patients are in the cohort" in page
    assert 'href="../external/index.html"' in (predictions / "pages/index.html").read_text()
    # Each region has its own picture and its own detections.
    assert (predictions / "pages/images/N4.html").read_text().count('<figure class="view">') == 2


def test_instances_of_whole_slides_are_detected(predicted_images: Clone, tmp_path):
    predictions = predicted_images.folder / "results/small/predictions"
    first, second = read_table(predictions / "slides.tsv")
    assert (first["slide"], first["state"]) == ("S1", "detected")
    assert second["state"] == "failed" and "not a slide format" in second["reason"]
    table = pq.read_table(predictions / "slides/S1.parquet").to_pydict()
    assert len(table["id"]) == int(first["nucleus_count"]) > 0
    assert min(table["score"]) >= 0.02 and max(table["x"]) <= 288 and max(table["y"]) <= 240
    assert len(read_geojson(predictions / "slides/S1.geojson.gz")) == len(table["id"])
    (match,) = read_table(predictions / "slides_in_cohort.tsv")
    assert (match["slide"], match["in_cohort"], match["same"]) == ("S1", "T1", "patient")
    page = (predictions / "slide_pages/slides/S1.html").read_text()
    assert "The patient of this slide is in the cohort." in page
    assert "The slide was read at level 0, which has 0.5 µm per pixel" in page
    assert "not a slide format" in (predictions / "slide_pages/index.html").read_text()
    # The same command with the same model and number of cores gives the same bytes.
    done = predicted_images.run(
        *("python", "scripts/detect_slide.py", "--slide=S1", "--source=slides/S1.svs"),
        *(
            "--model=results/small/model/model.keras",
            "--described=results/small/model/settings.json",
        ),
        *("--settings", '{"score_threshold": 0.02}', f"--table={tmp_path}/a.parquet"),
        *(f"--outlines={tmp_path}/a.geojson.gz", f"--overview={tmp_path}/a.jpg"),
        *(f"--state={tmp_path}/a.json", "--detection", DETECTION, "--cores=2"),
    )
    assert "nucleus" in done.stdout
    for ending in ("parquet", "geojson.gz", "jpg"):
        again, before = tmp_path / f"a.{ending}", predictions / f"slides/S1.{ending}"
        assert again.read_bytes() == before.read_bytes()


def test_edits_detect_the_instances_of_slides_again(predicted_images: Clone, tmp_path):
    """Exactly if the slide, the model or how it is applied has changed."""
    copy = predicted_images.copy(tmp_path)
    detected = {"detect_slide": 2, "slide_pages": 1, "all": 1}
    every = ("--configfile", "images.yaml", "--config")
    assert copy.jobs("--configfile", "images.yaml") == {}
    assert copy.jobs(*every, "slide_instances={score_threshold: 0.5}") == detected
    assert copy.jobs(*every, "instances={stall_minutes: 5}") == {}
    sheet = (copy.folder / "slides.tsv").read_text()
    copy.write("slides.tsv", sheet.replace("PT1", "P9"))
    assert copy.jobs("--configfile", "images.yaml") == {"slide_pages": 1, "all": 1}
    copy.write("slides.tsv", sheet)
    path = copy.folder / "slides/S1.svs"
    path.write_bytes(path.read_bytes() + b"\0")
    detected["detect_slide"] = 1
    assert copy.jobs("--configfile", "images.yaml") == detected
    (copy.folder / "results/small/predictions/slides/S2.geojson.gz").write_bytes(b"other")
    detected["detect_slide"] = 2
    assert copy.jobs("--configfile", "images.yaml") == detected
    header, *rows = (copy.folder / "cohort/images.tsv").read_text().splitlines()
    lines = [f"{header}\tmpp", *(f"{row}\t0.25" for row in rows)]
    copy.write("cohort/images.tsv", "\n".join(lines) + "\n")
    assert '"mpp":0.25' in copy.snakemake("--dry-run", "-p", *every[:2]).stdout


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ("predict={slides: none.tsv}", "none.tsv: no such sample sheet"),
        ("slide_instances={overlap: 60}", "must be at most half of a window, which has 96 pixels"),
    ],
)
def test_wrong_settings_of_slides_are_refused(predicted_images: Clone, settings, fault):
    done = predicted_images.snakemake(
        "-n", "--configfile", "images.yaml", "--config", settings, check=False
    )
    assert done.returncode == 1 and fault in done.stdout + done.stderr


def test_planted_copy_is_reported_as_a_leak(instances_run: Clone, tmp_path):
    """A test image is a train image under another name, in another encoding."""
    copy = instances_run.copy(tmp_path)
    with Image.open(copy.folder / "cohort/T1.png") as image:
        image.save(copy.folder / "cohort/E2.png", compress_level=1, optimize=False)
    copy.snakemake(*ASKED)
    report = (copy.folder / "results/small/report/index.html").read_text()
    assert "The splits are not clean." in report
    assert "T1 (train) = E2 (test), 1 equal" in report


def test_regions_of_a_slide_and_its_copy_are_refused(instances_run: Clone, tmp_path):
    """Also if the regions do not overlap, so that no pixels are equal."""
    copy = instances_run.copy(tmp_path)
    cohort = copy.folder / "cohort"
    draw_slide(cohort / "V2.svs", 10, 12, seed=1)
    shutil.copy(cohort / "V2.svs", cohort / "E3.svs")
    sheet = (cohort / "images.tsv").read_text()
    for name, corner in (("V2", 0), ("E3", 120)):
        nucleus = box(corner + 30, corner + 30, 12, "nucleus", "detection")
        region = box(corner, corner, 96, "Region*", "annotation")
        write_geojson(cohort / f"{name}.geojson", [region, nucleus])
        sheet = sheet.replace(f"{name}.png\t{name}-labels.png", f"{name}.svs\t{name}.geojson")
    (cohort / "images.tsv").write_text(sheet)
    done = copy.snakemake("--dry-run", *ASKED, check=False)
    fault = "file cohort/E3.svs of image 'E3' has the same content as cohort/V2.svs of image 'V2'"
    assert done.returncode == 1 and fault in done.stdout + done.stderr


def test_models_file_detects_instances_without_the_run(instances_run: Clone):
    script = (
        "from gigatile.model import Model\n"
        "model = Model.open('results/small/model')\n"
        "print(*(i.score for i in model.predict('cohort/E1.png')), *model.categories)\n"
    )
    *scores, category = instances_run.run("python", "-c", script).stdout.split()
    assert category == "nucleus" and scores
    truth = read_json(instances_run.folder / "results/small/evaluation/truth.json")
    (number,) = (image["id"] for image in truth["images"] if image["file_name"] == "E1")
    detections = json.loads(
        (instances_run.folder / "results/small/evaluation/detections.json").read_text()
    )
    expected = [entry["score"] for entry in detections if entry["image_id"] == number]
    # Without settings, a detection has a score of at least 0.05.
    expected = sorted((score for score in expected if score > 0.05), reverse=True)
    assert [float(score) for score in scores] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ("train={model: small_cnn}", "for task: instance_segmentation it must be mask_small or"),
        ("detection={canvas: [96, 100]}", "both sides must be multiples of 32"),
        ("instances={categories: [a, a]}", "a category is listed twice"),
    ],
)
def test_wrong_settings_are_refused(instances_run: Clone, settings, fault):
    done = instances_run.snakemake(
        "-n", "--configfile", "images.yaml", "--config", settings, check=False
    )
    assert done.returncode == 1 and fault in done.stdout + done.stderr


def test_prepared_images_of_another_run_are_linked(instances_run: Clone, tmp_path):
    copy = instances_run.copy(tmp_path)
    settings = image_settings("reuse: small\n").replace("run: small", "run: second")
    copy.write("second.yaml", settings)
    copy.snakemake("results/second/images.tsv", "--cores", "2", "--configfile", "second.yaml")

    def linked(part: str) -> bool:
        files = (copy.folder / f"results/{run}/images/{part}.json" for run in ("small", "second"))
        return next(files).samefile(next(files))

    # Also parts with a bad image: each image has a state.
    assert all(linked(f"{split}-0000") for split in SPLITS)
    names = [row["image"] for row in read_table(copy.folder / "results/second/images.tsv")]
    assert sorted(names) == sorted(name for members in SPLITS.values() for name in members)
