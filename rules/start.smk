# Prepares the process that runs Snakemake. No rules.
import sys

from gigatile.workflow.invocation import Invocation
from gigatile.workflow.process import prepare_process
from gigatile.workflow.training_software import check_training_software

INVOCATION = Invocation(workflow, sys.argv[1:])
prepare_process(INVOCATION, workflow.basedir)


onstart:
    check_training_software(workflow, INVOCATION)
