# The bundle: the model with all that prediction needs. Made on request only: `gigatile bundle`.
from gigatile.bundle.settings import settings_of_bundle


rule bundle:
    input:
        table=ALL_TABLE,
        states=ALL_STATES,
        metrics=f"{RUN}/evaluation/metrics.json",
        operating_points=OPERATING_POINTS,
        model=small_files(MODEL_FILES),
        large=large_files(MODEL_FILES),
        weights=ancient(cohorts_of_weights(SETTINGS.train.weights, TASK.table)),
    output:
        folder=directory(f"{RUN}/model/bundle"),
    log:
        f"{RUN}/logs/bundle.log",
    benchmark:
        f"{RUN}/benchmarks/bundle.tsv"
    conda:
        "../envs/cpu.yaml"
    threads: 2
    resources:
        mem_mb=grow(8000),
        runtime=grow(60),
    params:
        **provenance("bundle", "write_bundle"),
        task=SETTINGS.task,
        name=SETTINGS.run,
        run=folder(),
        settings=literal(settings_of_bundle(SETTINGS)),
        weights=weights_option,
    shell:
        recorded(
            'python "$SCRIPTS/write_bundle.py" --run-dir {params.run:q} --task {params.task}'
            " --settings {params.settings:q} --name {params.name:q} {params.weights} --out {output.folder:q}"
        )
