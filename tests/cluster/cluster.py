#!/usr/bin/env python3
"""A real SLURM cluster of four hosts on one machine, for tests and for trying things by hand.

A login host runs munge, MariaDB, slurmdbd and slurmctld; the nodes n1, n2 and n3 run slurmd.
Each host is a set of namespaces: its own network with an address in 10.77.0.0/24, host name,
processes, mounts, /dev/shm and, at /run/cluster/local, a disk that only it sees. All else of the
file system is shared, as on a cluster.

Nothing is left behind: all files of the cluster are in a separate /run, and all its processes in a
process namespace inside that of the login host. When the first process of the login host ends, the
kernel kills all others, and the namespaces, mounts and files disappear with the last of them. The
first process ends with the program that started the cluster, even if that is killed.

Needs root and the packages that `install.sh` names.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from configuration import CONFIGURATION, LOGIN_SETUP, MARIADB, NODE_INIT, NODE_TIMEOUT, NODES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Where a cluster that was started by hand writes the number of its first process.
BY_HAND = ROOT / "build" / "cluster.pid"

# The address of this machine in the cluster's network.
OUTSIDE = "10.77.0.250"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "nsenter", "unshare", "ip")
PMIX = "mpi_pmix.so"


class ClusterError(Exception):
    """A command to the cluster failed."""


def missing() -> str | None:
    """Return why no cluster can run on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root: namespaces, and daemons that start jobs for users"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: bash tests/cluster/install.sh)"
    if not list(Path("/usr/lib").glob(f"*/slurm-wlm/{PMIX}")):
        return f"SLURM has no PMIx here: {PMIX} not found"
    return None


