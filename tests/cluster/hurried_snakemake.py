"""Snakemake that asks SLURM about its jobs every second, and repeats a submission after 2 s.

The executor waits 10 s longer each time, up to 180 s; the workflow repeats a submission after 30 s
and looks for jobs that will never end every 120 s. Tests would spend most of their time waiting.
"""

import asyncio
import sys
from importlib import import_module
from pathlib import Path

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


async def sleep(executor: Executor) -> None:
    await asyncio.sleep(1)


Executor.sleep = sleep
# The workflow's own modules, as the Snakefile imports them.
sys.path.insert(0, str(Path.cwd()))
submission = import_module("gigatile.workflow.slurm_submission")
submission.FIRST_WAIT, submission.CHECK_INTERVAL = 2.0, 2.0
sys.exit(main())
