"""Edits of a run of the small cohort, and what a dry run says of them."""

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

# Folders of a run whose files contain times, so that no two runs have the same ones.
WITH_TIMES = {"logs", "benchmarks", "tensorboard", "made"}

# What runs again where a stage does, and all that follows from it.
ENDS = {"report", "all"}
EVALUATION = {"evaluate"} | ENDS
MODEL = {"choose_model"} | EVALUATION
TRAINING = {"train", "validate"} | MODEL
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect", "collect_training"} | SHARDS
TILES = {"tile"} | TABLES
SPLITS = {"split_patients"} | TABLES
OF_TEST_TILES = {"collect"} | EVALUATION
TEST_COHORT = {"split_patients"} | OF_TEST_TILES

# An edit of the files in a folder, which is taken back at its end.
Edit = Callable[[Path], contextlib.AbstractContextManager]


def planned(clone: Clone, *settings: str) -> set[str]:
    """Return the rules of which a dry run plans jobs."""
    options = ("--config", *settings) if settings else ()
    return set(clone.jobs("--configfile", "small.yaml", *options))


def started(done: subprocess.CompletedProcess) -> set[str]:
    """Return the rules of which a run has started jobs."""
    return set(re.findall(r"^(?:local)?rule (\w+):", done.stdout + done.stderr, re.MULTILINE))


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Let a file be changed for a while."""
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
    """Edit a text, which may have another time then."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        path = folder / file
        with kept(path):
            before = path.read_text()
            after = edit(before)
            assert after != before, f"{file} is as it was"
            path.write_text(after)
            if when is not None:
                os.utime(path, (when, when))
            yield

    return edited


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Return an edit of the first place in a text."""
    return lambda content: content.replace(old, new, 1)


def changed(file: str, change: Callable[[Path], object]) -> Edit:
    """Do something to a file."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        with kept(folder / file):
            change(folder / file)
            yield

    return edited


def put_away(name: str) -> Edit:
    """Have a folder be gone."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        away = folder / f"away-{Path(name).name}"
        (folder / name).rename(away)
        try:
            yield
            assert not (folder / name).exists(), "a plan makes nothing"
        finally:
            away.rename(folder / name)

    return edited


# --- The sheet


def with_row(row: str) -> Callable[[str], str]:
    """Return an edit of the sheet: a slide more."""
    return lambda sheet: sheet + row + "\n"


def without(slide: str) -> Callable[[str], str]:
    """Return an edit of the sheet: a slide less."""
    return lambda sheet: "".join(
        line for line in sheet.splitlines(keepends=True) if not line.startswith(f"{slide}\t")
    )


def in_another_order(sheet: str) -> str:
    """Turn the sheet's rows around."""
    first, *rows = sheet.splitlines()
    return "\n".join([first, *sorted(rows, reverse=True), ""])


def with_site(sheet: str) -> str:
    """Add a column that no stage but the report reads."""
    first, *rows = sheet.splitlines()
    return "\n".join([f"{first}\tsite", *(f"{row}\tHome" for row in rows), ""])


def copy_with_another_slide(run: Clone, folder: Path) -> Clone:
    """Return a copy of the run with a slide that the sheet does not name yet."""
    copy = run.copy(folder)
    other = copy.folder / "cohort/more.svs"
    shutil.copy(copy.folder / "cohort/P10-1.svs", other)
    lengthen(other)
    return copy


def lengthen(path: Path) -> None:
    """Add a byte that no reader looks at: the same file under two patients is refused."""
    with path.open("ab") as file:
        file.write(b"\0")


# --- Rows of a table of edits


@contextlib.contextmanager
def no_edit(folder: Path) -> Iterator[None]:
    """Change nothing."""
    yield


def together(*edits: Edit) -> Edit:
    """Do several edits at once."""

    @contextlib.contextmanager
    def edited(folder: Path) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for edit in edits:
                stack.enter_context(edit(folder))
            yield

    return edited


@dataclass(frozen=True)
class Row:
    """An edit, options of the dry run, and the rules of which it then plans jobs."""

    name: str
    expected: set[str]
    edit: Edit = no_edit
    options: tuple[str, ...] = ()


def setting(expected: set[str], *values: str) -> Row:
    return Row(" ".join(values), expected, options=("--config", *values))


def at(when: float):
    """Return what gives a file another time."""
    return lambda path: os.utime(path, (when, when))


def other_content_of_old(path: Path) -> None:
    flip_a_byte(path)
    os.utime(path, (1e9, 1e9))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def code(file: str, old: str, new: str, expected: set[str]) -> Row:
    return Row(f"{file}: {new.strip()}", expected, text(file, replaced(old, new)))


def results(run: str, gone: Mapping[str, set[str]], compared: Mapping[str, set[str]]) -> list[Row]:
    """Return rows of files that are gone, damaged and touched.

    Args:
        run: the run's folder.
        gone: files, and what is listed when one of them is gone.
        compared: those that are compared by their content, and what is listed when one of them is
            damaged.
    """
    return [
        *(Row(f"{f} gone", e, changed(f"{run}/{f}", Path.unlink)) for f, e in gone.items()),
        *(Row(f"{f} damaged", e, changed(f"{run}/{f}", flip_a_byte)) for f, e in compared.items()),
        Row("files touched", set(), together(*(changed(f"{run}/{f}", at(2e9)) for f in compared))),
    ]


FUNCTION = ("\n    return ", "\n    return None or ")


def check(plans: Mapping[str, set[str] | Exception], row: Row) -> None:
    """Assert what was planned after the edit of a row."""
    found = plans[row.name]
    if isinstance(found, Exception):
        raise found
    assert found == row.expected


def plans_of(
    rows: Iterable[Row], copies: list[Clone], config: str
) -> dict[str, set[str] | Exception]:
    """Return what is planned after the edit of each row, in as many copies of a run at a time."""
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
