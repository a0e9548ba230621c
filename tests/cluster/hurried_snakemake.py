"""Snakemake that asks SLURM about its jobs every second, and submits again after 2 s.

The executor waits 10 s longer each time, up to 180 s, and a submission that SLURM does not take now
is repeated after 30 s. Neither can be set, and tests would spend most of their time waiting.
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
import_module("repairs.slurm_submission").FIRST_WAIT = 2.0
sys.exit(main())
