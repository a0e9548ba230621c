#!/usr/bin/env python3
"""Find the seed whose splits have the best balance of labels.

Only the sheet is read, neither images nor results, so the choice does not bias the figures.
"""

import argparse
from pathlib import Path

from gigatile.cohort.splits import SEEDS_TRIED, assign, best_seed, check_labels
from gigatile.errors import UserError, run_command
from gigatile.settings.section import check_section
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tasks.sheets import read_any_sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path, help="the sample sheet")
    parser.add_argument("--train", type=float, default=SplitSettings().train)
    parser.add_argument("--valid", type=float, default=SplitSettings().valid)
    parser.add_argument("--test", type=float, default=SplitSettings().test)
    parser.add_argument("--by", choices=("patient", "site"), default=SplitSettings().by)
    parser.add_argument("--tries", type=int, default=SEEDS_TRIED)
    args = parser.parse_args()
    if args.tries < 1:
        raise UserError(f"--tries {args.tries}: at least one seed must be tried")
    shares = {name: getattr(args, name) for name in SPLITS}
    given = {"by": args.by, **shares}
    settings = check_section(SplitSettings, given, "--train, --valid, --test")
    samples = read_any_sheet(args.samples, may_be_missing=lambda path: True)
    ranked = best_seed(samples, settings, args.tries)
    if ranked[0][0] == float("inf"):
        raise UserError(
            f"{args.samples}: none of {args.tries} seeds gives every label to each split; a label "
            "needs at least three patients, or the sheet's column `split`"
        )
    best = settings.model_copy(update={"seed": ranked[0][1]})
    check_labels(samples, assign(samples, best), args.samples)
    for distance, seed in ranked[:5]:
        print(f"seed {seed}: shares within {100 * distance:.1f} percentage points of the settings")
    print(f"In your configuration:\nsplit:\n  seed: {best.seed}")


if __name__ == "__main__":
    run_command(main)
