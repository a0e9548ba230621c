"""What was made: notes that lie beside the results and say what each job has left.

The job writes its note last. A plan compares it with what is there at the cost of a look at each
file; `gigatile.making.verifying` compares every byte.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_text
from gigatile.slides.slide_files import fingerprint_of, size_and_time_of

FOLDER = "made"

# A slide whose megabyte for a fingerprint takes longer than this is taken for one that hangs.
ANSWER_SECONDS = 60
# Text that one stage writes for another. A plan compares its content if its time has changed since
# the note was written; of other files, which may be large, it compares the size.
TABLES = (".json", ".tsv")
# What is large, and needed only when something is made from it: it may be put away for the space.
BULK = ("tiles", "volumes", "shards", "predictions/tiles", "predictions/volumes")
# Of the states of a training the last is needed, by a segment more.
STATES = "segments/*.npz"


class Output(BaseModel):
    """A file that was made: its size, its SHA-256 and, for a table, the time of its last change."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: str
    modified_ns: int | None = None


class Source(BaseModel):
    """A slide's file when it was cut, or a case's files; `modified_ns` is the sum of times."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    modified_ns: int
    fingerprint: str


class Note(BaseModel):
    """What a job has left: its files by their place in the run, and what slide it cut.

    `stalled_minutes` is the limit after which it gave the slide or case up, where that stalled.
    """

    model_config = ConfigDict(frozen=True)

    outputs: dict[str, Output]
    source: Source | None = None
    stalled_minutes: float | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_text(path, self.model_dump_json(indent=1, exclude_none=True) + "\n")


def note_of(run: Path, *job: str) -> Path:
    """Return where the note of a job lies: of its stage, or of one slide or epoch of the stage."""
    return run.joinpath(FOLDER, *job[:-1], f"{job[-1]}.json")


def run_of(note: Path) -> Path:
    """Return the folder of the run that a note is of."""
    return next(parent for parent in note.parents if parent.name == FOLDER).parent


def write_note(
    note: Path,
    outputs: Iterable[Path],
    sources: Sequence[Path] = (),
    manifest: Path | None = None,
    state: Path | None = None,
) -> None:
    """Write what a job has left; to be called when all of it is whole.

    Args:
        note: the file to write, in the folder `made` of the run.
        outputs: files of the run; of a folder, every file in it.
        sources: the slide's file, or a case's, that it was made from.
        manifest: one of the outputs, if it names shards; these are noted with its checksums.
        state: one of the outputs, if it is the state of a slide or case.
    """
    run = run_of(note)
    found = {os.path.relpath(path, run): _output(path) for path in files_of(outputs)}
    if manifest is not None:
        found |= _shards(manifest, run)
    seen = _seen(sources) if sources else None
    stalled = None if state is None else read_json(state).get("stalled_minutes")
    Note(outputs=dict(sorted(found.items())), source=seen, stalled_minutes=stalled).write(note)


def read_note(note: Path) -> Note | None:
    """Return what a note says; None where there is none.

    Raises:
        UserError: it is damaged.
    """
    try:
        return Note.model_validate_json(note.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise UserError(f"damaged: {note}") from None


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files; of a folder, every file in it."""
    for path in paths:
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file())
        else:
            yield path


def fault_of(note: Path) -> str:
    """Return what is wrong with what a job has left, as far as a plan can see; else nothing.

    That it left no note is a fault, unless the run has none at all. What may be put away is none.
    """
    run = run_of(note)
    try:
        noted = read_note(note)
    except UserError as error:
        return str(error)
    if noted is None:
        return f"missing: {note}" if (run / FOLDER).is_dir() else ""
    for name, one in noted.outputs.items():
        path = run / name
        try:
            seen = path.stat()
            if seen.st_size != one.bytes:
                # On a network's disk it may be an old size; that of an open file is not.
                with path.open("rb") as file:
                    seen = os.fstat(file.fileno())
        except OSError:
            if is_put_away(path, run):
                continue
            return f"missing: {path}"
        if seen.st_size != one.bytes:
            return f"damaged: {path}"
        if (
            path.suffix in TABLES
            and not _is_same_time(seen.st_mtime_ns, one.modified_ns)
            and sha256_of(path) != one.sha256
        ):
            return f"damaged: {path}"
    return ""


