#!/usr/bin/env python3
"""Simulate the shuffling of a cohort: how well samples are mixed, and how much is read."""

import argparse

import numpy as np

from gigatile.errors import UserError, run_command
from gigatile.settings.train import TrainSettings
from gigatile.training.sample_order import Sampling, window_bounds
from gigatile.training.simulation import simulate


def main() -> None:
    default = TrainSettings()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, required=True, help="number of training tiles")
    parser.add_argument("--tile-kb", type=float, default=15, help="size of a tile in kilobytes")
    parser.add_argument("--shard-mb", type=float, default=100, help="shards.target_mb")
    parser.add_argument("--shuffle-mb", type=float, default=default.shuffle_mb)
    parser.add_argument("--batch-size", type=int, default=default.batch_size)
    parser.add_argument("--ranks", type=int, default=1, help="number of training processes")
    args = parser.parse_args()
    if min(args.tiles - 1, args.tile_kb, args.shard_mb, args.shuffle_mb, args.batch_size) <= 0:
        raise UserError("all numbers must be positive, and --tiles at least 2")
    if args.ranks < 1 or args.batch_size % args.ranks:
        raise UserError("--batch-size must be a multiple of --ranks")
    shards = max(1, min(args.tiles, round(args.tiles * args.tile_kb / 1000 / args.shard_mb)))
    counts = np.diff(np.arange(shards + 1) * args.tiles // shards)[:, None]
    window = max(1, int(args.shuffle_mb / (args.tiles * args.tile_kb / 1000 / shards)))
    simulation = simulate(Sampling(counts, default.seed, window), args.batch_size)
    mixed = np.diff(window_bounds(shards, window)).max()
    megabytes = args.tiles * args.tile_kb / 1000
    print(
        f"{args.tiles:,} tiles in {shards:,} shards, {mixed:,} of them mixed at a "
        f"time\n"
        f"an epoch: {simulation.steps:,} steps; each tile {simulation.min_shown} to "
        f"{simulation.max_shown} times\n"
        f"neighbours in a file: {simulation.distance:,.0f} samples apart "
        f"(ideal {simulation.distance_ideal:,.0f}), "
        f"{simulation.same_batch:.3%} in one batch (ideal {simulation.same_batch_ideal:.3%})\n"
        f"a batch is read from {simulation.shards_per_step:,.1f} shards; "
        f"each rank reads {megabytes / args.ranks:,.0f} MB in an epoch"
    )


if __name__ == "__main__":
    run_command(main)
