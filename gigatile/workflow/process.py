"""Preparation of the process in which Snakemake runs."""

import gc
import os
import sys
from pathlib import Path

from gigatile.workflow.balanced_groups import balance_groups
from gigatile.workflow.invocation import Invocation
from gigatile.workflow.orphaned_jobs import record_orphaned_jobs
from gigatile.workflow.termination import end_on_sigterm
from gigatile.workflow.updated_outputs import keep_updated_outputs


def prepare_process(invocation: Invocation, project: str) -> None:
    """Set the environment of commands, work around faults of Snakemake, tune for large plans.

    Args:
        invocation: of this process.
        project: folder of the Snakefile.
    """
    keep_updated_outputs()
    record_orphaned_jobs()
    end_on_sigterm()
    balance_groups()
    # Snakemake has imported the plugin if a profile or an option selects its executor.
    if invocation.is_main_process and "snakemake_executor_plugin_slurm" in sys.modules:
        from gigatile.workflow.slurm_submission import fix_submission

        fix_submission()
    # Commands use the Python that runs Snakemake, even if its environment is not activated, and the
    # library in the folder of the Snakefile, even if another one is installed. The rules call the
    # commands in $SCRIPTS: if the text of a shell command contained the path of the project,
    # Snakemake would run its jobs again after the project has moved.
    os.environ.update(
        PATH=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        PYTHONPATH=project,
        SCRIPTS=f"{project}/scripts",
    )
    # Hide TensorFlow's messages below the level of warnings.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    # A plan creates millions of objects and frees few. With Python's default thresholds, garbage
    # collection takes a fifth of its time and finds nothing.
    gc.set_threshold(100_000, 20, 50)
