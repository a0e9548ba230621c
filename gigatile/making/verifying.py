"""Whether results are as they should be: current, whole to the last byte, and nothing else."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.making.made import FOLDER, Output, files_of, is_put_away, read_note
from gigatile.tables import write_table

STATES = ("damaged", "missing", "stale", "left over")
# What no job counts among its files: curves of TensorBoard, states of a training that goes on.
UNCOUNTED = ("tensorboard", "checkpoints")
# The workflow system's own, in folders that are made.
MARK = ".snakemake"
# So many files of each kind are shown; the table names all.
SHOWN = 3


@dataclass(frozen=True)
class Expected:
    """A file or folder that the present settings, sheet and code make.

    Attributes:
        path: where it is to be.
        stage: the rule that makes it.
        stale: why it is to be made anew; empty where it is current.
    """

    path: Path
    stage: str
    stale: str = ""


@dataclass(frozen=True)
class Finding:
    """A file that is not as it should be, and why."""

    state: str
    stage: str
    path: Path
    reason: str


def verify(run: Path, expected: Iterable[Expected], threads: int = 1) -> list[Finding]:
    """Hold all of a run against what it should be, and every file against its note.

    Args:
        run: its folder.
        expected: what should be there.
        threads: so many files are read at a time.

    Returns:
        What is wrong, in the order of `STATES` and then by stage and path.
    """
    wanted = {one.path: one for one in expected}
    notes, found = _notes(run)
    # Which note tells of a file, and of a folder by the files in it.
    told_by = {
        place: note for note, files in notes.items() for f in files for place in (f, f.parent)
    }
    told_by |= {file: note for note, files in notes.items() for file in files}
    # Where a note of a stage that had another name once tells of it too, that of its stage counts.
    told_by |= {
        place: note
        for note, files in notes.items()
        for f in files
        for place in (f.parent, f)
        if place in wanted and _stage_of(note, run) == wanted[place].stage
    }
    stages = {told_by[path]: one.stage for path, one in wanted.items() if path in told_by}
    for path, one in wanted.items():
        if path in told_by or (path.is_dir() and not any(path.iterdir())):
            continue
        state, reason = ("stale", "no checksum of it is noted")
        if not path.exists():
            state, reason = ("missing", "it is not there")
        found.append(Finding(state, one.stage, path, reason))
    files = [(note, file) for note in stages for file in notes[note]]
    with ThreadPoolExecutor(threads) as pool:
        faults = list(pool.map(lambda pair: _fault(run, pair[1], notes[pair[0]][pair[1]]), files))
    lacking = set()
    for (note, file), fault in zip(files, faults, strict=True):
        if fault:
            lacking.add(note)
            found.append(Finding(fault[0], stages[note], file, fault[1]))
    found += [
        Finding("stale", one.stage, path, one.stale)
        for path, one in wanted.items()
        # Where something of a job is damaged, that it is to be done again follows from it.
        if one.stale and path in told_by and told_by[path] not in lacking
    ]
    known = {*wanted, *stages, *(file for _, file in files), *(one.path for one in found)}
    known |= set(_beside(run, wanted.values(), stages))
    found += _left_over(run, known)
    return sorted(found, key=lambda one: (STATES.index(one.state), one.stage, one.reason, one.path))


def _stage_of(note: Path, run: Path) -> str:
    return note.relative_to(run / FOLDER).parts[0].removesuffix(".json")


def _notes(run: Path) -> tuple[dict[Path, dict[Path, Output]], list[Finding]]:
    """Return which files each note tells of, and what is wrong with notes."""
    notes: dict[Path, dict[Path, Output]] = {}
    found = []
    for path in files_of([run / FOLDER]) if (run / FOLDER).is_dir() else ():
        try:
            note = read_note(path)
        except UserError:
            found.append(Finding("damaged", FOLDER, path, "it cannot be read"))
        else:
            outputs = note.outputs if note else {}
            notes[path] = {run / name: output for name, output in outputs.items()}
    return notes, found


def _fault(run: Path, path: Path, output: Output) -> tuple[str, str] | None:
    """Return the state of a file that is not as it was noted, and the reason."""
    try:
        size = path.stat().st_size
        if size != output.bytes:
            return "damaged", f"{size:,} bytes where {output.bytes:,} were written"
        if sha256_of(path) != output.sha256:
            return "damaged", "its bytes are not those that were written"
    except FileNotFoundError:
        return "missing", "put away" if is_put_away(path, run) else "it is not there"
    except OSError as error:
        return "damaged", f"it cannot be read: {error.strerror}"
    return None


def _beside(run: Path, expected: Iterable[Expected], notes: Iterable[Path]) -> Iterator[Path]:
    """Yield what jobs leave besides their files: what they printed, and how long they took."""
    jobs = {str(note.relative_to(run / FOLDER).with_suffix("")) for note in notes}
    for one in expected:  # of which there may be no note, as they failed
        jobs |= {one.stage, f"{one.stage}/{one.path.stem}"}
    for job in jobs:
        yield run / f"logs/{job}.log"
        yield run / f"benchmarks/{job}.tsv"
    yield table_of(run)
    yield table_of(run).with_suffix(".log")


def _left_over(run: Path, known: set[Path]) -> Iterator[Finding]:
    for path in files_of([run]) if run.is_dir() else ():
        place = path.relative_to(run).parts[0]
        if path not in known and place not in UNCOUNTED and not path.name.startswith(MARK):
            yield Finding("left over", place, path, "nothing makes it any more")


def table_of(run: Path) -> Path:
    """Return where `write_findings` writes."""
    return run / "logs/verify.tsv"


def write_findings(run: Path, found: Iterable[Finding]) -> None:
    """Write a table of what was found, a row per file."""
    rows = ((one.state, one.stage, one.path.relative_to(run), one.reason) for one in found)
    write_table(table_of(run), ("state", "stage", "file", "reason"), rows)


def summary(run: Path, found: Iterable[Finding]) -> Iterator[str]:
    """Yield lines for people: of each state, stage and reason how many files, and some of them."""
    groups = groupby(found, key=lambda one: (one.state, one.stage, one.reason))
    for (state, stage, reason), ones in groups:
        names = [str(one.path.relative_to(run)) for one in ones]
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        yield f"{state:9}  {stage}: {reason}: {', '.join(names[:SHOWN])}{more}"
