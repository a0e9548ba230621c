"""Files for people who use, cite or join the project: they are valid and agree with the project."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from clones import ROOT, project_files

GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
YAML_FILES = [str(p) for p in project_files() if p.suffix in (".yml", ".yaml", ".cff")]


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("name", YAML_FILES)
def test_yaml_file_can_be_parsed(name):
    # The base loader reads all values as text, so it accepts the Python tags of mkdocs.yml.
    assert yaml.load((ROOT / name).read_text(), Loader=yaml.BaseLoader)


def test_no_file_has_conflict_markers():
    """Of git: a merge that was committed without being resolved."""
    marker = re.compile(r"^(<{7}|>{7})( |$)", re.MULTILINE)
    texts = (p for p in project_files() if p.suffix not in (".png", ".gz", ".npy"))
    assert [str(p) for p in texts if marker.search((ROOT / p).read_text(errors="replace"))] == []


def test_modules_of_tests_have_different_names():
    """Pytest imports each as a top-level module: of two with one name, only the first is run."""
    names = Counter(p.name for p in project_files() if p.parts[0] == "tests" and p.suffix == ".py")
    assert [name for name, count in names.items() if count > 1 and name != "conftest.py"] == []


def test_licence_is_the_whole_apache_licence():
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text and text.rstrip().endswith("under the License.")
    assert len(text.splitlines()) == 202


def test_citation_follows_the_format():
    """The fields of https://github.com/citation-file-format that are used here."""
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation.keys() <= {
        *("cff-version", "message", "title", "type", "authors", "abstract", "keywords"),
        *("license", "version", "doi", "date-released", "url", "repository-code"),
    }
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software" and citation["license"] == "Apache-2.0"
    assert citation["authors"] == [{"name": "Gigatile developers"}]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]


def test_changelog_has_the_headings_of_keep_a_changelog():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## Unreleased"
    dated = re.compile(r"## \d+\.\d+\.\d+ - \d{4}-\d\d-\d\d")
    assert [line for line in versions[1:] if not dated.fullmatch(line)] == []
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_issue_form_follows_the_schema(form):
    """See "Syntax for GitHub's form schema" in GitHub's documentation."""
    content = read_yaml(form)
    assert content.keys() <= {"name", "description", "title", "labels", "assignees", "body"}
    assert content["name"] and content["description"]
    fields = [item for item in content["body"] if item["type"] != "markdown"]
    assert fields
    for item in content["body"]:
        assert item.keys() <= {"type", "id", "attributes", "validations"}
        assert item["type"] in ("markdown", "input", "textarea", "dropdown", "checkboxes")
        needed = "value" if item["type"] == "markdown" else "label"
        assert item["attributes"][needed]
        if item["type"] in ("dropdown", "checkboxes"):
            assert item["attributes"]["options"]
        assert item.get("validations", {}).keys() <= {"required"}
    for value in ("id", lambda item: item["attributes"]["label"]):
        values = [item[value] if value == "id" else value(item) for item in fields]
        assert len(set(values)) == len(values)


def test_issue_forms_exist():
    assert [form.stem for form in FORMS] == ["bug", "feature"]
    config = read_yaml(GITHUB / "ISSUE_TEMPLATE/config.yml")
    assert config.keys() <= {"blank_issues_enabled", "contact_links"}
    assert (GITHUB / "pull_request_template.md").read_text()


def test_ci_runs_the_checks_of_the_project_with_least_permissions():
    # YAML 1.1 reads the key `on` as true.
    workflow = read_yaml(GITHUB / "workflows/ci.yml")
    assert set(workflow[True]) == {"push", "pull_request"}
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["runs-on"].startswith("ubuntu-") and "permissions" not in job
    assert job["steps"][-1]["run"] == "bash .ci/run"
    actions = {step["uses"]: step["with"] for step in job["steps"] if "uses" in step}
    assert [name for name in actions if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)] == []
    (python,) = [options for name, options in actions.items() if "setup-python" in name]
    assert python["python-version"] == "3.11"


def test_pre_commit_hooks_call_locked_tools():
    configuration = ROOT / ".pre-commit-config.yaml"
    tool = Path(sys.executable).parent / "pre-commit"
    done = subprocess.run(
        [tool, "validate-config", configuration], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (repository,) = read_yaml(configuration)["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    tools = {hook["entry"].split()[0] for hook in repository["hooks"]}
    assert tools == {"ruff", "snakefmt", "mypy"}
    lock = (ROOT / "envs/requirements.lock").read_text()
    assert tools <= set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_commands_and_links_of_the_page_exist(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / link).is_file(), link
