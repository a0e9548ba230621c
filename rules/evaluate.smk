# The model on the test cohort.


rule evaluate:
    input:
        slides=ALL_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        tiles=f"{RUN}/evaluation/tiles.parquet",
        slides=report(
            f"{RUN}/evaluation/slides.tsv",
            caption="captions/slides.rst",
            category="Evaluation",
            labels={"table": "calls of the test slides"},
        ),
        metrics=report(
            f"{RUN}/evaluation/metrics.json",
            caption="captions/metrics.rst",
            category="Evaluation",
            labels={"table": "figures with their intervals"},
        ),
    log:
        f"{RUN}/logs/evaluate.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(480),
    params:
        code=code("evaluate"),
        intact=intact("evaluate"),
        note=note("evaluate"),
        records=folder("tiles"),
        out=subpath(output.slides, parent=True),
        settings=section("evaluate"),
    shell:
        "python scripts/evaluate.py --task tile_classification --table {input.slides:q} --records {params.records:q}"
        " --model {input.model:q} --described {input.described:q} --settings {params.settings:q}"
        " --out {params.out:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
