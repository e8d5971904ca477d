"""The package of stateful operators: what it imports, and what it pickles."""

from __future__ import annotations

import ast
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark import cloudpickle

from airflow_epochs import codes, transforms
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import json_records, keyed, registry_frames, returned
from airflow_epochs.transforms.checks import Checks
from tests.unit.test_exports import HEAVY, loaded_by

FOLDER = Path(transforms.__file__).parent


def test_importing_the_operators_loads_neither_airflow_nor_anything_heavy() -> None:
    assert loaded_by("import airflow_epochs.transforms", [*HEAVY, "airflow"]) == []


def test_the_public_operators_are_these() -> None:
    operators = {name for name in transforms.__all__ if callable(getattr(transforms, name)) and name.islower()}
    parsers = {"debezium_decimal", "parse_avro", "parse_debezium", "parse_json", "parse_protobuf"}
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


@pytest.mark.proof
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


def test_the_remedy_for_an_argument_says_what_to_set_it_to_and_leaves_to_the_cause_what_is_wrong_with_it() -> None:
    error = Checks("parse_json").argument("engine", "arrow", "'spark' or 'auto'", "the schema has a map")
    wanted = "'spark' or 'auto'"
    cause = f"parse_json(engine='arrow'): engine must be {wanted}; the schema has a map. Nothing was written."
    remedy = f"Set engine of parse_json() to {wanted}. Then clear the failed task."
    assert (error.what, error.remedy) == (cause, remedy)


def test_of_schemas_and_a_registry_a_parser_takes_one_and_the_remedy_says_so() -> None:
    with pytest.raises(Refused, match="schemas must be given if registry is not, and left out if it is") as refused:
        registry_frames.written(Checks("parse_avro"), None, None, "AVRO")
    assert refused.value.remedy == "Give parse_avro() schemas or registry, and not both. Then clear the failed task."


def checks(**kinds: Any) -> returned.ColumnChecks:
    return {name: returned.check_of(kind) for name, kind in kinds.items()}


