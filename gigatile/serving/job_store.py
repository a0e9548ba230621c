"""Jobs of slides in an embedded database, which outlives the server."""

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.serving.database import open_database

# States of a job. The last three are final.
QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
FINAL = (DONE, FAILED, CANCELLED)
_SCHEMA = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    source TEXT NOT NULL,
    mpp REAL,
    reason TEXT NOT NULL DEFAULT '',
    progress TEXT NOT NULL DEFAULT '{}',
    revision INTEGER NOT NULL DEFAULT 1,
    created REAL NOT NULL,
    ended REAL
) STRICT
"""


@dataclass(frozen=True)
class Job:
    """A slide to predict.

    Attributes:
        id: random, so that nobody can guess it.
        number: counts the jobs; the order in which they run.
        state: see the names above.
        name: of the slide, as its sender gave it; only for people to read.
        model, version: that predict it.
        source: the slide's file.
        mpp: micrometres per pixel of level 0; None: as in the file.
        reason: why it failed.
        progress: finished and all jobs of each stage, by its name.
        revision: increases with each change.
        created, ended: seconds since 1970.
    """

    id: str
    number: int
    state: str
    name: str
    model: str
    version: int
    source: str
    mpp: float | None
    reason: str
    progress: dict[str, list[int]]
    revision: int
    created: float
    ended: float | None

    def shown(self) -> dict[str, Any]:
        """Return what a client sees: not the path of the file."""
        return {
            "id": self.id,
            "state": self.state,
            "name": self.name,
            "model": self.model,
            "version": str(self.version),
            "mpp": self.mpp,
            "reason": self.reason or None,
            "progress": self.progress,
            "created": self.created,
            "ended": self.ended,
        }


class JobStore:
    """The jobs of a server. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open the database, and create it if it is missing.

        Raises:
            ValueError: it was written by another release.
            sqlite3.DatabaseError: the file is not a database.
        """
        self._lock = threading.Lock()
        self._connection = open_database(path, _SCHEMA, _TABLE)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def add(
        self, name: str, model: str, version: int, source: Path, mpp: float | None, id: str
    ) -> Job:
        """Add a job that waits."""
        self._write(
            "INSERT INTO jobs (id, number, state, name, model, version, source, mpp, created) "
            "VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM jobs), ?, ?, ?, ?, ?, ?, ?)",
            (id, QUEUED, name, model, version, str(source), mpp, time.time()),
        )
        job = self.get(id)
        assert job is not None
        return job

    def get(self, id: str) -> Job | None:
        """Return a job, or None."""
        rows = self._read("SELECT * FROM jobs WHERE id = ?", (id,))
        return rows[0] if rows else None

    def newest(self, count: int, before: int | None = None) -> list[Job]:
        """Return the newest jobs, newest first: those with a smaller number than `before`."""
        limit = before if before is not None else 2**62
        return self._read(
            "SELECT * FROM jobs WHERE number < ? ORDER BY number DESC LIMIT ?", (limit, count)
        )

    def with_state(self, *states: str) -> list[Job]:
        """Return the jobs in some states, oldest first."""
        marks = ", ".join("?" * len(states))
        return self._read(f"SELECT * FROM jobs WHERE state IN ({marks}) ORDER BY number", states)

    def begin_next(self) -> Job | None:
        """Mark the oldest job that waits as running, and return it; None: none waits."""
        with self._lock:
            row = self._connection.execute(
                "UPDATE jobs SET state = ?, revision = revision + 1 WHERE id = "
                "(SELECT id FROM jobs WHERE state = ? ORDER BY number LIMIT 1) RETURNING *",
                (RUNNING, QUEUED),
            ).fetchone()
        return None if row is None else _job(row)

    def change(self, id: str, state: str, *, only_from: Sequence[str], reason: str = "") -> bool:
        """Change the state of a job that is in one of some states; return whether it was."""
        marks = ", ".join("?" * len(only_from))
        ended = time.time() if state in FINAL else None
        return self._write(
            "UPDATE jobs SET state = ?, reason = ?, ended = ?, revision = revision + 1 "
            f"WHERE id = ? AND state IN ({marks})",
            (state, reason, ended, id, *only_from),
        )

    def set_progress(self, id: str, progress: dict[str, list[int]]) -> None:
        """Record the progress of a job."""
        self._write(
            "UPDATE jobs SET progress = ?, revision = revision + 1 WHERE id = ?",
            (json.dumps(progress), id),
        )

    def delete(self, id: str) -> bool:
        """Delete a job in a final state; return whether it was in one."""
        marks = ", ".join("?" * len(FINAL))
        return self._write(f"DELETE FROM jobs WHERE id = ? AND state IN ({marks})", (id, *FINAL))

    def _read(self, sql: str, values: Sequence[Any] = ()) -> list[Job]:
        with self._lock:
            return [_job(row) for row in self._connection.execute(sql, values)]

    def _write(self, sql: str, values: Sequence[Any]) -> bool:
        with self._lock:
            return self._connection.execute(sql, values).rowcount > 0


def new_id() -> str:
    """Return a random id."""
    return secrets.token_hex(16)


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    values["progress"] = json.loads(values["progress"])
    return Job(**values)
