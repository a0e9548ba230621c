"""Records of the outputs of jobs, which a plan compares with the files on the disk.

Each job writes its record last. A plan checks that each output exists and has its recorded size;
`gigatile.provenance.verification` compares every byte.
"""

import contextlib
import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_text
from gigatile.provenance.packs import SUFFIX as PACK_SUFFIX
from gigatile.provenance.packs import packed_records, read_packed, replace_packed
from gigatile.slides.slide_files import fingerprint_of, size_and_time_of
from gigatile.stores.addresses import is_address
from gigatile.stores.errors import StoreError
from gigatile.tasks import TASKS, find_task

# Folder of the records in the results of a run.
FOLDER = "provenance"

# Time limit for reading the fingerprint of a slide, which is 1 MB. After it, the disk counts as
# hanging.
READ_SECONDS = 60
# Text files that one stage writes for another. A plan compares their content if their time has
# changed since the job, and of other files, which may be large, the size only.
TEXT_FILES = (".json", ".tsv")
# States of a training. Only the last one is needed, to train more epochs.
STATES = "segments/*.npz"
# The folder of the records of train and valid.
SHARDS = "shards"


class FileRecord(BaseModel):
    """Size and SHA-256 of an output and, for a text file, the time of its last change."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: str
    modified_ns: int | None = None


class SourceRecord(BaseModel):
    """The source file of a slide, or all of a case: total size, sum of times, fingerprint."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    modified_ns: int
    fingerprint: str


class OutputRecord(BaseModel):
    """Outputs of a job.

    Attributes:
        outputs: by path, relative to the folder of the run; or by address, of shards in a store.
        source: what a slide or case was made from.
        stalled_minutes: the time limit that was exceeded, if reading the slide or case stalled.
        made_with: digest of code, settings and options, for reuse by other runs; see `digest_of`.
        seconds: how long the job worked; None if its outputs are another run's.
        peak_mb: the largest memory of one of its processes.
    """

    model_config = ConfigDict(frozen=True)

    outputs: dict[str, FileRecord]
    source: SourceRecord | None = None
    stalled_minutes: float | None = None
    made_with: str | None = None
    seconds: float | None = None
    peak_mb: int | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """Return it as text."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


def digest_of(made_with: Sequence[str]) -> str:
    """Return a SHA-256 of texts, in their order."""
    return hashlib.sha256(json.dumps(list(made_with)).encode()).hexdigest()


def record_path(run: Path, *job: str) -> Path:
    """Return the path of a job's record.

    Args:
        run: folder of the run.
        job: the rule and, if it has one job per slide, case or epoch, the value of that wildcard.
    """
    return run.joinpath(FOLDER, *job[:-1], f"{job[-1]}.json")


def run_of(record: Path) -> Path:
    """Return the folder of the run of a record."""
    return next(parent for parent in record.parents if parent.name == FOLDER).parent


def write_output_record(
    record: Path,
    outputs: Iterable[Path],
    sources: Sequence[Path] = (),
    manifest: Path | None = None,
    state: Path | None = None,
    made_with: Sequence[str] = (),
    seconds: float | None = None,
    peak_mb: int | None = None,
) -> None:
    """Write the record of a job. Call it after all outputs are complete.

    Args:
        record: the file to write; see `record_path`.
        outputs: files of the run. For a folder, all files in it are recorded.
        sources: the file of a slide or the files of a case, from which the outputs were made.
        manifest: an output that lists shards, which are recorded with the checksums in it.
        state: an output that is the state of a slide or case.
        made_with: code, settings and options of the job; empty: its outputs cannot be reused.
        seconds, peak_mb: see `OutputRecord`.
    """
    run = run_of(record)
    files = {os.path.relpath(path, run): _file_record(path) for path in files_in(outputs)}
    if manifest is not None:
        files |= _shard_records(manifest, run)
    source = source_record(sources) if sources else None
    stalled = None if state is None else read_json(state).get("stalled_minutes")
    OutputRecord(
        outputs=dict(sorted(files.items())),
        source=source,
        stalled_minutes=stalled,
        made_with=digest_of(made_with) if made_with else None,
        seconds=seconds,
        peak_mb=peak_mb,
    ).write(record)


def read_output_record(path: Path) -> OutputRecord | None:
    """Return the record in a file or in the pack of its rule; None if there is none.

    Raises:
        UserError: the file is damaged.
    """
    try:
        text: bytes | None = path.read_bytes()
    except FileNotFoundError:
        text = read_packed(path)
    except OSError:
        raise UserError(f"damaged: {path}") from None
    try:
        return None if text is None else OutputRecord.model_validate_json(text)
    except ValidationError:
        raise UserError(f"damaged: {path}") from None


def records_of(run: Path, rule: str) -> dict[str, OutputRecord]:
    """Return the records of the jobs of a rule with a job per slide or case; not damaged ones."""
    folder = record_path(run, rule).with_suffix("")
    records = {}
    with contextlib.suppress(UserError):
        records = dict.fromkeys(packed_records(folder.with_suffix(PACK_SUFFIX)))
    records |= dict.fromkeys(path.stem for path in sorted(folder.glob("*.json")))
    read = {}
    for job in records:
        with contextlib.suppress(UserError):
            if record := read_output_record(folder / f"{job}.json"):
                read[job] = record
    return read


def is_recorded(path: Path) -> bool:
    """Return whether there is a record, damaged or not."""
    try:
        return path.exists() or read_packed(path) is not None
    except UserError:
        return True


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and instead of a folder all files in it."""
    for path in paths:
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file())
        else:
            yield path


