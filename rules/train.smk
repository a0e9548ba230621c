# Shards to a model: all ranks under one MPI launcher, whose exit code is the job's.


# Checkpoints are no output: Snakemake deletes outputs before a job starts, and a killed
# training could not go on.
#
# The layout stands among the resources and not the parameters: the same training on other machines
# is the same training, and is not done again.
rule train:
    input:
        manifest=f"{RUN}/shards/manifest.json",
    output:
        model=f"{RUN}/model/model.keras",
        history=f"{RUN}/model/history.tsv",
        settings=f"{RUN}/model/settings.json",
        versions=f"{RUN}/model/versions.json",
    log:
        f"{RUN}/logs/train.log",
    benchmark:
        f"{RUN}/benchmarks/train.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: SETTINGS.train.ranks * SETTINGS.train.cores_per_rank
    resources:
        **mpi_job(SETTINGS.train),
        launcher="mpirun",
        cpus_per_task=SETTINGS.train.cores_per_rank,
        # GPUs are asked for by the node, with `gres`; the executor would take `tasks` for their number.
        tasks_per_gpu=0,
        # Of each node.
        mem_mb=grow(4000 * SETTINGS.train.ranks_per_node),
        runtime=1440,
        launch=launch_options(SETTINGS.train),
        each_rank=rank_options(SETTINGS.train),
        # SLURM asks the ranks to save this long before the time limit.
        slurm_extra="--signal=USR2@120",
    params:
        model=subpath(output.model, parent=True),
        checkpoints=folder("checkpoints"),
        settings=section("train"),
        tiles=section("tiles"),
    shell:
        "python scripts/launch.py --launcher {resources.launcher:q} {resources.launch}"
        " --log {log:q} --checkpoints {params.checkpoints:q} --"
        " python scripts/train.py --manifest {input.manifest:q} --settings {params.settings:q}"
        " --tiles {params.tiles:q} --checkpoints {params.checkpoints:q} --out {params.model:q}"
        " {resources.each_rank}"
