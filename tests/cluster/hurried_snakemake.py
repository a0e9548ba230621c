"""Snakemake that looks at SLURM's queue every second; nothing else of it is changed.

Its executor looks 10 s later each time, up to 180 s, which cannot be set: tests would wait for most
of their time for a look at a job that has ended.
"""

import asyncio
import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


async def sleep(executor: Executor) -> None:
    await asyncio.sleep(1)


Executor.sleep = sleep
sys.exit(main())
