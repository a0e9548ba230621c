"""Software versions, programs, and imports that are not needed."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "horovod",
    "mpi4py",
    "numpy",
    "pandas",
    "pillow",
    "simplejpeg",
    "openslide-python",
    "openslide-bin",
    "scikit-learn",
    "snakemake",
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def find_mpirun() -> str | None:
    """Look for mpirun, first in the environment of this Python, as the jobs of a run do."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return shutil.which("mpirun", path=folders)


def import_less(*used: str) -> None:
    """Keep Keras from importing matplotlib, scikit-learn and pandas, for which it has wrappers.

    A process then starts two to three seconds sooner. Call this before TensorFlow is imported.

    Args:
        used: those of them that the command uses itself.
    """
    # None makes the import fail as if the library were not installed: docs.python.org, sys.modules.
    missing: dict[str, Any] = dict.fromkeys({"matplotlib", "sklearn", "pandas"}.difference(used))
    sys.modules.update(missing)
