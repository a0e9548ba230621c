"""Refused and delayed submissions: the reason is printed, Snakemake waits, no model is lost."""

import pytest
from sites import HURRY, SEGMENTS, SRUN, settings, trained

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("whole_cluster"),
]

# Tile all slides again, in one group.
SLIDES = ("results/small/tiles.tsv", "--configfile", "small.yaml", "--forcerun", "tile")


def refused(site, *arguments, account="lab", partition="cpu"):
    """Run Snakemake, which SLURM refuses; return what it says."""
    hurry = [
        word.replace("'lab'", f"'{account}'").replace("'cpu'", f"'{partition}'") for word in HURRY
    ]
    done = site.cluster.run(site.command(*arguments, hurry=hurry), check=False, timeout=200)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said and "Trying to restart" not in said, said
    return said


def test_a_group_that_is_refused_ends_the_run_with_the_reason(site):
    assert 'slurm_account is still "my-account"' in refused(site, *SLIDES, account="my-account")
    assert "account nobody appears to be invalid" in refused(site, *SLIDES, account="nobody")
    said = refused(site, *SLIDES, partition="nowhere")
    assert "tile_tile was not submitted" in said and "nvalid partition name" in said


def test_a_full_queue_and_a_controller_that_is_away_cost_no_attempt(cluster, site):
    """The run waits for both, and goes on as if nothing had been."""
    limit = "sacctmgr --immediate modify user root where account=lab set MaxSubmitJobs="
    blocker = cluster.run("sbatch --parsable -A lab --hold -o /dev/null --wrap true").stdout.strip()
    cluster.run(f"{limit}1")
    try:
        single_job = ("results/small/tiles/P01-1.json", *SLIDES[1:])
        run = site.start(*single_job, "--retries", "3")
        run.until(lambda: "AssocMaxSubmitJobLimit" in run.text(), 60, "no limit is reached")
        cluster.stop_service("slurmctld")
        away = "Unable to contact slurm controller"
        run.until(lambda: away in run.text(), 60, "nobody misses the controller")
        cluster.start_controller()
        cluster.run(f"scancel {blocker}")
        assert run.end() == 0, run.text()
    finally:
        cluster.run(f"{limit}-1")
    assert run.text().count("submitted with SLURM jobid") == 1, run.text()
    assert "Trying to restart" not in run.text() and "Traceback" not in run.text()


def test_a_job_that_is_preempted_and_not_requeued_is_submitted_again(cluster, site):
    """The partition has PreemptMode=CANCEL; the executor alone would wait for ever."""
    single_job = ("results/small/tiles/P01-1.json", *SLIDES[1:], "--retries", "1")
    run = site.start(*single_job, "--set-resources", "tile:slurm_partition='cheap'")
    submitted = "has been submitted with SLURM jobid "
    run.until(lambda: submitted in run.text(), 60, "not submitted")
    job = run.text().rpartition(submitted)[2].split()[0]
    run.until(lambda: run.state(job) == "RUNNING", 60, "it does not start")
    cluster.run("sbatch -A lab -p urgent -N3 --exclusive -t 1 -o /dev/null --wrap true")
    assert run.end() == 0, run.text()
    assert f"SLURM preempted job {job} and does not requeue it." in run.text()
    assert run.text().count(submitted) == 2


def test_a_trained_segment_survives_a_refusal_and_scancel(site):
    site.clone.write("small.yaml", settings("ranks_per_node: 1, epochs: 1, batch_size: 16"))
    site.snakemake(*trained(epochs=1))
    folder = site.folder / SEGMENTS
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 3
    again = (*trained(epochs=1), "--forcerun", "train", "--set-resources", *SRUN)
    said = refused(site, *again, "train:gres='gpu:h100:4'")
    assert "train was not submitted" in said and "epoch 1/1" not in said
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}

    run = site.start(*again, "--retries", "0")
    job = run.job()
    run.until(lambda: run.state(job) == "RUNNING", 60, "it does not start")
    site.cluster.run(f"scancel {job}")
    assert run.end() == 1, run.text()
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    # The earlier result stays, but without its provenance record.
    assert site.clone.jobs("--rerun-incomplete", *trained(epochs=1)) == {"train": 1}
