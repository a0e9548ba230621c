"""The cluster has separate hosts, enforces resources, and leaves nothing behind."""

import subprocess
import sys

import pytest
from cluster import HERE
from configuration import NODES

pytestmark = pytest.mark.cluster


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


@pytest.mark.parametrize("how", ["stopped", "killed", "by hand"])
def test_nothing_is_left_behind(may_start, how):
    """However it ends. Looked at from namespaces that hold nothing else."""
    alone = ("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc")
    program = (
        "case $PWD in /tmp/*) ;; *) mount -t tmpfs none /tmp ;; esac; "
        " mount -t tmpfs none /run; mount -t tmpfs none /dev/shm;"
        f" exec {sys.executable} {HERE}/leave_nothing.py '{how}'"
    )
    done = subprocess.run(
        [*alone, "bash", "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