class Cluster:
    """A cluster by the number of the first process of its login host."""

    def __init__(self, init: int, holder: subprocess.Popen | None = None) -> None:
        """Refer to a running cluster; `holder` keeps it alive, if this process started it."""
        self.init, self._holder = init, holder

    # Starting and stopping

    @classmethod
    def start(cls, by_hand: bool = False) -> "Cluster":
        """Start a cluster and wait until its nodes take jobs; about 4 seconds.

        It ends with this process, however that ends, unless it is started by hand.
        """
        reason = missing()
        if reason:
            raise ClusterError(reason)
        # The first process reads from a pipe that only we could write to, until there is no one to.
        wait = "sleep infinity & wait" if by_hand else "read -r _"
        holder = subprocess.Popen(
            [
                *("unshare", "--mount", "--net", "--uts", "--ipc", "--pid"),
                *("--fork", "--kill-child=KILL", "--mount-proc", "--"),
                *("bash", "-c", f"{LOGIN_SETUP}\ntouch /run/cluster/up\n{wait}"),
            ],
            stdin=subprocess.DEVNULL if by_hand else subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _until(lambda: _children(holder.pid), 10, "the login host")
            cluster = cls(_children(holder.pid)[0], holder)
            _until(cluster.path("/run/cluster/up").exists, 10, "the login host's set-up")
            cluster._start_services()
        except BaseException:
            holder.kill()
            holder.wait()
            raise
        return cluster

    def stop(self) -> None:
        """End every process of the cluster; with them go its networks, mounts and files."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        if self._holder:
            if self._holder.stdin:
                self._holder.stdin.close()
            self._holder.wait(30)
        else:
            _until(lambda: not _alive(self.init), 30, "the cluster's end")

    def _start_services(self) -> None:
        for name, text in CONFIGURATION.items():
            path = self.path(f"/etc/slurm/{name}")
            path.write_text(text)
            path.chmod(0o600)
        self.spawn(
            "munged --foreground --force --key-file=/run/munge/munge.key"
            " --pid-file=/run/munge/munged.pid --seed-file=/run/munge/munged.seed"
            " --socket=/run/munge/munge.socket.2 --log-file=/run/munge/munged.log >/dev/null 2>&1"
        )
        self.run(
            "mariadb-install-db --no-defaults --user=root --datadir=/run/cluster/mariadb"
            " --auth-root-authentication-method=socket --skip-test-db"
            " >/run/cluster/mariadb-install.log 2>&1"
        )
        self.spawn(f"mariadbd {' '.join(MARIADB)} >/run/cluster/mariadb.log 2>&1")
        self.wait_for("mariadb --no-defaults -u root -e 'select 1'")
        self.start_accounting()
        self.run(
            "exec >/dev/null\n"
            "sacctmgr --immediate add cluster trial\n"
            "sacctmgr --immediate add account lab cluster=trial\n"
            "sacctmgr --immediate add user root account=lab cluster=trial defaultaccount=lab"
        )
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_for('test "$(sinfo -h -t idle -o %D)" = 3', 60)

    def start_accounting(self) -> None:
        """Start slurmdbd."""
        self.spawn("slurmdbd -D >/run/cluster/slurmdbd.out 2>&1")
        self.wait_for("sacctmgr -n list cluster")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.spawn("slurmctld -D >/run/cluster/slurmctld.out 2>&1")
        self.wait_for("scontrol ping | grep -q UP")

    def stop_service(self, name: str) -> None:
        """End slurmctld or slurmdbd as an administrator does."""
        self.run(f"pkill -TERM -x {name}; while pgrep -x {name} >/dev/null; do sleep 0.1; done")

    def runs(self, name: str) -> bool:
        """Return whether slurmctld or slurmdbd is at work."""
        return self.run(f"pgrep -x {name}", check=False).returncode == 0

    def start_node(self, node: str) -> None:
        """Switch a node on."""
        address = f"10.77.0.1{node[1:]}"
        self.run(
            "setsid unshare --mount --net --uts --ipc --pid --fork --kill-child=KILL --mount-proc"
            f" -- bash -c {shlex.quote(NODE_INIT)} {node} {address} </dev/null >/dev/null 2>&1 &\n"
            "until pid=$(pgrep -P $!); do sleep 0.02; done\n"
            f"ip link del {node} 2>/dev/null\n"
            f"ip link add {node} type veth peer name eth0 netns $pid"
            f" && ip link set {node} master cluster up && echo $pid >/run/cluster/{node}.pid"
        )

    @contextlib.contextmanager
    def network_device(self) -> Iterator[str]:
        """Connect this machine to the cluster's network; return its address there."""
        lines = (
            f"ip link add gigatile type veth peer name outside netns {self.init}",
            f"ip address add {OUTSIDE}/24 dev gigatile",
            "ip link set gigatile up",
        )
        for line in lines:
            subprocess.run(line.split(), check=True)
        try:
            self.run("ip link set outside master cluster up")
            yield OUTSIDE
        finally:
            subprocess.run(["ip", "link", "delete", "gigatile"], check=False)

    # Faults

    def kill_node(self, node: str) -> None:
        """Cut a node's power: every process on it ends at once."""
        self.run(f"kill -KILL $(cat /run/cluster/{node}.pid)")

    def is_off(self, node: str) -> bool:
        """Return whether a node has no power."""
        return self.run(f"kill -0 $(cat /run/cluster/{node}.pid)", check=False).returncode != 0

    def cut_network(self, node: str) -> None:
        """Pull a node's cable: it runs on, and no packet comes or goes."""
        self.run(f"ip link set {node} down")

    def mend_network(self, node: str) -> None:
        """Put the cable back."""
        self.run(f"ip link set {node} up")

    def set_node_timeout(self, seconds: int = NODE_TIMEOUT) -> None:
        """Set how long SLURM waits for a node that does not answer before it gives it up."""
        conf = self.path("/etc/slurm/slurm.conf")
        conf.write_text(re.sub(r"SlurmdTimeout=\d+", f"SlurmdTimeout={seconds}", conf.read_text()))
        self.run("scontrol reconfigure")

    # Using it

    def enter(self, command: str) -> list[str]:
        """Return the command line that runs a shell command on the login host."""
        return [
            *("nsenter", "--target", str(self.init)),
            *("--mount", "--net", "--uts", "--ipc", "--pid", f"--wd={Path.cwd()}", "--"),
            *("bash", "-c", command),
        ]

    def run(
        self, command: str, check: bool = True, timeout: float = 120, **options
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the login host to its end."""
        done = subprocess.run(
            self.enter(command), capture_output=True, text=True, timeout=timeout, **options
        )
        if check and done.returncode:
            raise ClusterError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def spawn(self, command: str) -> None:
        """Start a shell command on the login host that runs until the cluster ends."""
        self.run(f"setsid {command} </dev/null &")

    def wait_for(self, command: str, seconds: float = 30) -> None:
        """Wait until a shell command on the login host succeeds."""
        _until(lambda: self.run(command, check=False).returncode == 0, seconds, command)

    def path(self, path: str) -> Path:
        """Return a path of the login host as this process sees it."""
        return Path(f"/proc/{self.init}/root{path}")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _until(true: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:g} s for: {what}")
        time.sleep(0.05)


def _by_hand() -> Cluster | None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(BY_HAND.read_text())
        name = Path(f"/proc/{pid}/root/etc/slurm/slurm.conf")
        if name.exists():
            return Cluster(pid)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=["up", "down", "run"])
    parser.add_argument("command", nargs="*", help="for run: what to run on the login host")
    args = parser.parse_args(arguments)
    cluster = _by_hand()
    if args.what == "up":
        if cluster is None:
            cluster = Cluster.start(by_hand=True)
            BY_HAND.parent.mkdir(exist_ok=True)
            BY_HAND.write_text(f"{cluster.init}\n")
        print(cluster.run("sinfo").stdout, end="")
        return 0
    if cluster is None:
        print("no cluster is up (make cluster-up)", file=sys.stderr)
        return 1 if args.what == "run" else 0
    if args.what == "down":
        cluster.stop()
        BY_HAND.unlink()
        return 0
    return subprocess.run(cluster.enter(" ".join(args.command) or "exec bash")).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"error: {error}")
