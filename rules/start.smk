# What this call of Snakemake is to do, and what it knows of earlier ones. No rule is here.
import base64
import contextlib
import gc
import io
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from snakemake.cli import parse_args
from snakemake.settings.types import PersistenceBackend

from gigatile.errors import UserError
from repairs.updated_outputs import keep_updated_outputs

keep_updated_outputs()
# Snakemake imports the plugin if a profile or an option selects its executor.
if workflow.is_main_process and "snakemake_executor_plugin_slurm" in sys.modules:
    from repairs.slurm_submission import mend_submission

    mend_submission()

# Commands use the Python that runs Snakemake, even if its environment is not activated, and the
# library beside the Snakefile, even if none is installed.
os.environ.update(
    PATH=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    PYTHONPATH=workflow.basedir,
)
# Hides TensorFlow's messages below the level of a warning.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

# A plan creates millions of objects and frees few. Python's default garbage collection takes a fifth
# of its time and finds nothing.
gc.set_threshold(100_000, 20, 50)

KEPT_METADATA = Path("results/.snakemake-metadata")


# Options with which Snakemake runs no jobs.
LOOKS = """
    archive cleanup_metadata cleanup_shadow conda_cleanup_envs conda_create_envs_only
    container_cleanup_images containerize d3dag dag delete_all_output delete_temp_output
    detailed_summary dryrun filegraph generate_unit_tests lint list_changes list_conda_envs
    list_input_changes list_params_changes list_rules list_target_rules list_untracked
    print_compilation report rulegraph summary touch unlock
""".split()


@cache
def options():
    """Return the options of the command line; None in a job's own process."""
    if not workflow.is_main_process:
        return None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parse_args(sys.argv[1:])[1]
    except SystemExit:
        return None  # another program calls Snakemake, and these are its own arguments


def executor():
    """Return the name of the executor; None if this process will not run jobs for a plan."""
    if options() is None or any(getattr(options(), name) for name in LOOKS):
        return None
    return options().executor or "local"


def check_writable(*folders):
    """Refuse to run jobs if a folder is not writable."""
    if executor() is not None:
        for folder in folders:
            if os.path.isdir(folder) and not os.access(folder, os.W_OK):
                raise UserError(
                    f"{os.path.abspath(folder)}: not writable, and every run writes there, `verify` too; "
                    "call Snakemake in a copy of the project"
                )


def check_known(run, files):
    """Refuse to plan if Snakemake has no metadata about the files of a run.

    A change of settings, code or sheet would then run nothing. Options that only show something, and
    those that cure it, are allowed.

    Args:
        run: folder of the run.
        files: paths of outputs, whether they exist or not.
    """
    asked = options()
    if asked is None or asked.forceall or set(asked.targets) == {"verify"}:
        return
    if any(getattr(asked, name) for name in LOOKS if name != "dryrun"):
        return
    if asked.persistence_backend != PersistenceBackend.FILE:
        return  # the metadata are in a database
    there = False
    for path in filter(os.path.exists, files):
        if is_known(path):
            return
        there = True
    if there:
        raise UserError(
            f"{run}: {KEPT_METADATA} has no metadata about these files, so Snakemake cannot know with which "
            "settings, code and sheet they were made, and which of them are current. Restore that folder, or call "
            "Snakemake with --touch --forceall to accept all files as current, or with --forceall to make all files again"
        )


def is_known(path):
    """Return whether Snakemake has metadata about a file, or a mark of an incomplete job."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    longest = os.pathconf(os.curdir, "PC_NAME_MAX") - 1
    parts = [name[i : i + longest] for i in range(0, len(name), longest)]
    noted = os.path.join(*(f"@{part}" for part in parts[:-1]), parts[-1])
    return any(os.path.exists(f".snakemake/{kind}/{noted}") for kind in ("metadata", "incomplete"))


def submits_to_slurm():
    """Return whether this Snakemake is about to submit jobs."""
    if any(Path(".snakemake/locks").glob("*")):
        return False  # another one is running, or was killed: Snakemake prints what to do
    return shutil.which("squeue") is not None and executor() == "slurm"


def copy_newer(source, target):
    """Copy a file with its time, unless a newer one is there."""
    if not os.path.exists(target) or os.stat(source).st_mtime > os.stat(target).st_mtime:
        shutil.copy2(source, target)


def keep_metadata_beside_results():
    """Move Snakemake's metadata to results/, so that a copy of the results includes it.

    It holds the parameters, input files and their checksums; without it, Snakemake sees no change.
    """
    if not workflow.is_main_process:
        return
    known, kept = Path(".snakemake/metadata"), KEPT_METADATA
    if executor() is not None:
        kept.mkdir(parents=True, exist_ok=True)
    if known.is_symlink() and not known.exists():
        known.unlink()  # results/ was deleted
    if not kept.is_dir() or known.is_symlink():
        return
    if not os.access(known.parent if known.parent.exists() else os.curdir, os.W_OK):
        raise UserError(
            f"{os.getcwd()}: not writable, and a plan creates .snakemake/ there; call Snakemake in a copy of the project"
        )
    if known.is_dir():  # of an earlier release, or of a Snakemake that ran meanwhile
        shutil.copytree(known, kept, dirs_exist_ok=True, copy_function=copy_newer)
        shutil.rmtree(known)
    # Without this folder, Snakemake would take the metadata for those of an old release.
    (known.parent / "incomplete").mkdir(parents=True, exist_ok=True)
    # Another Snakemake may do the same at this moment.
    with contextlib.suppress(FileExistsError):
        known.symlink_to(os.path.relpath(kept.resolve(), known.parent.resolve()))
