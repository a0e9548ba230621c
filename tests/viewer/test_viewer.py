"""The viewer in a real browser: pan, zoom, layers, tiles to the pixel, keys, phones, dark mode."""

import io
import random
import time
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from axe import ALL, TOO_WIDE, violations
from PIL import Image

from gigatile.report.slides.heatmap import COLOURS


def open_slide(browser, viewed, name="drawn", width=1200, height=800, scheme="light"):
    """Open the page of a slide and wait until it is shown; return what it was made from."""
    server, ids = viewed
    if ids.get(name) is None:
        pytest.skip("the real slides are not here")
    browser.emulate(width, height, scheme)
    browser.requests(), browser.errors()
    browser.visit(f"{server.address}/viewer/slides/{ids[name]}")
    await_state(browser, "document.body.dataset.state === 'open'")
    time.sleep(1)
    return server.client.get(f"/v1/jobs/{ids[name]}/view").json()


def await_state(browser, condition, seconds=30):
    until = time.monotonic() + seconds
    while not browser.run(f"return {condition}"):
        assert time.monotonic() < until, condition
        time.sleep(0.1)


def settle(browser):
    """Wait until nothing moves."""
    before = None
    while (
        now := browser.run("return JSON.stringify(gigatileViewer.viewport.getBounds(true))")
    ) != before:
        before = now
        time.sleep(0.3)


def point_at(browser, view, x, y):
    """Return the point of the slide that is shown at the centre of a pixel of the window."""
    left, top, width, height, bounds = browser.run(
        "const box = document.getElementById('slide').getBoundingClientRect();"
        "const b = gigatileViewer.viewport.getBounds(true);"
        "return [box.left, box.top, box.width, box.height, [b.x, b.y, b.width, b.height]];"
    )
    scale = view["width"]
    return (
        (bounds[0] + (x - left) / width * bounds[2]) * scale,
        (bounds[1] + (y - top) / height * bounds[3]) * scale,
    )


