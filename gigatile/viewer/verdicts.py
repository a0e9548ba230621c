"""The verdicts of pathologists on predicted slides. Nothing is ever overwritten or deleted."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.serving.database import open_database

_SCHEMA = 1
# AUTOINCREMENT: a number is never reused. The triggers refuse every change of a row.
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    slide TEXT NOT NULL,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    predicted TEXT NOT NULL,
    verdict TEXT NOT NULL,
    comment TEXT NOT NULL,
    reader TEXT NOT NULL,
    created REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS verdicts_of_jobs ON verdicts (job, number);
CREATE TRIGGER IF NOT EXISTS no_changes BEFORE UPDATE ON verdicts
    BEGIN SELECT raise(ABORT, 'verdicts are never changed'); END;
CREATE TRIGGER IF NOT EXISTS no_replacements BEFORE INSERT ON verdicts
    WHEN EXISTS (SELECT 1 FROM verdicts WHERE number = NEW.number)
    BEGIN SELECT raise(ABORT, 'verdicts are never replaced'); END;
CREATE TRIGGER IF NOT EXISTS no_deletions BEFORE DELETE ON verdicts
    BEGIN SELECT raise(ABORT, 'verdicts are never deleted'); END;
"""
COLUMNS = (
    *("slide", "model", "version", "predicted", "verdict", "comment", "reader"),
    *("created", "job", "number"),
)
# A spreadsheet takes cells that begin with these for formulas.
_FORMULAS = ("=", "+", "-", "@")


@dataclass(frozen=True)
class Verdict:
    """A verdict on the prediction of a slide.

    Attributes:
        job: the id of the job that predicted it.
        slide: its name, as the sender of the job gave it.
        model, version: that predicted it.
        predicted: the class that they predicted.
        verdict: the class that the reader sees, or another word, such as `unsure`.
        comment: empty if there is none.
        reader: who says so; not checked.
        created: seconds since 1970.
        number: counts the verdicts.
    """

    job: str
    slide: str
    model: str
    version: int
    predicted: str
    verdict: str
    comment: str
    reader: str
    created: float
    number: int

    def shown(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return asdict(self)


class VerdictStore:
    """The verdicts of a server, in an embedded database. Safe to use from several threads."""

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

    def add(self, **values: Any) -> Verdict:
        """Add a verdict, and return it.

        Args:
            values: the fields of `Verdict`, but `created` and `number`.
        """
        values["created"] = time.time()
        names = ", ".join(values)
        marks = ", ".join(f":{name}" for name in values)
        with self._lock:
            row = self._connection.execute(
                f"INSERT INTO verdicts ({names}) VALUES ({marks}) RETURNING *", values
            ).fetchone()
        return Verdict(**dict(row))

    def of_job(self, job: str) -> list[Verdict]:
        """Return the verdicts on a slide, newest first."""
        return self._read("WHERE job = ? ORDER BY number DESC", (job,))

    def latest(self) -> list[Verdict]:
        """Return the newest verdict on each slide."""
        return self._read("WHERE number IN (SELECT max(number) FROM verdicts GROUP BY job)")

    def table(self) -> Iterator[str]:
        """Yield all verdicts as lines of a tab-separated table, oldest first."""
        yield "\t".join(COLUMNS) + "\n"
        for verdict in self._read("ORDER BY number"):
            cells = asdict(verdict) | {
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(verdict.created))
            }
            yield "\t".join(_cell(cells[name]) for name in COLUMNS) + "\n"

    def _read(self, rest: str, values: tuple[Any, ...] = ()) -> list[Verdict]:
        with self._lock:
            rows = self._connection.execute(f"SELECT * FROM verdicts {rest}", values)
            return [Verdict(**dict(row)) for row in rows]


def open_verdicts(work_dir: Path) -> VerdictStore:
    """Open the verdicts in the work folder of a server.

    Raises:
        UserError: the file is no such database.
    """
    try:
        return VerdictStore(work_dir / "verdicts.sqlite")
    except (ValueError, sqlite3.Error) as error:
        raise UserError(f"--work-dir {work_dir}: verdicts.sqlite: {error}") from None


def _cell(value: Any) -> str:
    """Return a cell on one line that no spreadsheet takes for a formula."""
    text = " ".join(str(value).split())
    return f"'{text}" if text.startswith(_FORMULAS) else text
