"""The viewer shows the slides of runs, without a job: what the report shows, and no other file."""

import base64
import io
import re
import shutil
import time

import numpy as np
import pandas as pd
import pytest
from browser import started
from PIL import Image
from servers import running

from gigatile.report.viewer_links import viewer_address, viewer_id
from gigatile.tables import read_table

# In the page of a slide: the heat map of a class.
LAYER = re.compile(r'<image class="layer layer-(\d+)"[^>]* href="data:image/png;base64,([^"]+)"')


@pytest.fixture(scope="module")
def shown(small_run, whole_run, embedded_run, tmp_path_factory):
    """A server that shows three runs, and the folders of two."""
    folder = tmp_path_factory.mktemp("shown")
    small = small_run.copy(folder / "small")
    whole = whole_run.copy(folder / "whole")
    embedded = embedded_run.copy(folder / "embedded")
    arguments = ("--run", small.folder / "small.yaml", "--run", whole.folder / "whole.yaml")
    arguments += ("--run", embedded.folder / "embedded.yaml")
    with running(folder, *arguments, "--work-dir", folder / "work") as server:
        yield server, small, whole


def of_run(server, run):
    slides = server.client.get("/v1/runs").json()["slides"]
    return {slide["name"]: slide for slide in slides if slide["run"] == run}


@pytest.mark.slow
def test_slides_of_a_run_are_those_of_its_report(shown):
    server, small, whole = shown
    folders = {"small": small.folder, "whole": whole.folder}
    folders["embedded"] = small.folder.with_name("embedded")
    for run, folder in folders.items():
        results = folder / "results" / run
        evaluated = {r["slide"]: r for r in read_table(results / "evaluation/slides.tsv")}
        slides = of_run(server, run)
        if run == "embedded":
            del slides["N1"]  # a new slide
        assert slides.keys() == evaluated.keys() and len(slides) == 3
        for name, slide in slides.items():
            assert slide["id"] == viewer_id(run, name)
            assert slide["predicted"] == evaluated[name]["call_mean"]
            view = server.client.get(f"/v1/jobs/{slide['id']}/view").json()
            scores = [float(evaluated[name][f"p_{label}"]) for label in view["classes"]]
            assert view["scores"] == scores and view["predicted"] == slide["predicted"]
            page = (results / f"report/slides/{name}.html").read_text()
            pictures = dict(LAYER.findall(page))
            for number in range(len(view["classes"])):
                answer = server.client.get(f"/v1/jobs/{slide['id']}/layers/{number}.png")
                assert pixels(answer.content) == pixels(base64.b64decode(pictures[str(number)]))
            answer = server.client.get(f"/v1/jobs/{slide['id']}/layers/attention.png")
            assert ("attention" in {layer["file"] for layer in view["layers"]}) == (
                run == "embedded"
            )
            if run == "embedded":
                of_report = base64.b64decode(pictures[str(len(view["classes"]))])
                assert pixels(answer.content) == pixels(of_report)
            else:
                assert answer.status_code == 404


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGBA")).tolist()


@pytest.mark.slow
def test_scores_of_tiles_are_those_of_the_evaluation(shown):
    server, small, _ = shown
    tiles = pd.read_parquet(small.folder / "results/small/evaluation/tiles.parquet")
    for name, slide in of_run(server, "small").items():
        view = server.client.get(f"/v1/jobs/{slide['id']}/view").json()
        expected = {
            (round(row.x / view["extent"]), round(row.y / view["extent"])): row
            for row in tiles[tiles["slide"] == name].itertuples()
        }
        assert len(view["tiles"]) == len(expected)
        for column, row, *values in view["tiles"]:
            wanted = [getattr(expected[column, row], f"p_{label}") for label in view["classes"]]
            assert np.abs(np.array(values) - wanted).max() < 1e-6


