"""The settings of the runs of a study, and which of them share what is prepared."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gigatile.errors import UserError, all_faults
from gigatile.settings.merging import merge
from gigatile.settings.section import canonical
from gigatile.settings.whole import Settings, load_settings
from gigatile.studies.description import Study, StudyRun
from gigatile.tasks import find_task


def settings_of(
    study: Study, runs: Sequence[StudyRun], defaults: Mapping[str, Any]
) -> dict[StudyRun, Settings]:
    """Return the settings of each run.

    Args:
        study: the study.
        runs: of the study.
        defaults: content of the project's config.yaml.

    Raises:
        UserError: lists all faults of the settings of each variant, or variants that cannot be
            compared.
    """
    settings: dict[StudyRun, Settings] = {}
    faults: dict[str, str] = {}
    for run in runs:
        config: dict[str, Any] = {}
        merge(config, defaults)
        merge(config, run.values)
        try:
            settings[run] = load_settings(config, f"variant {run.variant}")
        except UserError as error:
            faults.setdefault(run.variant, str(error))
    if faults:
        raise UserError("\n".join(faults.values()))
    _check(study, list(settings.values()))
    return settings


def _check(study: Study, settings: Sequence[Settings]) -> None:
    faults = []
    if any(each.predict.bundle for each in settings):
        faults.append("predict.bundle: a study trains its models; remove it")
    tasks = {each.task: find_task(each.task) for each in settings}
    if len(tasks) > 1 and not (
        all(task.classifies_slides for task in tasks.values())
        or all(task.predicts_outcomes for task in tasks.values())
    ):
        faults.append(f"task: {' and '.join(tasks)} cannot be compared; use variants of one task")
    if faults:
        raise all_faults(f"study {study.study}", faults)


def with_reuse(runs: Mapping[StudyRun, Settings]) -> tuple[dict[StudyRun, Settings], list[str]]:
    """Let all runs reuse what the first one with the same settings of preparation prepares.

    A run that already reuses another one is left as it is. Embeddings are prepared from tiles,
    which another run may have prepared.

    Returns:
        The runs with `reuse`, and the names of those that others reuse.
    """
    first: dict[tuple[str, ...], str] = {}
    changed = {}
    for run, settings in runs.items():
        task = find_task(settings.task)
        own: tuple[str, ...] = (task.preparation, canonical(getattr(settings, task.preparation)))
        # Parts of images are those of a split.
        own += (canonical(settings.split),) if task.parts(settings) is not None else ()
        full = own
        if task.records == "embeddings":
            full += (canonical(settings.encoder), str(settings.encoder.file))
        # The configuration may name a run that has everything.
        reuse = settings.reuse or first.get(full) or first.get(own)
        first.setdefault(full, run.name)
        first.setdefault(own, run.name)
        values = {**run.values, **({"reuse": reuse} if reuse else {})}
        changed[replace(run, values=values)] = settings.model_copy(update={"reuse": reuse})
    reused = {settings.reuse for settings in changed.values()}
    return changed, [run.name for run in runs if run.name in reused]
