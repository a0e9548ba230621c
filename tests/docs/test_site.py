"""The documentation site: every link of every built page works, and nothing needs a network."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from clones import ROOT, project_files
from markdown_pages import NAMES

# Attributes of an element that the browser loads; the href of <a> is only followed on a click.
LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "image": "href",
    "use": "href",
}
# Kinds of <link> that load nothing.
NOT_LOADED = {"canonical", "next", "prev", "alternate", "author", "license"}


class BuiltPage(HTMLParser):
    """The links, loaded resources, styles and anchors of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.styles = ""
        self._in_style = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.styles += values.get("style", "")
        self._in_style = tag == "style"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and not NOT_LOADED & set(values.get("rel", "").split()):
            self.loaded.append(values["href"])
        elif tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        if "srcset" in values:
            self.loaded += [part.split()[0] for part in values["srcset"].split(",")]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles += data


def build(project: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a copy of the project, as `make site` does.

    With --quiet, MkDocs does not see the warnings that --strict makes errors.
    """
    return subprocess.run(
        [Path(sys.executable).parent / "mkdocs", "build", "--strict", "-d", out],
        cwd=project,
        # No connection can be made through a closed port.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def pages_of(site: Path) -> dict[Path, BuiltPage]:
    return {path: BuiltPage(path) for path in sorted(site.rglob("*.html"))}


def is_remote(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def broken_links(site: Path) -> list[str]:
    """Return the links to files of the site that do not exist, or to missing anchors."""
    pages = pages_of(site)
    faults = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            # 404.html is shown for any address, so its links start at the root of the site.
            if parts.path.startswith("/"):
                target = site / unquote(parts.path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                faults.append(f"{path.relative_to(site)}: {link}: no such file")
            elif parts.fragment and target in pages:
                known = pages[target].anchors
                # The theme's "back to top" has no anchor of this name.
                if unquote(parts.fragment) not in known:
                    faults.append(f"{path.relative_to(site)}: {link}: no such anchor")
    return faults


def network_resources(site: Path) -> list[str]:
    """Return what the pages and style sheets load from the network."""
    faults = []
    for path, page in pages_of(site).items():
        remote = [address for address in page.loaded if is_remote(address)]
        remote += addresses_in_style(page.styles)
        faults += [f"{path.relative_to(site)}: {address}" for address in remote]
    for path in sorted(site.rglob("*.css")):
        remote = addresses_in_style(path.read_text())
        faults += [f"{path.relative_to(site)}: {address}" for address in remote]
    return faults


def addresses_in_style(text: str) -> list[str]:
    """Return the addresses on the network that a style sheet loads."""
    loaded = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", text)
    return [address for address in loaded if is_remote(address)]


def test_every_link_and_anchor_of_the_site_exists(site):
    assert len(pages_of(site)) > 40
    assert broken_links(site) == []


def test_site_loads_nothing_from_the_network(site):
    assert network_resources(site) == []


def test_site_has_every_page_and_every_listed_module(site):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    expected = {name.removeprefix("docs/").replace(".md", ".html") for name in NAMES[1:]}
    assert expected | {"index.html"} <= built
    modules = re.findall(r"reference/([\w.]+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert len(modules) > 10
    for module in modules:
        page = BuiltPage(site / f"reference/{module}.html")
        assert any(anchor.startswith(f"{module}.") for anchor in page.anchors), module


def test_search_finds_the_pages_without_a_server(site):
    index = (site / "search/search_index.js").read_text()
    assert index.startswith("var __index = {") and "splits.html" in index
    first = BuiltPage(site / "index.html")
    assert "site/iframe-worker.js" in first.loaded


def test_navigation_asks_a_question_for_each_page():
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"]
    parts = {name: pages for part in nav for name, pages in part.items()}
    del parts["Overview"], parts["API reference"]
    titles = [title for pages in parts.values() for page in pages for title in page]
    assert [title for title in titles if not title.endswith("?")] == []


@pytest.fixture
def project(tmp_path) -> Path:
    """Return a copy of the files from which the site is built."""
    for path in project_files():
        if path.parts[0] not in ("tests", "benchmarks"):
            (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / "project" / path)
    return tmp_path / "project"


@pytest.mark.parametrize(
    ("page", "link", "named"),
    [
        pytest.param("docs/tiles.md", "gone.md", "gone.md", marks=pytest.mark.long),
        ("docs/tiles.md", "splits.md#no-such-heading", "no-such-heading"),
        ("docs/tiles.md", "../gigatile/gone.py", "gone.py"),
        pytest.param("README.md", "docs/gone.md", "gone.md", marks=pytest.mark.long),
    ],
)
def test_broken_link_fails_the_build(project, page, link, named):
    with (project / page).open("a") as file:
        file.write(f"\n[a link]({link})\n")
    done = build(project, project / "build/site")
    assert done.returncode != 0
    assert named in done.stderr


def test_checks_of_built_pages_find_faults(tmp_path):
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1> <a href="gone.html">1</a> <a href="#top">2</a> <a href="#gone">3</a>'
        '<a href="https://example.org/">4</a> <script src="https://example.org/x.js"></script>'
        '<link rel="stylesheet" href="//example.org/x.css"> <img src="gone.png">'
        '<style>@import "https://example.org/y.css";</style>'
    )
    (tmp_path / "x.css").write_text("a { background: url(https://example.org/x.woff2) }")
    assert broken_links(tmp_path) == [
        "index.html: gone.html: no such file",
        "index.html: #gone: no such anchor",
        "index.html: gone.png: no such file",
    ]
    assert network_resources(tmp_path) == [
        "index.html: https://example.org/x.js",
        "index.html: //example.org/x.css",
        "index.html: https://example.org/y.css",
        "x.css: https://example.org/x.woff2",
    ]
