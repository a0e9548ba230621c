# The demo cohorts: synthetic slides and volumes.


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


rule demo_case:
    output:
        expand(
            "demo/volumes/{{case}}/{volume}.nii.gz",
            volume=["flair", "t1", "t1gd", "t2", "segmentation"],
        ),
    log:
        "demo/volumes/{case}.log",
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(10),
        slide_at_once=1,
    params:
        code=code("make_demo_volume"),
        volumes=subpath(output[0], parent=True),
    shell:
        "python scripts/make_demo_volume.py --case {wildcards.case} --out {params.volumes} > {log} 2>&1"
