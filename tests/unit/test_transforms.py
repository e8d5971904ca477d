"""The package of stateful operators: what it imports, and what it pickles."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle

from airflow_epochs import codes, transforms
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import json_records, keyed
from tests.unit.test_exports import HEAVY, loaded_by

FOLDER = Path(transforms.__file__).parent


def test_importing_the_operators_loads_neither_airflow_nor_anything_heavy() -> None:
    assert loaded_by("import airflow_epochs.transforms", [*HEAVY, "airflow"]) == []


def test_the_public_operators_are_these() -> None:
    operators = {name for name in transforms.__all__ if callable(getattr(transforms, name)) and name.islower()}
    parsers = {"parse_avro", "parse_debezium", "parse_json", "parse_protobuf"}
    assert operators == {"dedupe", "interval_join", "sessionize", "stateful", "windowed"} | parsers


def test_the_operators_need_nothing_but_pyspark_its_libraries_and_this_packages_errors_and_schemas() -> None:
    nodes = [node for path in FOLDER.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    named |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    top = {name for name in named if not name.startswith("airflow_epochs")}
    assert {name.split(".")[0] for name in top} - {*sys.stdlib_module_names} == {
        "google",
        "numpy",
        "pandas",
        "pyarrow",
        "pyspark",
    }
    own = {name for name in named - top if not name.startswith("airflow_epochs.transforms")}
    assert own == {"airflow_epochs", "airflow_epochs.errors", "airflow_epochs.schemas"}


ABSENT = """
import pickle, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "airflow_epochs":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""
"""This package cannot be imported."""
UNPICKLED = """
import pandas as pd
call = pickle.loads(sys.stdin.buffer.read())
rows, state = pd.DataFrame({"k": ["a", "a"], "o": [2, 1]}), pd.DataFrame({"k": [], "n": []})
found = call(("a",), rows, state)
assert found.values.tolist() == [[{"order": "1, 2"}, None, None], [None, {"n": 2, "k": "a"}, False]], found
"""


DECODED = """
import pyarrow as pa
decode = pickle.loads(sys.stdin.buffer.read())
found = decode(pa.array([b'{"n":1}', b"{"]))
assert found.to_pylist() == [{"n": 1}, None], found
"""


def test_the_function_that_decodes_json_is_unpickled_where_this_package_cannot_be_imported() -> None:
    decode = json_records._decoder({"type": "struct", "fields": [{"name": "n", "type": "long"}]})
    pickled = cloudpickle.dumps(decode)
    subprocess.run([sys.executable, "-c", ABSENT + DECODED], input=pickled, check=True, timeout=30)


def test_where_the_transform_runs_without_pyarrow_the_error_of_its_engine_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(json_records, "_obstacle", lambda *_: None)
    batch: Any = None
    with pytest.raises(Refused) as refused:
        json_records._is_for_arrow("arrow", batch, batch)
    assert (refused.value.code, "import of pyarrow halted" in refused.value.what) == (codes.SPARK_INCOMPLETE, True)
    assert "pip install pyarrow." in refused.value.remedy


def test_the_function_of_a_keyed_state_is_unpickled_where_this_package_cannot_be_imported() -> None:
    def func(
        key: tuple[str], rows: pd.DataFrame, state: pd.DataFrame, watermark: object
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        return pd.DataFrame({"order": [", ".join(map(str, rows["o"]))]}), pd.DataFrame({"n": [len(rows)]})

    pickled = cloudpickle.dumps(keyed._caller(func, ("k",), ("k", "n"), ("o",), 0))
    subprocess.run([sys.executable, "-c", ABSENT + UNPICKLED], input=pickled, check=True, timeout=30)


def test_a_key_is_deleted_as_it_was_also_if_the_function_changes_its_state_in_place() -> None:
    def emptied(key: Any, rows: pd.DataFrame, state: pd.DataFrame, watermark: object) -> Any:
        state.drop(index=state.index, inplace=True)
        return None, state

    def without_columns(key: Any, rows: pd.DataFrame, state: pd.DataFrame, watermark: object) -> Any:
        for name in list(state.columns):
            state.pop(name)
        return None, None

    def of_another_key(key: Any, rows: pd.DataFrame, state: pd.DataFrame, watermark: object) -> Any:
        state["tags"][0].clear()
        state["k"] = "b"
        return None, None

    rows = pd.DataFrame({"k": ["a"]})
    for func in (emptied, without_columns, of_another_key):
        state = pd.DataFrame({"k": ["a"], "n": [5], "tags": [["x"]]})
        call = keyed._caller(func, ("k",), ("k", "n", "tags"), (), None)
        assert call(("a",), rows, state).values.tolist() == [[None, {"k": "a", "n": 5, "tags": ["x"]}, True]]
