"""The project uses the words that readers know from the documentation of its tools.

This file is the list of words that it does not use. They had a meaning of their own here.
"""

import ast
import re
from pathlib import Path

import pytest
from clones import ROOT, project_files

INSTEAD = {
    r"(?<!\.)\b(told|tells?)\b": "reported, printed, recorded; says",
    r"\bstands? (for|in|beside)\b": "means; is in; is next to",
    r"\bbeside\b": "next to, with, in the same folder as",
    r": [Ww]hose\b": "of which the",
    r"\bgo(es|ne|ing)? on from\b": "resume",
    r"\b[Pp]assed over\b": "skipped",
    r"\b[Pp]ut away\b": "archived, deleted",
    r"\bof (its|their|his) own\b(?! (files|class|inputs))": "separate, its own",
    r"\b([Ww]ishes|[Gg]rant|heard)\b": "requests, handle, received",
    r"\b[Ff]ates?\b|\bwhat became of\b": "outcome, status",
    r"\bnothing came of\b": "no progress",
    r"\bvouch": "prove, record",
    r"\ball in all\b": "in total",
    r"\b[Ww]hoever\b": "the subject's name",
    r"\blearnt\b": "trained",
    r"\banew\b": "again",
    r"\bin time\b": "before the time limit",
    r"\bmend(s|ed)?\b": "fix",
    r"\b(is|are) to be done\b": "will run",
}
# Names of variables and parameters that say nothing about their value.
NAMES = {"one", "ones", "found", "told", "place", "mine", "theirs", "whose", "at", "of"}
MAX_TEST_NAME = 75
SUFFIXES = {
    ".py",
    ".smk",
    ".md",
    ".yaml",
    ".yml",
    ".cff",
    ".toml",
    ".sh",
    ".j2",
    ".css",
    ".js",
    ".in",
    "",
}
# The licence is a text of others.
TEXT = [p for p in project_files() if p.suffix in SUFFIXES and p.name != "LICENSE"]
PYTHON = [path for path in TEXT if path.suffix == ".py"]


def faults_of_text(text: str) -> list[str]:
    """Return the lines of a text that use a word of the list."""
    return [
        f"line {number}: {match[0]!r}; write: {instead}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(pattern, line)
    ]


def faults_of_names(source: str) -> list[str]:
    """Return the variables, parameters and tests of a module that have a bad name."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        if name in NAMES:
            faults.append(f"line {node.lineno}: a variable named {name!r}")
        is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if is_test and len(node.name) > MAX_TEST_NAME:
            faults.append(f"line {node.lineno}: {node.name} has {len(node.name)} characters")
    return faults


def test_words_are_those_of_the_tools_documentation():
    faults = {
        str(path): lines
        for path in TEXT
        if path != Path(__file__).relative_to(ROOT)
        and (lines := faults_of_text((ROOT / path).read_text()))
    }
    assert faults == {}


def test_names_say_what_they_hold():
    faults = {str(path): f for path in PYTHON if (f := faults_of_names((ROOT / path).read_text()))}
    assert faults == {}


@pytest.mark.parametrize(
    "text",
    [
        "Nothing is told of it.",
        "The note stands beside the model.",
        "it goes on from the last step",
        "case: whose record it is",
        "7 were passed over",
    ],
)
def test_old_words_are_found(text):
    assert faults_of_text(f"# A comment.\n# {text}\n")[0].startswith("line 2: ")


def test_old_names_are_found():
    source = "def run(of, *, at=1):\n    for one in of:\n        found = one\n"
    names = [fault.split()[-1] for fault in faults_of_names(source)]
    assert sorted(names) == ["'at'", "'found'", "'of'", "'one'"]
    assert faults_of_names(f"def test_{'x' * 80}():\n    pass\n")
