# The report of the test split, and the pages of new data.


rule report:
    input:
        samples=ancient(SETTINGS.samples),
        table=ALL_TABLE,
        states=ALL_STATES,
        splits=f"{RUN}/splits.json",
        shards=f"{RUN}/shards/manifest.json",
        model=small_files(rules.choose_model.output),
        evaluation=small_files(EVALUATED),
        large=large_files(rules.choose_model.output, EVALUATED),
        compared=compared_files(SETTINGS.report.compare, ELSEWHERE),
    output:
        index=report(
            f"{RUN}/report/index.html",
            caption="captions/report.rst",
            category="Report",
            labels={"page": "the cohort"},
        ),
        pages=directory(f"{RUN}/report/{UNIT}s"),
    log:
        f"{RUN}/logs/report.log",
    benchmark:
        f"{RUN}/benchmarks/report.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
    params:
        **provenance("report", "write_report"),
        task=SETTINGS.task,
        sheet=sheet(SETTINGS.samples),
        groups=literal(shlex.join(f"--group-by={name}" for name in SETTINGS.report.group_by)),
        compare=f"--compare=results/{SETTINGS.report.compare}" if SETTINGS.report.compare else "",
        run=subpath(input.table, parent=True),
        report=subpath(output.index, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/write_report.py" --task {params.task} --run-dir {params.run:q} --samples {input.samples:q}'
            " --out {params.report:q} {params.groups} {params.compare}"
        )


rule prediction_pages:
    input:
        table=NEW_TABLE,
        cohort=ALL_TABLE,
        states=NEW_STATES,
        predictions=small_files(PREDICTED),
        model=small_files(rules.choose_model.output),
        large=large_files(PREDICTED, rules.choose_model.output),
    output:
        index=report(
            f"{RUN}/predictions/pages/index.html",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"page": f"the new {UNIT}s"},
        ),
        pages=directory(f"{RUN}/predictions/pages/{UNIT}s"),
        matches=f"{RUN}/predictions/in_cohort.tsv",
    log:
        f"{RUN}/logs/prediction_pages.log",
    benchmark:
        f"{RUN}/benchmarks/prediction_pages.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(4000),
        runtime=grow(240),
    params:
        **provenance("prediction_pages", "write_prediction_pages"),
        task=SETTINGS.task,
        run=folder(),
        pages=subpath(output.index, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/write_prediction_pages.py" --task {params.task} --run-dir {params.run:q} --cohort {params.run:q}'
            " --matches {output.matches:q} --out {params.pages:q}"
        )
