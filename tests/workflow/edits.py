"""Edits of a run of the small cohort, and the rules that a dry run then lists."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from clones import Clone

# Folders of a run whose files contain times, and differ between runs.
WITH_TIMES = {"logs", "benchmarks", "tensorboard", "provenance"}

# Rules that run again if a stage does, with all later stages.
ENDS = {"report", "all"}
FIGURES = {"calibration"} | ENDS
POINTS = {"operating_points"} | FIGURES
VALIDATION_SCORES = {"evaluate_valid"} | POINTS
EVALUATION = {"evaluate"} | FIGURES
MODEL = {"choose_model"} | VALIDATION_SCORES | EVALUATION
TRAINING = {"train", "validate"} | MODEL
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect", "collect_training"} | SHARDS
TILES = {"tile"} | TABLES
SPLITS = {"split_patients"} | TABLES
TEST_TILES = {"collect"} | EVALUATION
TEST_COHORT = {"split_patients"} | TEST_TILES

# A context manager that edits files in a folder and finally undoes the edit.
Edit = Callable[[Path], contextlib.AbstractContextManager]


def planned(clone: Clone, *settings: str) -> set[str]:
    """Return the rules that a dry run lists."""
    options = ("--config", *settings) if settings else ()
    return set(clone.jobs("--configfile", "small.yaml", *options))


def started(done: subprocess.CompletedProcess) -> set[str]:
    """Return the rules whose jobs a run has started."""
    return set(re.findall(r"^(?:local)?rule (\w+):", done.stdout + done.stderr, re.MULTILINE))


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Restore a file and its time at the end."""
    content, seen = path.read_bytes(), path.stat()
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def flip_a_byte(path: Path) -> None:
    """Change a file without changing its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def text(file: str, edit: Callable[[str], str], when: float | None = None) -> Edit:
    """Edit a text file, and perhaps set its time."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        path = folder / file
        with kept(path):
            before = path.read_text()
            after = edit(before)
            assert after != before, f"{file} has not changed"
            path.write_text(after)
            if when is not None:
                os.utime(path, (when, when))
            yield

    return edited


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Return an edit: replace the first occurrence in a text."""
    return lambda content: content.replace(old, new, 1)


def changed(file: str, change: Callable[[Path], object]) -> Edit:
    """Change a file."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        with kept(folder / file):
            change(folder / file)
            yield

    return edited


def moved_away(name: str) -> Edit:
    """Move a folder away."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        away = folder / f"away-{Path(name).name}"
        (folder / name).rename(away)
        try:
            yield
            assert not (folder / name).exists(), "a plan creates no files"
        finally:
            away.rename(folder / name)

    return edited


# --- The sheet


def with_row(row: str) -> Callable[[str], str]:
    """Return an edit of the sheet: add a row."""
    return lambda sheet: sheet + row + "\n"


def without(slide: str) -> Callable[[str], str]:
    """Return an edit of the sheet: remove a slide."""
    return lambda sheet: "".join(
        line for line in sheet.splitlines(keepends=True) if not line.startswith(f"{slide}\t")
    )


def in_another_order(sheet: str) -> str:
    """Reverse the rows of the sheet."""
    first, *rows = sheet.splitlines()
    return "\n".join([first, *sorted(rows, reverse=True), ""])


def with_site(sheet: str) -> str:
    """Add a column that only the report reads."""
    first, *rows = sheet.splitlines()
    return "\n".join([f"{first}\tsite", *(f"{row}\tHome" for row in rows), ""])


def copy_with_another_slide(run: Clone, folder: Path) -> Clone:
    """Return a copy of the run with another slide, which is not in the sheet yet."""
    copy = run.copy(folder)
    other = copy.folder / "cohort/more.svs"
    shutil.copy(copy.folder / "cohort/P10-1.svs", other)
    lengthen(other)
    return copy


def lengthen(path: Path) -> None:
    """Append a byte that readers ignore: the same file under two patients is refused."""
    with path.open("ab") as file:
        file.write(b"\0")


# --- Rows of a table of edits


@contextlib.contextmanager
def no_edit(folder: Path) -> Iterator[None]:
    """Change nothing."""
    yield


def together(*edits: Edit) -> Edit:
    """Apply several edits."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for edit in edits:
                stack.enter_context(edit(folder))
            yield

    return edited


@dataclass(frozen=True)
class Row:
    """An edit, options of the dry run, and the rules that it then lists."""

    name: str
    expected: set[str]
    edit: Edit = no_edit
    options: tuple[str, ...] = ()


def setting(expected: set[str], *values: str) -> Row:
    return Row(" ".join(values), expected, options=("--config", *values))


def at(when: float):
    """Return a function that sets the time of a file."""
    return lambda path: os.utime(path, (when, when))


def other_content_of_old(path: Path) -> None:
    flip_a_byte(path)
    os.utime(path, (1e9, 1e9))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def code(file: str, old: str, new: str, expected: set[str]) -> Row:
    return Row(f"{file}: {new.strip()}", expected, text(file, replaced(old, new)))


def results(
    run: str, missing: Mapping[str, set[str]], compared: Mapping[str, set[str]]
) -> list[Row]:
    """Return rows with files that are missing, damaged and touched.

    Args:
        run: the run's folder.
        missing: files, and the rules that are listed if one is missing.
        compared: files that are compared by content, and the rules that are listed if one is
            damaged.
    """
    return [
        *(Row(f"{f} missing", e, changed(f"{run}/{f}", Path.unlink)) for f, e in missing.items()),
        *(Row(f"{f} damaged", e, changed(f"{run}/{f}", flip_a_byte)) for f, e in compared.items()),
        Row("files touched", set(), together(*(changed(f"{run}/{f}", at(2e9)) for f in compared))),
    ]


FUNCTION = ("\n    return ", "\n    return None or ")


def check(plans: Mapping[str, set[str] | Exception], row: Row) -> None:
    """Assert the plan after the edit of a row."""
    plan = plans[row.name]
    if isinstance(plan, Exception):
        raise plan
    assert plan == row.expected


def plans_of(
    rows: Iterable[Row], copies: list[Clone], config: str
) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row; each copy of the run tests one row at a time."""
    free: SimpleQueue[Clone] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def plan(row: Row) -> set[str] | Exception:
        copy = free.get()
        try:
            with row.edit(copy.folder):
                return set(copy.jobs("--configfile", config, *row.options))
        except (AssertionError, OSError) as error:
            return error
        finally:
            free.put(copy)

    rows = list(rows)
    with ThreadPoolExecutor(len(copies)) as pool:
        return dict(zip([row.name for row in rows], pool.map(plan, rows), strict=True))
