# The tiles of train and valid, shuffled into shards.


# The number of shards follows from the tiles, so the manifest stands for them: it names each with
# its checksum and is written last. It changes exactly when they do.
rule write_shards:
    input:
        slides=f"{RUN}/tiles.tsv",
    output:
        manifest=f"{RUN}/shards/manifest.json",
    log:
        f"{RUN}/logs/write_shards.log",
    benchmark:
        f"{RUN}/benchmarks/write_shards.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        # One shard is in memory at a time, its records twice.
        mem_mb=grow(1000 + round(3 * SETTINGS.shards.target_mb)),
        runtime=grow(240),
    params:
        records=folder("tiles"),
        shards=subpath(output.manifest, parent=True),
        settings=section("shards"),
    shell:
        "python scripts/write_shards.py --slides {input.slides:q} --records {params.records:q}"
        " --settings {params.settings:q} --out {params.shards:q} > {log:q} 2>&1"
