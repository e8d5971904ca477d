"""What stands beside the code (metadata, Makefile, workflow, hooks) says the same as the code, and as one another."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from airflow_epochs import __version__
from tests.support.pyproject import PROJECT, PYPROJECT, ROOT, pythons

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
JOB: dict[str, Any] = WORKFLOW["jobs"]["make"]
HOOKS: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
README = " ".join((ROOT / "README.md").read_text().split())


# -- versions of Python ------------------------------------------------------------------------------------------------


def test_the_classifiers_name_every_python_that_is_admitted_and_no_other() -> None:
    admitted = SpecifierSet(PROJECT["requires-python"])
    assert pythons() == [f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in admitted]


def test_make_takes_every_python_that_is_admitted_and_no_other() -> None:
    bounds = re.findall(r"not \(3, (\d+)\) <= sys.version_info\[:2\] <= \(3, (\d+)\)", MAKEFILE)
    assert [tuple(f"3.{minor}" for minor in pair) for pair in bounds] == [(pythons()[0], pythons()[-1])]


def test_the_workflow_runs_on_every_python_that_is_admitted() -> None:
    assert JOB["strategy"]["matrix"]["python"] == pythons()


def test_code_is_checked_for_the_oldest_python() -> None:
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{pythons()[0].replace('.', '')}"


@pytest.mark.parametrize("where", ["Makefile", "README.md"])
def test_people_are_told_the_oldest_and_the_newest_python(where: str) -> None:
    said = re.findall(r"Python (3\.\d+) to (3\.\d+)", (ROOT / where).read_text())
    assert said and set(said) == {(pythons()[0], pythons()[-1])}


def test_make_looks_for_the_tests_that_need_java_where_they_are() -> None:
    named = re.search(r"^JVM := \$\(addprefix tests/,(.*)\)$", MAKEFILE, re.MULTILINE)
    assert named
    tests = ROOT / "tests"
    files = [path for path in tests.rglob("test_*.py") if re.search(r"pytest\.mark\.jvm", path.read_text())]
    having = {path.relative_to(tests).parts[0] for path in files}
    assert having == {*named[1].split(), "chaos"}


def test_make_clean_removes_a_virtual_environment_that_is_half_made(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    python = tmp_path / ".venv" / "bin" / "python"
    for folder in (python.parent, tmp_path / ".stack"):
        folder.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_make_clean_leaves_a_stack_that_it_cannot_end(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".stack").mkdir()
    (state := tmp_path / ".stack" / "state.json").touch()
    done = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and state.exists()
    assert "What to do: type `make venv`, then `make clean`." in done.stderr


def test_the_readme_names_the_versions_that_pip_admits() -> None:
    told = set(re.findall(r"`([a-z][\w-]+(?:\[\w+\])?[<>=~!]+[\d.]+(?:,[<>=]+[\d.]+)*)`", README))
    wanted = {
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    }
    assert len(told) >= 4 and told <= wanted


# -- the workflow ------------------------------------------------------------------------------------------------------


def test_the_workflow_runs_the_two_commands_of_the_readme_and_the_long_tests() -> None:
    shown = re.search(r"## Try it.*?```sh(.*?)```", README)
    assert shown
    assert JOB["strategy"]["matrix"]["command"] == [*re.findall(r"make (\w+)", shown[1]), "test-long"]
    assert JOB["steps"][-1]["run"].startswith("make ${{ matrix.command }}")


def test_the_workflow_has_the_java_that_is_tested_and_an_end() -> None:
    [java] = [step["with"]["java-version"] for step in JOB["steps"] if "setup-java" in step.get("uses", "")]
    assert f"Java {java}" in README
    assert JOB["timeout-minutes"]


def test_the_workflow_runs_when_somebody_pushes_or_asks_and_may_write_nothing() -> None:
    assert WORKFLOW[True].keys() == {"push", "pull_request", "workflow_dispatch"}, "YAML reads the key 'on' as True"
    assert WORKFLOW["permissions"] == {"contents": "read"}


# -- hooks and metadata ------------------------------------------------------------------------------------------------


def test_the_hooks_are_the_commands_of_make_lint() -> None:
    recipe = re.search(r"^lint: venv\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    [repo] = HOOKS["repos"]
    assert [hook["entry"] for hook in repo["hooks"]] == commands


def test_what_the_metadata_names_is_there() -> None:
    assert PROJECT["version"] == __version__
    for name in (PROJECT["readme"], *PROJECT["license-files"]):
        assert (ROOT / name).is_file()
    assert [path.name for path in Path(ROOT / "provider").rglob("py.typed")] == ["py.typed"]


def test_no_extra_is_for_work_on_the_project_itself() -> None:
    """All of them are published: the group ``dev`` is not."""
    extras = {"kafka", "kafka-sink", "schema-registry", "protobuf", "delta", "postgres", "spark", "openlineage", "all"}
    assert PROJECT["optional-dependencies"].keys() == extras
    assert not any(text.startswith("pytest") for text in PROJECT["dependencies"])
