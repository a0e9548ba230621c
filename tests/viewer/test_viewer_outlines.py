"""Outlines of instances: those of the file, where they are drawn, and what a click finds."""

import gzip
import json
import os
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from axe import ALL, violations
from drawn_slides import DarkObjects, draw_slide
from servers import running
from test_viewer import await_state, settle

from gigatile.errors import UserError
from gigatile.instances.geojson import read_geojson, write_geojson
from gigatile.instances.slide_detection import DetectionFiles, SlideJob, detect_slide
from gigatile.report.viewer_links import viewer_id
from gigatile.settings.slide_instances import SlideInstanceSettings
from gigatile.viewer import annotations
from gigatile.viewer.outlines import MOST, DetectedSlide, read_outlines

CONFIGURATION = """
run: cells
task: instance_segmentation
samples: images.tsv
predict: {slides: slides.tsv}
"""


def feature(name, *rings):
    properties = {"objectType": "annotation"}
    if name:
        properties["classification"] = {"name": name}
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": rings},
        "properties": properties,
    }


def square(x, y, side):
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


# A tumour in a region without a class, and a region with a hole.
ANNOTATIONS = [
    feature("Tumour <b>", square(500, 500, 100)),
    feature(None, square(400, 400, 400)),
    feature(None, square(1000, 400, 400), square(1100, 500, 200)),
]

