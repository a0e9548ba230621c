"""`gigatile report`: opens the first page of the report, or says why it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def page(tmp_path) -> Path:
    """A report in a folder with a blank and a letter that a URI cannot have."""
    folder = tmp_path / "my stüdy"
    page = folder / "results/one/report/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>A report.")
    (folder / "config.yaml").write_text("run: one\nsamples: none.tsv\n")
    return page


def report(page: Path, *options: str, **variables: str) -> tuple[str, list[str]]:
    """Run the command; return its output, and the arguments of the browsers that were started."""
    folder = page.parents[3]
    programs, opened = folder / "programs", folder / "opened"
    programs.mkdir(exist_ok=True)
    opened.write_text("")
    for name in ("browser", "lynx", "www-browser", "w3m", "links", "xdg-open"):
        (programs / name).write_text(f'#!/bin/sh\necho "$@" >> "{opened}"\n')
        (programs / name).chmod(0o755)
    env = {
        k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    }
    env |= {"PATH": f"{programs}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        [sys.executable, "-m", "gigatile", "report", str(folder), *options],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout, opened.read_text().splitlines()


def test_report_is_opened_in_the_browser(page):
    printed, opened = report(page, BROWSER="browser %s")
    assert printed == f"{page}\n" and opened == [page.as_uri()]


@pytest.mark.parametrize(
    ("options", "variables"), [((), {}), (("--path",), {"BROWSER": "browser %s"})]
)
def test_without_a_display_only_the_path_is_printed(page, options, variables):
    """A text browser would take over the terminal of a cluster's login node."""
    assert report(page, *options, **variables) == (f"{page}\n", [])
