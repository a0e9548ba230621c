#!/usr/bin/env python3
"""Start a command in one step of this SLURM job: `srun` with the given options.

The environment of a job has the options of the job, and may have a site's defaults of `srun`. They
would be options of the step, too, and contradict the given ones.
"""

import os
import sys

PREFIXES = ("SLURM_", "SRUN_", "SBATCH_")
# Which job it is, and where it was submitted.
KEPT = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME"}
KEPT |= {"SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_CONF"}


def main() -> None:
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(PREFIXES)
    }
    os.execvpe("srun", ["srun", *sys.argv[1:]], variables)


if __name__ == "__main__":
    main()
