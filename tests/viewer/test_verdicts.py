"""Verdicts are kept as they were given, shown, and exported so that no spreadsheet runs them."""

import sqlite3
import subprocess
import sys
import time

import pytest
from axe import ALL, TOO_WIDE, violations
from test_viewer import await_state, open_slide

from gigatile.errors import UserError
from gigatile.viewer.verdicts import VerdictStore, open_verdicts

FIELDS = {
    "job": "a" * 32,
    "slide": "S1",
    "model": "lung",
    "version": 1,
    "predicted": "luad",
    "verdict": "lusc",
    "comment": "",
    "reader": "R",
}


def test_history_is_kept(tmp_path):
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    first, second = store.add(**FIELDS), store.add(**FIELDS | {"verdict": "luad"})
    other = store.add(**FIELDS | {"job": "b" * 32})
    assert store.of_job("a" * 32) == [second, first]
    assert {verdict.number for verdict in store.latest()} == {second.number, other.number}
    store.close()
    again = open_verdicts(tmp_path)
    assert again.of_job("a" * 32) == [second, first]


@pytest.mark.parametrize(
    "change",
    ["UPDATE verdicts SET verdict = 'luad'", "DELETE FROM verdicts", "REPLACE INTO verdicts "
     "VALUES (1, 'j', 's', 'm', 1, 'p', 'v', 'c', 'r', 0)"],
)  # fmt: skip
def test_no_program_changes_a_verdict(tmp_path, change):
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    before = store.add(**FIELDS)
    store.close()
    connection = sqlite3.connect(tmp_path / "verdicts.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="never"):
        connection.execute(change)
    connection.close()
    assert VerdictStore(tmp_path / "verdicts.sqlite").of_job("a" * 32) == [before]


def test_table_has_no_formula_and_one_line_for_each_verdict(tmp_path):
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    evil = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "a\nb\tc", "\u2003=2", "ok"]
    for text in evil:
        store.add(**FIELDS | {"comment": text, "reader": text})
    header, *rows = "".join(store.table()).splitlines()
    columns = header.split("\t")
    assert len(rows) == len(evil)
    for row in rows:
        cells = dict(zip(columns, row.split("\t"), strict=True))
        assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in cells.values())
    assert rows[0].split("\t")[columns.index("comment")] == "'=cmd|' /C calc'!A0"
    assert rows[5].split("\t")[columns.index("comment")] == "a b c"


def test_other_files_are_refused(tmp_path):
    (tmp_path / "verdicts.sqlite").write_text("no database, but text that is long enough" * 10)
    with pytest.raises(UserError, match=r"verdicts\.sqlite: file is not a database"):
        open_verdicts(tmp_path)
    (tmp_path / "verdicts.sqlite").unlink()
    with sqlite3.connect(tmp_path / "verdicts.sqlite") as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(UserError, match="another release"):
        open_verdicts(tmp_path)


