"""What a rerun may compute otherwise is found in plans as Spark prints them, name by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_epochs.spark.driver import determinism

pytestmark = pytest.mark.jvm

CALLS = {
    **{name: f"{name}()" for name in (*determinism.CLOCKS, *determinism.PLACES, *determinism.USERS)},
    **{name: f"{name}()" for name in ("rand", "random", "randn", "uuid")},
    "randstr": "randstr(5)",
    "uniform": "uniform(1, 5)",
    "shuffle": "shuffle(array(k, 1))",
}
CALLS_OF_OTHER_NAMES = {"curdate()": "current_date", "unix_timestamp()": "current_timestamp"}
AGGREGATES = {name: f"{name}(v)" for name in determinism.CHOICES} | {
    "max_by": "max_by(v, k)",
    "min_by": "min_by(v, k)",
}
SORTED = (
    "sort_array(collect_list(v))",
    "sort_array(collect_set(v))",
    "listagg(v) WITHIN GROUP (ORDER BY v)",
    "string_agg(v) WITHIN GROUP (ORDER BY v)",
)
OF_WINDOWS = {
    "lag": "lag(v)",
    "lead": "lead(v)",
    "nth_value": "nth_value(v, 2)",
    "ntile": "ntile(2)",
    "row_number": "row_number()",
}
BY_PLACE = "ORDER BY k, `partition`, `offset`"


@pytest.fixture(scope="module")
def rows(session: Any) -> Iterator[Any]:
    frame = session.range(3).selectExpr("id AS k", "string(id) AS v", "int(id) AS partition", "id AS offset")
    frame.createOrReplaceTempView("varying")
    yield frame
    session.catalog.dropTempView("varying")


def named(session: Any, **queries: Any) -> dict[str, list[str]]:
    """What is warned about in each query, which is a frame or SQL's SELECT from the rows."""
    frames = {name: session.sql(query) if isinstance(query, str) else query for name, query in queries.items()}
    plans = determinism.analysed_plans(session, frames)
    return {name: [*determinism.nondeterministic(plan), *determinism.unordered(plan)] for name, plan in plans.items()}


def test_every_function_that_is_looked_for_is_named_as_spark_prints_it(session: Any, rows: Any) -> None:
    assert {*CALLS} == {*determinism.CLOCKS, *determinism.PLACES, *determinism.USERS, *determinism.RANDOM}
    assert {*AGGREGATES} == {*determinism.CHOICES}
    assert {*OF_WINDOWS} == {*determinism.RANKS}
    found = named(
        session,
        **{name: f"SELECT {call} AS x FROM varying" for name, call in CALLS.items()},
        **{name: f"SELECT {call} AS x FROM varying GROUP BY k" for name, call in AGGREGATES.items()},
        **{name: f"SELECT {call} OVER (ORDER BY k) AS x FROM varying" for name, call in OF_WINDOWS.items()},
    )
    assert found == {name: [name.lower()] for name in (*CALLS, *AGGREGATES, *OF_WINDOWS)}


def test_other_spellings_are_named_as_documented(session: Any, rows: Any) -> None:
    found = named(
        session,
        **{call: f"SELECT {call} AS x FROM varying" for call in CALLS_OF_OTHER_NAMES},
        array_agg="SELECT array_agg(v) AS x FROM varying",
        offset=rows.offset(1),
        limit=rows.limit(1),
        sample=rows.sample(fraction=0.5),
        sampleBy=rows.sampleBy("k", {1: 0.5}),
        randomSplit=rows.randomSplit([0.5, 0.5])[0],
        dropDuplicates=rows.dropDuplicates(["k"]),
    )
    assert found == {call: [name] for call, name in CALLS_OF_OTHER_NAMES.items()} | {
        "array_agg": ["collect_list"],
        "offset": ["limit"],
        "limit": ["limit"],
        "sample": ["sample"],
        "sampleBy": ["rand"],
        "randomSplit": ["sample"],
        "dropDuplicates": ["dropDuplicates"],
    }


def test_what_is_seeded_sorted_or_ordered_by_the_records_places_is_not_named(session: Any, rows: Any) -> None:
    found = named(
        session,
        seeded="SELECT rand(7) AS x, uuid(7) AS y FROM varying",
        sampled=rows.sample(fraction=0.5, seed=7),
        whole=rows.dropDuplicates(),
        by_place=rows.dropDuplicates(["k", "partition", "offset"]),
        limited=rows.orderBy("partition", "offset").limit(1),
        **{call: f"SELECT {call} AS x FROM varying" for call in SORTED},
        **{name: f"SELECT {call} OVER ({BY_PLACE}) AS x FROM varying" for name, call in OF_WINDOWS.items()},
    )
    assert not any(found.values()), found


def test_a_table_sample_is_not_noticed_as_documented(session: Any, rows: Any) -> None:
    assert named(session, sampled="SELECT * FROM varying TABLESAMPLE (50 PERCENT)") == {"sampled": []}
