#!/usr/bin/env python3
"""Run the command of a slide's or case's job and record its outputs, unless they are there already.

The outputs of the same job of another run are linked instead. The command runs in this process:
starting Python and importing the library would take as long as tiling a small slide.
"""

import argparse
import resource
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gigatile.errors import UserError, run_command
from gigatile.files import sha256_of
from gigatile.parallel.supervision import Stalled, run_supervised
from gigatile.provenance.output_records import write_output_record
from gigatile.provenance.reuse import is_done, link_outputs
from gigatile.stores.addresses import address_of, is_remote

T = TypeVar("T")
# The longest time for reading what is there; requests to a store are given up before.
READ_MINUTES = 10


def beforehand(sources: Sequence[Path], work: Callable[[], T]) -> T:
    """Do work that may read the slide or case; of one in a store, in a separate process.

    The command forks this process, which must not have opened a store before.
    """
    if not any(map(is_remote, sources)):
        return work()
    try:
        return run_supervised(lambda _: work(), READ_MINUTES)
    except Stalled:
        names = ", ".join(map(address_of, sources))
        raise UserError(f"{names}: no answer within {READ_MINUTES} minutes; run again") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="file to write (.json)")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="files of the job")
    parser.add_argument(
        "--source", type=Path, nargs="*", default=[], help="the slide's file, or those of the case"
    )
    parser.add_argument(
        "--reads", type=Path, nargs="*", default=[], help="files of the run that the command reads"
    )
    parser.add_argument("--state", type=Path, required=True, help="output with the state")
    parser.add_argument("--made-with", nargs="+", required=True, help="code, settings and options")
    parser.add_argument("--reuse", type=Path, help="folder of a run that may have the outputs")
    parser.add_argument(
        "--command", nargs=argparse.REMAINDER, required=True, help="and its options"
    )
    args = parser.parse_args()
    # Before the command: what changes during it makes the job run again.
    made_with = [*args.made_with, *map(sha256_of, args.reads)]
    job = (args.record, args.outputs, args.source, made_with, args.state)
    if beforehand(args.source, lambda: is_done(*job)):
        print("done before; nothing to do")
        return
    start, seconds, peak_mb = time.monotonic(), None, None
    if args.reuse and not (
        reason := beforehand(args.source, lambda: link_outputs(args.reuse, *job))
    ):
        print(f"reused from {args.reuse}")
    else:
        if args.reuse:
            print(f"not reused from {args.reuse}: {reason}")
        sys.argv = args.command
        runpy.run_path(args.command[0], run_name="__main__")
        seconds = round(time.monotonic() - start, 3)
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        peak_mb = max(usage.ru_maxrss for usage in used) // 1000
    write_output_record(
        *(args.record, args.outputs, args.source, None, args.state, made_with),
        *(seconds, peak_mb),
    )


if __name__ == "__main__":
    run_command(main)
