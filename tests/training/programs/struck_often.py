"""Train in child processes, each interrupted by a signal after one or two steps, until one ends.

Children are forked before TensorFlow starts threads, which saves the import. Every batch that the
model is trained on is written to a file.
"""

import argparse
import hashlib
import os
import random
import signal
import threading
import time
from pathlib import Path

from gigatile.parallel.interruption import catch_signals, received_signals
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training import loop, resuming
from gigatile.training.ranks import Ranks
from gigatile.training.startup import join_ranks

SIGNALS = (signal.SIGKILL, signal.SIGTERM)

parser = argparse.ArgumentParser()
parser.add_argument("--manifest", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--strikes", type=int, required=True)
args = parser.parse_args()
# A checkpoint after every step, so that a signal may come while one is being written.
settings = TrainSettings(
    epochs=1, batch_size=1, ranks_per_node=1, learning_rate=0.01, save_minutes=1e-9
)


def shown(reader, epoch, batch_size, rank, ranks, threads, steps):
    """Yield the batches; write the digest of each one first."""
    loaded = BATCHES(reader, epoch, batch_size, rank, ranks, threads, steps)
    for step, batch in zip(steps, loaded, strict=True):
        arrays = (batch.inputs, batch.targets, batch.weights)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
        with (args.out / "shown.txt").open("a") as handle:
            handle.write(f"{os.getpid()} {step} {digest}\n")
        yield batch


def struck(after, kind, delay):
    """Send this process a signal `delay` seconds after `after` steps."""
    done = 0

    def report_progress(self, where):
        nonlocal done
        REPORT_PROGRESS(self, where)
        done += where.startswith("in epoch ")
        if done == after:
            threading.Timer(delay, os.kill, [os.getpid(), kind]).start()
            if kind == signal.SIGKILL:
                time.sleep(delay / 2)
        # However fast the steps are: each start runs two steps at most, so that the training
        # outlasts all strikes.
        while done > after and not any(received_signals()):
            time.sleep(0.001)

    return report_progress


def slowly(*given):
    """Write a checkpoint as if to a slow disk."""
    time.sleep(0.1)
    SAVE(*given)


BATCHES, REPORT_PROGRESS, SAVE = loop.batches, Ranks.report_progress, resuming.save_checkpoint
loop.batches, resuming.save_checkpoint = shown, slowly
chance = random.Random(5)
for strike in range(args.strikes + 1):
    kind, after, delay = chance.choice(SIGNALS), chance.choice((1, 2)), chance.uniform(0, 0.03)
    child = os.fork()
    if child == 0:
        catch_signals()
        if strike < args.strikes:
            Ranks.report_progress = struck(after, kind, delay)
        with join_ranks(1, 60) as ranks:
            loop.train(
                args.manifest, settings, TileClassification(TileSettings()),
                args.out / "checkpoints", args.out / "segments", ranks,
                log=lambda line: print(line, flush=True),
            )  # fmt: skip
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(f"start {strike}: ended with {os.waitstatus_to_exitcode(status)}", flush=True)
