"""Which software made a result."""

import platform
from importlib.metadata import PackageNotFoundError, version

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
