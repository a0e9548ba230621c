"""Renders templates, formats numbers, and writes a folder of pages, all of them or none."""

import base64
import contextlib
import functools
import hashlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from gigatile.cohort.sheet import SAFE_ID
from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import Interval

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
    """Return the neighbours of each page, in the order of the pages."""
    names = [None, *ids, None]
    return [Neighbours(*pair) for pair in zip(names[:-2], names[2:], strict=True)]


def render(template: Path, **values: Any) -> str:
    """Render a template; every value is escaped, except markup that was rendered before.

    The template can use those in its own folder and in `TEMPLATES`.
    """
    return _environment(template.parent).get_template(template.name).render(**values)


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
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
        "words": words,
    }
    script = (TEMPLATES / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "script": Markup(script),
        # A page loads and runs nothing that is not in it, whatever a label contains.
        "policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    }
    return environment


def figure(value: float | None, digits: int = 3) -> str:
    """Format a number; None is 'not defined'."""
    return "not defined" if value is None else f"{value:.{digits}f}"


def interval(value: Interval, digits: int = 3) -> str:
    """Format the two ends of an interval, or the reason why there is none."""
    if value.low is None or value.high is None:
        return f"no interval: {value.no_interval}"
    # Narrow spaces and a joiner keep it on one line.
    return f"{value.low:.{digits}f}\u202f–\u2060\u202f{value.high:.{digits}f}"


def count(number: int) -> str:
    """Format a whole number with separators of thousands."""
    return f"{number:,}"


def percent(share: float, digits: int = 0) -> str:
    """Format a share as a percentage."""
    return f"{100 * share:.{digits}f}\u202f%"


def plural(number: int, noun: str) -> str:
    """Format a number and its noun."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def some(names: Sequence[str], at_most: int = 20) -> str:
    """List names; of very many, the first."""
    more = f" and {len(names) - at_most:,} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def without_folders(text: object) -> str:
    """Remove the folders from absolute paths, since pages may be published."""
    shorter = _QUOTED_PATH.sub(r"\1…/", str(text).replace("file:///", "/"))
    return _WINDOWS_PATH.sub("…/", _POSIX_PATH.sub("…/", shorter))


def words(name: str) -> str:
    """Return a name of the settings without underscores: `whole tumour`."""
    return name.replace("_", " ")


def page_name(name: str) -> str:
    """Return the address of the page of a slide or case, relative to the folder of pages."""
    return quote(f"{name}.html")


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as a data: address of the media type `kind`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class ScaleBar:
    """A bar of a round length; `share`: its fraction of the width of the image."""

    share: float
    text: str


def scale_bar(width: int, mpp: float) -> ScaleBar:
    """Return the longest bar of 1, 2 or 5 · 10^k µm that is at most a quarter of the width.

    Args:
        width: of the image in pixels.
        mpp: micrometres per pixel.
    """
    quarter = width * mpp / 4
    power = 10.0 ** math.floor(math.log10(quarter))
    length = max(step * power for step in (1, 2, 5) if step * power <= quarter * (1 + 1e-9))
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    return ScaleBar(length / mpp / width, text)


def flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as (dotted key, value) pairs, in their order."""
    if isinstance(values, Mapping):
        return [
            pair
            for key, value in values.items()
            for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if values is None or isinstance(values, bool):
        return [(prefix, {None: "null", True: "true", False: "false"}[values])]
    return [(prefix, f"{values:g}" if isinstance(values, float) else str(values))]


def check_ids(ids: Iterable[str], source: Path, unit: str = "slide") -> None:
    """Refuse ids that could name a file in another folder, or the same file twice.

    Raises:
        UserError: the first id that is unsafe or occurs twice in `source`.
    """
    seen: set[str] = set()
    for name in ids:
        if not re.fullmatch(SAFE_ID, name):
            raise UserError(f"{source}: {unit} {name!r} is unsafe as a file name")
        if name in seen:
            raise UserError(f"{source}: {unit} {name!r} occurs twice")
        seen.add(name)


@contextlib.contextmanager
def write_pages(out: Path, folder: str = "slides") -> Iterator[Path]:
    """Yield an empty folder whose pages (index.html, `folder`) move to `out` if nothing fails.

    If `out` exists, only its index.html and `folder` are replaced. The index is removed first and
    written last, so it never refers to pages of another build.
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
