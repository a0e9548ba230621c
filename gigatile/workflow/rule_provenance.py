"""Provenance of the outputs of a rule: its parameters, and the end of its shell command.

A rule declares `**provenance("collect", "collect_states")` among its parameters and wraps its shell
command in `recorded(…)`. Then its jobs run again if their code, their outputs or the content of
their slide has changed, and at its end each job records its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from gigatile.errors import UserError
from gigatile.provenance.code import Plugins, code_hash
from gigatile.provenance.output_records import (
    is_recorded,
    outputs_changed,
    record_path,
    source_fingerprint,
    stall_limit_raised,
)
from gigatile.workflow.inputs import HasFiles
from gigatile.workflow.invocation import Invocation
from gigatile.workflow.snakemake_internals import declare_parameters, forget_params

# A function of the wildcards of a job, as Snakemake accepts it for a parameter.
ParamFunction = Callable[[Any], str]


class RuleProvenance:
    """Makes the parameters of rules.

    Args:
        invocation: of this process.
        run: folder of the run.
        scripts: folder of the commands.
        plugins: the task and the model of the run.
        stall_minutes: time limit for slides or cases that stall.
    """

    def __init__(
        self,
        invocation: Invocation,
        run: str,
        scripts: Path,
        plugins: Plugins,
        stall_minutes: float,
    ) -> None:
        self._invocation = invocation
        self._run = Path(run)
        self._scripts = scripts
        self._plugins = plugins
        self._stall_minutes = stall_minutes

    def params(
        self,
        rule: str,
        command: str,
        *wildcards: str,
        samples: Mapping[str, HasFiles] | None = None,
        states: str = "",
        sources: Sequence[Path] = (),
        task: str = "",
        members: Sequence[str] | None = None,
    ) -> dict[str, str | ParamFunction]:
        """Return the parameters `code`, `record`, and `outputs_changed` or `content`.

        Args:
            rule: name of the rule.
            command: name of its script, without suffix.
            wildcards: the wildcard of a rule with several jobs, for example "{slide}".
            samples: slides, cases or parts by name, for a rule that processes each of them.
            states: folder of their states, `<name>.json`.
            sources: files that a rule with a single job reads, and that no rule makes; for
                `recorded`, they are a column of a sheet.
            task: see `code`.
            members: the slides or cases of a single job that records the outputs of each. `record`
                is then the folder of their records.
        """
        record = str(record_path(self._run, rule, *wildcards))
        params: dict[str, str | ParamFunction] = {
            "code": self.code(command, task),
            "record": record,
        }
        if members is not None:
            params["record"] = record.removesuffix(".json")
            params["outputs_changed"] = self._outputs_changed(rule, members)
            return params
        if samples is None:
            params["outputs_changed"] = self._outputs_changed(rule)
            return params | ({"content": self._content_of(rule, sources)} if sources else {})
        return params | {"content": self._content(rule, samples, states)}

    def code(self, command: str, task: str = "") -> ParamFunction:
        """Return a parameter that changes with the code of a command.

        Args:
            command: name of its script, without suffix.
            task: the task that the command runs; default: that of the run.
        """
        path = self._scripts / f"{command}.py"
        plugins = Plugins(task or self._plugins.task, self._plugins.model)
        # Hash when a job is planned: most processes that Snakemake starts plan a single job.
        return declare_parameters(lambda wildcards: _code_hash(path, plugins))

    def _outputs_changed(self, rule: str, members: Sequence[str] | None = None) -> ParamFunction:
        """Return a parameter that changes if an output of a job is missing or damaged.

        Args:
            rule: of the job.
            members: see `params`.
        """
        invocation, run = self._invocation, self._run

        @declare_parameters
        def changed(wildcards: Any) -> str:
            if invocation.is_planning:
                jobs = [tuple(wildcards)] if members is None else [(name,) for name in members]
                faults = (outputs_changed(record_path(run, rule, *job)) for job in jobs)
                return next(filter(None, faults), "")
            # The job makes its outputs again. Snakemake caches the parameters of the plan and would
            # record those.
            if invocation.is_main_process:
                forget_params(invocation.workflow)
            return ""

        return changed

    def _content_of(self, rule: str, sources: Sequence[Path]) -> ParamFunction:
        """Return a parameter that changes with the content of files, not with their time."""
        invocation, record = self._invocation, record_path(self._run, rule)

        @declare_parameters
        def content(wildcards: Any) -> str:
            if invocation.is_planning:
                if not record.exists():
                    return ""  # not processed yet: no need to read them for the plan
            elif invocation.workflow.dryrun or not invocation.is_main_process:
                return ""  # nothing is recorded from a dry run, or from the process of a job
            return source_fingerprint(sources, record, invocation.executor is not None)

        return content

    def _content(self, rule: str, samples: Mapping[str, HasFiles], states: str) -> ParamFunction:
        """Return a parameter that changes with the content of a slide or case, not with its time.

        It also changes if an output is missing or damaged, and if the slide stalled and the time
        limit is higher now.
        """
        invocation, run, limit = self._invocation, self._run, self._stall_minutes
        changed = self._outputs_changed(rule)

        @declare_parameters
        def content(wildcards: Any) -> str:
            if fault := changed(wildcards):
                return fault
            (sample,) = wildcards
            record = record_path(run, rule, sample)
            if invocation.is_planning:
                if stalled := stall_limit_raised(record, limit):
                    return stalled
                if not is_recorded(record) and not Path(states, f"{sample}.json").exists():
                    return ""  # not processed yet: no need to read it for the plan
            elif invocation.workflow.dryrun or not invocation.is_main_process:
                return ""  # nothing is recorded from a dry run, or from the process of a job
            update = invocation.executor is not None
            return source_fingerprint(samples[sample].files, record, update)

        return content


@cache
def _code_hash(path: Path, plugins: Plugins) -> str:
    try:
        return code_hash(path, plugins)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def recorded(command: str, **options: str) -> str:
    """Return a shell command that logs its output and finally records the outputs of the job.

    Args:
        command: the command. If it does not mention `{log}`, its output is redirected there.
        options: further options of scripts/record_outputs.py, for example
            `state="{output.state}"`.
    """
    redirected = command if "{log" in command else f"{command} > {{log:q}} 2>&1"
    extra = "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
    return (
        f'{redirected} && python "$SCRIPTS/record_outputs.py" --record {{params.record:q}}'
        f" --outputs {{output:q}}{extra} >> {{log:q}} 2>&1"
    )


def run_recorded(command: str, arguments: str, options: str = "", **required: str) -> str:
    """Return a shell command that runs a command of a slide or case and records its outputs.

    Both are done in one process, and nothing is done if the outputs are there: see
    scripts/run_recorded.py. The outputs must be marked with `update()`, so that Snakemake does not
    delete them first.

    Args:
        command: name of the script, without suffix.
        arguments: of the script.
        options, required: of scripts/run_recorded.py, for example `state="{output.state}"`.
    """
    texts = [f"--{name.replace('_', '-')} {value}" for name, value in required.items()]
    return (
        'python "$SCRIPTS/run_recorded.py" --record {params.record:q} --outputs {output:q}'
        f" {' '.join(texts)} {options}"
        f' --command "$SCRIPTS/{command}.py" {arguments} > {{log:q}} 2>&1'
    )
