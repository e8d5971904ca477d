"""What is public, and what importing it costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_epochs
from airflow_epochs import contracts, testing, transforms

PACKAGE = Path(airflow_epochs.__file__).parent

HEAVY = ["pyspark", "deltalake", "obstore", "kafka", "psycopg", "pyarrow", "pandas", "confluent_kafka"]


def loaded_by(statement: str, modules: list[str]) -> list[str]:
    """Which of the modules a new interpreter has after the statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps([m for m in {modules} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_the_public_names_are_these() -> None:
    assert airflow_epochs.__all__ == [
        "Ballot",
        "DeltaSink",
        "DeltaSource",
        "EpochPipeline",
        "EventTime",
        "KafkaSink",
        "KafkaSource",
        "SparkConnect",
        "SparkSubmit",
        "SqlSink",
        "StateTable",
        "expect",
        "expect_row_count",
        "records_waiting",
    ]


IN_TWO_PUBLIC_MODULES = {"Result", "Row"}
"""One of each pair is a double's, in ``testing``; the other one is in ``transforms`` or ``contracts``."""


def classes_of(path: Path) -> Iterator[tuple[str, str]]:
    """Each public class and alias that a module defines, and what it is: aliases of one type are one thing."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, f"{path}: a class"
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            is_alias = target.id[0].isupper() and not target.id.isupper()
            if is_alias and "TypeVar" not in (told := ast.unparse(node.value)):
                yield target.id, told


@pytest.mark.proof
def test_no_two_modules_name_unlike_classes_alike() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, told in (each for path in PACKAGE.rglob("*.py") for each in classes_of(path)):
        found[name].add(told)
    assert {name for name, told in found.items() if len(told) > 1} == IN_TWO_PUBLIC_MODULES
    assert IN_TWO_PUBLIC_MODULES <= set(testing.__all__) & {*contracts.__all__, *transforms.__all__}


@pytest.mark.parametrize("name", airflow_epochs.__all__)
def test_every_public_name_can_be_had_and_is_listed(name: str) -> None:
    assert getattr(airflow_epochs, name).__name__ == name
    assert name in dir(airflow_epochs)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = airflow_epochs.Nothing


def test_the_doubles_are_public_and_these() -> None:
    for name in testing.__all__:
        assert hasattr(testing, name)
    assert {"MemorySource", "MemorySink", "MemoryEnvironment", "memory_ledger"} <= set(testing.__all__)


@pytest.mark.proof
def test_importing_the_coordinator_and_its_doubles_loads_neither_airflow_nor_anything_heavy() -> None:
    statement = "import airflow_epochs.coordinator.coordinator, airflow_epochs.testing"
    assert loaded_by(statement, [*HEAVY, "airflow"]) == []


@pytest.mark.proof
def test_a_dag_file_with_sinks_loads_nothing_that_only_a_task_needs() -> None:
    statement = "from airflow_epochs import DeltaSink, SqlSink; SqlSink('a', 'db', 't', staging='/s')"
    assert loaded_by(statement, [*HEAVY, "airflow", "airflow_epochs.sinks.sql.participant"]) == []


def files_of(room: str) -> list[Path]:
    """The files of a room, which is a module or a package."""
    files = [*PACKAGE.glob(f"{room}.py"), *(PACKAGE / room).rglob("*.py")]
    assert files, room
    return files


def imports_of(room: str) -> set[str]:
    found: set[str] = set()
    for node in (node for path in files_of(room) for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module if node.module.startswith("airflow_epochs") else node.module.split(".")[0])
    return {name for name in found - {"__future__"} if not name.startswith(f"airflow_epochs.{room}.")}


PURE = {"collections", "dataclasses", "enum", "functools", "hashlib", "json", "re", "typing"}


@pytest.mark.parametrize(
    ("room", "own"),
    [("protocol", {"airflow_epochs.model"}), ("model", {"airflow_epochs.names", "airflow_epochs.schemas"})],
)
def test_the_heart_imports_nothing_that_does_io_reads_a_clock_or_draws_a_number(room: str, own: set[str]) -> None:
    assert imports_of(room) <= PURE | own


@pytest.mark.proof
def test_code_of_the_driver_never_imports_airflow_within_functions_either() -> None:
    paths = [path for folder in ("spark/driver", "transforms") for path in (PACKAGE / folder).rglob("*.py")]
    assert {path.name for path in paths} >= {"stage.py", "merge.py", "json_records.py"}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name == "airflow" or name.startswith("airflow.") for name in names), path
