"""Copies of the project on the test cluster, and Snakemakes at work in them."""

import contextlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from clones import Clone
from cluster import Cluster
from small_cohort import small_settings

# What a real cluster takes its time for, a test does not wait for.
HURRY = (
    *("--slurm-init-seconds-before-status-checks", "2", "--max-status-checks-per-second", "1"),
    *("--latency-wait", "20"),
    *("--default-resources", "slurm_account='lab'", "slurm_partition='cpu'", "mem_mb=1000"),
    *("runtime=20", "tmpdir='/run/cluster/local'"),
)
# `srun` starts a program by its whole path, `mpirun` by its name.
RANKS = "^[^ ]*python [^ ]*/scripts/train.py"
HURRIED = "hurried_snakemake.py"
# Options replace a profile's `set-resources` as a whole, so who gives some gives this, too.
SRUN = tuple(f"{rule}:launcher='srun --mpi=pmix'" for rule in ("write_shards", "train"))

# Where the trainings of these tests leave their segments, in every copy.
SEGMENTS = "results/small/segments"


def trained(epochs: int) -> tuple[str, ...]:
    """Return the arguments that ask for a training of so many epochs in one segment."""
    return (f"{SEGMENTS}/{epochs:04d}.keras", "--configfile", "small.yaml")


def settings(train: str) -> str:
    """Return the text of small.yaml for a training of 143 tiles: 9 steps of 16."""
    return small_settings(train)


# Seconds before a job that was taken back may start: its nodes would refuse its old credential.
WAIT = 6


def taken_back(job: str, times: int) -> str:
    """Return a shell command that succeeds once SLURM has requeued a job this many times."""
    return (
        f"scontrol show job {job} | grep -q 'Restarts={times} '"
        f" && squeue -h -j {job} -o %T | grep -qxE 'PENDING|RUNNING'"
    )


def start_now(cluster: Cluster, job: str) -> None:
    """Start a job that was taken back; SLURM would put that off by two minutes."""
    time.sleep(WAIT)
    # By now it may have started by itself.
    cluster.run(f"scontrol update JobId={job} StartTime=now", check=False)


class Site:
    """A copy of the project in a folder that every host of the cluster sees."""

    def __init__(self, clone: Clone, cluster: Cluster) -> None:
        self.clone, self.cluster, self.folder = clone, cluster, clone.folder

    def command(self, *arguments: str, hurry: tuple[str, ...] = HURRY) -> str:
        """Return the shell command of a Snakemake on the login host."""
        words = [
            *("python", "-P", str(Path(__file__).with_name(HURRIED)), *arguments),
            *("--profile", "profiles/slurm", *hurry),
        ]
        path = f"PATH={Path(sys.executable).parent}:$PATH"
        return f"cd {shlex.quote(str(self.folder))} && {path} exec {shlex.join(words)}"

    def snakemake(
        self, *arguments: str, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake on the login host to its end."""
        return self.cluster.run(self.command(*arguments), check=check, timeout=timeout)

    def start(self, *arguments: str) -> "Run":
        """Start Snakemake on the login host."""
        return Run(self, *arguments)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the ranks do nothing within the block, while SLURM takes its time."""
        self.cluster.run(f"pkill -STOP -f '{RANKS}'")
        try:
            yield
        finally:
            self.cluster.run(f"pkill -CONT -f '{RANKS}'", check=False)

    def signalled(self, times: int = 1) -> bool:
        """Return whether suspended ranks have a signal waiting for them, or have followed it.

        Before some signals SLURM sends another one that lets suspended processes go on.
        """
        shown = f"for p in $(pgrep -f '{RANKS}'); do grep ^ShdPnd: /proc/$p/status; done"
        words = self.cluster.run(shown, check=False).stdout.split()
        return self.log().count("stopped by ") >= times or any(int(w, 16) for w in words[1::2])

    def log(self) -> str:
        """Return what the ranks wrote."""
        text = ""
        for path in sorted((self.folder / "results/small/logs/train").glob("*.log")):
            with contextlib.suppress(FileNotFoundError):  # a job that starts again deletes its log
                text += path.read_text()
        return text


class Run:
    """A Snakemake at work on the login host, its output in a file."""

    def __init__(self, site: Site, *arguments: str) -> None:
        self.site = site
        self.output = site.folder / "snakemake.out"
        with self.output.open("w") as handle:
            self.process = subprocess.Popen(
                site.cluster.enter(site.command(*arguments)),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        """Return its output so far."""
        return self.output.read_text()

    def until(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for something while Snakemake is at work."""
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"Snakemake ended; {what}\n{self.text()}"
            assert time.monotonic() < deadline, f"{what}\n{self.text()}\n{self.site.log()}"
            time.sleep(0.1)

    def until_epoch(self, epoch: int, seconds: float = 400) -> None:
        """Wait until the latest start of the training is in an epoch, counted from 1."""

        def reached() -> bool:
            latest = self.site.log().rpartition(" parameters, ")[2]
            done = re.findall(r"^epoch (\d+)/\d+: ", latest, re.MULTILINE)
            return any(int(number) >= epoch - 1 for number in done)

        self.until(reached, seconds, f"not in epoch {epoch}")

    def job(self, rule: str = "train") -> str:
        """Return the number under which SLURM has a rule's job; wait until it has one."""
        pattern = re.compile(rf"submitted with SLURM jobid (\d+) \(log: .*rule_{rule}/")
        self.until(lambda: pattern.search(self.text()), 60, f"no job of {rule}")
        return pattern.findall(self.text())[-1]

    def state(self, job: str) -> str:
        """Return a job's state in SLURM's words."""
        asked = f"squeue --noheader --states=all --job {job} --format=%T"
        return self.site.cluster.run(asked, check=False).stdout.strip()

    def again(self, job: str, times: int = 1) -> None:
        """Wait until SLURM took a job back, and start it."""
        cluster, command = self.site.cluster, taken_back(job, times)
        self.until(
            lambda: cluster.run(command, check=False).returncode == 0,
            90,
            f"job {job} is not back in the queue",
        )
        start_now(cluster, job)

    def stop(self) -> None:
        """Interrupt Snakemake, which cancels its jobs; what was to be seen was seen."""
        self.site.cluster.run(f"pkill -INT -o -f {HURRIED}")
        self.process.wait(60)

    def end(self, seconds: float = 600) -> int:
        """Wait for the end; return the status."""
        return self.process.wait(seconds)