@pytest.mark.parametrize("name", ["drawn", "real"])
def test_tile_under_the_pointer_is_the_one_shown(browser, viewed, name):
    """At several zooms: the cell, its scores, and the colour of the heat map at that pixel."""
    view = open_slide(browser, viewed, name)
    server, ids = viewed
    work = server.folder / "work/jobs" / ids[name] / "run/results/tiny/predictions"
    tiles = pd.read_parquet(work / "tiles.parquet")
    by_cell = {
        (round(row.x / view["extent"]), round(row.y / view["extent"])): row
        for row in tiles.itertuples()
    }
    browser.run(
        "const opacity = document.getElementById('opacity');"
        "opacity.value = 100; opacity.dispatchEvent(new Event('input'));"
    )
    number = view["classes"].index(view["predicted"])
    chance, hits = random.Random(1), 0
    for zoom in (1, 2.7, 9):
        browser.run(
            "const view = gigatileViewer.viewport;"
            f"view.zoomTo(view.getHomeZoom() * {zoom}, null, true);"
        )
        settle(browser)
        shown = np.asarray(Image.open(io.BytesIO(browser.window())).convert("RGB"), int)
        for _ in range(12):
            x, y = chance.randrange(200, 900), chance.randrange(60, 780)
            browser.click_at(x, y)
            clicked = point_at(browser, view, x, y)
            cells = [int(value // view["extent"]) for value in clicked]
            # At a border, the click is at a corner of a pixel, and may be in either tile.
            if any(
                min(v % view["extent"], -v % view["extent"]) < 1.5 * view["width"] / 900 / zoom
                for v in clicked
            ):
                continue
            until = time.monotonic() + 5
            while (
                browser.run("return document.getElementById('tile').dataset.cell")
                != f"{cells[0]},{cells[1]}"
            ):
                assert time.monotonic() < until, (zoom, x, y, cells)
                time.sleep(0.05)
            text = browser.run("return document.getElementById('tile').innerText")
            tile = by_cell.get(tuple(cells))
            if tile is None:
                assert "No tile was scored here." in text
                continue
            hits += 1
            for label in view["classes"]:
                assert f"{getattr(tile, f'p_{label}'):.3f}" in text
            score = getattr(tile, f"p_{view['classes'][number]}")
            colour = COLOURS[round(float(score) * 255)][:3].astype(int)
            assert np.abs(shown[y, x] - colour).max() <= 3, (zoom, x, y)
    assert hits >= 6


def test_layers_and_opacity(browser, viewed):
    view = open_slide(browser, viewed)
    visible = (
        "return [...document.querySelectorAll('.layer')].map((e) => "
        "[getComputedStyle(e).visibility, getComputedStyle(e).opacity, e.naturalWidth])"
    )
    names = browser.run(
        "return [...document.querySelectorAll('#layers label')].map((e) => e.innerText.trim())"
    )
    assert names == [*(layer["name"] for layer in view["layers"]), "None"]
    for number in range(len(names)):
        browser.run(f"document.querySelectorAll('#layers input')[{number}].click()")
        states = browser.run(visible)
        expected = [number == k for k in range(len(view["layers"]))]
        assert [state == "visible" for state, _, _ in states] == expected
        assert all(width > 0 and opacity == "0.6" for _, opacity, width in states)
        # Only scores have the legend of colours.
        is_shown = browser.run("return !document.getElementById('legend').hidden")
        assert is_shown == (number < len(view["classes"]))
    assert view["colours"][0] == f"#{bytes(COLOURS[0][:3]).hex()}"
    gradient = browser.run("return document.getElementById('colours').style.background")
    assert gradient.count("rgb(") == len(view["colours"])


def test_keyboard_alone(browser, viewed):
    """Move, zoom, read a tile, choose and hide a layer."""
    open_slide(browser, viewed)
    browser.run("document.getElementById('slide').focus()")
    zooms = []
    for key in ("0", "+", "+", "-", "0"):
        browser.type_text(key)
        zooms.append(browser.run("return gigatileViewer.viewport.getZoom()"))
    home = zooms[0]
    assert np.allclose(zooms, [home, 1.5 * home, 2.25 * home, 1.5 * home, home])
    browser.type_text("++")
    before = browser.run("return gigatileViewer.viewport.getBounds().x")
    browser.type("right")
    assert browser.run("return gigatileViewer.viewport.getBounds().x") > before
    settle(browser)
    browser.type("enter")
    assert "x " in browser.run("return document.getElementById('tile').innerText")
    browser.type_text("2")
    assert browser.run("return document.querySelectorAll('#layers input')[1].checked")
    browser.type_text("h")
    hidden = (
        "return [...document.querySelectorAll('.layer')]"
        ".every((layer) => layer.style.visibility === 'hidden')"
    )
    assert browser.run(hidden)
    browser.type_text("h")
    assert not browser.run(hidden)


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [(1200, 800, "light"), (1200, 800, "dark"), (390, 800, "light"), (390, 800, "dark")],
)
def test_accessible_on_every_screen(browser, viewed, width, height, scheme):
    server, _ = viewed
    open_slide(browser, viewed, "drawn", width, height, scheme)
    assert violations(browser, ALL) == []
    assert browser.run(TOO_WIDE)[0] <= 0
    browser.visit(f"{server.address}/viewer/")
    await_state(browser, "document.querySelectorAll('#slides tr').length >= 2")
    assert violations(browser, ALL) == []
    assert browser.run(TOO_WIDE)[0] <= 0


def test_nothing_leaves_the_machine(browser, viewed):
    server, _ = viewed
    open_slide(browser, viewed)
    urls = browser.requests()
    assert len(urls) > 10
    assert {urlsplit(url).netloc for url in urls if not url.startswith("blob:")} == {
        urlsplit(server.address).netloc
    }
    assert browser.errors() == []


def test_list_of_slides(browser, viewed):
    """Search, sorting, states; names are shown as they are, and nothing in them runs."""
    server, ids = viewed
    browser.emulate(1200, 800)
    browser.visit(f"{server.address}/viewer/")
    await_state(browser, f"document.querySelectorAll('#slides tr').length === {len(ids)}")
    rows = "return [...document.querySelectorAll('#slides tr')].map((row) => row.innerText)"
    texts = browser.run(rows)
    assert any("<img src=x onerror=alert(1)>drawn" in text and "done" in text for text in texts)
    assert any("failed: not a slide format" in text for text in texts)
    assert browser.run("return document.querySelectorAll('#slides img').length") == 0
    assert sum("luad" in text or "lusc" in text for text in texts) == len(ids) - 1
    browser.run("document.querySelector('button[data-key=name]').click()")
    names = [text.split("\t")[1] for text in browser.run(rows)]
    assert names == sorted(names)
    browser.run(
        "const search = document.getElementById('search');"
        "search.value = 'DRAW'; search.dispatchEvent(new Event('input'));"
    )
    assert len(browser.run(rows)) == 1


def test_requests_for_what_is_not_there(viewed):
    server, ids = viewed
    done, failed = ids["drawn"], ids["text"]
    for path, status in {
        f"/v1/jobs/{failed}/view": 409,
        f"/v1/jobs/{'0' * 32}/view": 404,
        f"/v1/jobs/{done}/layers/9.png": 404,
        f"/v1/jobs/{done}/layers/..%2fx.png": 404,
        f"/v1/jobs/{done}/zoom/99/0_0.jpg": 404,
        f"/v1/jobs/{done}/zoom/0/-1_0.jpg": 404,
        f"/v1/jobs/{done}/zoom/0/{'9' * 50}_0.jpg": 404,
        "/viewer/static/nothing.js": 404,
        "/viewer/static/..%2f..%2froutes.py": 404,
        "/viewer/static/../routes.py": 404,
    }.items():
        answer = server.client.get(path)
        assert answer.status_code == status and "error" in answer.json(), path
    assert "Traceback" not in server.lines()
