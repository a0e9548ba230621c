"""The bundle of a segmentation of instances."""

import json

from bundles import bundle_of, predict_with

from gigatile.tables import read_table


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
