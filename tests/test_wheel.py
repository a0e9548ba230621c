"""The package as `pip install .` makes it: the command, and the workflow in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_cohort import small_settings

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = (
    "from pathlib import Path; from gigatile.provenance.code import Plugins, code_hash; "
    "from gigatile.command.configuration import project_folder as folder; "
    "plugins = Plugins('tile_classification', 'small_cnn'); "
    "print(code_hash(folder() / 'scripts/train.py', plugins), folder())"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of an environment in which only the wheel is installed, not the checkout.

    It finds the dependencies in the environment of the tests.
    """
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("gigatile-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env/bin/python"
    (packages,) = (folder / "env/lib").glob("python*/site-packages")
    (ours,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{ours}\n")
    install = [*pip, "--python", python, "install", "--no-deps", "--force-reinstall", wheel]
    subprocess.run(install, check=True, capture_output=True)
    shutil.copy(Path(sys.prefix) / "bin/snakemake", folder / "env/bin/snakemake")
    return python


def test_installed_package_runs_the_workflow(installed, small_cohort, tmp_path):
    (tmp_path / "cohort").symlink_to(small_cohort.folder / "cohort")
    (tmp_path / "config.yaml").write_text(small_settings())
    command = [installed.parent / "gigatile", "run", ".", "--", "results/small/tiles/P01-1.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results/small/tiles/P01-1.tfrecord").stat().st_size > 0
    log = next(tmp_path.glob(".snakemake/log/*.gigatile.log")).read_text()
    assert str(ROOT) not in log.replace(sys.prefix, "")


def test_run_without_mpi_is_refused_before_the_first_job(installed, small_cohort, tmp_path):
    """`pip install .` installs neither an MPI nor Horovod; tiling takes hours."""
    (tmp_path / "cohort").symlink_to(small_cohort.folder / "cohort")
    (tmp_path / "config.yaml").write_text(small_settings())
    command = [installed.parent / "gigatile", "run", "."]
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("mpi"):
            (programs / program.name).symlink_to(program)
    env = os.environ | {"PATH": str(programs)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: write_shards and train: no mpirun in this environment; ")
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("results/*/tiles/*"))
    # Snakemake has ended: the folder is not locked. The stages before need no MPI.
    command += ["--", "--until", "split_patients"]
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=300)
    assert again.returncode == 0 and list(tmp_path.glob("results/*/splits.tsv"))


def test_installed_code_is_that_of_the_checkout(installed, tmp_path):
    """The same results are current in both; a run can be continued with the other."""
    printed = [
        subprocess.run(
            [python, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.split()
        for python, folder in ((installed, tmp_path), (sys.executable, ROOT))
    ]
    assert printed[0][0] == printed[1][0]
    assert printed[0][1].endswith("gigatile/_project") and printed[1][1] == str(ROOT)
