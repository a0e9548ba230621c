"""What is submitted for each shape of a training: the exact `sbatch` line, and what it gave."""

import re
import shlex

import pytest
from sites import RANKS, SRUN, settings, trained

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.usefixtures("whole_cluster"),
]


def train(site, layout, submitted, *options):
    """Train with a layout; check the line that submits it, and return the run and its job."""
    site.clone.write("small.yaml", settings(f"{layout}, epochs: 1, batch_size: 16"))
    run = site.start(*trained(epochs=1), "--verbose", *options)
    job = run.job()
    words = shlex.split(re.search(r"sbatch call: (.*?) --wrap=", run.text(), re.DOTALL)[1])
    # What differs from run to run: the run's number and the folder.
    given = {}
    for option in ("--job-name", "--output", "-D"):
        position = words.index(option)
        _, given[option] = words[position : position + 2]
        del words[position : position + 2]
    assert given["-D"] == str(site.folder)
    assert given["--output"].startswith(f"{site.folder}/.snakemake/slurm_logs/rule_train/0001/")
    assert " ".join(words) == submitted
    return run, job


def ranks(cluster, folder):
    """Return what each rank at work was given: node, rank, and its GPUs."""
    program = (
        f"for p in $(pgrep -f '{RANKS}'); do"
        " tr '\\0' '\\n' </proc/$p/environ 2>/dev/null"
        " | grep -E '^(SLURMD_NODENAME|SLURM_PROCID|CUDA_VISIBLE_DEVICES|SLURM_CPUS_PER_TASK|PWD)='"
        " | sort | tr '\\n' ' '; echo; done"
    )
    by_step = set()
    for line in cluster.run(program).stdout.splitlines():
        given = dict(word.split("=", 1) for word in line.split())
        if given.get("PWD") == str(folder) and "SLURM_PROCID" in given:
            by_step.add(
                (
                    int(given["SLURM_PROCID"]),
                    given["SLURMD_NODENAME"],
                    given.get("CUDA_VISIBLE_DEVICES"),
                    given.get("SLURM_CPUS_PER_TASK"),
                )
            )
    return sorted(by_step)


def test_shards_are_written_on_two_nodes(site):
    """The same bytes as by one process; a launch of another size would be refused."""
    shards = "shards: {nodes: 2, ranks_per_node: 2, target_mb: 0.2}\n"
    site.clone.write("small.yaml", settings("epochs: 1") + shards)
    manifest = "results/small/shards/manifest.json"
    done = site.snakemake(manifest, "--configfile", "small.yaml", "--verbose")
    submitted = re.search(
        r"sbatch call: .*?rule_write_shards .*? --wrap=", done.stdout + done.stderr
    )
    assert "--nodes=2 --requeue --ntasks-per-node=2 --cpus-per-task=1" in submitted[0]
    site.clone.run(
        *("python", "-m", "scripts.write_shards", "--task", "tile_classification"),
        *(
            "--table",
            "results/small/shards/slides.tsv",
            "--records",
            "results/small/tiles",
            "--settings",
            '{"target_mb": 0.2}',
            "--out",
            "alone",
        ),
    )
    alone, together = site.folder / "alone", site.folder / "results/small/shards"
    names = sorted(path.name for path in alone.iterdir())
    there = {path.name for path in together.iterdir()} - {"slides.tsv"}
    assert len(names) > 9 and names == sorted(there)
    for name in names:
        assert (alone / name).read_bytes() == (together / name).read_bytes()


@pytest.mark.long
def test_one_rank_on_one_core(cluster, site):
    run, _ = train(
        site,
        "nodes: 1, ranks_per_node: 1",
        "sbatch --parsable --export=ALL --comment rule_train_wildcards_0001 in small"
        " -A lab -p cpu -t 1440 --mem 4000"
        " --requeue --ntasks=1 --cpus-per-task=1 --signal=USR2@120",
    )
    run.until(lambda: "on 1 rank(s), 1 core(s) each" in site.log(), 90, "no rank")
    run.until(lambda: "epoch 1/1: " in site.log(), 90, "it does not train")
    run.stop()


