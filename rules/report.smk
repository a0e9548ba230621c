# The report of the test split.


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
        weights=ancient(cohorts_of_weights(SETTINGS.train.weights, TASK.table)),
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
        viewer=literal(f"--viewer={SETTINGS.report.viewer}" if SETTINGS.report.viewer else ""),
        weights=weights_option,
        run=subpath(input.table, parent=True),
        report=subpath(output.index, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/write_report.py" --task {params.task} --run-dir {params.run:q} --samples {input.samples:q}'
            " --out {params.report:q} {params.groups} {params.compare} {params.weights} {params.viewer}"
        )
