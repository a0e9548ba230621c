"""Whether the training that a run has planned can run in this environment."""

import importlib.util
from typing import Any

from gigatile.errors import UserError
from gigatile.software import find_mpirun
from gigatile.workflow.invocation import Invocation


def check_training_software(workflow: Any, invocation: Invocation) -> None:
    """Refuse a training without its software before the first job: tiling can take hours.

    Jobs of a cluster, of conda or of a container have other software, which is not checked.

    Args:
        workflow: the global `workflow` of a Snakefile, when its jobs are planned.
        invocation: of this process.

    Raises:
        UserError: names what is missing.
    """
    elsewhere = invocation.executor != "local" or workflow.deployment_settings.deployment_method
    if elsewhere or not any(job.rule.name == "train" for job in workflow.dag.needrun_jobs()):
        return
    missing = ["Horovod"] if importlib.util.find_spec("horovod") is None else []
    if find_mpirun() is None:
        missing.append("mpirun")
    if missing:
        raise UserError(
            f"training needs {' and '.join(missing)}, which this environment does not have; "
            "`make setup` in a checkout of Gigatile makes one that does. To run only the stages "
            "before the training, add the option --until write_shards (gigatile run DIR -- "
            "--until write_shards)"
        )