# The canvas may not be read itself: the browser warns that this is slow.
COPY = (
    "const canvas = document.querySelector('canvas.outlines');"
    "const { width, height } = canvas;"
    "const copy = Object.assign(document.createElement('canvas'), { width, height })"
    ".getContext('2d', { willReadFrequently: true }); copy.drawImage(canvas, 0, 0);"
)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A folder with the instances of a slide, as a run leaves them, and what was drawn."""
    folder = tmp_path_factory.mktemp("cells")
    drawn = draw_slide(folder / "S1.svs", 75, 80, seed=1, share=0.8)
    results = folder / "results/cells/predictions/slides"
    results.mkdir(parents=True)
    endings = ("parquet", "geojson.gz", "jpg", "json")
    files = DetectionFiles(*(results / f"S1.{ending}" for ending in endings))
    settings = {"mpp": None, "requested_mpp": None, "settings": SlideInstanceSettings()}
    job = SlideJob("S1", drawn.path, window=1024, overlap=64, **settings)
    state = detect_slide(job, DarkObjects, "0" * 64, files)
    assert state.state == "detected"
    (folder / "config.yaml").write_text(CONFIGURATION)
    (folder / "images.tsv").write_text(
        "image\tpatient\tpath\tannotations\nA\tP\ta.png\ta.json\nB\tQ\tS1.svs\tB.geojson\n"
    )
    (folder / "B.geojson").write_text(json.dumps(ANNOTATIONS))
    (folder / "slides.tsv").write_text("slide\tpath\nS1\tS1.svs\nS2\tS2.svs\n")
    return folder, drawn, files


def test_outlines_are_those_of_the_file(cells):
    _, _, files = cells
    outlines = read_outlines(files.outlines, 0, ("nucleus",))
    table = pq.read_table(files.table).to_pydict()
    objects = read_geojson(files.outlines)
    assert len(outlines.boxes) == len(objects) > MOST
    everywhere = outlines.within(-1, -1, 1e6, 1e6)
    assert everywhere == {"total": len(objects), "most": MOST, "instances": []}
    for x, y, width, height in ((0, 0, 300, 200), (500.5, 300, 1, 1), (900, 900, 700, 500)):
        wanted = []
        for number, item in enumerate(objects):
            points = np.concatenate([ring for polygon in item.polygons for ring in polygon])
            (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
            if left <= x + width and right >= x and top <= y + height and bottom >= y:
                wanted.append((number, points))
        part = outlines.within(x, y, width, height)
        assert part["total"] == len(part["instances"]) == len(wanted)
        for (category, score, rings), (number, points) in zip(
            part["instances"], wanted, strict=True
        ):
            # The file closes each ring with its first point.
            shown = np.concatenate([np.reshape(ring, (-1, 2))[:-1] for ring in rings])
            np.testing.assert_allclose(shown, points, atol=0.06)
            assert category == 0 and abs(score - table["score"][number]) < 6e-4


def test_several_categories_and_holes(tmp_path):
    path = tmp_path / "S1.geojson.gz"
    square = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)
    with write_geojson(path, "S1") as writer:
        writer.add([[square, square / 2 + 2]], "b", (1, 2, 3), {"Score": None})
        writer.add([[square + 100], [square + 120]], "a", (1, 2, 3), {"Score": 0.25})
    outlines = read_outlines(path, 0, ("a", "b"))
    ((category, score, rings),) = outlines.within(0, 0, 1, 1)["instances"]
    assert (category, score, len(rings)) == (1, None, 2)
    ((category, score, rings),) = outlines.within(125, 125, 1, 1)["instances"]
    assert (category, score, len(rings)) == (0, 0.25, 2)
    with write_geojson(path, "S1"):
        pass
    assert read_outlines(path, 1, ()).within(0, 0, 9, 9)["total"] == 0


def test_damaged_outlines_are_an_error(cells, tmp_path):
    _, _, files = cells
    text = gzip.decompress(files.outlines.read_bytes())
    whole = files.outlines.read_bytes()
    lines = text.splitlines(keepends=True)
    damaged = {
        "half a gzip": whole[: len(whole) // 2],
        "no gzip": text,
        "no end": gzip.compress(b"".join(lines[:-1])),
        "half a line": gzip.compress(text[: len(text) // 2]),
        "another beginning": gzip.compress(b"[" + text),
        "another category": gzip.compress(text.replace(b'"nucleus"', b'"other"', 1)),
        "no rings": gzip.compress(
            text.replace(b'"coordinates":[[', b'"coordinates":[], "x":[[', 1)
        ),
        "odd points": gzip.compress(text.replace(b'"coordinates":[[[', b'"coordinates":[[[7,', 1)),
        "three": gzip.compress(text.replace(b'"coordinates":[[[', b'"coordinates":[[[7,7,7],[', 1)),
        "no number": gzip.compress(
            text.replace(b'"coordinates":[[[', b'"coordinates":[[[NaN,1],[', 1)
        ),
        "text": gzip.compress(text.replace(b'"coordinates":[[[', b'"coordinates":[[["7",', 1)),
        "empty": b"",
    }
    for name, content in damaged.items():
        path = tmp_path / f"{name}.geojson.gz"
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged, not outlines of instances"):
            read_outlines(path, 0, ("nucleus",))
    with pytest.raises(UserError, match="no such file"):
        read_outlines(tmp_path / "none.geojson.gz", 0, ("nucleus",))


@pytest.fixture(scope="module")
def shown(cells, tmp_path_factory):
    folder, _, _ = cells
    work = tmp_path_factory.mktemp("work")
    with running(work, "--run", folder, "--work-dir", work / "jobs") as server:
        yield server


def test_boxes_are_checked(shown):
    id = viewer_id("cells", "S1", is_new=True)
    (listed,) = shown.client.get("/v1/runs").json()["slides"]
    assert listed["id"] == id and listed["predicted"].startswith("nucleus: ")
    assert shown.client.get(f"/v1/jobs/{id}/outlines?box=0,0,10,10").status_code == 200
    for box in ("", "1,2,3", "0,0,1e3,1", "0,0,nan,1", "1,2,3,4,5", "0,0,99999999999,1", "a"):
        assert shown.client.get(f"/v1/jobs/{id}/outlines?box={box}").status_code == 400
    assert shown.client.get(f"/v1/jobs/{id}/layers/0.png").status_code == 404


def centre_on(browser, x, y, pixels):
    """Show a point at the centre, so many screen pixels per pixel of the slide."""
    browser.run(
        f"const port = gigatileViewer.viewport; port.zoomTo(port.imageToViewportZoom({pixels}), "
        f"null, true); port.panTo(port.imageToViewportCoordinates(new OpenSeadragon.Point({x}, {y})"
        "), true); port.applyConstraints(true);"
    )
    settle(browser)


def test_outlines_in_a_browser(browser, cells, shown):
    """At the edge of a nucleus is its outline; a click in it finds it."""
    _, drawn, files = cells
    browser.emulate(1200, 800, "light")
    browser.requests(), browser.errors()
    browser.visit(f"{shown.address}/viewer/slides/{viewer_id('cells', 'S1', is_new=True)}")
    await_state(browser, "document.getElementById('count').textContent.includes('zoom in')")
    outlines = read_outlines(files.outlines, 0, ("nucleus",))
    middle = np.array([drawn.width, drawn.height]) / 2
    centroids = np.asarray(drawn.centroids)
    for number in np.argsort(((centroids - middle) ** 2).sum(axis=1))[:3]:
        x, y = centroids[number]
        centre_on(browser, x, y, 8)
        await_state(browser, "Number(document.body.dataset.outlines) > 0")
        time.sleep(0.3)
        ((_, score, (ring, *_)),) = outlines.within(x, y, 0.1, 0.1)["instances"]
        points = np.reshape(ring, (-1, 2))
        # The canvas has colour at the points of the outline, and none at the centre.
        for px, py in (*points[:: max(1, len(points) // 6)], (x, y)):
            colour = browser.run(
                "const p = gigatileViewer.viewport.imageToViewerElementCoordinates("
                f"new OpenSeadragon.Point({px}, {py})); const r = window.devicePixelRatio || 1;"
                f"{COPY} return [...copy.getImageData(Math.round(p.x * r) - 1, "
                "Math.round(p.y * r) - 1, 3, 3).data];"
            )
            assert (max(colour[3::4]) > 0) == ((px, py) != (x, y))
        browser.run(
            "document.body.dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
        )
        text = browser.run("return document.getElementById('tile').textContent")
        assert f"nucleus, score {score:.3f}" in text
    # None, and all again.
    browser.run("document.querySelectorAll('#layers input')[2].click()")
    blank = (
        f"{COPY} return copy.getImageData(0, 0, canvas.width, canvas.height).data.every(v => !v)"
    )
    assert browser.run(blank)
    browser.run("document.querySelectorAll('#layers input')[0].click()")
    assert not browser.run(blank)
    assert violations(browser, ALL) == []
    assert browser.errors() == []
    assert all(url.startswith((shown.address, "data:", "blob:")) for url in browser.requests())


def colours_at(browser, number, x, y):
    """Return the colours of a canvas around a point of the slide: (9, 4)."""
    copy = COPY.replace(
        "querySelector('canvas.outlines')", f"querySelectorAll('canvas.outlines')[{number}]"
    )
    values = browser.run(
        "const p = gigatileViewer.viewport.imageToViewerElementCoordinates("
        f"new OpenSeadragon.Point({x}, {y})); const r = window.devicePixelRatio || 1; {copy} "
        "return [...copy.getImageData(Math.round(p.x * r) - 1, Math.round(p.y * r) - 1, 3, 3).data]"
    )
    return np.reshape(values, (9, 4))


def press(browser, key):
    browser.run(
        "document.body.dispatchEvent("
        f"new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
    )


def test_annotations_in_a_browser(browser, shown):
    """Those of the sheet are drawn; a click names the smallest one, and none in a hole."""
    id = viewer_id("cells", "S1", is_new=True)
    view = shown.client.get(f"/v1/jobs/{id}/view").json()
    assert view["annotations"] == {"classes": ["Annotation", "Tumour <b>"], "counts": [2, 1]}
    browser.emulate(1200, 800, "light")
    browser.requests(), browser.errors()
    browser.visit(f"{shown.address}/viewer/slides/{id}")
    await_state(browser, "document.body.dataset.annotations === '3'")
    for x, y, is_edge, name in (
        (450, 400, True, ""),
        (450, 450, False, "Annotation: Annotation"),
        (550, 550, False, "Annotation: Tumour <b>"),
        (1100, 600, True, ""),
        (1200, 600, False, "no annotation"),
        (1050, 450, False, "Annotation: Annotation"),
        (900, 450, False, "no annotation"),
    ):
        centre_on(browser, x, y, 1)
        # With the opacity of the page; dashes are white on black.
        shades = colours_at(browser, 1, x, y)
        assert (shades[:, 3].max() > 0) == is_edge, (x, y)
        if is_edge:
            continue
        press(browser, "Enter")
        text = browser.run("return document.getElementById('tile').innerText")
        assert name in text if name != "no annotation" else "Annotation" not in text, (x, y)
    assert browser.run("return document.getElementById('annotations-count').textContent") == (
        "3 annotations here"
    )
    centre_on(browser, 450, 400, 1)
    for is_shown in (False, True):
        press(browser, "a")
        assert colours_at(browser, 1, 450, 400).any() == is_shown
    browser.run("document.getElementById('annotations-shown').click()")
    press(browser, "Enter")
    assert "Annotation" not in browser.run("return document.getElementById('tile').innerText")
    assert violations(browser, ALL) == []
    assert browser.errors() == []


def test_annotations_that_cannot_be_read(browser, cells, shown):
    """The slide is shown without them, and the page says why."""
    folder, _, _ = cells
    id, path = viewer_id("cells", "S1", is_new=True), folder / "B.geojson"
    whole = path.read_text()
    point = feature("x", []) | {"geometry": {"type": "Point", "coordinates": [1, 2]}}
    damaged = {
        "[": "not valid JSON",
        '{"a": 1}': "not GeoJSON of objects",
        json.dumps([point]): "which has no area",
        json.dumps([feature("x", [[0, 0], [1, 1], [float("nan"), 1]])]): "is not a number",
        json.dumps([feature("x", [[0, 0], [1, 1]])] * 9999): "less than three different points",
        "": "not valid JSON",
    }
    try:
        for text, reason in damaged.items():
            path.write_text(text)
            error = shown.client.get(f"/v1/jobs/{id}/view").json()["annotations"]["error"]
            assert error.startswith("the annotations cannot be read: B.geojson: ")
            assert reason in error and len(error) < 600 and str(folder) not in error
            answer = shown.client.get(f"/v1/jobs/{id}/annotations?box=0,0,9,9")
            assert (answer.status_code, answer.json()["error"]) == (404, error)
        browser.requests(), browser.errors()
        browser.visit(f"{shown.address}/viewer/slides/{id}")
        await_state(browser, "document.body.dataset.state === 'open'")
        text = browser.run("return document.getElementById('annotations-count').textContent")
        assert text == error and browser.errors() == []
        path.unlink()
        error = shown.client.get(f"/v1/jobs/{id}/view").json()["annotations"]["error"]
        assert error.endswith("B.geojson: No such file or directory")
        path.mkdir()
        error = shown.client.get(f"/v1/jobs/{id}/view").json()["annotations"]["error"]
        assert error.endswith("B.geojson: not a file")
        path.rmdir()
        os.mkfifo(path)  # reading it would wait forever
        error = shown.client.get(f"/v1/jobs/{id}/view").json()["annotations"]["error"]
        assert error.endswith("B.geojson: not a file")
        path.unlink()
    finally:
        path.write_text(whole)
    assert "classes" in shown.client.get(f"/v1/jobs/{id}/view").json()["annotations"]


def test_annotations_have_a_limit(tmp_path, monkeypatch):
    """Also of text that is small when it is compressed."""
    path = tmp_path / "a.geojson.gz"
    path.write_bytes(gzip.compress(json.dumps(ANNOTATIONS).encode() + b" " * 10_000))
    monkeypatch.setattr(annotations, "MAX_BYTES", 10_000)
    with pytest.raises(UserError, match="has more than 10,000 bytes of text"):
        annotations.open_annotations(path)


def test_a_slide_of_a_run_that_is_repeated(cells, shown):
    folder, _, files = cells
    id = viewer_id("cells", "S1", is_new=True)
    kept = files.outlines.rename(files.outlines.with_suffix(".kept"))
    try:
        assert shown.client.get(f"/v1/jobs/{id}/view").status_code == 200
        answer = shown.client.get(f"/v1/jobs/{id}/outlines?box=0,0,1,1")
        assert answer.status_code == 404 and str(folder) not in answer.text
    finally:
        kept.rename(files.outlines)
    assert DetectedSlide(files.state.parent, "S1").summary().startswith("nucleus: ")
