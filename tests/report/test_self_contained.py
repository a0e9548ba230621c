"""All pages of reports and predictions: what they load, link to and show."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import case_runs
import pytest
from case_runs import case_cohort
from slide_runs import CLASSES, Plan, add_predictions, build_run, cohort
from written import write_cases, write_new_cases, write_new_slides, write_slides

from gigatile.files import write_json
from gigatile.tables import read_table, write_table

LOADS = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}
EVIL = "<script>alert(1)</script>"
EVIL_PATIENT = "\"><img src=x onerror='alert(1)'>&amp;"


class Page(HTMLParser):
    """The parts of a page that the tests ask for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.html = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._inside = ""
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag if tag in self.content else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.content[self._inside] if self._inside else self.words).append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def write_both(run: Path) -> list[Page]:
    write_slides(run, run / "report")
    add_predictions(run)
    write_new_slides(run, run / "predictions")
    pages = sorted([*(run / "report").rglob("*.html"), *(run / "predictions").rglob("*.html")])
    assert len(pages) == 2 * (1 + 9)
    return [Page(path) for path in pages]


def hostile_cohort(classes: tuple[str, ...]) -> list[Plan]:
    plans = cohort(classes)
    for plan in plans:
        plan.patient += EVIL_PATIENT
        plan.reason = plan.reason and plan.reason + EVIL
    return plans


