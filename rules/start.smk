# Prepares the process that runs Snakemake. No rules.
import sys

from gigatile.workflow.invocation import Invocation
from gigatile.workflow.process import prepare_process
from gigatile.workflow.run_checks import check_run

INVOCATION = Invocation(workflow, sys.argv[1:])
prepare_process(INVOCATION, workflow.basedir)


onstart:
    check_run(workflow, INVOCATION, SETTINGS.reuse)
