"""Software versions, programs, and the import of TensorFlow."""

import gc
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


def import_tensorflow() -> None:
    """Import TensorFlow and Keras; call this before anything else imports them.

    Keras has wrappers for matplotlib, scikit-learn and pandas, and imports these libraries if they
    are installed. Here it does not see them; afterwards, the command can import them as usual.
    Garbage is not collected meanwhile: the import creates millions of objects and frees few. It
    takes a third less time in all.
    """
    # None makes an import fail as if the library were not installed: docs.python.org, sys.modules.
    hidden = [name for name in ("matplotlib", "sklearn", "pandas") if name not in sys.modules]
    collects = gc.isenabled()
    gc.disable()
    nothing: dict[str, Any] = dict.fromkeys(hidden)
    sys.modules.update(nothing)
    try:
        import keras  # noqa: F401
        import tensorflow  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]
        if collects:
            gc.enable()