@pytest.mark.proof
def test_the_function_of_a_keyed_state_is_unpickled_where_this_package_cannot_be_imported() -> None:
    def func(
        key: tuple[str], rows: pd.DataFrame, state: pd.DataFrame, watermark: object
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        return pd.DataFrame({"order": [", ".join(map(str, rows["o"]))]}), pd.DataFrame({"n": [len(rows)]})

    pickled = cloudpickle.dumps(
        keyed._caller(func, ("k",), checks(order="string"), checks(k="string", n="long"), ("o",), 0)
    )
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
        call = keyed._caller(func, ("k",), {}, {"k": None, "n": None, "tags": None}, (), None)
        assert call(("a",), rows, state).values.tolist() == [[None, {"k": "a", "n": 5, "tags": ["x"]}, True]]


def struct(**kinds: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


KINDS = {
    "i": "integer",
    "b": "byte",
    "w": "decimal(38,18)",
    "d": "decimal(10,2)",
    "s": struct(a="string", n="integer"),
    "l": {"type": "array", "elementType": struct(n="long")},
    "m": {"type": "map", "keyType": "string", "valueType": "decimal(4,1)"},
    "x": "double",
}
FITTING: dict[str, list[Any]] = {
    "i": [3, 3.0, Decimal(3), np.int64(3), np.float32(3), True, float("nan"), None],
    "b": [-128, 127],
    "w": [
        Decimal("12345678901234567890.123456789012345678"),
        Decimal("1E+19"),
        10**19,
        Decimal("0E-40"),
        Decimal("sNaN"),
    ],
    "d": [Decimal("99999999.99"), Decimal("1.5000"), -7, Decimal("NaN"), Decimal("sNaN"), np.int64(5)],
    "s": [{"n": None, "a": "x"}, {"n": 1}, {"n": 1, "a": "x", "b": 2}, {}, ("x", 1), ["x", 1], None],
    "l": [[{"n": 1}, None], np.array([{"n": 2**62}], dtype=object), []],
    "m": [{"k": Decimal("999.9")}, {}],
    "x": [0.1, [float("nan")]],
}


def test_values_that_fit_the_columns_of_a_keyed_state_are_not_refused() -> None:
    found = [
        returned.flaw_of({name: value}, checks(**{name: KINDS[name]})) for name in KINDS for value in FITTING[name]
    ]
    assert found == [None] * sum(map(len, FITTING.values()))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("i", 3.7, "column 'i' is 3.7, which is no whole number"),
        ("i", Decimal("0.5"), "no whole number"),
        ("i", float("inf"), "no whole number"),
        ("i", 2**31, "column 'i' is 2147483648, which is too large"),
        ("b", -129, "too large for a column of 8 bits"),
        ("d", Decimal("1.23456"), r"column 'd' is Decimal\('1.23456'\), which does not fit a decimal\(10,2\)"),
        ("d", Decimal("100000000"), "does not fit"),
        ("w", Decimal("1E+20"), "does not fit"),
        ("w", Decimal("0.1234567890123456789"), "does not fit"),
        ("d", Decimal("Infinity"), "does not fit"),
        ("d", 1.5, r"column 'd' is 1.5, a float. Make a decimal.Decimal of it"),
        ("s", {"a": "x", "N": 1}, r"column 's' has the fields \['a', 'N'\]. Give it the fields \['a', 'n'\]"),
        ("s", ("x",), "has 1 fields"),
        ("s", ["x", 1.5], "column 's', field 'n' is 1.5, which is no whole number"),
        ("s", ("x", 1.5), "column 's', field 'n' is 1.5, which is no whole number"),
        ("l", [{"n": 1}, {"n": 1.5}], "column 'l', an element, field 'n' is 1.5"),
        ("m", {"k": 1.5}, "column 'm', the value of 'k' is 1.5, a float"),
    ],
)
def test_a_value_that_a_keyed_state_cannot_have_is_an_error_that_names_the_key_and_the_column(
    name: str, value: Any, said: str
) -> None:
    def func(key: Any, rows: Any, state: Any, watermark: Any) -> Any:
        frame = pd.DataFrame({name: pd.Series([value], dtype=object)})
        return answers.pop()(frame)

    only = {name: KINDS[name]}
    call = keyed._caller(func, ("k",), checks(**only), checks(k="string", **only), (), None)
    answers: list[Any] = [lambda frame: (frame, None), lambda frame: (None, frame)]
    while answers:
        with pytest.raises(ValueError, match=rf"stateful: for the key \('a',\) .*{said}"):
            call(("a",), pd.DataFrame({"k": ["a"]}), pd.DataFrame({"k": []}))


def test_rows_to_show_with_another_column_in_place_of_one_of_out_are_an_error_that_names_the_key() -> None:
    def returning(shown: pd.DataFrame | None) -> Any:
        return keyed._caller(
            lambda *_: (shown, None), ("k",), checks(k="string", n="long"), checks(k="string"), (), None
        )

    rows, state = pd.DataFrame({"k": ["a"]}), pd.DataFrame({"k": []})
    for columns in (["k", "N"], ["n", "m"], ["k", "n", "n"]):
        call = returning(pd.DataFrame([[1] * len(columns)], columns=columns))
        with pytest.raises(ValueError, match=r"the key \('a',\) .* rows to show .* columns of out: \['k', 'n'\]"):
            call(("a",), rows, state)
    for columns in (["k"], ["k", "n", "m"]):
        ((shown, *_),) = returning(pd.DataFrame([[1] * len(columns)], columns=columns))(("a",), rows, state).values
        assert shown == dict.fromkeys(columns, 1), "Spark takes the columns of out, and NULL for one that is missing"
    for nothing in (None, pd.DataFrame(), pd.DataFrame({"other": []})):
        assert returning(nothing)(("a",), rows, state).empty
