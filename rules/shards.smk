# The records of the splits `train` and `valid`, shuffled into shards.


# The number of shards depends on the records, so the output is the manifest, which lists the shards with
# checksums and is written last. The layout of the ranks is a resource, not a parameter: it does not change
# the shards.
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
        **mpi_resources(SETTINGS.shards),
        launcher="mpirun",
        cpus_per_task=1,
        # Per node. A rank holds one shard in memory.
        mem_mb=grow(SETTINGS.shards.ranks_per_node * round(500 + 2 * SETTINGS.shards.target_mb)),
        runtime=grow(240),
        launch=launch_options(SETTINGS.shards),
        ranks=SETTINGS.shards.ranks,
    params:
        **provenance("write_shards", "write_shards"),
        records=folder(RECORDS),
        shards=subpath(output.manifest, parent=True),
        task=SETTINGS.task,
        settings=section("shards"),
    shell:
        recorded(
            'python "$SCRIPTS/launch.py" --launcher {resources.launcher:q} {resources.launch}'
            " --log {log:q} --"
            ' python "$SCRIPTS/write_shards.py" --task {params.task} --table {input.table:q} --records {params.records:q}'
            " --settings {params.settings:q} --out {params.shards:q} --ranks {resources.ranks}",
            manifest="{output.manifest:q}",
        )
