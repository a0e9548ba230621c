"""Embedded databases in the work folder of a server."""

import sqlite3
from pathlib import Path


def open_database(path: Path, schema: int, tables: str) -> sqlite3.Connection:
    """Open a database, and create it if it is missing. What is committed survives a power failure.

    Args:
        path: the file.
        schema: version of the tables, from 1.
        tables: SQL that creates those that are missing.

    Returns:
        A connection for several threads, which have to take turns.

    Raises:
        ValueError: it was written by another release.
        sqlite3.DatabaseError: the file is not a database.
    """
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, schema):
        raise ValueError(f"{path}: was written by another release (schema {version})")
    connection.executescript(tables)
    connection.execute(f"PRAGMA user_version = {schema}")
    return connection
