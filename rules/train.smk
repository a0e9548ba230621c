# Shards to a model: all ranks under one MPI launcher, whose exit code is the job's.


# Checkpoints are no output: Snakemake deletes outputs before a job starts, and a killed
# training could not go on.
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
    threads: SETTINGS.train.ranks
    resources:
        mpi="mpirun",
        tasks=SETTINGS.train.ranks,
        mem_mb=grow(4000 * SETTINGS.train.ranks),
        runtime=1440,
    params:
        model=subpath(output.model, parent=True),
        checkpoints=folder("checkpoints"),
        settings=section("train"),
        tiles=section("tiles"),
    shell:
        "{resources.mpi} -n {resources.tasks} python scripts/train.py"
        " --manifest {input.manifest:q} --settings {params.settings:q} --tiles {params.tiles:q}"
        " --checkpoints {params.checkpoints:q} --out {params.model:q} 2>&1 | tee {log:q}"
