# The records of train and valid, shuffled into shards.


# The number of shards follows from the tiles, so the manifest stands for them: it names each with
# its checksum and is written last. The layout of the writers stands among the resources, as they write
# the same bytes whatever it is.
rule write_shards:
    input:
        table=TRAINING_TABLE,
    output:
        manifest=f"{RUN}/shards/manifest.json",
    log:
        f"{RUN}/logs/write_shards.log",
    benchmark:
        f"{RUN}/benchmarks/write_shards.tsv"
    conda:
        "../envs/cpu.yaml"
    threads: SETTINGS.shards.ranks
    resources:
        **mpi_job(SETTINGS.shards),
        launcher="mpirun",
        cpus_per_task=1,
        # Of each node; a rank holds one shard.
        mem_mb=grow(SETTINGS.shards.ranks_per_node * round(500 + 2 * SETTINGS.shards.target_mb)),
        runtime=grow(240),
        launch=launch_options(SETTINGS.shards),
        ranks=SETTINGS.shards.ranks,
    params:
        code=code("write_shards"),
        intact=intact("write_shards"),
        note=note("write_shards"),
        records=folder(RECORDS),
        shards=subpath(output.manifest, parent=True),
        task=SETTINGS.task,
        settings=section("shards"),
    shell:
        "python scripts/launch.py --launcher {resources.launcher:q} {resources.launch}"
        " --log {log:q} --"
        " python scripts/write_shards.py --task {params.task} --table {input.table:q} --records {params.records:q}"
        " --settings {params.settings:q} --out {params.shards:q} --ranks {resources.ranks}"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " --manifest {output.manifest:q} >> {log:q} 2>&1"