def outputs_changed(path: Path) -> str:
    """Return the first difference between a job's record and its outputs; "" if there is none.

    Only sizes are compared, and the content of text files whose time has changed. Files that may be
    moved away (see `is_removable`) may be missing. A missing record is a difference, unless the run
    has no records at all.

    Args:
        path: of the record.
    """
    run = run_of(path)
    try:
        record = read_output_record(path)
    except UserError as error:
        return str(error)
    if record is None:
        return f"missing: {path}" if (run / FOLDER).is_dir() else ""
    for name, recorded in record.outputs.items():
        if is_address(name):
            continue  # a shard, which may be moved away; training notices a change
        file = run / name
        try:
            status = file.stat()
            if status.st_size != recorded.bytes:
                # A network file system may cache an old size; opening the file updates it.
                with file.open("rb") as handle:
                    status = os.fstat(handle.fileno())
        except OSError:
            if is_removable(file, run):
                continue
            return f"missing: {file}"
        if status.st_size != recorded.bytes:
            return f"damaged: {file}"
        if (
            file.suffix in TEXT_FILES
            and not _is_same_time(status.st_mtime_ns, recorded.modified_ns)
            and sha256_of(file) != recorded.sha256
        ):
            return f"damaged: {file}"
    return ""


def stall_limit_raised(path: Path, minutes: float) -> str:
    """Return why a slide or case is tried again: it stalled, and the limit is higher now.

    Args:
        path: of its record.
        minutes: the present limit.
    """
    try:
        record = read_output_record(path)
    except UserError:
        return ""  # `outputs_changed` reports it
    stalled = record.stalled_minutes if record else None
    if stalled is None or minutes <= stalled:
        return ""
    return f"stalled: no progress for {stalled:g} minutes; the limit is {minutes:g} now"


def is_removable(file: Path, run: Path) -> bool:
    """Return whether an output may be missing: a state, or in a folder of records that is gone.

    Records are large, and only later stages need them. To save space, their folder may be moved
    away.

    Args:
        file: the missing file.
        run: folder of the run.
    """
    name = file.relative_to(run)
    if name.match(STATES):
        return True
    folders = {SHARDS}
    for task in TASKS:
        records = find_task(task).records
        folders |= {records, f"predictions/{records}"}
    return str(name.parent) in folders and not file.parent.exists()


