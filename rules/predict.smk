# New, unlabelled slides: tiled as the cohort was, called by its model.


use rule tile as tile_new with:
    input:
        source=ancient(source(NEW)),
    output:
        records=f"{RUN}/predictions/tiles/{{slide}}.tfrecord",
        state=f"{RUN}/predictions/tiles/{{slide}}.json",
        overview=f"{RUN}/predictions/tiles/{{slide}}.jpg",
        mask=f"{RUN}/predictions/tiles/{{slide}}.png",
        index=f"{RUN}/predictions/tiles/{{slide}}.parquet",
    log:
        f"{RUN}/logs/tile_new/{{slide}}.log",
    benchmark:
        f"{RUN}/benchmarks/tile_new/{{slide}}.tsv"
    params:
        code=code("tile_slide"),
        note=note("tile_new", "{slide}"),
        content=content("tile_new", NEW, f"{RUN}/predictions/tiles"),
        sample=sample_options(NEW),
        settings=section("tiles"),


rule predict:
    input:
        slides=NEW_TABLE,
        model=ancient(f"{RUN}/model/model.keras"),
        described=f"{RUN}/model/settings.json",
    output:
        tiles=f"{RUN}/predictions/tiles.parquet",
        slides=report(
            f"{RUN}/predictions/slides.tsv",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"table": "calls of the new slides"},
        ),
        provenance=f"{RUN}/predictions/provenance.json",
    log:
        f"{RUN}/logs/predict.log",
    benchmark:
        f"{RUN}/benchmarks/predict.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(480),
    params:
        code=code("predict"),
        intact=intact("predict"),
        note=note("predict"),
        records=folder("predictions/tiles"),
        out=subpath(output.slides, parent=True),
    shell:
        "python scripts/predict.py --task tile_classification --table {input.slides:q} --records {params.records:q}"
        " --model {input.model:q} --described {input.described:q} --out {params.out:q}"
        " > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


rule prediction_pages:
    input:
        slides=NEW_TABLE,
        cohort=ALL_TABLE,
        states=NEW_STATES,
        calls=small(rules.predict.output),
        model=small(rules.choose_model.output),
        large=large(rules.predict.output, rules.choose_model.output),
    output:
        index=report(
            f"{RUN}/predictions/pages/index.html",
            caption="captions/predictions.rst",
            category="Predictions",
            labels={"page": "the new slides"},
        ),
        pages=directory(f"{RUN}/predictions/pages/slides"),
        matches=f"{RUN}/predictions/in_cohort.tsv",
    log:
        f"{RUN}/logs/prediction_pages.log",
    benchmark:
        f"{RUN}/benchmarks/prediction_pages.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(2000),
        runtime=grow(240),
    params:
        code=code("write_prediction_pages"),
        intact=intact("prediction_pages"),
        note=note("prediction_pages"),
        run=folder(),
        pages=subpath(output.index, parent=True),
    shell:
        "python scripts/write_prediction_pages.py --task tile_classification --run-dir {params.run:q}"
        " --cohort {params.run:q} --matches {output.matches:q}"
        " --out {params.pages:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
