# The toy task.


rule prepare_image:
    input:
        source=ancient(source_files(COHORT)),
    output:
        records=f"{RUN}/images/{{image}}.tfrecord",
        state=f"{RUN}/images/{{image}}.json",
    log:
        f"{RUN}/logs/prepare_image/{{image}}.log",
    params:
        **provenance("prepare_image", "prepare", "{image}", samples=COHORT, states=f"{RUN}/images"),
        side=SETTINGS.images.side,
    shell:
        recorded(
            'python "$SCRIPTS/prepare.py" --task image_brightness --image {wildcards.image} --side {params.side}'
            " --source {input.source:q} --records {output.records} --state {output.state}",
            source="{input.source:q}",
            state="{output.state}",
        )


rule evaluate:
    input:
        table=ALL_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        images=f"{RUN}/evaluation/images.tsv",
        metrics=f"{RUN}/evaluation/metrics.json",
    log:
        f"{RUN}/logs/evaluate.log",
    params:
        **provenance("evaluate", "evaluate"),
        records=folder("images"),
        out=subpath(output.images, parent=True),
        settings=section("evaluate"),
    shell:
        recorded(
            'python "$SCRIPTS/evaluate.py" --task image_brightness --table {input.table:q} --records {params.records:q}'
            " --model {input.model:q} --described {input.described:q} --settings {params.settings:q} --out {params.out:q}"
        )


EVALUATED, PREDICTED = rules.evaluate.output, []
