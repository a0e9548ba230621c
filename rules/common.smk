# What every stage shares: the settings, the sheets, and where a run's files lie. No rule is here.
import os
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from gigatile.cohort.samples import SAFE_ID, read_samples
from gigatile.errors import UserError
from gigatile.settings import canonical, load_settings

# The commands run with the Python that runs Snakemake, also when its environment was not activated,
# and with the library that lies beside the Snakefile, also where none is installed.
os.environ.update(
    PATH=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    PYTHONPATH=workflow.basedir,
)
# TensorFlow tells a user little that is new below the level of a warning.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
# Open MPI refuses to start as root, as in containers, and with more ranks than cores, as in a
# trial on a laptop, unless it is told. The names are those of its releases 4 and 5.
for name, value in {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}.items():
    os.environ.setdefault(name, value)

DEMO_SLIDES = Path("demo/slides")


def read_sheet(sheet, labelled=True):
    """Return the samples of a sheet by slide; the demo's slides may still be to be made."""
    samples = read_samples(Path(sheet), labelled, lambda path: path.parent == DEMO_SLIDES)
    return {sample.slide: sample for sample in samples}


try:
    SETTINGS = load_settings(config, "the configuration")
    COHORT = read_sheet(SETTINGS.samples)
    NEW = read_sheet(SETTINGS.predict.samples, labelled=False) if SETTINGS.predict.samples else {}
except UserError as error:
    raise WorkflowError(str(error)) from None

RUN = f"results/{SETTINGS.run}"


wildcard_constraints:
    slide=SAFE_ID,


def section(name):
    """Return the part of the settings that a rule reads, as text that is equal if they are."""
    return canonical(getattr(SETTINGS, name))


def grow(mem_mb):
    """Return a job's memory: it doubles with each attempt."""
    return lambda wildcards, attempt: mem_mb * 2 ** (attempt - 1)


def sample_options(sample):
    """Return what the sheet says of a slide, as options of the command that tiles it."""
    options = ["--patient", sample.patient, "--label", sample.label]
    if sample.mpp is not None:
        options += ["--mpp", repr(sample.mpp)]
    return shlex.join(options)


def folder(name="."):
    """Return a folder of the run, for files that a table or a manifest names."""
    return lambda wildcards: os.path.normpath(f"{RUN}/{name}")
