"""Rendering: templates, the words for numbers, and a folder of pages that is whole or not there."""

import base64
import contextlib
import functools
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from gigatile.cohort.sheet import SAFE_ID
from gigatile.errors import UserError
from gigatile.report.metrics import Interval

TEMPLATES = Path(__file__).parent / "templates"

# An absolute path inside a sentence, in quotes or up to a blank; the file's own name is kept.
_QUOTED_PATH = re.compile(r"(['\"])~?/(?:[^'\"/]+/)+(?=[^'\"/]*\1)")
_POSIX_PATH = re.compile(r"(?<![\w./:~-])~?/(?:[^\s/:'\"]+/)+(?=[^\s/:'\"]*)")
_WINDOWS_PATH = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\\:'\"]+\\)*")


@dataclass(frozen=True)
class Neighbours:
    """The pages before and after this one; None at the ends."""

    previous: str | None
    following: str | None


def neighbours_of(ids: Sequence[str]) -> list[Neighbours]:
    """Return those of each page, in the order of the pages."""
    names = [None, *ids, None]
    return [Neighbours(*pair) for pair in zip(names[:-2], names[2:], strict=True)]


def render(template: str, **values: Any) -> str:
    """Render a template; every value is escaped, unless it is markup made here."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": figure,
        "interval": interval,
        "count": count,
        "percent": percent,
        "plural": plural,
        "some": some,
        "page": page_name,
        "no_folders": without_folders,
        "told_by": told_by,
        "words": words,
    }
    script = (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "style": Markup((TEMPLATES / "style.css").read_text()),
        "case_style": Markup((TEMPLATES / "case.css").read_text()),
        "script": Markup(script),
        # Nothing but what stands in the page may be loaded or run, whatever a label holds.
        "policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    }
    return environment


def figure(value: float | None, digits: int = 3) -> str:
    """Write a number; None is 'not defined', never 0."""
    return "not defined" if value is None else f"{value:.{digits}f}"


def interval(found: Interval, digits: int = 3) -> str:
    """Write an interval's two ends, or why there is none."""
    if found.low is None or found.high is None:
        return f"no interval: {found.no_interval}"
    # Narrow spaces and a joiner: an interval is never broken over two lines.
    return f"{found.low:.{digits}f}\u202f–\u2060\u202f{found.high:.{digits}f}"


def count(number: int) -> str:
    """Write a whole number with its thousands apart."""
    return f"{number:,}"


def percent(share: float, digits: int = 0) -> str:
    """Write a share as a percentage."""
    return f"{100 * share:.{digits}f}\u202f%"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Write a number and its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def some(names: Sequence[str], at_most: int = 20) -> str:
    """List names, the first few of very many."""
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def without_folders(text: object) -> str:
    """Cut the folders off absolute paths: a page may be published, a machine's folders may not."""
    shorter = _QUOTED_PATH.sub(r"\1…/", str(text).replace("file:///", "/"))
    return _WINDOWS_PATH.sub("…/", _POSIX_PATH.sub("…/", shorter))


def told_by(source: str | None) -> str:
    """Write who told a slide's scale."""
    names = {
        "sheet": "the sample sheet",
        "file": "the slide's file",
        "resolution": "the TIFF file's resolution",
        "objective": "its objective, by the table tiles.objectives",
    }
    return names[source] if source else "–"


def words(name: str) -> str:
    """Write a name of the settings for readers: `whole_tumour` without its underscore."""
    return name.replace("_", " ")


def page_name(slide: str) -> str:
    """Return the address of a slide's page, relative to the folder that holds it."""
    return quote(f"{slide}.html")


def check_ids(ids: Iterable[str], source: Path, unit: str = "slide") -> None:
    """Refuse ids that could name a file elsewhere, or twice.

    Raises:
        UserError: the first id that is unsafe or stands twice in `source`.
    """
    seen: set[str] = set()
    for one in ids:
        if not re.fullmatch(SAFE_ID, one):
            raise UserError(f"{source}: {unit} {one!r} is unsafe as a file name")
        if one in seen:
            raise UserError(f"{source}: {unit} {one!r} stands in it twice")
        seen.add(one)


@contextlib.contextmanager
def write_pages(out: Path, folder: str = "slides") -> Iterator[Path]:
    """Yield an empty folder that becomes the pages of `out` (index.html, `folder`) if all is well.

    It lies beside `out`. Where `out` exists, only its index.html and `folder` are replaced, its
    other files stay; the index is taken away first and comes back last, so that it never stands
    beside pages of another build.
    """
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        (building / folder).mkdir()
        yield building
        umask = os.umask(0)
        os.umask(umask)
        building.chmod(0o777 & ~umask)
        if not out.exists():
            building.rename(out)
            return
        (out / "index.html").unlink(missing_ok=True)
        if (out / folder).exists():
            (out / folder).rename(building / "replaced")
        (building / folder).rename(out / folder)
        (building / "index.html").rename(out / "index.html")
    finally:
        shutil.rmtree(building, ignore_errors=True)
