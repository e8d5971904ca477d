"""A DAG file that cannot be right is refused when it is parsed, with a sentence that says what to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context, TaskGroup, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, StateTable, expect
from airflow_epochs.config import Transform, require_distinct
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import BadArgument
from airflow_epochs.operators.epoch import (
    AbortEpochOperator,
    CompleteEpochOperator,
    EpochOperator,
    OpenEpochOperator,
    StageEpochOperator,
    VoteEpochOperator,
)
from airflow_epochs.operators.mapped import names_in, of_pipelines
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.testing import MemorySink


def define(
    sinks: Sequence[Sink],
    *,
    name: str = "orders",
    max_active_runs: int = 1,
    backfill: dict[str, int] | None = None,
    wait_for_others: Any = 60,
    on_code_change: Any = "warn",
    keep_epochs: Any = 1000,
    vote: Any = None,
    dead_letters: Any = None,
    expectations: Any = None,
    default_args: dict[str, Any] | None = None,
    **layout: Any,
) -> DAG:
    with DAG("bad", schedule=None, max_active_runs=max_active_runs, default_args=default_args or {}) as dag:
        EpochPipeline(
            name,
            source=KafkaSource(topics=["orders"]),
            transform="orders.py:orders",
            sinks=sinks,
            spark=SparkConnect(),
            backfill=backfill,
            wait_for_others=wait_for_others,
            on_code_change=on_code_change,
            keep_epochs=keep_epochs,
            vote=vote,
            dead_letters=dead_letters,
            expectations=expectations,
            **layout,
        )
    return dag


ONE = DeltaSink("one", "/lake/one")


@pytest.mark.parametrize(
    "other", ["/lake/one", "/lake/one/", "file:///lake/one"], ids=["same", "with a slash", "as a URL"]
)
def test_two_sinks_on_one_table_are_refused_by_their_names(other: str) -> None:
    with pytest.raises(BadArgument, match=r"The sinks 'one' and 'two' both write to /lake/one"):
        define([ONE, DeltaSink("two", other)])


@pytest.mark.parametrize("other", ["link/one", "two/../one", "two/../link/one"])
def test_two_sinks_on_one_table_are_seen_through_links_and_dots(tmp_path: Path, other: str) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(BadArgument, match=f"The sinks 'one' and 'two' both write to {tmp_path.resolve()}/one"):
        define([DeltaSink("one", f"{tmp_path}/one"), DeltaSink("two", f"{tmp_path}/{other}")])


@pytest.mark.parametrize("other", ["S3://lake/one", "s3a://lake/one/", "S3A://lake/one"])
def test_two_sinks_on_one_table_are_seen_through_the_spelling_of_the_scheme(other: str) -> None:
    with pytest.raises(BadArgument, match="The sinks 'one' and 'two' both write to s3://lake/one"):
        define([DeltaSink("one", "s3://lake/one"), DeltaSink("two", other)])


def test_two_sinks_on_one_table_of_a_catalog_are_refused() -> None:
    with pytest.raises(BadArgument, match=r"both write to main\.silver\.orders"):
        define([DeltaSink("one", "main.silver.orders"), DeltaSink("two", "main.silver.orders")])


def test_two_sinks_with_one_name_and_no_sinks_at_all_are_refused() -> None:
    with pytest.raises(BadArgument, match=r"are \['one', 'one'\]\. .*each sink needs a name of its own"):
        define([ONE, DeltaSink("one", "/lake/two")])
    with pytest.raises(BadArgument, match=r"are \[\]\. A pipeline needs at least one sink"):
        define([])


def test_tables_that_are_templates_are_compared_once_they_are_rendered() -> None:
    sinks = [DeltaSink("one", "{{ var.value.lake }}/x"), DeltaSink("two", "{{ var.value.lake }}/x")]
    define(sinks)
    for sink in sinks:
        sink.table = "/lake/x"
    with pytest.raises(BadArgument, match="both write to /lake/x"):
        require_distinct(sinks)


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "60", None, True])
def test_a_wait_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(BadArgument, match=r"`wait_for_others` is .*. It must be a number of seconds, 0 or larger"):
        define([ONE], wait_for_others=seconds)


@pytest.mark.parametrize("what", ["ask", True, None, ["stop"]])
def test_what_is_neither_warn_nor_stop_is_refused_for_changed_code(what: Any) -> None:
    with pytest.raises(BadArgument, match=r"`on_code_change` is .*. It must be 'warn' or 'stop'"):
        define([ONE], on_code_change=what)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dead_letters": "two"}, "`dead_letters` names two. The pipeline has no sink of this name"),
        ({"dead_letters": "one"}, "`dead_letters` names 'one', which is the only sink"),
        ({"expectations": {"one": [expect("n > 0", otherwise="quarantine")]}}, "the pipeline has no `dead_letters`"),
    ],
)
def test_dead_letters_without_a_sink_that_can_have_them_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(says)):
        define([ONE], **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backfill": {"two": 3}}, "which is in `backfill`"),
        ({"expectations": {"two": [expect("n > 0", otherwise="quarantine")]}}, "which this sink cannot have"),
    ],
)
def test_a_sink_of_dead_letters_is_not_backfilled_and_has_no_quarantine(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(says)):
        define([ONE, DeltaSink("two", "/lake/two")], dead_letters="two", **options)


def test_a_vote_that_is_no_function_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"`vote` is 'abort'\. It must be a function that takes a Ballot"):
        define([ONE], vote="abort")


@pytest.mark.parametrize("layout", ["both", None, True, ["single"]])
def test_a_layout_that_there_is_not_is_refused(layout: Any) -> None:
    with pytest.raises(BadArgument, match=r"`layout` is .*\. It must be 'tasks' or 'single'"):
        define([ONE], layout=layout)


@pytest.mark.parametrize("bound", [{"for_seconds": 60}, {"max_epochs": 3}])
def test_bounds_of_several_epochs_are_refused_where_a_run_has_one(bound: dict[str, Any]) -> None:
    define([ONE], layout="single", **bound)
    with pytest.raises(BadArgument, match=rf"`{next(iter(bound))}` needs layout='single'"):
        define([ONE], **bound)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "60", True])
def test_a_time_for_epochs_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(BadArgument, match=r"`for_seconds` is .*\. It must be a number of seconds, larger than 0"):
        define([ONE], layout="single", for_seconds=seconds)


@pytest.mark.parametrize("epochs", [0, -1, 2.5, "3", True])
def test_a_number_of_epochs_that_is_none_is_refused(epochs: Any) -> None:
    with pytest.raises(BadArgument, match=r"`max_epochs` is .*\. It must be a number of epochs, 1 or larger"):
        define([ONE], layout="single", max_epochs=epochs)


def test_one_task_that_waits_elsewhere_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"`deferrable` is True, and `layout` is 'single'"):
        define([ONE], layout="single", deferrable=True)


@pytest.mark.parametrize("epochs", [0, -1, 2.5, "100", None, True])
def test_fewer_kept_epochs_than_one_are_refused(epochs: Any) -> None:
    with pytest.raises(BadArgument, match=r"`keep_epochs` is .*. It must be a number of epochs, 1 or larger"):
        define([ONE], keep_epochs=epochs)


def test_a_backfill_of_a_sink_that_is_not_there_is_refused() -> None:
    define([ONE], backfill={"one": 12})
    with pytest.raises(
        BadArgument, match=r"`backfill` names two. The pipeline has no sink of this name; its sinks are one"
    ):
        define([ONE], backfill={"two": 12})


def test_a_backfill_of_a_state_is_refused_when_the_dag_is_parsed() -> None:
    state = StateTable("open", "/lake/open", schema="page string", keys=["page"])
    define([ONE], state=[state], backfill={"one": 12})
    with pytest.raises(BadArgument, match=r"`backfill` names 'open', which is a state table\. .*A state that is lost"):
        define([ONE], state=[state], backfill={"one": 12, "open": 1})


@pytest.mark.parametrize("runs", [2, 16])
def test_a_dag_whose_runs_may_overlap_is_refused(runs: int) -> None:
    with pytest.raises(BadArgument, match=rf"max_active_runs={runs}. It must have max_active_runs=1"):
        define([ONE], max_active_runs=runs)


@pytest.mark.parametrize("layout", ["tasks", "single"])
def test_a_dag_that_lets_runs_overlap_only_after_its_pipeline_was_made_is_an_import_error(
    layout: str, tmp_path: Path
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    def parsed(runs: int) -> DagBag:
        lines = (
            f"from {define.__module__} import ONE, define",
            f"dag = define([ONE], layout={layout!r})",
            f"dag.max_active_runs = {runs}",
        )
        file = tmp_path / f"runs_{runs}.py"
        file.write_text("\n".join(lines))
        return DagBag(dag_folder=str(file), safe_mode=False)

    [told] = parsed(3).import_errors.values()
    assert "EPOCHS-PIPELINE-ARGUMENT: DAG 'bad' has max_active_runs=3. It must have max_active_runs=1" in told
    assert not parsed(3).dags
    assert [*parsed(1).dags] == ["bad"] and not parsed(1).import_errors


@pytest.mark.parametrize("name", ["or ders", "ä", "", "a/b", "x" * 64])
def test_a_pipeline_name_that_cannot_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match="1 to 63 letters"):
        define([ONE], name=name)


@pytest.mark.parametrize("layout", ["tasks", "single"])
@pytest.mark.parametrize("setting", ["depends_on_past", "wait_for_downstream"])
def test_a_task_that_waits_for_the_run_before_is_refused(setting: str, layout: str) -> None:
    with pytest.raises(BadArgument, match="EPOCHS-PIPELINE-ARGUMENT: `depends_on_past` or `wait_for_downstream`"):
        define([ONE], default_args={setting: True}, layout=layout)


@pytest.mark.parametrize("setting", ["max_active_runs", "depends_on_past", "wait_for_downstream"])
def test_the_docs_list_each_setting_of_airflow_that_is_refused(setting: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    refused = text.partition("### What `EpochPipeline` refuses")[2].partition("\n### ")[0]
    assert f"`{setting}`" in refused


def test_tasks_hand_on_what_they_staged_even_if_the_dag_says_that_tasks_push_nothing() -> None:
    dag = define([ONE], default_args={"do_xcom_push": False})
    pushing = [cast(Any, dag.get_task(task_id)).do_xcom_push for task_id in dag.task_ids]
    assert pushing and all(pushing)


def test_operators_used_one_by_one_refuse_what_the_pipeline_would_have_refused_when_they_run() -> None:
    good = f"{__file__}:define"
    for sinks, runs, transform, said in (
        [[ONE], 2, good, "max_active_runs=2"],
        [[ONE, DeltaSink("two", "/lake/one")], 1, good, "both write to"],
        [[ONE], 1, "", "transform"],  # what a template may come to
    ):
        with DAG("bad", schedule=None, max_active_runs=cast(int, runs)) as dag:
            opening = OpenEpochOperator(
                task_id="open",
                pipeline="orders",
                source=KafkaSource(topics=["orders"]),
                transform=good,
                sinks=cast(Any, sinks),
                spark=SparkConnect(),
            )
        opening.transform = cast(str, transform)
        this = SimpleNamespace(dag_id="bad", fileloc=__file__, max_active_runs=dag.max_active_runs, tasks=dag.tasks)
        this.render_template_as_native_obj = False
        with pytest.raises(AirflowFailException, match=rf"(?s){said}.*What to do: Correct the DAG file") as failed:
            opening.execute(cast(Context, {"dag": this}))
        assert str(failed.value).count("EPOCHS-") == 1


def per_region(names: Sequence[str], ledgers: Sequence[str], layouts: Sequence[str]) -> DAG:
    """A DAG with a pipeline for each of two regions, in a TaskGroup of its own."""
    with DAG("regions", schedule=None, max_active_runs=1) as dag:
        for region, name, ledger, layout in zip(("eu", "us"), names, ledgers, layouts, strict=True):
            with TaskGroup(region):
                EpochPipeline(
                    name,
                    source=KafkaSource(topics=[f"orders_{region}"]),
                    transform="orders.py:orders",
                    sinks=[DeltaSink(f"orders_{region}", f"/lake/{region}")],
                    spark=SparkConnect(),
                    ledger_conn_id=ledger,
                    layout=layout,
                )
    return dag


ONE_LEDGER = ["epochs_default", "epochs_default"]
ONLY_ONE_GETS_A_NEW_NAME = (
    "Else let the one whose epochs the ledger has keep its name (`airflow epochs show orders` tells). Give only the "
    "other one a new name, and a `starting` after the rows that its tables already have."
)


@pytest.mark.parametrize("layouts", [["tasks", "tasks"], ["single", "single"], ["tasks", "single"]])
@pytest.mark.parametrize("ledgers", [ONE_LEDGER, ["{{ var.value.ledger }}"] * 2], ids=["named", "template"])
def test_two_pipelines_of_one_name_in_two_groups_of_a_dag_are_refused(layouts: list[str], ledgers: list[str]) -> None:
    with pytest.raises(BadArgument, match=r"DAG 'regions' has 2 pipelines 'orders' .*TaskGroup") as refused:
        per_region(["orders", "orders"], ledgers, layouts)
    assert ONLY_ONE_GETS_A_NEW_NAME in str(refused.value)


def test_two_pipelines_of_a_dag_pass_with_different_names_or_ledgers() -> None:
    per_region(["orders_eu", "orders_us"], ONE_LEDGER, ["tasks", "single"])
    per_region(["orders", "orders"], ["epochs_eu", "epochs_us"], ["tasks", "tasks"])


own_sink = MemorySink(name="own", world="branches")


def in_branches(**differs: list[Any]) -> DAG:
    """A DAG whose runs take one of two ways through one pipeline."""
    with DAG("branches", schedule=None, max_active_runs=1) as dag:
        for number, size in enumerate(("small", "big")):
            options: dict[str, Any] = {
                "source": KafkaSource(topics=["orders"], conn_id="{{ var.value.brokers }}"),
                "sinks": [DeltaSink("orders", "/lake/orders", properties={"a": "b"}), own_sink],
                "spark": SparkConnect(f"spark_{size}"),
                "operator_args": {"pool": size},
                **{name: values[number] for name, values in differs.items()},
            }
            with TaskGroup(size):
                EpochPipeline("orders", transform=f"{__file__}:define", **options)
    return dag


def test_one_pipeline_may_stand_in_two_branches_of_a_dag_and_run_in_each() -> None:
    dag = in_branches()
    ran = cast(OpenEpochOperator, dag.get_task("small.orders.open"))
    ran.render_template_fields(cast(Context, {"var": {"value": {"brokers": "kafka"}}}))
    ran.definition(dag, Transform.parse(ran.transform))
    in_branches(layout=["single", "tasks"])


@pytest.mark.parametrize(
    "differs",
    [
        {"source": [KafkaSource(topics=["orders"]), KafkaSource(topics=["orders"], starting="latest")]},
        {"sinks": [[DeltaSink("orders", "/a", properties={"a": value})] for value in ("b", "c")]},
        {"backfill": [{}, {"orders": 1}]},
        {"vote": [lambda ballot: None, lambda ballot: "no"]},
    ],
    ids=lambda differs: next(iter(differs)),
)
def test_two_pipelines_of_one_name_are_refused_if_they_differ_in_what_changes_rows(differs: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="If they are one pipeline, give them the same arguments"):
        in_branches(**differs)


def test_operators_used_one_by_one_refuse_to_run_beside_those_of_a_pipeline_of_the_same_name() -> None:
    with DAG("bad", schedule=None, max_active_runs=1) as dag:
        for region in ("eu", "us"):
            OpenEpochOperator(
                task_id=f"open_{region}",
                pipeline="orders",
                source=KafkaSource(topics=[f"orders_{region}"]),
                transform=f"{__file__}:define",
                sinks=[DeltaSink(region, f"/lake/{region}")],
                spark=SparkConnect(),
            )
    with pytest.raises(AirflowFailException, match=r"DAG 'bad' has 2 pipelines 'orders' with the same ledger") as no:
        cast(OpenEpochOperator, dag.get_task("open_us")).execute(cast(Context, {"dag": dag}))
    assert ONLY_ONE_GETS_A_NEW_NAME in str(no.value)


def of_wrong_type(**arguments: Any) -> None:
    with DAG("bad", schedule=None, max_active_runs=1):
        EpochPipeline(
            **{
                "name": "orders",
                "source": KafkaSource(topics=["orders"]),
                "transform": "orders.py:orders",
                "sinks": [ONE],
                "spark": SparkConnect(),
                **arguments,
            }
        )


class Unfinished(DeltaSink):
    """As a sink of the user's own that is half-written."""

    last_committed = discard = cast(Any, None)


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("name", None, "The pipeline name None is not valid."),
        ("name", ONE, "The pipeline name DeltaSink('one', '/lake/one', mode='append') is not valid."),
        ("source", "orders", "`source` is 'orders'. It must be a KafkaSource(…), a DeltaSource(…) or"),
        ("source", ["orders"], "`source` is ['orders']. It must be"),
        ("source", KafkaSource, "KafkaSource'>. It must be"),
        ("source", ONE, "`source` is DeltaSink('one', '/lake/one', mode='append'). It must be"),
        ("transform", define, "It must have the form 'path/to/file.py:function'."),
        ("transform", None, "`transform` is None. It must have the form"),
        ("sinks", ONE, "`sinks` is DeltaSink('one', '/lake/one', mode='append'). It must be a list of sinks."),
        ("sinks", {"one": ONE}, "It must be a list of sinks."),
        ("sinks", "one", "`sinks` is 'one'. It must be a list of sinks."),
        ("sinks", None, "`sinks` is None. It must be a list of sinks."),
        ("sinks", ["one"], "`sinks` has 'one'. Each one must be a DeltaSink(…), a KafkaSink(…), a SqlSink(…) or"),
        ("sinks", [DeltaSink], "DeltaSink'>. Each one must be"),
        (
            "sinks",
            [Unfinished("one", "/lake/one")],
            "`sinks` has a Unfinished, whose class lacks discard, last_committed.",
        ),
        ("sinks", [SparkConnect()], "`sinks` has SparkConnect('spark_connect_default'). Each one must be"),
        ("state", ONE, "`state` is DeltaSink('one', '/lake/one', mode='append'). It must be a list of StateTable(…)."),
        ("state", [DeltaSink("two", "/lake/two")], "`state` has DeltaSink('two', '/lake/two', mode='append'). Each"),
        ("state", None, "`state` is None. It must be a list of StateTable(…)."),
        ("spark", "spark_default", "`spark` is 'spark_default'. It must be SparkConnect(…) or SparkSubmit(…)."),
        ("spark", SparkConnect, "It must be SparkConnect(…) or SparkSubmit(…)."),
        ("spark", None, "`spark` is None. It must be SparkConnect(…) or SparkSubmit(…)."),
        ("event_time", "10 min", "`event_time` is '10 min'. It must be EventTime(…), or be left out."),
        ("backfill", ["one"], "`backfill` is ['one']. It must be a dict of sink names and epochs."),
        ("backfill", "one", "`backfill` is 'one'. It must be a dict"),
        ("expectations", [expect("n > 0")], "It must be a dict of sink names and lists."),
        ("expectations", {"one": expect("n > 0")}, "It must be a list."),
        ("expectations", {"one": "n > 0"}, "`expectations` of sink 'one' is 'n > 0'. It must be a list."),
        ("expectations", {"one": ["n > 0"]}, "`expectations` of sink 'one' has 'n > 0'. Each one must be made by"),
        ("dead_letters", ONE, "`dead_letters` is DeltaSink('one', '/lake/one', mode='append'). It must be the name"),
        ("dead_letters", ["one"], "`dead_letters` is ['one']. It must be the name of a sink, or be left out."),
        ("ledger_conn_id", None, "`ledger_conn_id` is None. It must be the id of a connection."),
        ("ledger_conn_id", 5, "`ledger_conn_id` is 5. It must be the id of a connection."),
        ("operator_args", ["pool"], "`operator_args` is ['pool']. It must be a dict of arguments of operators."),
    ],
)
def test_an_argument_of_another_type_is_refused_with_what_it_must_be(argument: str, value: Any, says: str) -> None:
    """Python's own error would name a line of the provider, and no argument."""
    with pytest.raises(BadArgument, match=re.escape(says)):
        of_wrong_type(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "value"), [("sinks", ONE), ("source", "orders"), ("spark", "x"), ("ledger_conn_id", None)]
)
def test_an_operator_refuses_an_argument_of_another_type_as_the_pipeline_does(argument: str, value: Any) -> None:
    given = {
        "source": KafkaSource(topics=["orders"]),
        "sinks": [ONE],
        "spark": SparkConnect(),
        argument: value,
    }
    with pytest.raises(BadArgument, match=f"`{argument}` is "):
        OpenEpochOperator(task_id="open", pipeline="orders", transform="orders.py:orders", **given)


