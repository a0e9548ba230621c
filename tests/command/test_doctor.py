"""`gigatile doctor`: one line per check, and no check hangs."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigatile.command import doctor


@pytest.fixture
def tools(tmp_path, monkeypatch) -> Path:
    """An empty folder that is the only one on the PATH but for the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def write_tool(tools: Path, name: str, text: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{text}\n")
    (tools / name).chmod(0o755)


def test_this_machine_works(call, capsys):
    call(doctor)
    lines = capsys.readouterr().out.splitlines()
    names = [line[:14].strip() for line in lines]
    assert names[:4] == ["Python", "packages", "MPI", "Horovod"] and len(lines) == 10
    assert {line.split()[1] for line in lines[:4]} == {"ok"}


def test_missing_requirement_exits_with_1(call, capsys, monkeypatch):
    missing = doctor.Finding("MPI", "missing", "no mpirun", required=True)
    for name in ("check_horovod", "check_gpus"):
        monkeypatch.setattr(doctor, name, lambda: doctor.Finding("x", "ok", ""))
    monkeypatch.setattr(doctor, "check_mpi", lambda: missing)
    with pytest.raises(SystemExit) as stop:
        call(doctor)
    assert stop.value.code == 1
    assert "MPI             missing  no mpirun\n" in capsys.readouterr().out


def test_hanging_command_and_its_children_are_killed():
    start = time.monotonic()
    answer = doctor.ask(["sh", "-c", "sleep 77 & sleep 77"], 0.5)
    assert answer == (False, "no answer within 0.5 s")
    assert time.monotonic() - start < 5


def test_slurm_that_does_not_answer_is_a_warning(tools, monkeypatch):
    monkeypatch.setattr(doctor, "SLURM_LIMIT", 0.3)
    write_tool(tools, "sinfo", "sleep 60")
    write_tool(tools, "sacct", "echo accounting is down >&2; exit 1")
    finding = doctor.check_slurm()
    assert finding.status == "warning"
    assert "sinfo: no answer within 0.3 s; sacct: accounting is down" in finding.text


def test_command_of_slurm_is_named_once(tools):
    write_tool(tools, "sinfo", "echo 'sinfo: fatal: no configuration' >&2; exit 1")
    write_tool(tools, "sacct", "exit 0")
    assert doctor.check_slurm().text.startswith("sinfo: fatal: no configuration; ")


def test_answering_slurm_is_ok(tools):
    for name in ("sinfo", "sacct"):
        write_tool(tools, name, "echo main")
    assert doctor.check_slurm().status == "ok"


def test_mpi_of_an_environment_that_is_not_activated_is_ok(tools, tmp_path, monkeypatch):
    (tmp_path / "environment").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment/python"))
    write_tool(tmp_path / "environment", "mpirun", "echo mpirun 5")
    assert doctor.check_mpi().text == f"mpirun 5 at {tmp_path}/environment/mpirun"


def test_broken_mpi_is_missing(tools, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    write_tool(tools, "mpirun", "echo libopen-pal.so: not found >&2; exit 127")
    finding = doctor.check_mpi()
    assert (finding.status, finding.required) == ("missing", True)
    assert "libopen-pal.so: not found" in finding.text


def test_broken_horovod_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "HOROVOD", "raise ImportError('no MPI')")
    finding = doctor.check_horovod()
    assert (finding.status, finding.required) == ("missing", True)
    assert "ImportError: no MPI" in finding.text


def test_other_version_is_a_warning_and_absence_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "project_folder", lambda: tmp_path)
    assert doctor.check_packages().status == "warning"  # no lock
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/requirements.in").write_text("numpy\n# --- Development ---\nnone-such\n")
    (tmp_path / "envs/requirements.lock").write_text("numpy==0.1 \\\n    --hash=sha256:0\n")
    assert "(lock: 0.1)" in doctor.check_packages().text
    (tmp_path / "envs/requirements.in").write_text("none-such\n")
    finding = doctor.check_packages()
    assert finding.status == "missing" and "not installed: none-such" in finding.text


def test_disk_that_hangs_full_or_lost_is_reported(tmp_path, monkeypatch):
    assert doctor.check_disk("disk", lambda: tmp_path, 1e9).status == "warning"
    assert doctor.check_disk("disk", lambda: tmp_path / "gone", 0).status == "missing"
    monkeypatch.setattr(doctor, "DISK_MINUTES", 0.005)
    finding = doctor.check_disk("disk", lambda: time.sleep(60) or tmp_path, 0)
    assert finding.status == "missing" and "hangs" in finding.text


def test_tensorflow_is_not_imported():
    code = "import sys, gigatile.command.doctor; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
