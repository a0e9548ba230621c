"""Real MPI launches of real programs, started as the workflow starts them."""

import os
import sys
from pathlib import Path

from clones import ROOT

from gigatile.parallel.launch import Layout, environment

ENVIRONMENT = environment(os.environ, Layout(1, 2, 1), None) | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def on_ranks(ranks: int, program: str | Path, *arguments: object) -> list[str]:
    """Return the command line that starts a Python program on some ranks."""
    words = ["mpirun", "-n", ranks, sys.executable, ROOT / program, *arguments]
    return list(map(str, words))
