"""Which software made a result, and which need not be loaded for it."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
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
    """Return the versions of Python and of the libraries that decide results."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def import_less() -> None:
    """Keep Keras from importing libraries for wrappers and plots that nothing here uses.

    It does so where they are installed; without them a process starts two seconds sooner. To be
    called before TensorFlow is imported, by a command that needs none of them itself.
    """
    # `None` has an import fail, as if there were no such library: docs.python.org, sys.modules.
    missing: dict[str, Any] = dict.fromkeys(("matplotlib", "sklearn"))
    sys.modules.update(missing)