@pytest.fixture(scope="module")
def slide_pages(tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    """The pages of a cohort whose labels, patients and reasons are hostile."""
    classes = (CLASSES[0], EVIL, 'it\'s "&" <b>')
    folder = tmp_path_factory.mktemp("hostile") / "demo"
    return write_both(build_run(folder, hostile_cohort(classes), classes))


@pytest.fixture(scope="module")
def case_pages(tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    """The pages of a cohort of volumes whose patients, sites and warnings are hostile."""
    run = tmp_path_factory.mktemp("hostile-cases") / "demo"
    plans = case_cohort()
    for plan in plans:
        plan.patient += EVIL_PATIENT + EVIL
        plan.site += EVIL
    case_runs.build_case_run(run, plans)
    new = case_runs.new_cases()
    for plan in new:
        plan.patient += EVIL_PATIENT + EVIL
    case_runs.add_new_cases(run, new)
    for path in (*(run / "volumes").glob("*.json"), *(run / "predictions/volumes").glob("*.json")):
        content = json.loads(path.read_text())
        if content["state"] == "prepared":
            content["warnings"] = [f"its file /data/in/{content['case']}.nii.gz is bad{EVIL}"]
            write_json(path, content)
    for folder in (run, run / "predictions"):
        rows = read_table(folder / "cases.tsv")
        for row in rows:
            row["warnings"] = "1" if row["state"] == "prepared" else "0"
        write_table(folder / "cases.tsv", list(rows[0]), [list(row.values()) for row in rows])
    case_runs.evaluate(run, run.parent / "data/cases.tsv")
    write_cases(run, run / "report", f"Demo {EVIL}")
    write_new_cases(run, run / "predictions/pages")
    pages = sorted([*(run / "report").rglob("*.html"), *(run / "predictions").rglob("*.html")])
    assert len(pages) == (1 + 4) + (1 + 2)
    return [Page(path) for path in pages]


@pytest.fixture(scope="module", params=["slide_pages", "case_pages"])
def pages(request: pytest.FixtureRequest) -> list[Page]:
    """All pages of slides, and all of cases."""
    return request.getfixturevalue(request.param)


def test_pages_load_nothing(pages: list[Page]) -> None:
    for page in pages:
        for tag, attributes in page.tags:
            for name in LOADS & set(attributes):
                address = attributes[name]
                outside = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|/", address)
                assert not outside or address.startswith("data:"), (page.path, tag, address[:80])
            assert "url(" not in attributes.get("style", "")
        for style in page.content["style"]:
            assert "url(" not in style and "@import" not in style
        assert not re.search(r"https?:", "".join(page.content["script"]))


def test_every_link_has_a_target(pages: list[Page]) -> None:
    ids = {page.path: {a["id"] for _, a in page.tags if "id" in a} for page in pages}
    followed = 0
    for page in pages:
        for link in page.all("a"):
            address, _, fragment = link["href"].partition("#")
            target = (page.path.parent / unquote(address)).resolve() if address else page.path
            assert target in ids, (page.path, link["href"])
            assert not fragment or fragment in ids[target]
            followed += 1
    assert followed > 30


def test_neighbour_links_visit_all_pages(pages: list[Page]) -> None:
    by_path = {page.path: page for page in pages}
    folders = [("report", "slides"), ("report", "cases")]
    slides = sorted(path for path in by_path if path.parts[-3:-1] in folders)
    assert len(slides) > 3
    for slide, two in pairwise(slides):
        following = [a["href"] for a in by_path[slide].all("a") if a.get("rel") == "next"]
        previous = [a["href"] for a in by_path[two].all("a") if a.get("rel") == "prev"]
        assert (following, previous) == ([two.name], [slide.name])
    assert all("../index.html" in [a["href"] for a in by_path[s].all("a")] for s in slides)


def test_only_the_script_of_the_page_may_run(pages: list[Page]) -> None:
    for page in pages:
        assert len(page.content["script"]) == len(page.all("script")) == 1
        digest = hashlib.sha256(page.content["script"][0].encode()).digest()
        policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
        assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
        assert "default-src 'none'" in policy
        assert not [name for _, a in page.tags for name in a if name.startswith("on")]


def test_hostile_text_is_escaped(pages: list[Page]) -> None:
    for page in pages:
        assert EVIL in page.text
        assert not [a for a in page.all("img") if a["src"] == "x"]
        assert not page.all("b") or EVIL not in page.html
        assert EVIL not in page.html


def test_hostile_text_is_shown_on_first_pages(
    slide_pages: list[Page], case_pages: list[Page]
) -> None:
    slides, cases = (
        next(page for page in pages if page.path.parts[-2:] == ("report", "index.html"))
        for pages in (slide_pages, case_pages)
    )
    assert f"P13{EVIL_PATIENT}" in slides.text
    assert f"tissue{EVIL}" in slides.text
    assert f"P4{EVIL_PATIENT}{EVIL}" in cases.text
    assert f"north{EVIL}" in cases.text
    assert f"is bad{EVIL}" in cases.text


def test_pages_are_accessible(pages: list[Page]) -> None:
    for page in pages:
        ids = [a["id"] for _, a in page.tags if "id" in a]
        assert len(ids) == len(set(ids))
        assert all(a.get("alt") for a in page.all("img"))
        assert [a for a in page.all("meta") if a.get("name") == "viewport"]
        assert page.all("html")[0]["lang"] == "en"
        assert all("scope" in a for a in page.all("th"))
        labelled = {a["for"] for a in page.all("label") if "for" in a}
        assert {a["id"] for a in page.all("input") if a["type"] == "radio"} == labelled


def test_tables_scroll_in_a_container(pages: list[Page]) -> None:
    for page in pages:
        for before, (tag, attributes) in pairwise(page.tags):
            if tag == "table" and attributes.get("class") != "facts":
                assert before == ("div", {"class": "wide"}), page.path


def test_folders_are_not_shown(pages: list[Page]) -> None:
    for page in pages:
        deep = page.path.parent.name in ("slides", "cases")
        folder = page.path.parents[2] if deep else page.path.parent
        assert str(folder.parent) not in page.html
        assert "/data/in" not in page.html
    assert any("…/F1.svs" in page.text or "…/C4.nii.gz" in page.text for page in pages)


def test_no_nan_or_none_is_shown(pages: list[Page]) -> None:
    for page in pages:
        spoken = " ".join(a.get("alt", "") for a in page.all("img"))
        assert not re.search(r"\b(nan|NaN|None|inf)\b", page.text + spoken), page.path


def test_report_of_cases_is_reproducible(whole_case_run: Path, tmp_path: Path) -> None:
    for out in ("first", "two"):
        write_cases(whole_case_run, tmp_path / out)
    first, two = (sorted((tmp_path / out).rglob("*.html")) for out in ("first", "two"))
    assert len(first) == 5
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in two]


def test_report_of_slides_is_reproducible(whole_run: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        write_slides(whole_run, tmp_path / out)
    files = {
        out: {
            str(path.relative_to(tmp_path / out)): path.read_bytes()
            for path in (tmp_path / out).rglob("*.html")
        }
        for out in ("one", "two")
    }
    assert len(files["one"]) == 10
    assert files["one"] == files["two"]