def source_fingerprint(sources: Sequence[Path], path: Path, update: bool = False) -> str:
    """Return the fingerprint of a slide or case.

    Its files are read only if their size or time differs from the record.

    Args:
        sources: the file of a slide, or all files of a case. If one is missing, they count as
            unchanged.
        path: of the record of the slide or case; it may be missing.
        update: if only the time has changed, record it, so that the next call does not read.

    Returns:
        The fingerprint. If the files cannot be read, the message of the system.
    """
    try:
        record = read_output_record(path)
    except UserError:
        record = None
    known = record.source if record else None
    source = source_record(sources, known)
    if update and record and known and source != known and source.fingerprint == known.fingerprint:
        with contextlib.suppress(OSError):  # perhaps another user's file
            _update(path, record, record.model_copy(update={"source": source}))
    return source.fingerprint


def _update(path: Path, old: OutputRecord, new: OutputRecord) -> None:
    """Replace a record, unless a job has replaced it meanwhile."""
    if read_output_record(path) != old:
        return
    packed = None if path.exists() else read_packed(path)
    if packed is None:
        new.write(path)
    else:
        replace_packed(path, packed, new.to_json())


def _file_record(path: Path) -> FileRecord:
    # Take the time before reading: a change in between then has a later time.
    status = path.stat()
    modified = status.st_mtime_ns if path.suffix in TEXT_FILES else None
    return FileRecord(bytes=status.st_size, sha256=sha256_of(path), modified_ns=modified)


def _is_same_time(modified: int, recorded: int | None) -> bool:
    """Return whether a time is the recorded one, perhaps truncated to seconds by a copy."""
    return recorded is not None and modified in (recorded, recorded // 10**9 * 10**9)


def source_record(sources: Sequence[Path], known: SourceRecord | None = None) -> SourceRecord:
    """Return the present record of a source, which is read unless size and time are as known.

    If it cannot be read within `READ_SECONDS`, the fingerprint is the message of the system.
    """
    try:
        # Take the time before reading: a change in between then has a later time.
        size, modified = size_and_time_of(*sources)
        if known and (known.bytes, known.modified_ns) == (size, modified):
            return known
        fingerprint = _read_fingerprint(sources)
        return SourceRecord(bytes=size, modified_ns=modified, fingerprint=fingerprint)
    except OSError as error:
        away = isinstance(error, StoreError) and not error.is_of_file
        if known and (away or error.errno == errno.ENOENT):
            return known
        return SourceRecord(bytes=0, modified_ns=0, fingerprint=str(error.strerror))


def _read_fingerprint(sources: Sequence[Path]) -> str:
    """Return the fingerprint of a source, or a message after `READ_SECONDS`."""
    results: list[str | OSError] = []

    def read() -> None:
        try:
            results.append(fingerprint_of(*sources))
        except OSError as error:
            results.append(error)

    # A daemon thread that hangs does not keep the process from exiting.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(READ_SECONDS)
    if not results:
        return f"no data within {READ_SECONDS:g} s"
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]


def _shard_records(manifest: Path, run: Path) -> dict[str, FileRecord]:
    # Most calls have no manifest, and this import takes longer than the rest of the command.
    from gigatile.records.manifest import read_manifest

    folder = manifest.parent
    records = {}
    for split in read_manifest(manifest).splits.values():
        for shard in split.shards:
            index = folder / shard.index
            name = shard.file
            if not is_address(name):
                name = os.path.relpath(folder / name, run)
            records[name] = FileRecord(bytes=shard.bytes, sha256=shard.sha256)
            records[os.path.relpath(index, run)] = FileRecord(
                bytes=index.stat().st_size, sha256=shard.index_sha256
            )
    return records
