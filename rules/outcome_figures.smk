# The files that the pages of outcomes show, and the figures of new slides with outcomes. The including file includes
# slide_maps.smk before.
from gigatile.workflow.inputs import not_compared

# The files of the evaluation and of the prediction that the pages show.
EVALUATED = [*rules.evaluate.output, *rules.evaluate.input.scored]
PREDICTED = [*rules.predict.output, *rules.predict.input.scored]


if EXTERNAL:
    # The figures of the model on its test split, of this run or in the bundle.
    TEST_METRICS = f"{MODEL}/metrics.json" if BUNDLE else f"{RUN}/evaluation/metrics.json"

    rule external:
        input:
            slides=f"{RUN}/predictions/slides.tsv",
            table=NEW_TABLE,
            matches=f"{RUN}/predictions/in_cohort.tsv",
            samples=ancient(SETTINGS.predict.samples),
            metrics=TEST_METRICS,
            described=f"{MODEL}/settings.json",
        output:
            slides=f"{RUN}/predictions/external/slides.tsv",
            metrics=f"{RUN}/predictions/external/metrics.json",
        log:
            f"{RUN}/logs/external.log",
        benchmark:
            f"{RUN}/benchmarks/external.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(4000),
            runtime=grow(60),
        params:
            **provenance("external", "evaluate_external"),
            task=SETTINGS.task,
            sheet=sheet(SETTINGS.predict.samples),
            settings=section("evaluate"),
            compared=not_compared(RUN, ALL_TABLE, BUNDLE),
        shell:
            recorded(
                'python "$SCRIPTS/evaluate_external.py" --task {params.task} --slides {input.slides:q} --table {input.table:q}'
                " --samples {input.samples:q} --matches {input.matches:q} {params.compared} --metrics {input.metrics:q} --described {input.described:q}"
                " --settings {params.settings:q} --out {output.metrics:q}"
            )

    rule external_page:
        input:
            external=f"{RUN}/predictions/external/metrics.json",
            slides=f"{RUN}/predictions/external/slides.tsv",
            metrics=TEST_METRICS,
        output:
            page=report(
                f"{RUN}/predictions/external/index.html",
                caption="captions/external.rst",
                category="Predictions",
                labels={"page": "external validation"},
            ),
        log:
            f"{RUN}/logs/external_page.log",
        benchmark:
            f"{RUN}/benchmarks/external_page.tsv"
        conda:
            "../envs/cpu.yaml"
        resources:
            mem_mb=grow(2000),
            runtime=grow(30),
        params:
            **provenance("external_page", "write_external_page"),
            task=SETTINGS.task,
            title=literal(shlex.quote(f"External validation of {SETTINGS.run}")),
        shell:
            recorded(
                'python "$SCRIPTS/write_external_page.py" --task {params.task} --external {input.external:q}'
                " --slides {input.slides:q} --metrics {input.metrics:q} --title {params.title} --out {output.page:q}"
            )