def test_verdict_survives_a_killed_process(tmp_path):
    """What was answered is on the disk: the process ends without closing anything."""
    script = (
        "import os, sys; from pathlib import Path; from gigatile.viewer.verdicts import *;"
        f"store = open_verdicts(Path({str(tmp_path)!r}));"
        f"[store.add(**{FIELDS!r}) for _ in range(5)]; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -9
    assert len(open_verdicts(tmp_path).of_job("a" * 32)) == 5


def test_requests(viewed):
    server, ids = viewed
    path = f"/v1/jobs/{ids['drawn']}/verdicts"
    before = len(server.client.get(path).json()["verdicts"])
    good = {"verdict": "lusc", "comment": "=1+1\nsecond line", "reader": "Dr A"}
    answer = server.client.post(path, json=good)
    assert answer.status_code == 201
    newest = server.client.get(path).json()["verdicts"]
    assert len(newest) == before + 1 and newest[0] == answer.json()
    assert {key: newest[0][key] for key in good} == good
    assert newest[0]["model"] == "tiny" and newest[0]["predicted"] in ("luad", "lusc")
    latest = server.client.get("/v1/verdicts").json()["verdicts"]
    assert [v for v in latest if v["job"] == ids["drawn"]] == [newest[0]]
    table = server.client.get("/v1/verdicts.tsv")
    assert table.headers["content-type"].startswith("text/tab-separated-values")
    assert "attachment" in table.headers["content-disposition"]
    assert "\t'=1+1 second line\t" in table.text
    for bad in (
        good | {"verdict": ""}, good | {"reader": "  "}, good | {"comment": 3},
        good | {"comment": "x" * 4001}, good | {"comment": "\x00"}, good | {"extra": "x"},
        good | {"reader": None}, good | {"comment": ["a"]}, {}, {"verdict": "x"},
    ):  # fmt: skip
        refused = server.client.post(path, json=bad)
        assert refused.status_code == 400 and refused.json()["error"], bad
    lone = b'{"verdict": "x", "reader": "\\ud800"}'
    assert server.client.post(path, content=lone).status_code == 400
    assert server.client.post(path, content=b"verdict=lusc").status_code == 400
    for other, status in ((ids["text"], 409), ("0" * 32, 404), ("x", 404)):
        assert server.client.post(f"/v1/jobs/{other}/verdicts", json=good).status_code == status
    stranger = {"Origin": "http://evil.example"}
    assert server.client.post(path, json=good, headers=stranger).status_code == 403
    assert len(server.client.get(path).json()["verdicts"]) == before + 1
    assert "Dr A" not in server.lines() and "second line" not in server.lines()


def test_verdict_is_written_in_the_browser(browser, viewed):
    """By keyboard, with text that looks like markup; keys of the viewer do nothing meanwhile."""
    server, ids = viewed
    view = open_slide(browser, viewed)
    await_state(browser, "document.querySelectorAll('#verdict option').length === 5")
    before = browser.run("return Number(document.getElementById('verdicts').dataset.count)")
    zoom = browser.run("return gigatileViewer.viewport.getZoom()")
    browser.run(
        "const choice = document.getElementById('verdict'); choice.value = 'unsure';"
        "document.getElementById('comment').focus();"
    )
    browser.type_text("<b>+-0h1</b>")
    browser.run("document.getElementById('reader').focus()")
    browser.type_text("Dr. 2+h")
    browser.run("document.getElementById('verdict-form').requestSubmit()")
    await_state(browser, "document.getElementById('saved').textContent === 'Saved.'")
    await_state(browser, f"document.getElementById('verdicts').dataset.count === '{before + 1}'")
    shown = browser.run("return document.querySelector('#verdicts li').innerText")
    assert "unsure" in shown and "<b>+-0h1</b>" in shown and "Dr. 2+h" in shown
    assert browser.run("return gigatileViewer.viewport.getZoom()") == zoom
    assert browser.run("return document.getElementById('comment').value") == ""
    (newest, *_) = server.client.get(f"/v1/jobs/{ids['drawn']}/verdicts").json()["verdicts"]
    assert (newest["verdict"], newest["comment"]) == ("unsure", "<b>+-0h1</b>")
    assert view["predicted"] == newest["predicted"]
    browser.visit(f"{server.address}/viewer/")
    await_state(browser, "document.querySelectorAll('#slides tr').length >= 2")
    rows = browser.run("return document.getElementById('slides').innerText")
    assert "unsure" in rows
    assert browser.errors() == []


def test_two_slides_move_together(browser, viewed):
    server, ids = viewed
    other = ids.get("real", ids["drawn"])
    browser.emulate(1300, 800)
    browser.visit(f"{server.address}/viewer/compare?left={ids['drawn']}&right={other}")
    await_state(browser, "document.body.dataset.state === 'open'")
    time.sleep(1)
    view = (
        "const w = document.getElementById('{0}').contentWindow;"
        "const c = w.gigatileViewer.viewport.viewportToImageCoordinates("
        "w.gigatileViewer.viewport.getCenter());"
        "const um = w.gigatileSlide.mpp ?? 1;"
        "return [c.x * um, c.y * um, um / w.gigatileViewer.viewport.viewportToImageZoom("
        "w.gigatileViewer.viewport.getZoom())];"
    )

    def views():
        return [browser.run(view.format(name)) for name in ("left", "right")]

    def moved(name):
        browser.run(
            f"const w = document.getElementById('{name}').contentWindow;"
            "w.gigatileViewer.viewport.zoomBy(2, null, true);"
            "w.gigatileViewer.viewport.panBy(new w.OpenSeadragon.Point(.01, .02), true);"
        )
        time.sleep(1)

    for name in ("left", "right"):
        before = views()
        moved(name)
        after = views()
        for n in range(2):
            assert after[n][2] == pytest.approx(before[n][2] / 2, rel=1e-3)
        # Both moved by the same distance in micrometres.
        change = [[after[n][k] - before[n][k] for k in range(2)] for n in range(2)]
        assert change[0] == pytest.approx(change[1], rel=1e-3)
        assert abs(change[0][0]) > 1
    browser.run("document.getElementById('linked').click()")
    before = views()
    moved("left")
    after = views()
    assert after[0] != before[0] and after[1] == pytest.approx(before[1])
    assert browser.errors() == []


def test_pages_are_accessible(browser, viewed):
    server, ids = viewed
    for width, scheme in ((1200, "light"), (390, "dark")):
        browser.emulate(width, 800, scheme)
        address = f"{server.address}/viewer/compare?left={ids['drawn']}&right={ids['drawn']}"
        browser.visit(address)
        await_state(browser, "document.body.dataset.state === 'open'")
        # The slides in the frames are tested on their own pages.
        faults = [fault for fault in violations(browser, ALL) if "frame-tested" not in fault]
        assert faults == []
        assert browser.run(TOO_WIDE)[0] <= 0
    browser.visit(f"{server.address}/viewer/compare?left=x&right=javascript:alert(1)")
    await_state(browser, "document.getElementById('state').textContent !== ''")
    assert browser.run("return document.getElementById('left').getAttribute('src')") is None
    settled = browser.run("return document.getElementById('state').textContent")
    assert settled == "Choose two slides in the list."
