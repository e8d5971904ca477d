"""Which expressions of an analysed plan differ from run to run. The plans are as Spark 4.2 prints them."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from airflow_epochs.spark.driver import determinism


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
        ("random(-83692897979573199) AS r#507, random(7) AS s#508", ["random"]),
        ("current_user() AS u#742, user() AS v#743, session_user() AS w#744", ["current_user", "session_user", "user"]),
        ("input_file_name() AS f#753, user#3 AS g#4", ["input_file_name"]),
    ],
)
def test_expressions_that_differ_from_run_to_run_are_named(expression: str, names: list[str]) -> None:
    assert determinism.nondeterministic(plan(expression), {"drawn"}) == names


def test_a_sample_without_a_chosen_seed_is_named() -> None:
    for seed, names in (("6736796047026691097", ["sample"]), ("77", [])):
        assert determinism.nondeterministic(f"Sample 0.0, 0.5, false, {seed}, Bernoulli\n+- Range (0, 3)") == names


def tree(*lines: str) -> str:
    return "\n".join(["Filter false", *(f"{'   ' * depth}+- {line}" for depth, line in enumerate(lines))])


RAND = "Project [rand(77) AS r#9]"
MOVED = {
    "groupBy": "Aggregate [key#0], [key#0]",
    "join": "Join Inner, (key#0 = key#7)",
    "window": "Window [row_number() windowspecdefinition(key#0 ASC NULLS FIRST) AS n#8], [key#0 ASC NULLS FIRST]",
    "repartition": "Repartition 3, true",
    "repartition by a column": "RepartitionByExpression [key#0], 3",
    "orderBy": "Sort [key#0 ASC NULLS FIRST], true",
    "distinct": "Deduplicate [key#0]",
    "limit": "GlobalLimit 3",
    "exceptAll": "Except All true",
    "a function of groups": "FlatMapGroupsInPandas [key#0], f(key#0)#5, [key#6]",
    "IN": "Filter key#0 IN (list#7 [])",
}


@pytest.mark.parametrize("operator", MOVED.values(), ids=MOVED)
def test_chance_with_a_chosen_seed_is_named_behind_an_operator_that_moves_rows(operator: str) -> None:
    below = ("Generate explode(value#1), false, [v#3]", operator, "SubqueryAlias epoch_input", KAFKA)
    calls = "rand(7) AS a#1, randn(7) AS b#2, shuffle(v#3, Some(7)) AS c#4, uniform(1, 5, 7, false, Some(UTC)) AS u#5"
    names = ["rand", "randn", "shuffle", "uniform"]
    assert determinism.moved_chance(tree("Filter true", f"Project [{calls}]", *below)) == names
    assert determinism.moved_chance(tree("Sample 0.0, 0.5, false, 7, Bernoulli", *below)) == ["sample"]
    warning = determinism.warnings("orders", tree(RAND, *below), (), {})[0]
    assert "sink 'orders'" in warning and 'F.xxhash64("id", F.lit(epoch.seed))' in warning


@pytest.mark.parametrize(
    "lines",
    [
        (RAND,),
        (RAND, "Generate explode(value#1), false, [v#3]", "Filter isnotnull(key#0)"),
        ("Sample 0.0, 0.5, false, 7, Bernoulli", "Sort [key#0 ASC NULLS FIRST], false"),
        ("Aggregate [key#0], [sum(r#9) AS s#10L]", RAND),
        ("Project [xxhash64(key#0, 77, 42) AS rand(77)#9L]", MOVED["groupBy"]),
    ],
    ids=str,
)
def test_chance_with_a_chosen_seed_is_not_named_for_rows_where_the_batch_has_them(lines: tuple[str, ...]) -> None:
    assert determinism.moved_chance(tree(*lines, "SubqueryAlias epoch_input", KAFKA)) == []


def test_chance_without_a_seed_is_warned_about_once() -> None:
    drawn = tree("Project [rand(7996487648725338848) AS r#9]", MOVED["groupBy"])
    assert len(determinism.warnings("orders", drawn, (), {})) == 1


def test_rows_that_another_branch_of_a_plan_moves_are_not_those_that_chance_is_drawn_for() -> None:
    union = ["Union false, false", f":- {RAND}", ":  +- SubqueryAlias epoch_input", f"+- {MOVED['groupBy']}"]
    assert determinism.moved_chance("\n".join([*union, f"   +- {KAFKA}"])) == []


def test_a_udfs_name_counts_only_if_no_deterministic_one_has_it() -> None:
    module = ModuleType("users")
    for name, deterministic in (("drawn", False), ("<lambda>", False), ("<lambda>", True), ("calm", True)):
        setattr(module, f"{name}{deterministic}", SimpleNamespace(__name__=name, deterministic=deterministic))
    assert determinism.nondeterministic_udfs(module) == {"drawn"}


KAFKA = "RelationV2[key#0, value#1, topic#2, partition#3, offset#4L, timestamp#5, timestampType#6] KafkaTable"


def window(function: str, order: str) -> str:
    spec = f"windowspecdefinition(key#0, {order}, specifiedwindowframe(RowFrame, unboundedpreceding$(), currentrow$()))"
    return f"+- Window [{function} {spec} AS rn#9], [key#0], [{order}]"


BY_TIME, BY_PLACE = "timestamp#5 DESC NULLS LAST", "partition#3 ASC NULLS FIRST, offset#4L DESC NULLS LAST"


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["Deduplicate [key#0]"], ["dropDuplicates"]),
        (["Deduplicate [key#0, partition#3, offset#4L]"], []),
        (["Deduplicate [key#0, v#8]", "Project [key#0, cast(value#1 as string) AS v#8]"], []),
        (
            ["Deduplicate [key#0]", "Filter isnotnull(key#0)", "Project [key#0, if(true, a, b) AS v#8]"],
            ["dropDuplicates"],
        ),
        (["Deduplicate [key#0, value#1, topic#2, partition#3, offset#4L, timestamp#5, timestampType#6]"], []),
        (["GlobalLimit 3", "LocalLimit 3"], ["limit"]),
        (["Offset 2"], ["limit"]),
        (["GlobalLimit 3", "LocalLimit 3", f"Sort [{BY_TIME}], true"], ["limit"]),
        (["GlobalLimit 3", "LocalLimit 3", f"Sort [{BY_TIME}, {BY_PLACE}], true"], []),
        ([window("row_number()", BY_TIME)[3:]], ["row_number"]),
        ([window("row_number()", f"{BY_TIME}, {BY_PLACE}")[3:]], []),
        ([window("lag(value#1, -1, null)", BY_TIME)[3:]], ["lag"]),
        ([window("first(value#1, false)", BY_TIME)[3:]], ["first"]),
        ([window("first(value#1, false)", BY_PLACE)[3:]], []),
        ([window("rank(timestamp#5)", BY_TIME)[3:]], []),
        (["Aggregate [key#0], [key#0, first(value#1, false) AS first(value)#9]"], ["first"]),
        (
            ["Aggregate [key#0], [any_value(value#1, false) AS a#9, max_by(value#1, timestamp#5) AS b#9]"],
            ["any_value", "max_by"],
        ),
        (["Aggregate [key#0], [collect_list(value#1, 0, 0, true) AS c#9]"], ["collect_list"]),
        (["Aggregate [key#0], [sort_array(collect_list(value#1, 0, 0, true), true) AS c#9]"], []),
        (["Aggregate [key#0], [listagg(key#0, ,, 0, 0) AS c#9]"], ["listagg"]),
        (["Aggregate [key#0], [listagg(key#0, ,, key#0 ASC NULLS FIRST, 0, 0) AS c#9]"], []),
        (["Project [key#0 AS first(x)#1100, value#1 AS limit#1101, count(value#1) AS mode(x)#7]"], []),
        (["Aggregate [key#0], [sum(offset#4L) AS s#9, max(value#1) AS m#9]"], []),
    ],
    ids=str,
)
def test_what_depends_on_the_order_of_rows_is_named_unless_it_names_the_records_places(
    lines: list[str], names: list[str]
) -> None:
    text = "\n".join(
        f"{'   ' * depth}+- {line}" for depth, line in enumerate([*lines, "SubqueryAlias epoch_input", KAFKA])
    )
    assert determinism.unordered(f"Filter false\n{text}") == names


FUNCTIONS = (
    *(*determinism.CLOCKS, *determinism.RANDOM, *determinism.PLACES, *determinism.USERS),
    *(*determinism.CHOICES, *determinism.RANKS),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_looked_for_is_found_in_a_plan(name: str) -> None:
    call = plan(f"{name}(value#1, 7996487648725338848) AS x#9")
    assert [*determinism.nondeterministic(call), *determinism.unordered(call)] == [name.lower()]


def test_the_documentation_lists_all_that_is_looked_for_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    _, _, rest = page.partition("It looks for nothing else:\n")
    listed, _, _ = rest.partition("\nSome go by another of these names")
    operators = {"sample", "dropDuplicates", "limit", "sum"}
    explained = {"asNondeterministic", "partition", "offset", "float", "double"}
    assert {*re.findall("`([^`]+)`", listed)} - explained == {*map(str.lower, FUNCTIONS)} | operators


def test_each_kind_of_warning_says_its_own_remedy() -> None:
    drawn, chosen = determinism.warnings("orders", plan("first(rand(7996487648725338848)) AS r#1"), (), {})
    assert "(rand)" in drawn and "epoch.seed" in drawn
    assert "(first)" in chosen and "partition and offset" in chosen
