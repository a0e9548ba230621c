"""Another library in a separate process, in an environment with its packages."""

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Peer:
    """A process that does its work, for example an epoch, whenever it is asked to."""

    def __init__(self, python: Path, program: str, arguments: Sequence[object]) -> None:
        """Start the process, which writes its files first.

        Args:
            python: of the environment of the peers.
            program: name of the script in this folder.
            arguments: of the script.
        """
        line = [str(python), str(Path(__file__).with_name(program)), *map(str, arguments)]
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self) -> list[Any]:
        """Return the answer of the script: processor time and others, see there."""
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("go\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise SystemExit(process.stderr.read())
        values: list[Any] = json.loads(answer)
        return values

    def close(self) -> None:
        """End the process; it ends by itself at the end of its input."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
