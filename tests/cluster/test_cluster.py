"""The cluster is what it is said to be: hosts of their own, real shares, and nothing left."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import HERE
from configuration import NODES

pytestmark = pytest.mark.cluster


def own(kind):
    return Path(f"/proc/self/ns/{kind}").readlink()


def traces():
    """What a cluster could leave on this machine: processes, mounts, interfaces, files."""
    foreign = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns/net").readlink() != own("net"):
                foreign.append((folder.name, (folder / "cmdline").read_bytes()))
        except OSError:
            continue
    return {
        "processes": foreign,
        "mounts": Path("/proc/self/mounts").read_text(),
        "interfaces": sorted(Path("/sys/class/net").iterdir()),
        "files": sorted(
            str(p)
            for f in ("/tmp", "/run", "/etc/slurm", "/dev/shm", "/var/lib/mysql")
            for p in Path(f).glob("*")
            if "pytest" not in p.name
        ),
    }


def starter(extra):
    """Return the program of somebody who starts a cluster of their own."""
    return f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom cluster import Cluster\n{extra}"


def test_nodes_are_hosts_of_their_own(cluster):
    seen = cluster.run(
        "srun -A lab -N3 -n3 bash -c 'echo $(hostname) $(readlink /proc/self/ns/net)"
        ' $(readlink /proc/self/ns/pid) $(touch /dev/shm/$(hostname); ls /dev/shm | tr "\\n" ,)'
        ' $(touch /run/cluster/local/$(hostname); cd /run/cluster/local; ls n? | tr "\\n" ,)\''
    ).stdout
    rows = sorted(line.split() for line in seen.splitlines())
    assert [row[0] for row in rows] == list(NODES)
    for column in (1, 2):
        assert len({row[column] for row in rows}) == 3
    for name, _, _, shared_memory, disk in rows:
        assert shared_memory == disk == f"{name},"


def test_ranks_on_two_nodes_are_one_world(cluster):
    program = (
        "from mpi4py import MPI; import socket; c = MPI.COMM_WORLD;"
        "print(c.allreduce(1), sorted(set(c.allgather(socket.gethostname()))))"
    )
    done = cluster.run(
        f"PMIX_SECURITY_MODE=native srun -A lab -N2 --ntasks-per-node=2 --mpi=pmix"
        f" {sys.executable} -c '{program}'"
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and len(set(lines)) == 1
    total, names = lines[0].split(" ", 1)
    assert total == "4" and len(eval(names)) == 2


def test_gpus_are_given_out(cluster):
    shown = "bash -c 'echo $SLURM_LOCALID $CUDA_VISIBLE_DEVICES'"
    by_node = cluster.run(f"srun -A lab -N2 --ntasks-per-node=2 --gres=gpu:2 {shown}").stdout
    assert sorted(by_node.split("\n"))[1:] == ["0 0,1", "0 0,1", "1 0,1", "1 0,1"]
    refused = cluster.run(f"srun -A lab -N1 --gres=gpu:5 {shown}", check=False)
    assert refused.returncode != 0


def test_nothing_is_left_behind(may_start):
    before = traces()
    program = starter("c = Cluster.start(); c.run('srun -A lab -N3 true'); c.stop()")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert traces() == before


def test_nothing_is_left_behind_by_a_killed_test(may_start):
    before = traces()
    program = starter(
        "c = Cluster.start(); c.run('sbatch -A lab -N3 --wrap \"srun sleep 600\"')\n"
        "print(c.init, flush=True)\nimport time; time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    init = int(process.stdout.readline())
    assert len(traces()["processes"]) > len(before["processes"]) + 8
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while traces() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{init}").exists()
    assert traces() == before


def test_a_cluster_by_hand(may_start):
    """As `make cluster-up`, `make cluster-down`."""
    before = traces()
    tool = [sys.executable, HERE / "cluster.py"]
    up = subprocess.run([*tool, "up"], capture_output=True, text=True, timeout=120)
    try:
        assert "n[1-3]" in up.stdout, up.stderr
        inside = [*tool, "run", "srun -A lab -N3 hostname | sort"]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == list(NODES)
    finally:
        subprocess.run([*tool, "down"], check=True, timeout=60)
    assert traces() == before
    assert subprocess.run([*tool, "run", "true"], capture_output=True).returncode == 1
