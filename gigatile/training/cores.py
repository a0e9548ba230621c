"""The cores of a rank: its share of the cores of the job, on one NUMA node if possible.

On a machine with several NUMA nodes, each core accesses the memory of its node faster than that of
the other nodes. So a rank is slow if its threads and its data are on different nodes.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Linux describes the NUMA nodes here.
TREE = Path("/sys/devices/system/node")
THREADS = Path("/proc/self/task")
# The C library has no set_mempolicy; the numbers of the system call depend on the processor.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
_PREFERRED = 1


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node and those of its CPUs that may be used."""

    number: int
    cpus: frozenset[int]


def numa_nodes(allowed: Collection[int], tree: Path = TREE) -> list[NumaNode]:
    """Return the NUMA nodes that have CPUs of `allowed`, sorted by number.

    Args:
        allowed: numbers of the CPUs that may be used.
        tree: the kernel's description of the nodes; if it is missing, no node is returned.
    """
    nodes = []
    for folder in tree.glob("node[0-9]*"):
        # A node may disappear meanwhile: memory and CPUs can be hot-unplugged.
        with contextlib.suppress(OSError, ValueError):
            cpus = parse_cpus((folder / "cpulist").read_text()) & set(allowed)
            if cpus:
                nodes.append(NumaNode(int(folder.name.removeprefix("node")), frozenset(cpus)))
    return sorted(nodes, key=lambda node: node.number)


def parse_cpus(text: str) -> set[int]:
    """Parse a list of CPUs in the kernel's format, such as `0-3,8`."""
    spans = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def limit_pools(cores: int) -> None:
    """Limit the thread pools of the linear algebra libraries to the cores of this rank.

    Must be called before NumPy is imported. Variables that the user has set are kept.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(cores))


def node_of_rank(
    nodes: Sequence[NumaNode], local_rank: int, local_size: int, cores: int
) -> NumaNode | None:
    """Return the node that a rank is bound to, or None. Ranks are assigned to nodes in blocks.

    Args:
        nodes: of this machine, from `numa_nodes`.
        local_rank, local_size: number of this rank among the ranks of this machine.
        cores: per rank. A rank is not bound if its node has too few cores for all ranks assigned to
            it: too few cores cost more time than remote memory.
    """
    if len(nodes) < 2:
        return None
    assigned = [rank * len(nodes) // local_size for rank in range(local_size)]
    index = assigned[local_rank]
    enough = assigned.count(index) * cores <= len(nodes[index].cpus)
    return nodes[index] if enough else None


def bound_by_launcher(own: Collection[int], on_machine: Iterable[Collection[int]]) -> bool:
    """Return whether the launcher has bound this rank to a part of the CPUs of the job.

    Args:
        own: the CPUs that this rank may use.
        on_machine: the CPUs of each rank on this machine, including this one.
    """
    return set(own) != set().union(*on_machine)


def core_share(own: Collection[int], on_machine: Sequence[Collection[int]]) -> int:
    """Return the number of cores of a rank, at least 1. Ranks share their common CPUs equally.

    Args:
        own, on_machine: as for `bound_by_launcher`.
    """
    cores = sum(1 / sum(cpu in cpus for cpus in on_machine) for cpu in own)
    return max(1, int(cores + 1e-9))


def bind(node: NumaNode) -> None:
    """Bind this process to the CPUs of a node, and prefer its memory.

    All current threads are bound, and new threads inherit the binding. The memory policy is only a
    preference: a full node or a system without NUMA policies is no error.
    """
    bound: set[str] = set()
    # A thread may start another one before it is bound, so repeat until there is no new thread.
    while new := {path.name for path in THREADS.iterdir()} - bound:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), node.cpus)
        bound |= new
    call = _SET_MEMPOLICY.get(platform.machine())
    if call is not None:
        mask = (ctypes.c_ulong * (node.number // 64 + 1))()
        mask[node.number // 64] = 1 << node.number % 64
        # The kernel reads one bit less than the number that it is passed.
        ctypes.CDLL(None).syscall(call, _PREFERRED, mask, len(mask) * 64 + 1)
