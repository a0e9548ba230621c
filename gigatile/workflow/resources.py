"""Resources of jobs: memory and time, and how MPI jobs are launched."""

import shlex
from collections.abc import Callable
from typing import Any

from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.workflow.snakemake_internals import declare_parameters

# Sections of the settings with a layout of MPI ranks.
Layout = ShardSettings | TrainSettings


def grow(amount: int) -> Callable[[Any, int], int]:
    """Return the memory or time of a job: the amount, doubled with each further attempt."""
    return declare_parameters(lambda wildcards, attempt: amount * 2 ** (attempt - 1))


def mpi_resources(layout: Layout) -> dict[str, Any]:
    """Return the resources from which the SLURM executor requests tasks for MPI ranks."""
    if layout.ranks == 1:
        # The executor then does not treat it as MPI, and the job still starts its own job step.
        return {"mpi": ""}
    # The executor requires tasks_per_node to be greater than 1.
    if layout.ranks_per_node == 1:
        return {"mpi": "yes", "nodes": layout.nodes, "tasks": layout.nodes}
    return {"mpi": "yes", "nodes": layout.nodes, "tasks_per_node": layout.ranks_per_node}


def launch_options(layout: Layout) -> str:
    """Return the layout of the ranks as options of scripts/launch.py."""
    return (
        f"--nodes {layout.nodes} --ranks-per-node {layout.ranks_per_node}"
        f" --cores {layout.cores_per_rank}"
    )


def rank_options(train: TrainSettings) -> str:
    """Return the options of a rank of the training that do not change the model."""
    validate = f" --validate-steps {train.validate_steps}" if train.validate_steps else ""
    return (
        f"--ranks {train.ranks} --cores {train.cores_per_rank}"
        f" --stall-limit {train.stall_limit} --save-minutes {train.save_minutes}"
        f" --cache-gb {train.cache_gb}{validate}"
    )


def reuse_option(run: str | None) -> str:
    """Return the option of scripts/run_recorded.py that links the outputs of another run."""
    return "" if run is None else f"--reuse results/{run}"


def encoder_options(encoder: EncoderSettings) -> str:
    """Return the options of embedding that do not change any embedding."""
    return shlex.join([f"--name={encoder.name}", f"--licence={encoder.licence}"])


def tiling_options(tiles: TileSettings) -> str:
    """Return the options of tiling that do not change any tile."""
    copy = " --copy-first" if tiles.copy_first else ""
    return f"--stall-minutes {tiles.stall_minutes:g}{copy}"
