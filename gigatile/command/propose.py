"""Propose spacing, patch and batch for volumes that suit the cases and a device's memory.

The cases must be prepared. Only those of the training split count. The memory of a training step is
measured on this machine: on its first GPU, if there is one.
"""

import argparse
import sys

from gigatile.cohort.collect import usable_rows
from gigatile.command.configuration import add_target, find_configuration, folder_of_paths, load
from gigatile.errors import UserError
from gigatile.json_models import read_model
from gigatile.software import import_tensorflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument(
        "--memory-gb",
        type=float,
        required=True,
        help="memory of the device of a rank: of its GPU, or its part of the main memory",
    )


def run(args: argparse.Namespace) -> None:
    """Print the settings as YAML, and what they are based on to stderr."""
    if not 0.1 <= args.memory_gb <= 100_000:
        raise UserError(f"--memory-gb: found {args.memory_gb:g}; must be 0.1 to 100000")
    configuration = find_configuration(args.target).absolute()
    settings = load(configuration)
    if settings.task != "volume_segmentation":
        raise UserError(f"gigatile propose is for volumes; {configuration} has {settings.task}")
    results = folder_of_paths(configuration) / "results" / settings.run
    table = results / "cases.tsv"
    if not table.is_file():
        name = f"results/{settings.run}/{table.name}"
        raise UserError(
            f"{table}: no cases yet; `gigatile run {configuration} -- {name}` prepares them"
        )

    import_tensorflow()
    from gigatile.tasks.volume_segmentation.proposal import CaseSize, propose
    from gigatile.tasks.volume_segmentation.step_memory import describe, measure_step
    from gigatile.volumes.state import CaseState

    names = [row["case"] for row in usable_rows(table, "train")]
    if not names:
        raise UserError(f"{table}: no case of the training split can be used; see its reasons")
    states = [read_model(CaseState, results / "volumes" / f"{name}.json") for name in names]
    cases = [CaseSize.from_state(state) for state in states]
    model, ranks = settings.train.model, settings.train.ranks
    memory = measure_step(settings)
    proposed = propose(cases, memory, 1e9 * args.memory_gb, ranks, model)
    covered = (min(1, n / size) for n, size in zip(proposed.patch, proposed.shape, strict=True))
    of_rank = proposed.batch_size // ranks
    voxels = of_rank * proposed.patch[0] * proposed.patch[1] * proposed.patch[2]
    for line in (
        f"{len(cases)} cases to train on; median size "
        f"{' x '.join(f'{size:.0f}' for size in proposed.shape)} voxels at this spacing",
        describe(memory, model),
        f"a patch has {', '.join(f'{share:.0%}' for share in covered)} of the median case along "
        "each axis",
        f"{of_rank} patch(es) for each of {ranks} rank(s) take {memory.of(voxels) / 1e9:.2g} GB",
    ):
        print(line, file=sys.stderr)
    print(f"volumes:\n  spacing: {list(proposed.spacing)}")
    print(f"patches:\n  size: {list(proposed.patch)}")
    print(f"train:\n  model: {model}\n  batch_size: {proposed.batch_size}")
