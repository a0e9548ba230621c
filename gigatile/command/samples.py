"""Draw samples of the training, before and after augmentation, into a picture.

It has no names of slides or patients. The shards must be there; the model need not.
"""

import argparse
from pathlib import Path

from gigatile.command.configuration import add_target, load_with_shards
from gigatile.errors import UserError
from gigatile.files import write_whole
from gigatile.tasks import find_task, task_part


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("samples.png"), help="file to write (samples.png)"
    )
    parser.add_argument("--count", type=int, default=12, help="number of samples (12)")
    parser.add_argument("--epoch", type=int, default=1, help="the epoch that is shown (1)")


def run(args: argparse.Namespace) -> None:
    """Write the picture, and print its path."""
    if not 1 <= args.count <= 1000 or args.epoch < 1:
        raise UserError("--count must be 1 to 1000, and --epoch at least 1")
    settings, manifest = load_with_shards(args.target)

    # Imports TensorFlow, which takes seconds.
    from PIL import Image

    from gigatile.training.sample_sheet import draw_samples

    sections = find_task(settings.task).training(settings)
    task = task_part(settings.task, "training").training_task(sections)
    picture = draw_samples(task, manifest, settings.train, args.count, args.epoch - 1)
    with write_whole(args.out) as path:
        Image.fromarray(picture).save(path, "PNG")
    print(args.out)
