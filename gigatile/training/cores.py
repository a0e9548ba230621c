"""Which cores a rank uses: its share of what the job was given, near to one memory.

A machine with several NUMA nodes has memory that is near to some of its cores and far from others.
A rank whose threads and data lie on different nodes waits for the way between them.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Where Linux describes the machine's nodes.
TREE = Path("/sys/devices/system/node")
THREADS = Path("/proc/self/task")
# set_mempolicy is in no library that is always there; its number is each processor's own.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
_PREFERRED = 1


@dataclass(frozen=True)
class NumaNode:
    """A memory and the CPUs near to it, of those that may be used."""

    number: int
    cpus: frozenset[int]


def numa_nodes(allowed: Collection[int], tree: Path = TREE) -> list[NumaNode]:
    """Return the NUMA nodes that hold CPUs of `allowed`, by number; memory without CPUs is none.

    Args:
        allowed: numbers of the CPUs that may be used.
        tree: the kernel's description; where there is none, no node is known.
    """
    nodes = []
    for folder in tree.glob("node[0-9]*"):
        # A node may go while it is looked at, as memory and CPUs can be taken out.
        with contextlib.suppress(OSError, ValueError):
            cpus = parse_cpus((folder / "cpulist").read_text()) & set(allowed)
            if cpus:
                nodes.append(NumaNode(int(folder.name.removeprefix("node")), frozenset(cpus)))
    return sorted(nodes, key=lambda node: node.number)


def parse_cpus(text: str) -> set[int]:
    """Read the kernel's lists of CPUs, such as `0-3,8`."""
    spans = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def limit_pools(cores: int) -> None:
    """Keep the libraries of linear algebra from a pool as large as the machine.

    They read this when NumPy is imported, so it comes before. What the user says goes first.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(cores))


def home(
    nodes: Sequence[NumaNode], local_rank: int, local_size: int, cores: int
) -> NumaNode | None:
    """Return the node that a rank is bound to: ranks in blocks over the nodes; None: to none.

    Args:
        nodes: of this machine, as `numa_nodes` gives them.
        local_rank, local_size: which rank of how many on this machine.
        cores: that each of them wants. A rank is not bound to a node that has too few for those
            that it falls to: to be short of cores costs more than far memory.
    """
    if len(nodes) < 2:
        return None
    whose = [rank * len(nodes) // local_size for rank in range(local_size)]
    node = nodes[whose[local_rank]]
    enough = whose.count(whose[local_rank]) * cores <= len(node.cpus)
    return node if enough else None


def bound_by_launcher(mine: Collection[int], neighbours: Iterable[Collection[int]]) -> bool:
    """Say whether a rank may use fewer CPUs than the ranks of its machine together.

    Args:
        mine: the CPUs that it may use.
        neighbours: those of every rank on its machine, its own too.
    """
    return set(mine) != set().union(*neighbours)


def share(mine: Collection[int], neighbours: Sequence[Collection[int]]) -> int:
    """Return how many cores are a rank's own, at least 1: each is divided among those who use it.

    Args:
        mine, neighbours: as for `bound_by_launcher`.
    """
    parts = sum(1 / sum(cpu in other for other in neighbours) for cpu in mine)
    return max(1, int(parts + 1e-9))


def bind(node: NumaNode) -> None:
    """Keep all threads of this process, present and future, on a node's CPUs and near its memory.

    A thread begins with the CPUs and the memory of the one that starts it. Memory is preferred, not
    demanded: a full node is no error, nor is a system that refuses the wish.
    """
    seen: set[str] = set()
    # A thread may start another before it is bound itself, so look until none is new.
    while new := {path.name for path in THREADS.iterdir()} - seen:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), node.cpus)
        seen |= new
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is not None:
        words = (ctypes.c_ulong * (node.number // 64 + 1))()
        words[node.number // 64] = 1 << node.number % 64
        # One more than there are bits: the kernel takes the number less one.
        ctypes.CDLL(None).syscall(number, _PREFERRED, words, len(words) * 64 + 1)
