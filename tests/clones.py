"""Copies of the project as a user has them after a clone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from planner import plan

ROOT = Path(__file__).resolve().parents[1]

# Writes which files processes open, a file per process; `-y` shows their whole paths.
CALLS = (
    *("open", "openat", "openat2", "creat", "execve", "clone", "clone3", "fork", "vfork"),
    *("rename", "renameat", "renameat2", "mkdir", "mkdirat"),
)
TRACER = ("strace", "-ff", "--seccomp-bpf", "-y", "-s1000000", f"--trace={','.join(CALLS)}")


def project_files() -> list[Path]:
    """Return the files of the project that Git tracks or would track, relative to `ROOT`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in filter(None, listed.split("\0")) if (ROOT / name).is_file()]


class Clone:
    """A copy of the project's files in another folder."""

    def __init__(self, folder: Path) -> None:
        for path in project_files():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        self.folder = folder

    def copy(self, folder: Path) -> "Clone":
        """Return a copy, with all that was made in it and everything that Snakemake knows of it."""
        shutil.copytree(self.folder, folder, symlinks=True, dirs_exist_ok=True)
        return Clone(folder)

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess:
        """Run a command of the project's environment in the clone."""
        bin_folder = Path(sys.executable).parent
        done = subprocess.run(
            [shutil.which(command[0], path=bin_folder) or command[0], *command[1:]],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            capture_output=True,
            text=True,
            timeout=1000,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        """Run Snakemake in the clone."""
        return self.run("snakemake", *arguments, check=check)

    @property
    def trace(self) -> Path:
        """The folder that `traced` writes to, next to the clone."""
        return self.folder.with_name(f"{self.folder.name}-trace")

    def traced(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run Snakemake in the clone, and write which files its jobs open; see `opened`."""
        if shutil.which(TRACER[0]) is None:
            assert not os.environ.get("CI"), "strace is not installed"
            return self.snakemake(*arguments)
        self.trace.mkdir(exist_ok=True)
        snakemake = str(Path(sys.executable).parent / "snakemake")
        return self.run(*TRACER, "-o", str(self.trace / "of"), snakemake, *arguments)

    def repeat_jobs(self, *jobs: str, settings: str) -> subprocess.CompletedProcess:
        """Run jobs again, as when SLURM starts their group again: `<rule>:<wildcard>=<value>`."""
        rules = {job.partition(":")[0] for job in jobs}
        return self.snakemake(
            *("--configfile", settings, "--cores", "1", "--mode", "remote", "--force", "--nolock"),
            *("--ignore-incomplete", "--target-jobs", *jobs, "--allowed-rules", *rules),
        )

    def write(self, name: str, text: str) -> Path:
        """Write a file into the clone."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Return how many jobs of each rule a dry run plans."""
        done = plan(self.folder, "--quiet", "reason", *arguments)
        assert done.returncode == 0, done.stdout
        printed = done.stdout
        if "Nothing to be done" in printed:
            return {}
        table = printed.split("Job stats:")[1].split("\n\n")[0].splitlines()[3:]
        counts = {line.split()[0]: int(line.split()[1]) for line in table if line.strip()}
        counts.pop("total", None)
        return counts
