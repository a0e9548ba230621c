# The pages of new data.
from gigatile.workflow.inputs import cohort_to_compare

# What new data are compared with: the cohort of the run, or hashes of that of the bundle.
COHORT_FILES, COHORT_OPTIONS = cohort_to_compare(RUN, (ALL_TABLE, ALL_STATES), BUNDLE)


rule prediction_pages:
    input:
        table=NEW_TABLE,
        cohort=COHORT_FILES,
        states=NEW_STATES,
        predictions=small_files(PREDICTED),
        model=small_files(MODEL_FILES),
        large=large_files(PREDICTED, MODEL_FILES),
        weights=ancient([] if BUNDLE else cohorts_of_weights(SETTINGS.train.weights, TASK.table)),
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
        model=literal(shlex.quote(MODEL)),
        cohort=literal(COHORT_OPTIONS),
        weights=weights_option,
        external="--external" if EXTERNAL else "",
        pages=subpath(output.index, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/write_prediction_pages.py" --task {params.task} --run-dir {params.run:q} --model-dir {params.model}'
            " {params.cohort} {params.weights} {params.external} --matches {output.matches:q} --out {params.pages:q}"
        )
