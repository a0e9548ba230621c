"""What a training and its workflow survive, each on the real cluster.

The result is that of an undisturbed run, to the bit: two ranks on two nodes.
"""

import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest
from cluster import ROOT
from configuration import NODES
from sites import HURRIED, SEGMENTS, settings, start_now, taken_back, trained
from trained import assert_same_bits

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("whole_cluster"),
]

TRAINING = settings(
    "nodes: 2, ranks_per_node: 1, epochs: 6, segment_epochs: 6, batch_size: 16,"
    " save_minutes: 0.01, stall_limit: 30"
)
TRAIN = trained(epochs=6)


@pytest.fixture
def training(site):
    """Return a copy in which everything is ready to train on two nodes."""
    site.clone.write("small.yaml", TRAINING)
    return site


@pytest.fixture(scope="session")
def undisturbed(new_site):
    """Return a copy in which nothing disturbed the training."""
    site = new_site()
    site.clone.write("small.yaml", TRAINING)
    site.snakemake(*TRAIN)
    return site


def assert_same(site, undisturbed):
    assert_same_bits(site.folder / SEGMENTS, undisturbed.folder / SEGMENTS)


def assert_survived(run, undisturbed, again):
    """The training was started again by one layer, so many times, and came to the same result.

    The layer is SLURM, under the same number: Snakemake submitted one job and no more.
    """
    assert run.end() == 0, run.text()
    assert run.text().count("submitted with SLURM jobid") == 1, run.text()
    assert "Trying to restart" not in run.text()
    log = run.site.log()
    assert log.count(" parameters, ") == 1 + again, log
    assert log.count("resuming after ") == again, log
    assert_same(run.site, undisturbed)


def at_work(training):
    """Start a training; return its Snakemake and its job, once that is in the second epoch."""
    run = training.start(*TRAIN)
    job = run.job()
    run.until_epoch(2)
    return run, job


def first_node(cluster, job):
    return cluster.run(f"squeue -h -j {job} -o %B").stdout.strip()


def other_node(cluster, job):
    both = cluster.run(f"scontrol show hostnames $(squeue -h -j {job} -o %N)").stdout.split()
    return next(node for node in both if node != first_node(cluster, job))


@pytest.mark.long
def test_nodes_that_lose_power(cluster, training, undisturbed):
    """First the one on which the job's script runs, then one on which only a rank does."""
    run, job = at_work(training)
    cluster.kill_node(first_node(cluster, job))
    run.again(job)
    run.until_epoch(3)
    cluster.start_node(next(node for node in NODES if cluster.is_off(node)))
    cluster.kill_node(other_node(cluster, job))
    run.again(job, times=2)
    assert_survived(run, undisturbed, again=2)


@pytest.mark.long
def test_a_node_whose_network_is_cut(cluster, training, undisturbed):
    """SLURM would wait for the node for long; the rank that is left does not."""
    cluster.set_node_timeout(300)
    run, job = at_work(training)
    node = other_node(cluster, job)
    cluster.cut_network(node)
    run.until(lambda: "no step finished for 30 s" in training.log(), 60, "the job hangs")
    run.until(lambda: run.state(job) != "RUNNING", 150, "the job is not given back")
    # Nobody can reach the node, and SLURM waits for it, until somebody takes it out.
    time.sleep(3)
    cluster.kill_node(node)
    cluster.run(f"scontrol update NodeName={node} State=DOWN Reason=cut")
    run.again(job)
    assert_survived(run, undisturbed, again=1)


def test_the_end_of_the_time_limit_and_a_preemption(cluster, training, undisturbed):
    """The ranks are asked to save before it comes, and the job goes back into the queue."""
    run, job = at_work(training)
    with training.suspended():
        # Two minutes before the limit is now.
        cluster.run(f"scontrol update JobId={job} TimeLimit=2")
        run.until(training.signalled, 60, "no signal before the time limit")
    run.again(job)
    cluster.run(f"scontrol update JobId={job} TimeLimit=10")
    run.until_epoch(3)
    with training.suspended():
        urgent = cluster.run(
            "sbatch --parsable -A lab -p urgent -N3 --exclusive -t 1 -o /dev/null --wrap true"
        ).stdout.strip()
        run.until(lambda: training.signalled(2), 60, "no signal before the preemption")
    cluster.wait_for(f'test -z "$(squeue -h -j {urgent} 2>/dev/null)"', 90)
    run.again(job, times=2)
    assert_survived(run, undisturbed, again=2)
    message = r"stopped by (.*) after epoch \d of 6(?:, step \d of \d)?; the state is saved"
    assert re.findall(message, training.log()) == ["SIGUSR2", "SIGTERM"], training.log()


