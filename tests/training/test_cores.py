"""A rank takes its share of the cores it was given, near to one memory, and no more."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gigatile.training.cores import bound_by_launcher, home, numa_nodes, parse_cpus, share


def tree(folder: Path, *cpulists: str) -> Path:
    """Make a kernel's tree in which each NUMA node has the CPUs of a list; "" is memory alone."""
    for number, cpus in enumerate(cpulists):
        node = folder / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
    (folder / "has_cpu").write_text("0\n")
    (folder / "power").mkdir()
    return folder


def homes(nodes, local_size: int, cores: int = 1) -> list[int | None]:
    """Return the number of each rank's node."""
    found = [home(nodes, rank, local_size, cores) for rank in range(local_size)]
    return [node and node.number for node in found]


def test_the_kernels_lists_are_read():
    assert parse_cpus("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert parse_cpus("\n") == set()


def test_a_machine_with_one_memory_binds_nobody(tmp_path):
    assert homes(numa_nodes(range(8), tree(tmp_path, "0-7")), 4) == [None] * 4
    assert numa_nodes(range(8), tmp_path / "nowhere") == []
    assert homes([], 2) == [None, None]


def test_ranks_go_to_the_nodes_in_blocks(tmp_path):
    two = numa_nodes(range(16), tree(tmp_path / "two", "0-3,8-11", "4-7,12-15"))
    assert homes(two, 2) == [0, 1]
    assert homes(two, 4) == [0, 0, 1, 1]
    assert homes(two, 3) == [0, 0, 1]
    assert home(two, 1, 2, 8).cpus == {4, 5, 6, 7, 12, 13, 14, 15}
    four = numa_nodes(range(16), tree(tmp_path / "four", "0-3", "4-7", "8-11", "12-15"))
    assert homes(four, 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert homes(four, 2) == [0, 2]
    eleven = numa_nodes(range(11), tree(tmp_path / "many", *map(str, range(11))))
    assert homes(eleven, 11) == list(range(11)), "by number and not by name"


def test_only_cpus_that_may_be_used_count(tmp_path):
    made = tree(tmp_path, "0-3", "4-7", "8-11", "")
    assert homes(numa_nodes(range(4, 8), made), 2) == [None, None], "all on one node"
    part = numa_nodes({2, 3, 8, 9, 10}, made)
    assert [(node.number, set(node.cpus)) for node in part] == [(0, {2, 3}), (2, {8, 9, 10})]
    assert homes(part, 2) == [0, 2]


def test_a_rank_is_not_bound_to_too_few_cores(tmp_path):
    nodes = numa_nodes(range(8), tree(tmp_path, "0-5", "6-7"))
    assert homes(nodes, 2, cores=2) == [0, 1]
    assert homes(nodes, 2, cores=3) == [0, None]
    assert homes(nodes, 4, cores=2) == [0, 0, None, None]
    assert homes(nodes, 1, cores=8) == [None], "a rank alone has the whole machine"


def test_cores_are_divided_among_those_who_share_them():
    machine = set(range(8))
    assert share(machine, [machine] * 2) == 4
    assert share(machine, [machine] * 3) == 2
    assert share(machine, [machine] * 20) == 1
    own = [{0, 1}, {2, 3, 4}]
    assert [share(mine, own) for mine in own] == [2, 3], "bound by the launcher"
    assert share({0, 1, 2, 3}, [{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5}]) == 2


def test_who_was_bound_by_the_launcher():
    assert bound_by_launcher({0}, [{0}, {1}])
    assert not bound_by_launcher({0, 1}, [{0, 1}, {0, 1}])
    assert not bound_by_launcher({0, 1}, [{0, 1}]), "the only rank has all that the job has"


BIND = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
from gigatile.training.cores import THREADS, bind, numa_nodes
def threads(n):
    for _ in range(n):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
threads(3)
first, second = numa_nodes(os.sched_getaffinity(0), Path(sys.argv[1]))
bind(second)  # a node that this machine may not have: no error
threads(2)
where = [sorted(os.sched_getaffinity(int(path.name))) for path in THREADS.iterdir()]
child = os.popen("grep Cpus_allowed_list /proc/self/status").read().split()[1]
bind(first)
policy = ctypes.c_int(-1)
ctypes.CDLL(None).syscall(239, ctypes.byref(policy), None, 0, None, 0)
print(json.dumps([where, child, policy.value]))
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core cannot be divided")
def test_binding_holds_for_every_thread_before_and_after(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    made = tree(tmp_path, ",".join(map(str, cpus[1:])), str(cpus[0]))
    done = subprocess.run(
        [sys.executable, "-c", BIND, made], capture_output=True, text=True, timeout=60, check=True
    )
    where, child, policy = json.loads(done.stdout)
    assert where == [[cpus[0]]] * 6
    assert child == str(cpus[0])
    if platform.machine() == "x86_64":
        assert policy == 1, "node 0 is preferred (MPOL_PREFERRED)"


POOLS = """
import sys
from gigatile.training.cores import THREADS, limit_pools
if len(sys.argv) > 1:
    limit_pools(int(sys.argv[1]))
import numpy
print(len(list(THREADS.iterdir())))
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="no pool is larger than one core")
def test_no_pool_of_threads_is_as_large_as_the_machine():
    free = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}

    def threads(*cores: str) -> int:
        line = [sys.executable, "-c", POOLS, *cores]
        return int(subprocess.check_output(line, env=free, timeout=60))

    assert threads() > 1, "NumPy makes none by itself: this test says nothing"
    assert threads("1") == 1
