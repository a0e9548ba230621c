"""A rank uses its share of the cores of the job, on one NUMA node if possible."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gigatile.training.cores import (
    bound_by_launcher,
    core_share,
    node_of_rank,
    numa_nodes,
    parse_cpus,
)


def tree(folder: Path, *cpulists: str) -> Path:
    """Write a kernel tree of NUMA nodes with these CPUs; "" is a node without CPUs."""
    for number, cpus in enumerate(cpulists):
        node = folder / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
    (folder / "has_cpu").write_text("0\n")
    (folder / "power").mkdir()
    return folder


def nodes_of(nodes, local_size: int, cores: int = 1) -> list[int | None]:
    """Return the number of each rank's node."""
    assigned = [node_of_rank(nodes, rank, local_size, cores) for rank in range(local_size)]
    return [node and node.number for node in assigned]


def test_cpu_lists_are_parsed():
    assert parse_cpus("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert parse_cpus("\n") == set()


def test_ranks_are_not_bound_on_one_node(tmp_path):
    assert nodes_of(numa_nodes(range(8), tree(tmp_path, "0-7")), 4) == [None] * 4
    assert numa_nodes(range(8), tmp_path / "nowhere") == []
    assert nodes_of([], 2) == [None, None]


def test_ranks_are_assigned_to_nodes_in_blocks(tmp_path):
    two = numa_nodes(range(16), tree(tmp_path / "two", "0-3,8-11", "4-7,12-15"))
    assert nodes_of(two, 2) == [0, 1]
    assert nodes_of(two, 4) == [0, 0, 1, 1]
    assert nodes_of(two, 3) == [0, 0, 1]
    assert node_of_rank(two, 1, 2, 8).cpus == {4, 5, 6, 7, 12, 13, 14, 15}
    four = numa_nodes(range(16), tree(tmp_path / "four", "0-3", "4-7", "8-11", "12-15"))
    assert nodes_of(four, 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert nodes_of(four, 2) == [0, 2]
    eleven = numa_nodes(range(11), tree(tmp_path / "many", *map(str, range(11))))
    assert nodes_of(eleven, 11) == list(range(11)), "sorted by number, not by name"


def test_only_allowed_cpus_count(tmp_path):
    nodes = tree(tmp_path, "0-3", "4-7", "8-11", "")
    assert nodes_of(numa_nodes(range(4, 8), nodes), 2) == [None, None], "all on one node"
    part = numa_nodes({2, 3, 8, 9, 10}, nodes)
    assert [(node.number, set(node.cpus)) for node in part] == [(0, {2, 3}), (2, {8, 9, 10})]
    assert nodes_of(part, 2) == [0, 2]


def test_rank_is_not_bound_to_too_few_cores(tmp_path):
    nodes = numa_nodes(range(8), tree(tmp_path, "0-5", "6-7"))
    assert nodes_of(nodes, 2, cores=2) == [0, 1]
    assert nodes_of(nodes, 2, cores=3) == [0, None]
    assert nodes_of(nodes, 4, cores=2) == [0, 0, None, None]
    assert nodes_of(nodes, 1, cores=8) == [None], "a single rank uses the whole machine"


def test_common_cores_are_shared():
    machine = set(range(8))
    assert core_share(machine, [machine] * 2) == 4
    assert core_share(machine, [machine] * 3) == 2
    assert core_share(machine, [machine] * 20) == 1
    own = [{0, 1}, {2, 3, 4}]
    assert [core_share(cpus, own) for cpus in own] == [2, 3], "bound by the launcher"
    assert core_share({0, 1, 2, 3}, [{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5}]) == 2


def test_binding_by_the_launcher_is_detected():
    assert bound_by_launcher({0}, [{0}, {1}])
    assert not bound_by_launcher({0, 1}, [{0, 1}, {0, 1}])
    assert not bound_by_launcher({0, 1}, [{0, 1}]), "a single rank has all CPUs of the job"


BIND = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
from gigatile.training.cores import THREADS, bind, numa_nodes
def threads(n):
    for _ in range(n):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
threads(3)
first, second = numa_nodes(os.sched_getaffinity(0), Path(sys.argv[1]))
bind(second)  # this machine may not have the node: no error
threads(2)
where = [sorted(os.sched_getaffinity(int(path.name))) for path in THREADS.iterdir()]
child = os.popen("grep Cpus_allowed_list /proc/self/status").read().split()[1]
bind(first)
policy = ctypes.c_int(-1)
ctypes.CDLL(None).syscall(239, ctypes.byref(policy), None, 0, None, 0)
print(json.dumps([where, child, policy.value]))
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_current_and_new_threads_are_bound(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    nodes = tree(tmp_path, ",".join(map(str, cpus[1:])), str(cpus[0]))
    done = subprocess.run(
        [sys.executable, "-c", BIND, nodes], capture_output=True, text=True, timeout=60, check=True
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


@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two cores")
def test_thread_pools_are_limited():
    free = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}

    def threads(*cores: str) -> int:
        line = [sys.executable, "-c", POOLS, *cores]
        return int(subprocess.check_output(line, env=free, timeout=60))

    assert threads() > 1, "NumPy has no pool: nothing is tested"
    assert threads("1") == 1
