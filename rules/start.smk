# Prepares the process that runs Snakemake. No rules.
import sys

from gigatile.workflow.invocation import Invocation
from gigatile.workflow.process import prepare_process

INVOCATION = Invocation(workflow, sys.argv[1:])
prepare_process(INVOCATION, workflow.basedir)
