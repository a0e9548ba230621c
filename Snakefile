# Gigatile: from slides or volumes to a trained model and a report. The stages follow the data.
import os

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.0")

# Paths in configurations, and results/, are relative to the folder that Snakemake works in (--directory).
PROJECT = os.path.realpath(workflow.current_basedir)
if os.path.dirname(os.path.realpath(workflow.main_snakefile)) != PROJECT:
    raise WorkflowError(
        f"Gigatile cannot be a module of another workflow: call Snakemake with --snakefile {PROJECT}/Snakefile, and use the files in results/"
    )


configfile: os.path.join(PROJECT, "config.yaml")


include: "rules/start.smk"
include: "rules/cohort.smk"
include: "rules/common.smk"


if ELSEWHERE:

    include: "rules/elsewhere.smk"


include: "rules/collect.smk"


# With a bundle, another run has trained the model.
if not BUNDLE:

    include: "rules/splits.smk"
    include: "rules/shards.smk"
    include: "rules/train.smk"


# From the sample sheet to records, evaluation and prediction.
include: f"rules/{SETTINGS.task}.smk"
include: "rules/prediction_pages.smk"


if not BUNDLE:

    include: "rules/report.smk"
    include: "rules/bundle.smk"


include: "rules/verify.smk"


rule all:
    default_target: True
    input:
        [] if BUNDLE else f"{RUN}/report/index.html",
        f"{RUN}/predictions/pages/index.html" if NEW else [],
        f"{RUN}/predictions/external/index.html" if EXTERNAL else [],
        f"{RUN}/predictions/slide_pages/index.html" if SLIDES else [],
