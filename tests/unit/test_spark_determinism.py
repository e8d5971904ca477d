"""Which expressions of an analysed plan differ from run to run. The plans are as Spark 4.2 prints them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from airflow_epochs.spark import determinism


def plan(expression: str) -> str:
    lines = [
        "Filter false",
        f"+- Project [{expression}]",
        "   +- SubqueryAlias epoch_input",
        "      +- RelationV2[key#0, value#1, offset#4L, timestamp#5] KafkaTable",
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("timestamp#5, cast(value#1 as string) AS v#7", []),
        ("current_timestamp() AS ct#41, now() AS nw#42", ["current_timestamp", "now"]),
        ("current_date(Some(Etc/UTC)) AS current_date()#54", ["current_date"]),
        ("unix_timestamp(current_timestamp(), yyyy-MM-dd, Some(UTC), true) AS u#5L", ["current_timestamp"]),
        ("date_add(current_date(Some(UTC)), 30000000000) AS d#3", ["current_date"]),
        ("rand(7996487648725338848) AS r#39", ["rand"]),
        ("rand(-3123343181579635031) AS r#39", ["rand"]),
        ("rand(42) AS r#40, randn(2147483647) AS n#41", []),
        ("uuid(Some(2583599328171286423)) AS uuid()#50", ["uuid"]),
        ("uuid(Some(7)) AS uuid()#50", []),
        ("shuffle(array(rand(7), 2), Some(7130877391030018118)) AS s#52", ["shuffle"]),
        ("uniform(1, 5, -1834968776021418242, true, Some(UTC)) AS u#62", ["uniform"]),
        (
            "monotonically_increasing_id() AS id#51L, SPARK_PARTITION_ID() AS p#53",
            [
                "monotonically_increasing_id",
                "spark_partition_id",
            ],
        ),
        ("drawn(offset#6L)#43 AS d#55, brand(offset#6L)#44 AS b#56", ["drawn"]),
        ("concat(cast(offset#6L as string), x) AS now()#7", []),
        ("knows(value#1)#3 AS k#4", []),
    ],
)
def test_expressions_that_differ_from_run_to_run_are_named(expression: str, names: list[str]) -> None:
    assert determinism.nondeterministic(plan(expression), {"drawn"}) == names


def test_a_sample_without_a_chosen_seed_is_named() -> None:
    for seed, names in (("6736796047026691097", ["sample"]), ("77", [])):
        assert determinism.nondeterministic(f"Sample 0.0, 0.5, false, {seed}, Bernoulli\n+- Range (0, 3)") == names


def test_a_udfs_name_counts_only_if_no_deterministic_one_has_it() -> None:
    module = ModuleType("users")
    for name, deterministic in (("drawn", False), ("<lambda>", False), ("<lambda>", True), ("calm", True)):
        setattr(module, f"{name}{deterministic}", SimpleNamespace(__name__=name, deterministic=deterministic))
    assert determinism.nondeterministic_udfs(module) == {"drawn"}
