"""Run scripts/train.py, and send ranks a signal, or let them sleep, at a point of the training."""

import argparse
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import keras

from gigatile.models import small_cnn
from gigatile.training.ranks import Ranks

parser = argparse.ArgumentParser()
parser.add_argument("--moment", default="", help="as reported to the watchdog")
parser.add_argument("--send", default="SIGTERM")
parser.add_argument("--to", type=int, nargs="+", default=[0, 1], help="ranks")
parser.add_argument(
    "--sleep", type=Path, help="instead of the signal, write a file rank-<n> here and sleep"
)
parser.add_argument("--uneven", action="store_true", help="a model with batch normalisation")
args, rest = parser.parse_known_args()

report_progress = Ranks.report_progress


def report_then_strike(self, where):
    report_progress(self, where)
    if where == args.moment and self.rank in args.to:
        if args.sleep:
            (args.sleep / f"rank-{self.rank}").touch()
            time.sleep(1000)
        os.kill(os.getpid(), signal.Signals[args.send])


def uneven(tiles, settings):
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(tiles)
    x = keras.layers.Conv2D(8, 5, strides=2, use_bias=False)(x)
    x = keras.layers.BatchNormalization(momentum=0.8)(x)
    x = keras.layers.ReLU()(x)
    return keras.layers.GlobalAveragePooling2D()(x)


Ranks.report_progress = report_then_strike
if args.uneven:
    small_cnn.build = uneven
script = Path(__file__).parents[3] / "scripts" / "train.py"
sys.argv = [str(script), *rest]
runpy.run_path(str(script), run_name="__main__")
