"""Snakemake's logger plugin of the command `gigatile`: writes the events of a run as lines of JSON.

The file descriptor that it writes to is in the environment variable `GIGATILE_EVENTS`.
"""

import json
import os
from logging import LogRecord
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase

# The attributes of a record that the command reads, by the name of the event.
FIELDS = {
    "run_info": ("stats",),
    "job_info": ("jobid", "rule_name", "wildcards", "log"),
    "job_started": ("jobs",),
    "job_finished": ("job_id",),
    "job_error": ("jobid", "rule_name", "log"),
    "group_error": ("groupid", "job_error_info"),
}


class LogHandler(LogHandlerBase):
    """Writes an event with a line each. Snakemake's own messages still go to standard error."""

    writes_to_stream = False
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Open the stream of the command, if this process was started by it."""
        descriptor = os.environ.get("GIGATILE_EVENTS")
        self._stream = None
        if descriptor is not None:
            self._stream = os.fdopen(int(descriptor), "w", buffering=1, encoding="utf-8")

    def emit(self, record: LogRecord) -> None:
        """Write the event of a record, if it has one that the command reads."""
        event = getattr(record, "event", None)
        fields = FIELDS.get(str(event))
        if self._stream is None or fields is None:
            return
        values: dict[str, Any] = {name: getattr(record, name, None) for name in fields}
        try:
            self._stream.write(json.dumps({"event": str(event), **values}, default=_plain) + "\n")
        except OSError:  # the command has died; the run goes on
            self._stream = None


def _plain(value: Any) -> Any:
    """Return what JSON can hold of an object of Snakemake."""
    if hasattr(value, "items"):
        return dict(value.items())
    return list(value) if isinstance(value, (set, tuple)) else str(value)