@pytest.mark.long
def test_two_nodes_of_four_gpus(cluster, site):
    run, job = train(
        site,
        "nodes: 2, ranks_per_node: 4",
        "sbatch --parsable --export=ALL --comment rule_train_wildcards_0001 in small"
        " -A lab -p gpu -t 1440 --mem 12000"
        " --nodes=2 --requeue --ntasks-per-node=4 --cpus-per-task=1 --signal=USR2@120 --gres=gpu:4",
        *("--set-resources", *SRUN, "train:gres='gpu:4'", "train:slurm_partition='gpu'"),
        *("train:mem_mb=12000",),
    )
    run.until(lambda: len(ranks(cluster, site.folder)) == 8, 90, "not 8 ranks")
    given = ranks(cluster, site.folder)
    assert [rank for rank, *_ in given] == list(range(8))
    assert [node for _, node, *_ in given[:4]] == [given[0][1]] * 4
    assert [node for _, node, *_ in given[4:]] == [given[4][1]] * 4 != [given[0][1]] * 4
    assert {gpus for *_, gpus, _ in given} == {"0,1,2,3"}
    assert cluster.run(f"scontrol show job -d {job}").stdout.count("GRES=gpu:4(IDX:0-3)") == 1
    run.until(lambda: "on 8 rank(s)" in site.log(), 120, "they are not one world")
    run.stop()


@pytest.mark.long
def test_a_site_that_uses_mpirun(cluster, site):
    run, job = train(
        site,
        "nodes: 2, ranks_per_node: 2, cores_per_rank: 2",
        "sbatch --parsable --export=ALL --comment rule_train_wildcards_0001 in small"
        " -A lab -p cpu -t 1440 --mem 8000"
        " --nodes=2 --requeue --ntasks-per-node=2 --cpus-per-task=2 --signal=USR2@120",
        *("--set-resources", "train:launcher='mpirun'", "train:mem_mb=8000"),
    )
    run.until(lambda: "on 4 rank(s)" in site.log(), 90, "they are not one world")
    # The launcher itself names the program, too.
    hosts = f"pgrep -fc '{RANKS}'"
    seen = cluster.run(f"srun --overlap --jobid {job} -N2 -n2 {hosts}").stdout
    assert seen.split() == ["2", "2"]
    run.until(lambda: "epoch 1/1: " in site.log(), 90, "it does not train")
    run.stop()


@pytest.mark.long
def test_a_quality_of_service_several_partitions_and_gpus_per_node(cluster, site):
    """For a tile job and for a training, which also gets its signal before the time limit."""
    cluster.run("sacctmgr -i add qos low; sacctmgr -i modify user root set qos+=low")
    state = "results/small/tiles/P01-1.json"
    tile = ("tile:slurm_partition='cheap,urgent'", "tile:qos='low'")
    done = site.snakemake(
        *(state, "--forcerun", "tile", "--configfile", "small.yaml"), "--set-resources", *tile
    )
    (job,) = re.findall(r"SLURM jobid (\d+)", done.stdout + done.stderr)
    given = f"sacct -X -n -P -j {job} -o qos,partition,state"
    # A job's end can reach the accounting before its start, and only the start names the QOS.
    cluster.wait_for(f"! {given} | grep -q Unknown")
    qos, partition, state = cluster.run(given).stdout.strip().split("|")
    assert (qos, state) == ("low", "COMPLETED") and partition in ("cheap", "urgent")

    run, job = train(
        site,
        "nodes: 1, ranks_per_node: 2",
        "sbatch --parsable --export=ALL --comment rule_train_wildcards_0001 in small"
        " -A lab -p gpu,cpu -t 1440 --qos=low --mem 8000 --nodes=1 --requeue --ntasks-per-node=2"
        " --cpus-per-task=1 --gpus-per-node=2 --signal=USR2@120",
        *("--set-resources", *SRUN, "train:slurm_extra='--gpus-per-node=2'", "train:qos='low'"),
        *("train:slurm_partition='gpu,cpu'", "train:mem_mb=8000"),
    )
    run.until(lambda: len(ranks(cluster, site.folder)) == 2, 90, "not 2 ranks")
    assert {gpus for *_, gpus, _ in ranks(cluster, site.folder)} == {"0,1"}
    run.stop()
