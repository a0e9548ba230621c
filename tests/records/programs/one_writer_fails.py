"""Run scripts/write_shards.py, and let one rank fail in the middle of a shard."""

import argparse
import os
import runpy
import signal
import sys
from pathlib import Path

from gigatile.errors import UserError
from gigatile.parallel import world

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--how", choices=("mistake", "bug", "kill", "hang", "alone"), required=True)
args, rest = parser.parse_known_args()

report_progress = world._Launched.report_progress


def report_then_strike(self, where):
    report_progress(self, where)
    if self.rank == args.rank and where.startswith("after records of"):
        match args.how:
            case "mistake":
                raise UserError("this writer has read nonsense")
            case "bug":
                raise RuntimeError("this writer has had enough")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                os.kill(os.getpid(), signal.SIGSTOP)
    if self.rank == args.rank and args.how == "alone" and where == "in a gather from all ranks":
        raise RuntimeError("outside a collective call")


world._Launched.report_progress = report_then_strike
script = Path(__file__).parents[3] / "scripts" / "write_shards.py"
sys.argv = [str(script), *rest]
runpy.run_path(str(script), run_name="__main__")
