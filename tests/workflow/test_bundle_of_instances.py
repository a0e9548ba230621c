"""The bundle of a segmentation of instances."""

import io
import json
import time

import pandas as pd
import pytest
from bundles import bundle_of, predict_with
from servers import running

from gigatile.tables import read_table


@pytest.mark.long
def test_images_and_slides_of_instances(predicted_images, tmp_path):
    """Images and whole slides: same detections as those of the run."""
    run = predicted_images.copy(tmp_path / "copy")
    bundle = bundle_of(run, "images.yaml", tmp_path / "bundle")
    _, images = predict_with(run, bundle, tmp_path / "images", run.folder / "cohort/E1.png")
    expected = json.loads((run.folder / "results/small/predictions/detections.json").read_text())
    detections = json.loads((images / "detections.json").read_text())
    assert len(detections) > 0
    assert [d["score"] for d in detections] == [
        d["score"] for d in expected if d["image_id"] == expected[0]["image_id"]
    ]
    _, slides = predict_with(run, bundle, tmp_path / "slides", run.folder / "slides/S1.svs")
    path = "predictions/slides/S1.geojson.gz"
    assert (slides.parent / path).read_bytes() == (run.folder / "results/small" / path).read_bytes()
    assert read_table(slides / "slides.tsv")[0]["state"] == "detected"
    check_served(bundle, run.folder, slides, tmp_path)


@pytest.mark.long
def test_annotated_images_are_an_external_validation(predicted_images, tmp_path):
    """By the bundle alone; a change of annotations prepares and predicts these images again."""
    run = predicted_images.copy(tmp_path / "copy")
    bundle = bundle_of(run, "images.yaml", tmp_path / "bundle")
    sheet, out = run.folder / "new.tsv", tmp_path / "out"
    _, predictions = predict_with(run, bundle, out, sheet)
    of_run = json.loads(
        (run.folder / "results/small/predictions/external/metrics.json").read_text()
    )
    written = {path.name for path in (predictions / "external").iterdir()}
    assert written == {"images.tsv", "index.html", "metrics.json"}  # as docs/outputs.md says
    measured = json.loads((predictions / "external/metrics.json").read_text())
    # A bundle knows the pixels of the cohort, not its files.
    assert measured["left_out"][0] == {"id": "N1", "reason": "in the cohort: same pixels"}
    assert measured["metrics"]["mask"] == of_run["metrics"]["mask"]
    assert measured["differences"] == of_run["differences"]

    def jobs():
        return run.jobs(
            *("--snakefile", str(run.folder / "Snakefile"), "--directory", str(out)),
            *("--configfile", str(out / "config.yaml")),
        )

    assert jobs() == {}
    external = {"external", "external_page", "all"}
    text = sheet.read_text()
    sheet.write_text(text.replace("south", "east"))
    assert set(jobs()) == external
    sheet.write_text(text)
    annotations = run.folder / "slides/N4.geojson"
    annotations.write_text(annotations.read_text().replace("nucleus", "other", 1))
    again = {"prepare_new", "collect_new", "predict", "prediction_pages"}
    assert set(jobs()) == external | again
    sheet.write_text(text.replace("H3", ""))
    done, _ = predict_with(run, bundle, out, sheet, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "row 4: patient is empty" in done.stderr


def check_served(bundle, folder, predictions, tmp_path):
    """Check that a server detects on a slide what the bundle does, and shows it in the viewer."""
    arguments = (bundle, "--work-dir", tmp_path / "work", "--allow", folder / "slides")
    with running(tmp_path, *arguments) as server:
        client = server.client
        good, bad = (
            client.post("/v1/slides", json={"path": str(folder / "slides" / name)}).json()["id"]
            for name in ("S1.svs", "S2.svs")
        )
        until = time.monotonic() + 240
        while client.get(f"/v1/jobs/{bad}").json()["state"] in ("queued", "running"):
            assert time.monotonic() < until
            time.sleep(0.5)
        failed = client.get(f"/v1/jobs/{bad}").json()
        assert failed["state"] == "failed" and str(folder) not in failed["reason"], failed
        assert client.get(f"/v1/jobs/{good}").json()["state"] == "done"
        result = client.get(f"/v1/jobs/{good}/result").json()
        state = json.loads((predictions / "slides/S1.json").read_text())
        assert result["instances"] == state["instances"] and result["cut"] == state["cut"]
        listed = {job["id"]: job["predicted"] for job in client.get("/v1/jobs").json()["jobs"]}
        assert listed[bad] is None and listed[good].startswith("nucleus: ")
        files = f"/v1/jobs/{good}/files"
        table = client.get(f"{files}/instances.parquet").content
        assert read_instances(table) == read_instances(
            (predictions / "slides/S1.parquet").read_bytes()
        )
        assert client.get(f"{files}/outlines.geojson.gz").status_code == 200
        assert "nucleus" in client.get(f"{files}/page.html").text
        assert client.get(f"{files}/tiles.parquet").status_code == 404
        view = client.get(f"/v1/jobs/{good}/view").json()
        assert dict(zip(view["classes"], view["counts"], strict=True)) == state["instances"]
        outlines = client.get(f"/v1/jobs/{good}/outlines?box=0,0,99999,99999").json()
        assert outlines["total"] == sum(state["instances"].values())
        assert client.get(f"/v1/jobs/{bad}/view").status_code == 409


def read_instances(content):
    """Return a table of instances without their ids, which depend on the slide's name."""
    return pd.read_parquet(io.BytesIO(content)).drop(columns="id").to_dict()
