#!/usr/bin/env python3
"""Train a model; run it under an MPI launcher, one process per GPU or per few cores.

Resumes from the latest segment or checkpoint of the same training, and trains until --epochs are
complete. Then it writes <epochs>.npz, .keras and .json.

Exit status 75: stopped by SIGTERM or SIGUSR2, or another rank is gone. Run the same command again
to resume.
"""

import argparse

from gigatile.errors import run_command
from gigatile.parallel.interruption import catch_signals


def main() -> None:
    # Before the imports, which take seconds, so that no signal is lost.
    catch_signals()
    from gigatile.tasks import task_part
    from gigatile.tasks.command_line import add_task, merge_settings, parse_settings
    from gigatile.training.command_line import add_arguments, train_as_rank, training_settings

    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument(
        "--task-settings", required=True, help="settings of the task as JSON, for example its tiles"
    )
    parser.add_argument(
        "--task-execution", default="{}", help="settings of the task that do not change the model"
    )
    add_arguments(parser)
    args = parser.parse_args()
    sections = merge_settings(
        parse_settings("--task-settings", args.task_settings),
        parse_settings("--task-execution", args.task_execution),
    )
    train_as_rank(
        args,
        training_settings(args),
        lambda: task_part(args.task, "training").training_task(sections),
    )


if __name__ == "__main__":
    run_command(main)
