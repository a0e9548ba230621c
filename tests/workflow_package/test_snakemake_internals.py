"""The undocumented names of Snakemake that are used exist, and are all listed."""

import ast
import inspect
import re
from importlib import import_module
from importlib.metadata import version

import pytest
from clones import ROOT
from snakemake.persistence.file import FilePersistence

from gigatile.workflow.invocation import READ_ONLY_OPTIONS
from gigatile.workflow.snakemake_internals import (
    CHECKED_RELEASES,
    INCOMPLETE,
    INTERNAL_NAMES,
    METADATA,
    parse_command_line,
    record_files,
)

# Names that Snakemake and its interfaces document.
PUBLIC_NAMES = {
    "snakemake.exceptions": {"WorkflowError"},
    "snakemake.utils": {"min_version", "update_config"},
    "snakemake_interface_logger_plugins.base": {"LogHandlerBase"},
    "snakemake_interface_common.exceptions": {"WorkflowError"},
}
NAMES = [(module, name) for module, names in INTERNAL_NAMES.items() for name in names]
PACKAGE = sorted((ROOT / "gigatile/workflow").rglob("*.py"))
IMPORT = re.compile(r"^ *(?:from|import) (snakemake\w*(?:\.\w+)*)", re.MULTILINE)


@pytest.mark.parametrize("package", CHECKED_RELEASES)
def test_installed_release_was_checked(package):
    assert version(package) == CHECKED_RELEASES[package], (
        "see gigatile.workflow.snakemake_internals"
    )


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_name_exists(module, name):
    owner = import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if not hasattr(owner, last):  # a field, or an attribute of instances
        sources = [inspect.getsource(base) for base in owner.__mro__[:-1]]
        pattern = rf"^    {last}: |\bself\.{last}\b.* = "
        assert any(re.search(pattern, source, re.MULTILINE) for source in sources)


def test_all_imported_names_are_listed():
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("snakemake"):
                listed = {name.split(".")[0] for name in INTERNAL_NAMES.get(node.module, ())}
                listed |= PUBLIC_NAMES.get(node.module, set())
                assert {alias.name for alias in node.names} <= listed, path


def test_all_private_attributes_of_other_objects_are_listed():
    listed = {name.split(".")[-1] for _, name in NAMES}
    for path in PACKAGE:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        private = {node.attr for node in attributes if re.match("_[a-z]", node.attr)}
        own = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name)}
        assert private - own <= listed, path


def test_names_of_the_executor_plugin_are_listed():
    text = (ROOT / "gigatile/workflow/slurm_submission.py").read_text()
    used = set(re.findall(r"\bplugin\.(\w+)", text))
    listed = INTERNAL_NAMES["snakemake_executor_plugin_slurm"]
    assert used == {name.split(".")[0] for name in listed}


def test_only_this_package_and_the_rules_import_snakemake():
    files = [*(ROOT / "gigatile").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    importing = {path for path in files if IMPORT.search(path.read_text())}
    assert importing <= set(PACKAGE)
    rules = [ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")]
    modules = {module for path in rules for module in IMPORT.findall(path.read_text())}
    assert modules <= set(PUBLIC_NAMES)


def test_options_without_jobs_exist():
    options = parse_command_line(["--cores", "1"])
    assert [name for name in READ_ONLY_OPTIONS if not hasattr(options, name)] == []
    used = ("executor", "forceall", "targets", "persistence_backend")
    assert [name for name in used if not hasattr(options, name)] == []
    assert options is not None and options.executor is None and options.targets == set()


def test_options_of_another_program_are_none():
    assert parse_command_line(["--slides", "3"]) is None


@pytest.mark.parametrize("output", ["results/a.tsv", f"results/{'long/' * 100}ä.tsv"])
def test_paths_of_metadata_are_those_of_snakemake(tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    METADATA.mkdir(parents=True)
    persistence = object.__new__(FilePersistence)
    persistence._max_len = None
    expected = [persistence._record_path(str(folder), output) for folder in (METADATA, INCOMPLETE)]
    assert list(record_files(output)) == expected