@pytest.mark.slow
def test_the_report_leads_to_the_viewer(shown, tmp_path):
    """The link on the page of a slide opens that slide, and a verdict on it is kept."""
    server, small, _ = shown
    settings = small.folder / "small.yaml"
    settings.write_text(f"{settings.read_text()}report: {{viewer: '{server.address}/'}}\n")
    small.snakemake("--cores", "1", "--configfile", "small.yaml")
    page = small.folder / "results/small/report/slides/P10-1.html"
    (link,) = re.findall(r'<a href="(http[^"]*)"', page.read_text())
    assert link == viewer_address(server.address, "small", "P10-1")
    with started(tmp_path) as browser:
        browser.visit(page.as_uri())
        address = browser.run("return [...document.links].find(a => a.host).href")
        browser.visit(address)
        until = time.monotonic() + 30
        while browser.run("return document.body.dataset.state") != "open":
            assert time.monotonic() < until
            time.sleep(0.1)
        assert browser.run("return document.getElementById('name').textContent") == "P10-1"
        browser.run(
            "document.body.dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
        )
        text = browser.run("return document.getElementById('tile').textContent")
        assert re.match(r"x \d+, y \d+", text)
        browser.visit(f"{server.address}/viewer/")
        until = time.monotonic() + 30
        while len(rows := listed(browser)) < 6:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert sum("run small" in row for row in rows) == 3
    id = link.rsplit("/", 1)[1]
    fields = {"verdict": "luad", "comment": "as predicted", "reader": "A. Reader"}
    assert server.client.post(f"/v1/jobs/{id}/verdicts", json=fields).status_code == 201
    (row,) = [
        line for line in server.client.get("/v1/verdicts.tsv").text.splitlines() if id in line
    ]
    assert "P10-1\tsmall\t0\t" in row


def listed(browser):
    return browser.run(
        "return [...document.querySelectorAll('#slides tr')].map(r => r.textContent)"
    )


@pytest.mark.slow
def test_another_file_is_not_shown_with_these_scores(shown):
    server, small, _ = shown
    id = viewer_id("small", "P08-1")
    path = small.folder / "cohort/P08-1.svs"
    assert server.client.get(f"/v1/jobs/{id}/view").status_code == 200
    kept = path.rename(path.with_suffix(".kept"))
    try:
        answer = server.client.get(f"/v1/jobs/{id}/view")
        assert (answer.status_code, answer.json()["error"]) == (404, "the slide's file is missing")
        shutil.copy(small.folder / "cohort/P09-1.svs", path)
        answer = server.client.get(f"/v1/jobs/{id}/view")
        assert answer.status_code == 409
        assert answer.json()["error"] == "the slide's file is not the one that was predicted"
    finally:
        kept.rename(path)
    assert server.client.get(f"/v1/jobs/{id}/view").status_code == 200


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_repeated(shown):
    """Its tables may be missing for a while."""
    server, _, whole = shown
    id = viewer_id("whole", "P10-1")
    table = whole.folder / "results/whole/evaluation/slides.tsv"
    kept = table.rename(table.with_suffix(".kept"))
    try:
        assert of_run(server, "whole")["P10-1"]["predicted"] is None
        for path in ("view", "layers/0.png"):
            answer = server.client.get(f"/v1/jobs/{id}/{path}")
            assert answer.status_code in (200, 404) and "Traceback" not in answer.text
        assert server.client.get(f"/v1/jobs/{id}/view").status_code == 404
        fields = {"verdict": "luad", "reader": "A. Reader"}
        assert server.client.post(f"/v1/jobs/{id}/verdicts", json=fields).status_code == 404
    finally:
        kept.rename(table)
    assert server.client.get("/v1/jobs/" + "0" * 32 + "/view").status_code == 404


@pytest.mark.long
@pytest.mark.slow
def test_slides_in_a_store_are_shown(small_run, store, tmp_path):
    """The run's sheet names objects: their tiles are those of the files, until one is replaced."""
    runs = {name: small_run.copy(tmp_path / name) for name in ("disk", "store")}
    store.move_cohort(runs["store"].folder / "cohort/samples.tsv", "shown")
    seen = {}
    for name, run in runs.items():
        config = run.folder / "small.yaml"
        with running(run.folder, "--run", config, "--work-dir", tmp_path / "work") as server:
            slide = of_run(server, "small")["P10-1"]
            url = f"/v1/jobs/{slide['id']}"
            view = server.client.get(f"{url}/view").json()
            assert "predicted" in view, view
            last = view["levels"] - 1
            tiles = [f"{url}/zoom/{last}/{x}_{y}.jpg" for x in (0, 1) for y in (0, 1)]
            answers = [server.client.get(tile) for tile in tiles]
            assert [answer.status_code for answer in answers] == [200] * 4
            seen[name] = view | {"id": None}, [answer.content for answer in answers]
            if name == "store":
                store.put("shown/P10-1.svs", b"another file")
                assert server.client.get(f"{url}/view").status_code == 409
    assert seen["store"][1] == seen["disk"][1]
