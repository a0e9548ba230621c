"""Plans of Snakemake from forked processes.

Half of the time of a dry run is the import of Snakemake. A process that has imported it, but
nothing of the project, is forked for each plan.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

_PLANNERS = threading.local()


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `snakemake --dry-run` in a folder; each thread has a process for it."""
    if not hasattr(_PLANNERS, "process"):
        _PLANNERS.process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    process, command = _PLANNERS.process, ["snakemake", "--dry-run", *arguments]
    with tempfile.TemporaryFile() as output:
        path = f"/proc/{os.getpid()}/fd/{output.fileno()}"
        line = [str(folder), command, path, _environment()]
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        status = int(process.stdout.readline())
        output.seek(0)
        return subprocess.CompletedProcess(command, status, output.read().decode(), "")


def _environment() -> dict[str, str]:
    """Return the present environment: a test may have changed it since the planner was started."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def main() -> None:
    """Read folder, command, output and environment from each line; write the exit status."""
    # What Snakemake and the Snakefile import of other packages.
    import pandas  # noqa: F401
    import pydantic  # noqa: F401
    import snakemake.api  # noqa: F401
    from snakemake import cli

    for line in sys.stdin:
        folder, command, path, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            output = os.open(path, os.O_WRONLY | os.O_APPEND)
            for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                os.dup2(descriptor, number)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
            status = 1
            try:
                status = cli.main() or 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)


if __name__ == "__main__":
    main()