def test_a_pipeline_in_a_mapped_task_group_is_refused() -> None:
    """All instances of its tasks would have one run, and so one epoch: they would do each other's work."""

    @task_group
    def each(number: int) -> None:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["orders"]),
            transform="orders.py:orders",
            sinks=[ONE],
            spark=SparkConnect(),
        )

    with DAG("bad", schedule=None, max_active_runs=1), pytest.raises(BadArgument, match="mapped task group 'each'"):
        each.expand(number=[1, 2])
    with DAG("good", schedule=None, max_active_runs=1) as dag:
        each(number=1)
    assert "each.orders.open" in dag.task_ids


TWO: list[Any] = [KafkaSource(topics=[topic]) for topic in ("a", "b")]


@task
def told() -> list[Any]:
    """What another task returns is not known when the file is read."""
    return []


def mapped(kind: type[EpochOperator], how: Callable[[Any], object], **arguments: Any) -> DAG:
    """A DAG with a mapped operator, whose ``partial`` is handed to ``how``."""
    with DAG("mapped", schedule=None, max_active_runs=1) as dag:
        shared = {"transform": "orders.py:orders", "sinks": [ONE], "spark": SparkConnect(), **arguments}
        how(kind.partial(task_id="step", **shared))
    return dag


@pytest.mark.parametrize(
    "kind",
    [OpenEpochOperator, StageEpochOperator, VoteEpochOperator, CompleteEpochOperator, AbortEpochOperator,
     EpochsOperator],
)  # fmt: skip
def test_a_mapped_operator_whose_instances_share_the_epochs_of_a_pipeline_is_refused(kind: Any) -> None:
    """The rows of the second source would not be read while the first has data, and runs would be green."""
    with pytest.raises(BadArgument, match="'step' would share the epochs") as refused:
        mapped(kind, lambda partial: partial.expand(source=TWO), pipeline="m")
    assert f"{kind.__name__}.partial(…).expand_kwargs" in str(refused.value)


