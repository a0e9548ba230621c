"""Start a cluster and end it in one of several ways; fail if anything of it is left on the machine.

Run it in separate namespaces, so that other processes are not mistaken for leftovers.
"""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cluster import HERE, Cluster
from configuration import NODES

FOLDERS = ("/tmp", "/run", "/etc/slurm", "/dev/shm", "/var/lib/mysql")
# Of MPI, Snakemake and TensorFlow in other tests at the same time; the cluster here runs none.
OF_OTHERS = ("ompi.", "snakemake", "__autograph_generated_file")
PROGRAM = f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom cluster import Cluster\n"


def at_work(process: Path) -> bool:
    """Return whether a process has not ended; no init takes away here those that have."""
    with contextlib.suppress(OSError):
        return not re.search(r"^State:\s+Z", (process / "status").read_text(), re.MULTILINE)
    return False


def traces() -> dict[str, set]:
    """Return what a cluster could leave: processes, mounts, interfaces, files."""
    return {
        "processes": {path.name for path in Path("/proc").glob("[0-9]*") if at_work(path)},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "interfaces": set(socket.if_nameindex()),
        "files": {
            str(path)
            for folder in FOLDERS
            for path in Path(folder).glob("*")
            if not path.name.startswith(OF_OTHERS)
        },
    }


def new_since(before: dict[str, set]) -> dict[str, set]:
    """Return what was not there before. What others have removed since is no trace."""
    return {kind: new for kind, after in traces().items() if (new := after - before[kind])}


def stopped() -> None:
    cluster = Cluster.start()
    cluster.run("srun -A lab -N3 true")
    cluster.stop()


def killed() -> None:
    """As when a test is killed; a job is at work."""
    program = PROGRAM + (
        "c = Cluster.start(); c.run('sbatch -A lab -N3 --wrap \"srun sleep 600\"')\n"
        "print(flush=True)\nimport time; time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline()
    assert len(traces()["processes"]) > 10, "a cluster that is up is not seen"
    process.send_signal(signal.SIGKILL)
    process.wait()


def by_hand() -> None:
    """As `make cluster-up`, `make cluster-down`."""
    tool = [sys.executable, str(HERE / "cluster.py")]
    up = subprocess.run([*tool, "up"], capture_output=True, text=True, timeout=120)
    try:
        assert "n[1-3]" in up.stdout, up.stderr
        inside = [*tool, "run", "srun -A lab -N3 hostname | sort"]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == list(NODES), done.stderr
    finally:
        subprocess.run([*tool, "down"], check=True, timeout=60)
    assert subprocess.run([*tool, "run", "true"], capture_output=True).returncode == 1


def main() -> None:
    before = traces()
    {"stopped": stopped, "killed": killed, "by hand": by_hand}[sys.argv[1]]()
    deadline = time.monotonic() + 30
    while (left := new_since(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, left


if __name__ == "__main__":
    main()
