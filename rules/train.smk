# From shards to a model. Training is divided into segments of a few epochs: each continues the previous one,
# and a small job validates it while the next one trains. The best segment becomes the model.


if SETTINGS.train.patience is None:
    VALIDATED_BEFORE = []
else:
    VALIDATED_BEFORE = earlier_segments(f"{RUN}/segments", SEGMENTS, "valid.json")


# One MPI launcher starts all ranks, and its exit code is that of the job.
#
# Checkpoints are not outputs: Snakemake deletes outputs before a job starts, and a killed training could not
# resume.
#
# The outputs stay until the job replaces them. If shards are written again with the same content, training
# resumes at the end of the segment and has nothing to do. It skips a state made with other shards, settings
# or code. If training fails, the previous outputs stay, but without their record, so the next run trains
# again.
#
# The layout of the ranks is a resource, not a parameter: it does not change the model. More epochs do not
# repeat the segments that exist.
rule train:
    input:
        manifest=f"{RUN}/shards/manifest.json",
        previous=previous_segment(f"{RUN}/segments", SEGMENTS, "json"),
        previous_state=previous_segment(f"{RUN}/segments", SEGMENTS, "npz"),
        # Without train.patience, the next segment does not wait for the validation.
        validated=VALIDATED_BEFORE,
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
        **mpi_resources(SETTINGS.train),
        launcher="mpirun",
        cpus_per_task=SETTINGS.train.cores_per_rank,
        # A profile requests GPUs per node, with `gres`; otherwise the executor would request one per task.
        tasks_per_gpu=0,
        # Per node.
        mem_mb=grow(4000 * SETTINGS.train.ranks_per_node),
        runtime=1440,
        launch=launch_options(SETTINGS.train),
        rank_options=rank_options(SETTINGS.train),
        task_execution=task_settings("execution"),
        # SLURM sends this signal 120 s before the time limit, and the ranks save. Not in slurm_extra, which
        # a profile may replace; see gigatile/workflow/slurm_submission.py.
        signal="USR2@120",
    params:
        **provenance("train", "train", "{epoch}"),
        task=SETTINGS.task,
        task_settings=task_settings("training"),
        segments=subpath(output.state, parent=True),
        checkpoints=folder("checkpoints"),
        # Not an output, for the same reason as the checkpoints.
        events=folder("tensorboard/train"),
        settings=section("train"),
        weights=initial_weights(
            SETTINGS.train.weights, Path(f"{RUN}/segments/{SEGMENTS[0]}.json"), ELSEWHERE
        ),
    shell:
        recorded(
            'rm -f {params.record:q}; python "$SCRIPTS/launch.py" --launcher {resources.launcher:q} {resources.launch}'
            " --log {log:q} --checkpoints {params.checkpoints:q} --"
            ' python "$SCRIPTS/train.py" --task {params.task} --manifest {input.manifest:q}'
            " --settings {params.settings:q} --task-settings {params.task_settings:q} --checkpoints {params.checkpoints:q} --out {params.segments:q}"
            " --epochs {wildcards.epoch} --events {params.events:q} --code {params.code}"
            " --validated {input.validated:q}"
            " {resources.rank_options} --task-execution {resources.task_execution:q}"
        )


rule validate:
    input:
        manifest=f"{RUN}/shards/manifest.json",
        # Of a segment that is not trained any more, the result is that of the last one.
        earlier=VALIDATED_BEFORE,
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
        task_execution=task_settings("execution"),
    params:
        **provenance("validate", "validate", "{epoch}"),
        task=SETTINGS.task,
        task_settings=task_settings("validation"),
        segments=subpath(output.validated, parent=True),
        events=folder("tensorboard/valid"),
    shell:
        recorded(
            'python "$SCRIPTS/validate.py" --task {params.task} --segments {params.segments:q} --epoch {wildcards.epoch}'
            " --manifest {input.manifest:q} --events {params.events:q} --task-settings {params.task_settings:q}"
            " --task-execution {resources.task_execution:q}"
        )


# A task may score the samples of the validation once more with the model, as for `scores.temperature`.
SCORES_SAMPLES = bool(TASK.choice(SETTINGS))


rule choose_model:
    input:
        manifest=f"{RUN}/shards/manifest.json",
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
        "../envs/gpu.yaml" if SCORES_SAMPLES else "../envs/cpu.yaml"
    threads: 4 if SCORES_SAMPLES else 1
    resources:
        mem_mb=grow(4000 if SCORES_SAMPLES else 1000),
        runtime=grow(480 if SCORES_SAMPLES else 60),
    params:
        **provenance("choose_model", "choose_model"),
        task=SETTINGS.task,
        task_settings=task_settings("choice"),
        segments=folder("segments"),
        epochs=SEGMENTS,
        model=subpath(output.model, parent=True),
    shell:
        recorded(
            'python "$SCRIPTS/choose_model.py" --task {params.task} --manifest {input.manifest:q}'
            " --task-settings {params.task_settings:q} --segments {params.segments:q} --epochs {params.epochs}"
            " --out {params.model:q}"
        )
