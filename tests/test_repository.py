"""The files that hosts of repositories and their tools read: workflows, hooks and templates."""

import re
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"

pytestmark = pytest.mark.skipif(not HOOKS.exists(), reason="the files are in a checkout only")


def commands_of_workflow(path: Path) -> list[str]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = []
    for job in jobs.values():
        for step in job["steps"]:
            if "run" in step:
                commands.append(step["run"])
    return commands


def test_hooks_have_the_constrained_version_of_ruff():
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constrained = re.search(r"^ruff==\S+", constraints, flags=re.MULTILINE)
    (repository,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))["repos"]
    versions = set()
    for hook in repository["hooks"]:
        versions.update(hook.get("additional_dependencies", []))
    assert versions == {constrained[0]}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    commands = commands_of_workflow(path)
    assert commands
    for command in commands:
        program, *arguments = command.split()
        if program == "make":
            assert arguments[0] in targets, command
        else:
            assert (ROOT / program).exists(), command


def test_workflows_test_each_supported_version_of_python():
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    tested = list(jobs["tests"]["strategy"]["matrix"]["python"])
    for step in jobs["all-checks"]["steps"]:
        if "setup-python" in step.get("uses", ""):
            tested.append(step["with"]["python-version"])
    assert sorted(tested) == sorted(classifiers)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_templates_are_forms(path):
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        assert template.keys() == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= template.keys()
    for field in template["body"]:
        assert field["attributes"]["label"]