def stall_of(note: Path, limit: float) -> str:
    """Return why a slide or case is processed again: it stalled, and the limit is higher now."""
    try:
        noted = read_note(note)
    except UserError:
        return ""  # a fault of its own
    stalled = noted.stalled_minutes if noted else None
    if stalled is None or limit <= stalled:
        return ""
    return f"stalled: nothing came of it for {stalled:g} minutes; {limit:g} are allowed now"


def is_put_away(path: Path, run: Path) -> bool:
    """Return whether a file that is gone may be: a state, or one of `BULK` with all its folder."""
    name = path.relative_to(run)
    return name.match(STATES) or (str(name.parent) in BULK and not path.parent.exists())


def content_of(sources: Sequence[Path], note: Path, update: bool = False) -> str:
    """Return the fingerprint of a slide's file, which is read only if it has another size or time.

    Args:
        sources: the slide's file, or those of a case; where one is not there, all count as they
            were.
        note: of what was made from it; it may be missing.
        update: note a new time, so that the file is not read again the next time.

    Returns:
        The fingerprint; of a file that cannot be read, what the system says of it.
    """
    try:
        noted = read_note(note)
    except UserError:
        noted = None
    known = noted.source if noted else None
    found = _seen(sources, known)
    if update and noted and known and found != known and found.fingerprint == known.fingerprint:
        with contextlib.suppress(OSError):  # of somebody else, perhaps; then it is read again
            if read_note(note) == noted:  # else a job has come to its end meanwhile
                noted.model_copy(update={"source": found}).write(note)
    return found.fingerprint


def _output(path: Path) -> Output:
    # The time before the file is read: whatever is written meanwhile has a later one.
    before = path.stat()
    modified = before.st_mtime_ns if path.suffix in TABLES else None
    return Output(bytes=before.st_size, sha256=sha256_of(path), modified_ns=modified)


def _is_same_time(seen: int, noted: int | None) -> bool:
    """Return whether a file has its noted time; some tools that copy files keep whole seconds."""
    return noted is not None and seen in (noted, noted // 10**9 * 10**9)


def _seen(sources: Sequence[Path], known: Source | None = None) -> Source:
    """Return a slide's file as it is now; it is not read where that has the size and time known."""
    try:
        # The time from before the reading: what is written meanwhile has a later one.
        size, modified = size_and_time_of(*sources)
        if known and (known.bytes, known.modified_ns) == (size, modified):
            return known
        return Source(bytes=size, modified_ns=modified, fingerprint=_read_in_time(sources))
    except OSError as error:
        if known and isinstance(error, FileNotFoundError):
            return known
        return Source(bytes=0, modified_ns=0, fingerprint=str(error.strerror))


def _read_in_time(sources: Sequence[Path]) -> str:
    """Return the fingerprint of a slide's file, or that a disk has not given it in time."""
    found: list[str | OSError] = []

    def read() -> None:
        try:
            found.append(fingerprint_of(*sources))
        except OSError as error:
            found.append(error)

    # A thread that waits for a disk in vain ends with the process and is not waited for.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(ANSWER_SECONDS)
    if not found:
        return "it does not answer"
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _shards(manifest: Path, run: Path) -> dict[str, Output]:
    # Most calls have no manifest, and this import takes longer than the rest of the command.
    from gigatile.records.manifest import read_manifest

    folder = manifest.parent
    found = {}
    for split in read_manifest(manifest).splits.values():
        for shard in split.shards:
            index = folder / shard.index
            for path, size, checksum in (
                (folder / shard.file, shard.bytes, shard.sha256),
                (index, index.stat().st_size, shard.index_sha256),
            ):
                found[os.path.relpath(path, run)] = Output(bytes=size, sha256=checksum)
    return found
