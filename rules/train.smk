# Shards to a model, in segments of a few epochs: each goes on from the one before it, and is
# validated by a small job while the next one trains. The best is the model.


# All ranks under one MPI launcher, whose exit code is the job's.
#
# Checkpoints are no output: Snakemake deletes outputs before a job starts, and a killed
# training could not go on.
#
# What a segment has left stays until it is replaced. Where shards are written anew and come out as they
# were, the training goes on from its end: there is nothing to do. Of other shards, settings or code it
# passes the state over. If it fails, they are those of before, and no note vouches for them.
#
# The layout stands among the resources and not the parameters: the same training on other machines
# is the same training, and is not done again. Nor is what is done, where there are to be more epochs.
rule train:
    input:
        manifest=f"{RUN}/shards/manifest.json",
        before=segment_before("json"),
        state_before=segment_before("npz"),
    output:
        state=update(f"{RUN}/segments/{{epoch}}.npz"),
        model=update(f"{RUN}/segments/{{epoch}}.keras"),
        described=update(f"{RUN}/segments/{{epoch}}.json"),
    log:
        f"{RUN}/logs/train/{{epoch}}.log",
    benchmark:
        f"{RUN}/benchmarks/train/{{epoch}}.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: SETTINGS.train.ranks * SETTINGS.train.cores_per_rank
    resources:
        **mpi_job(SETTINGS.train),
        launcher="mpirun",
        cpus_per_task=SETTINGS.train.cores_per_rank,
        # GPUs are asked for by the node, with `gres`; the executor would take `tasks` for their number.
        tasks_per_gpu=0,
        # Of each node.
        mem_mb=grow(4000 * SETTINGS.train.ranks_per_node),
        runtime=1440,
        launch=launch_options(SETTINGS.train),
        each_rank=rank_options(SETTINGS.train),
        # SLURM asks the ranks to save this long before the time limit.
        # Not in slurm_extra, which a profile's own would replace; see repairs/slurm_submission.py.
        signal="USR2@120",
    params:
        code=code("train"),
        task=SETTINGS.task,
        task_settings=task_settings("training"),
        intact=intact("train"),
        note=note("train", "{epoch}"),
        segments=subpath(output.state, parent=True),
        checkpoints=folder("checkpoints"),
        # As checkpoints, no output: it is watched, and what a killed job wrote stays.
        events=folder("tensorboard/train"),
        settings=section("train"),
    shell:
        "rm -f {params.note:q}; python scripts/launch.py --launcher {resources.launcher:q} {resources.launch}"
        " --log {log:q} --checkpoints {params.checkpoints:q} --"
        " python scripts/train.py --task {params.task} --manifest {input.manifest:q}"
        " --settings {params.settings:q} --task-settings {params.task_settings:q} --checkpoints {params.checkpoints:q} --out {params.segments:q}"
        " --epochs {wildcards.epoch} --events {params.events:q} --code {params.code}"
        " {resources.each_rank}"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


rule validate:
    input:
        manifest=f"{RUN}/shards/manifest.json",
        model=ancient(f"{RUN}/segments/{{epoch}}.keras"),
        described=f"{RUN}/segments/{{epoch}}.json",
    output:
        validated=f"{RUN}/segments/{{epoch}}.valid.json",
    log:
        f"{RUN}/logs/validate/{{epoch}}.log",
    benchmark:
        f"{RUN}/benchmarks/validate/{{epoch}}.tsv"
    conda:
        "../envs/gpu.yaml"
    threads: 4
    resources:
        mem_mb=grow(4000),
        runtime=grow(480),
    params:
        code=code("validate"),
        task=SETTINGS.task,
        task_settings=task_settings("validation"),
        intact=intact("validate"),
        note=note("validate", "{epoch}"),
        segments=subpath(output.validated, parent=True),
        events=folder("tensorboard/valid"),
    shell:
        "python scripts/validate.py --task {params.task} --segments {params.segments:q} --epoch {wildcards.epoch}"
        " --manifest {input.manifest:q} --events {params.events:q} --task-settings {params.task_settings:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"


rule choose_model:
    input:
        models=ancient(expand(f"{RUN}/segments/{{epoch}}.keras", epoch=SEGMENTS)),
        described=expand(f"{RUN}/segments/{{epoch}}.json", epoch=SEGMENTS),
        validated=expand(f"{RUN}/segments/{{epoch}}.valid.json", epoch=SEGMENTS),
    output:
        model=f"{RUN}/model/model.keras",
        history=f"{RUN}/model/history.tsv",
        settings=f"{RUN}/model/settings.json",
        versions=f"{RUN}/model/versions.json",
    log:
        f"{RUN}/logs/choose_model.log",
    benchmark:
        f"{RUN}/benchmarks/choose_model.tsv"
    conda:
        "../envs/cpu.yaml"
    resources:
        mem_mb=grow(1000),
        runtime=grow(60),
    params:
        code=code("choose_model"),
        intact=intact("choose_model"),
        note=note("choose_model"),
        segments=folder("segments"),
        epochs=SEGMENTS,
        model=subpath(output.model, parent=True),
    shell:
        "python scripts/choose_model.py --segments {params.segments:q} --epochs {params.epochs}"
        " --out {params.model:q} > {log:q} 2>&1"
        " && python scripts/note_made.py --note {params.note:q} --outputs {output:q}"
        " >> {log:q} 2>&1"
