# The report.


rule report:
    input:
        samples=ancient(SETTINGS.samples),
        slides=ALL_TABLE,
        states=ALL_STATES,
        splits=f"{RUN}/splits.json",
        shards=f"{RUN}/shards/manifest.json",
        model=small_files(rules.choose_model.output),
        evaluation=small_files(rules.evaluate.output),
        large=large_files(rules.choose_model.output, rules.evaluate.output),
    output:
        index=report(
            f"{RUN}/report/index.html",
            caption="captions/report.rst",
            category="Report",
            labels={"page": "the cohort"},
        ),
        pages=directory(f"{RUN}/report/slides"),
    log:
        f"{RUN}/logs/report.log",
    benchmark:
        f"{RUN}/benchmarks/report.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(2000),
        runtime=grow(240),
    params:
        **provenance("report", "write_report"),
        task=SETTINGS.task,
        sheet=sheet(SETTINGS.samples),
        run=subpath(input.slides, parent=True),
        report=subpath(output.index, parent=True),
    shell:
        recorded(
            "python scripts/write_report.py --task {params.task} --run-dir {params.run:q} --samples {input.samples:q}"
            " --out {params.report:q}"
        )
