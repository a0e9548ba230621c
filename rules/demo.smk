# The demo cohort: synthetic slides, drawn once each.


rule demo_slide:
    output:
        "demo/slides/{slide}.svs",
    log:
        "demo/slides/{slide}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
        slide_at_once=1,
    params:
        code=code("make_demo_slide"),
    shell:
        "python scripts/make_demo_slide.py --slide {wildcards.slide} --out {output} > {log} 2>&1"