@pytest.mark.long
def test_a_rank_that_raises(cluster, training):
    """Its message is what is shown; the others end with it, and so do the job and Snakemake."""
    shard = next((training.folder / "results/small/shards").glob("train-*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    run = training.start(*TRAIN, "--retries", "0", "--rerun-triggers", "mtime")
    job = run.job()
    run.until(lambda: "error (rank " in training.log(), 90, "no rank complained")
    run.until(lambda: run.state(job) == "FAILED", 30, "the other rank does not end")
    assert run.end() == 1
    assert re.search(rf"error \(rank \d of 2 on n\d\): .*{shard.name}.*checksum", run.text())
    assert training.log().count("error (rank ") == 1
    assert "Traceback" not in training.log()
    assert len(re.findall("submitted with SLURM jobid", run.text())) == 1


def test_starts_that_lead_nowhere_end(cluster, tmp_path):
    """A training that never reaches a checkpoint is given back twice, and then fails.

    One rank leaves each time; the other would stay for long.
    """
    launch = (
        f"cd {tmp_path} && PYTHONPATH={ROOT} {sys.executable} {ROOT}/scripts/launch.py"
        " --launcher srun --nodes 2 --ranks-per-node 1 --cores 1 --log log"
        " --checkpoints checkpoints -- sh -c"
        " 'echo start; sleep 2; test $SLURM_PROCID = 0 && exec sleep 600; exit 75'"
    )
    job = cluster.run(
        "sbatch --parsable -A lab -N2 -n2 --requeue --comment rule_train"
        f" -o {tmp_path}/out --wrap {shlex.quote(launch)}"
    ).stdout.strip()
    for times in (1, 2):
        cluster.wait_for(taken_back(job, times), 60)
        start_now(cluster, job)
    cluster.wait_for(f"squeue -h -t all -j {job} -o %T | grep -qx FAILED", 60)
    log = (tmp_path / "log").read_text()
    assert log.count("start\n") == 3 * 2, "two ranks, three starts, all in one log"
    # `srun` ends the other rank and reports that one's status.
    assert re.search(r"3 starts in a row \(status (75|137|143)\) without a new checkpoint", log)


def test_a_rank_that_the_kernel_kills_for_its_memory_needs_more(cluster, tmp_path):
    """The job sits in a control group with a limit, as SLURM makes one on most clusters."""
    group = Path("/sys/fs/cgroup/memory") / f"gigatile-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(f"{256 << 20}")
    except OSError:
        pytest.skip(f"{group.parent}: this machine allows no limits of memory")
    program = (
        "import os, time; bytearray((600 << 20) * (os.environ['PMIX_RANK'] == '1')); time.sleep(60)"
    )
    script = (
        f"echo $$ >{group}/cgroup.procs && cd {tmp_path} && PYTHONPATH={ROOT} {sys.executable}"
        f" {ROOT}/scripts/launch.py --launcher mpirun --nodes 1 --ranks-per-node 2 --cores 1"
        f" --log log --checkpoints checkpoints -- {sys.executable} -c {shlex.quote(program)}"
    )
    try:
        job = cluster.run(
            "sbatch --parsable -A lab -n2 --requeue --comment rule_train"
            f" -o {tmp_path}/out --wrap {shlex.quote(script)}"
        ).stdout.strip()
        cluster.wait_for(f"squeue -h -t all -j {job} -o %T | grep -qx FAILED", 60)
    finally:
        group.rmdir()
    log = (tmp_path / "log").read_text()
    assert "a rank ran out of memory and was killed; the job needs more" in log
    assert cluster.run(f"scontrol show job {job}").stdout.count("Restarts=0 ") == 1


@pytest.mark.long
def test_slurm_itself_is_away_for_a_while(cluster, training, undisturbed):
    """Its controller goes twice, and accounting for the whole time in which a training runs."""
    run, _ = at_work(training)
    cluster.stop_service("slurmdbd")
    for _ in range(2):
        with training.suspended():
            cluster.stop_service("slurmctld")
            time.sleep(12)
            cluster.start_controller()
    cluster.start_accounting()
    assert_survived(run, undisturbed, again=0)


def test_snakemake_is_killed_and_started_again(cluster, training, undisturbed):
    """The job that it left is waited for, also while SLURM is away, and its result is kept."""
    first, job = at_work(training)
    with training.suspended():
        cluster.run(f"pkill -KILL -f {HURRIED}")
        first.end(10)
        assert first.state(job) == "RUNNING"
        training.snakemake("--unlock", *TRAIN)
        # Another run in the same folder does not wait for that job.
        splits = "results/other/splits.tsv"
        other = ("--configfile", "small.yaml", "--config", "run=other")
        assert "waiting for" not in training.snakemake(splits, *other, timeout=120).stdout
        again = training.start(*TRAIN)
        line = f"  {job}  RUNNING  train 0006"
        again.until(lambda: line in again.text(), 60, "the job that is waited for is not listed")
        cluster.stop_service("slurmctld")
        time.sleep(12)
        cluster.start_controller()
    assert again.end() == 0, again.text()
    assert "submitted with SLURM jobid" not in again.text()
    assert training.log().count(" parameters, ") == 1
    assert_same(training, undisturbed)
    # Its metadata were written although nobody waited for its end.
    assert "train" not in training.clone.jobs("--cores", "1", *TRAIN)
    training.clone.write("small.yaml", TRAINING.replace("batch_size: 16", "batch_size: 8"))
    assert training.clone.jobs("--cores", "1", *TRAIN)["train"] == 1


def test_a_cancelled_job_is_noticed(cluster, training):
    run = training.start(*TRAIN, "--retries", "0")
    job = run.job()
    cluster.run(f"scancel {job}")
    assert run.end(60) == 1, run.text()
    assert run.state(job) == "CANCELLED"


@pytest.mark.long
def test_a_group_that_starts_again_tiles_only_what_it_lacks(cluster, site):
    """SLURM requeues it; then one of its slides is killed, and Snakemake submits it again."""
    tiles = site.folder / "results/small/tiles"
    for path in tiles.iterdir():
        path.unlink()

    def tiled():
        # Bad slides are tried again.
        return {path.stem: path for path in tiles.glob("P*.json")}

    shutil.rmtree(site.folder / "results/small/provenance/tile")
    run = site.start("results/small/tiles.tsv", "--configfile", "small.yaml")
    pattern = re.compile(r"submitted with SLURM jobid (\d+) \(log: .*group_tile")
    run.until(lambda: pattern.search(run.text()), 60, "no job tiles")
    (job,) = pattern.findall(run.text())
    run.until(lambda: len(tiled()) >= 2, 120, "no slide is tiled")
    cluster.run(f"scontrol requeue {job}")
    run.until(lambda: cluster.run(taken_back(job, 1), check=False).returncode == 0, 60, "not back")
    done = {name: path.stat().st_ino for name, path in tiled().items()}
    start_now(cluster, job)
    run.until(lambda: len(tiled()) > len(done), 120, "no slide is tiled")
    kill = "pkill -KILL -f scripts/[r]un_recorded.py"  # not itself
    run.until(lambda: cluster.run(kill, check=False).returncode == 0, 60, "no slide is tiled")
    assert run.end() == 0, run.text()
    assert "Trying to restart" in run.text()
    logs = (site.folder / "results/small/logs/tile.log").read_text()
    again = [name for name in done if f"==> {name}.log <==\ndone before" in logs]
    # The last one may have been interrupted between its state and its record. Then it was tiled
    # after SLURM had requeued the job, and was done before when Snakemake submitted it again.
    kept = [name for name in again if (tiles / f"{name}.json").stat().st_ino == done[name]]
    assert len(kept) >= len(done) - 1 >= 1, logs
    assert logs.count("done before") > len(again), logs


@pytest.mark.long
def test_a_tile_job_that_needs_more_memory_gets_more(cluster, site):
    """SLURM kills it at its limit; the next attempt asks for twice as much."""
    states = "results/small/tiles/P01-1.json"
    before = (site.folder / states).read_bytes()
    rules = site.folder / "rules/tiles.smk"
    of_tile = re.compile(
        r"(?<=^rule tile:\n)(.*?)mem_mb=REQUESTS.mem_mb\(\),\n", re.DOTALL | re.MULTILINE
    )
    text, changed = of_tile.subn(r"\1mem_mb=grow(100),\n", rules.read_text())
    assert changed == 1
    rules.write_text(text)
    run = site.start(
        *(states, "--forcerun", "tile", "--configfile", "small.yaml", "--retries", "3")
    )
    assert run.end() == 0, run.text()
    jobs = re.findall(r"submitted with SLURM jobid (\d+)", run.text())
    asked = cluster.run(f"sacct -X -n -P -j {','.join(jobs)} -o reqmem").stdout.split()
    assert len(asked) > 1 and asked == [f"{100 * 2**n}M" for n in range(len(asked))]
    logs = (site.folder / ".snakemake/slurm_logs/group_tile_tile").rglob("*.log")
    assert any("exceeded memory limit" in log.read_text() for log in logs)
    assert (site.folder / states).read_bytes() == before
