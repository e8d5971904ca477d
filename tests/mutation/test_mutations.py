"""The mutation gate: every deliberate defect is noticed by the models, the random schedules or the sinks' suite."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import pytest

import airflow_epochs
from tests.mutation import fresh
from tests.mutation.mutations import (
    AVRO_SCHEMAS,
    CONNECTIONS,
    EVENT_TIME,
    LEDGER,
    MUTATIONS,
    ORDERS,
    REFERENCES,
    SCHEMAS,
    SIGNATURES,
    STATE_LOG,
    STATE_NAMES,
    STATISTICS,
    TOGETHER,
    Edit,
    Mutation,
)
from tests.support.lanes import spread

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PACKAGE = Path(airflow_epochs.__file__).parent

UNDISTURBED = "tests/mutation/undisturbed.py"
"""A run without any fault. A defect that it notices is no proof for the tests that look for it."""
APPLIED = spread(MUTATIONS, 16)
"""Those that ``make test`` applies."""
TESTS_FAILED = 1
"""pytest's exit code; 2 and more mean that a test could not even be collected or run."""


def mutated(folder: Path, edits: list[Edit]) -> Path:
    """A copy of the package with the defect, in a folder to be put first on the path."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy)  # with the compiled modules, which takes a second off each mutant's start
    for edit in edits:
        module = copy / edit[0]
        module.write_text(changed(module.read_text(), edit))
        Path(cache_from_source(str(module))).unlink(missing_ok=True)
    return folder


def changed(source: str, edit: Edit) -> str:
    """The module with the defect."""
    name, text, replacement = edit
    assert source.count(text) == 1, f"{name} has {source.count(text)} times, not once:\n{text}"
    return source.replace(text, replacement)


class Outcome(NamedTuple):
    code: int
    printed: str


@pytest.fixture(scope="module")
def pytests() -> Iterator[fresh.Pytests]:
    with fresh.pytests(ROOT) as pytests:
        yield pytests


def outcome(pytests: fresh.Pytests, folder: Path, tests: list[str]) -> Outcome:
    """pytest on the package in ``folder``, up to the first failure."""
    # With the fixtures of the unit tests, and without those of tests/conftest.py, which start servers.
    options = [
        "-x",
        "-q",
        "--confcutdir=tests/unit",
        "--tb=line",
        "--show-capture=no",
        f"--rootdir={ROOT}",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    # To load all plugins takes half of the time.
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "tests.mutation.no_luck"]
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),  # of what the tests start
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "EPOCHS_CELLS": str(folder / "cells"),
        "EPOCHS_MUTANT": str(folder),
    }
    env.pop("PYTEST_ADDOPTS", None)
    output = folder / "output.txt"
    code = pytests.run([*options, *plugins, *tests], folder=folder, env=env, output=output)
    return Outcome(code, output.read_text())


def test_the_place_of_every_defect_is_in_the_package_once() -> None:
    for mutation in MUTATIONS:
        sources: dict[str, str] = {}
        for edit in mutation.edits:
            sources[edit[0]] = changed(sources.get(edit[0]) or (PACKAGE / edit[0]).read_text(), edit)


@pytest.mark.few(len(APPLIED))
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_defect_is_noticed(mutation: Mutation, pytests: fresh.Pytests, tmp_path: Path) -> None:
    of_the_heart = any(name.startswith(("coordinator/", "ledger/", "protocol.py")) for name, _, _ in mutation.edits)
    done = outcome(
        pytests, mutated(tmp_path, mutation.edits), [*([UNDISTURBED] if of_the_heart else []), *mutation.tests]
    )
    assert Path(UNDISTURBED).stem not in done.printed, f"it breaks every run:\n{done.printed[-4000:]}"
    assert done.code == TESTS_FAILED, f"it survives {mutation.tests}:\n{done.printed[-4000:]}"
    assert re.search(r"^1 failed", done.printed, re.MULTILINE), "a test must fail, not its collection"
    assert not re.search(r"(SyntaxError|ImportError|NameError|AttributeError)", done.printed), "the mutant is broken"


@pytest.mark.parametrize("mutations", [APPLIED, pytest.param(MUTATIONS, marks=pytest.mark.long)], ids=["few", "all"])
def test_without_a_defect_the_same_tests_pass_on_a_copy_of_the_package(
    pytests: fresh.Pytests, tmp_path: Path, mutations: list[Mutation]
) -> None:
    """Else a mutant's death would prove nothing. The copy is what is tested, not the installed package."""
    witness = tmp_path / "test_witness.py"
    folder = mutated(tmp_path / "copy", [])
    witness.write_text(
        "import os, airflow_epochs\n"
        "def test_the_copy_is_imported():\n"
        "    assert airflow_epochs.__file__.startswith(os.environ['EPOCHS_MUTANT'])\n"
    )
    units = {name for mutation in mutations for name in mutation.tests if name.startswith("tests/unit/")}
    models = ["tests/protocol/test_strangers.py", "tests/protocol/test_restored_ledger.py"]
    done = outcome(pytests, folder, [str(witness), UNDISTURBED, *models, *sorted(units)])
    assert done.code == 0, done.printed


def test_every_mutation_has_a_name_of_its_own_and_tests_of_the_model() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 12
    models = ("tests/protocol", "tests/properties", "tests/conformance", EVENT_TIME)
    units = (
        REFERENCES,
        SIGNATURES,
        CONNECTIONS,
        STATE_LOG,
        STATE_NAMES,
        LEDGER,
        ORDERS,
        TOGETHER,
        SCHEMAS,
        AVRO_SCHEMAS,
        STATISTICS,
    )
    for mutation in MUTATIONS:
        assert mutation.tests[0].startswith((*models, *units))