ROWS = [{"pipeline": name, "source": source} for name, source in zip("ab", TWO, strict=True)]


@pytest.mark.parametrize(
    "how, fixed",
    [
        (lambda partial: partial.expand_kwargs([{"source": source} for source in TWO]), {"pipeline": "m"}),
        (lambda partial: partial.expand(pipeline=["m", "n"], source=TWO), {}),
        (lambda partial: partial.expand(pipeline=["m", "m"]), {"source": TWO[0]}),
        (lambda partial: partial.expand_kwargs([*ROWS, ROWS[0]]), {}),
        (lambda partial: partial.expand(source=told()), {"pipeline": "m"}),
        (lambda partial: partial.expand_kwargs(told()), {"pipeline": "m"}),
    ],
    ids=["rows of one name", "all combinations", "a name twice", "a row twice", "told by a task", "rows of a task"],
)
def test_instances_that_may_have_one_name_and_ledger_are_refused_however_they_are_mapped(
    how: Callable[[Any], object], fixed: dict[str, Any]
) -> None:
    with pytest.raises(BadArgument, match="would share the epochs"):
        mapped(EpochsOperator, how, **fixed)


@pytest.mark.parametrize(
    "how, fixed, names",
    [
        (lambda partial: partial.expand_kwargs(ROWS), {}, ["a", "b"]),
        (lambda partial: partial.expand(pipeline=["a", "b"]), {"source": TWO[0]}, ["a", "b"]),
        (lambda partial: partial.expand(ledger_conn_id=["x", "y"]), {"source": TWO[0], "pipeline": "m"}, ["m", "m"]),
        (lambda partial: partial.expand(source=TWO[:1]), {"pipeline": "m"}, ["m"]),
        (lambda partial: partial.expand(pipeline=told()), {"source": TWO[0]}, []),
        (lambda partial: partial.expand_kwargs(told()), {}, []),
    ],
    ids=["rows", "names", "ledgers", "only one", "names that a task tells", "rows that a task tells"],
)
def test_instances_with_pipelines_of_their_own_are_allowed_and_found(
    how: Callable[[Any], object], fixed: dict[str, Any], names: list[str]
) -> None:
    dag = mapped(EpochsOperator, how, **fixed)
    assert [operator.pipeline for operator in of_pipelines(dag)] == names
    assert names_in(dag) == ({*names} or None)


def test_a_mapped_operator_and_another_pipeline_of_its_name_are_refused() -> None:
    dag = mapped(EpochsOperator, lambda partial: partial.expand_kwargs(ROWS))
    with dag, pytest.raises(BadArgument, match="2 pipelines 'b' with the same ledger"):
        EpochPipeline("b", source=TWO[0], transform="orders.py:orders", sinks=[ONE], spark=SparkConnect())


def test_what_is_wrong_with_an_instance_is_said_when_the_file_is_read() -> None:
    with pytest.raises(BadArgument, match="not a pipeline"):
        mapped(EpochsOperator, lambda partial: partial.expand(source=["not a pipeline's source"]), pipeline="m")
