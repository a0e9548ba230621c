"""Records and logs of many jobs, packed: a file each instead of two for every slide.

When all slides are tiled, their records move into `provenance/<rule>.jsonl`, and the logs of those
that went well into `logs/<rule>.log`. The file of a single job takes precedence: it has run again.
"""

import atexit
import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import write_whole

SUFFIX = ".jsonl"
# As `head` and `tail` separate files.
_HEADING = re.compile(r"^==> (.+)\.log <==\n", re.MULTILINE)


def read_packed(record: Path) -> bytes | None:
    """Return a record from the pack of its rule; None if it is not there.

    Args:
        record: the path that the record would have as a separate file.

    Raises:
        UserError: the pack is damaged.
    """
    return packed_records(record.parent.with_suffix(SUFFIX)).get(record.stem)


def packed_records(pack: Path) -> Mapping[str, bytes]:
    """Return the records in a pack by job, as JSON; empty if there is no pack.

    Raises:
        UserError: the pack is damaged.
    """
    try:
        status = pack.stat()
    except OSError:
        return {}
    return _read(pack, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4)
def _read(pack: Path, *version: int) -> Mapping[str, bytes]:
    try:
        lines = pack.read_bytes().splitlines()
        return {json.loads(line[: line.index(b"\t")]): line.split(b"\t", 1)[1] for line in lines}
    except (OSError, ValueError, TypeError):
        raise UserError(f"damaged: {pack}") from None


# By pack and job: the record that was read, and the one that replaces it at the end.
_replacements: dict[Path, dict[str, tuple[bytes, bytes]]] = {}


def replace_packed(record: Path, old: bytes, new: str) -> None:
    """Replace a record in its pack when this process ends, unless another process has done so.

    At the end, as a pack is written as a whole. If the process is killed, the pack stays as it is.
    """
    if not _replacements:
        atexit.register(_write_replacements)
    pack = record.parent.with_suffix(SUFFIX)
    _replacements.setdefault(pack, {})[record.stem] = (old, _in_one_line(new))


def _write_replacements() -> None:
    for pack, replacements in _replacements.items():
        with contextlib.suppress(OSError, UserError):  # perhaps another user's file
            known = dict(packed_records(pack))
            current = {
                job: new for job, (old, new) in replacements.items() if known.get(job) == old
            }
            if current:
                _write(pack, known | current)


def _write(pack: Path, records: Mapping[str, bytes]) -> None:
    with write_whole(pack) as temporary, temporary.open("wb") as handle:
        for job in sorted(records):
            handle.write(json.dumps(job).encode() + b"\t" + records[job] + b"\n")


def _in_one_line(record: str | bytes) -> bytes:
    return json.dumps(json.loads(record), separators=(",", ":")).encode()


def pack_records(folder: Path, jobs: Collection[str]) -> None:
    """Move the records of jobs from their folder into their pack.

    Records of other jobs, of rows that are no longer in the sheet, are dropped from the pack, and
    stay in the folder.
    """
    pack = folder.with_suffix(SUFFIX)
    try:
        known = dict(packed_records(pack))
    except UserError:
        known = {}  # the records of these jobs are missing then, and they run again
    files = {job: folder / f"{job}.json" for job in jobs}
    versions = {}
    for job, path in files.items():
        try:
            versions[job] = path.stat().st_mtime_ns
            known[job] = _in_one_line(path.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError:
            del versions[job]  # damaged: the next plan says so
    _write(pack, {job: known[job] for job in known.keys() & files.keys()})
    for job, version in versions.items():
        _remove(files[job], version)
    _remove_if_empty(folder)


def pack_logs(folder: Path, jobs: Collection[str]) -> None:
    """Move the logs of jobs from their folder into one file, in the order of their names."""
    path = folder.with_suffix(".log")
    logs = dict(_sections(path))
    files = {job: folder / f"{job}.log" for job in jobs}
    versions = {}
    for job, file in files.items():
        try:
            versions[job] = file.stat().st_mtime_ns
            logs[job] = file.read_bytes()
        except FileNotFoundError:
            continue
    with write_whole(path) as temporary, temporary.open("wb") as handle:
        for job in sorted(logs.keys() & files.keys()):
            handle.write(f"==> {job}.log <==\n".encode() + logs[job].rstrip(b"\n") + b"\n\n")
    for job, version in versions.items():
        _remove(files[job], version)
    _remove_if_empty(folder)


def _sections(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the logs in a pack: the job, and its text."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return
    parts = _HEADING.split(text)[1:]
    for job, log in zip(parts[::2], parts[1::2], strict=True):
        yield job, log.encode(errors="surrogateescape")


def _remove(path: Path, version: int) -> None:
    """Remove a packed file, unless a job has written it again meanwhile."""
    try:
        if path.stat().st_mtime_ns == version:
            path.unlink()
    except FileNotFoundError:
        pass


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it has other files, or does not exist
        folder.rmdir()
