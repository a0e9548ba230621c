#!/usr/bin/env python3
"""Run a command on all ranks of a stage, on this machine or in a SLURM job."""

import argparse
import sys
from pathlib import Path

from gigatile.errors import run_command
from gigatile.parallel.launch import Layout, launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launcher", required=True, help="mpirun, srun --mpi=pmix, …")
    parser.add_argument("--nodes", type=int, required=True, help="number of hosts")
    parser.add_argument("--ranks-per-node", type=int, required=True, help="processes per host")
    parser.add_argument("--cores", type=int, required=True, help="cores per process")
    parser.add_argument("--log", type=Path, required=True, help="file for the output of all ranks")
    parser.add_argument(
        "--checkpoints", type=Path, help="folder of checkpoints, if the command writes any"
    )
    parser.add_argument("command", nargs="+", help="command of each rank, after --")
    args = parser.parse_args()
    layout = Layout(args.nodes, args.ranks_per_node, args.cores)
    sys.exit(launch(args.launcher, layout, args.command, args.log, args.checkpoints))


if __name__ == "__main__":
    run_command(main)
