"""What Airflow shows of an error: its code, its place and its remedy, whichever step raises it."""

from __future__ import annotations

import socket
import sys
import traceback
from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_epochs import KafkaSource, SparkConnect, codes, secrecy
from airflow_epochs.commands.asking import tells_refusals
from airflow_epochs.contracts import Connection, Limits
from airflow_epochs.errors import EpochError, Fenced, NotApplied, Refused
from airflow_epochs.hooks import packages
from airflow_epochs.hooks.epochs import connection
from airflow_epochs.operators import causes
from airflow_epochs.operators.epoch import (
    AbortEpochOperator,
    CommitSinkOperator,
    EpochOperator,
    OpenEpochOperator,
    StageEpochOperator,
)
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.operators.xcom import to_xcom
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.environment import connected
from tests.support.pyproject import PROJECT
from tests.support.scenario import Scenario, run

CONTEXT = cast(Context, {"dag": SimpleNamespace(dag_id="dag"), "run_id": "run 1", "params": {}})


def operator(kind: type[EpochOperator], **arguments: Any) -> EpochOperator:
    with DAG("dag", schedule=None, max_active_runs=1):
        return kind(
            task_id="step",
            pipeline="orders",
            source=KafkaSource(topics=["t"]),
            transform="a.py:f",
            sinks=[DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
            **arguments,
        )


def raised_by(
    step: EpochOperator, error: Exception, monkeypatch: pytest.MonkeyPatch, context: Context = CONTEXT
) -> Exception:
    """What Airflow gets when the step meets the error."""

    def fail(context: Context) -> None:
        raise error

    monkeypatch.setattr(step, "_coordinator", fail)
    with pytest.raises((type(error), AirflowFailException)) as raised:
        step.execute(context)
    return raised.value


@pytest.mark.parametrize("kind", [NotApplied, Fenced])
def test_an_error_that_leaves_a_task_names_the_pipeline_and_that_of_a_commit_task_the_sink_too(
    kind: type[EpochError], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, commit = operator(OpenEpochOperator), operator(CommitSinkOperator, sink="gold")
    for step, where in ((opening, "pipeline orders"), (commit, "pipeline orders, sink gold")):
        told = str(raised_by(step, kind("It broke.", remedy="Mend it."), monkeypatch))
        assert told.splitlines() == ["It broke.", f"Where: {where}", "What to do: Mend it."]


def test_an_error_of_ours_leaves_the_task_without_its_causes_which_only_the_log_level_debug_shows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = Refused("It broke.", remedy="Mend it.")
    error.__cause__ = ValueError("the client's own text")
    with caplog.at_level("DEBUG"):
        raised = raised_by(operator(OpenEpochOperator), error, monkeypatch)
    assert isinstance(raised, AirflowFailException)
    shown = "".join(traceback.format_exception(raised))
    assert "client's own text" not in shown and "direct cause" not in shown and "It broke." in shown
    assert [record.levelname for record in caplog.records if "client's own text" in str(record.exc_text)] == ["DEBUG"]


def test_an_error_of_another_package_keeps_its_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KeyError("theirs")
    error.__cause__ = ValueError("what led to it")
    raised = raised_by(operator(OpenEpochOperator), error, monkeypatch)
    assert isinstance(raised, KeyError)
    assert "what led to it" in "".join(traceback.format_exception(raised))


def test_an_error_that_knows_its_place_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error = NotApplied("It broke.", remedy="Mend it.", pipeline="others", epoch=3, sink="silver")
    told = str(raised_by(operator(CommitSinkOperator, sink="gold"), error, monkeypatch))
    assert "Where: pipeline others, epoch 3, sink silver\n" in told


@pytest.mark.parametrize(
    "kind", [OpenEpochOperator, StageEpochOperator, CommitSinkOperator, AbortEpochOperator], ids=lambda kind: kind.step
)
def test_airflow_retries_a_step_that_gets_no_connection_since_a_backend_without_an_answer_looks_like_a_missing_one(
    kind: type[EpochOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EpochError, match=codes.CONNECTION_MISSING.name) as missing:
        connection("nowhere")
    step = operator(kind, **({"sink": "gold"} if kind is CommitSinkOperator else {}))
    told = raised_by(step, missing.value, monkeypatch)
    assert not isinstance(told, AirflowFailException)
    assert "secrets backend or API server did not answer" in str(told) and "AIRFLOW_CONN_NOWHERE" in str(told)


@pytest.mark.parametrize(
    ("number", "decided", "ends"), [(1, False, False), (3, False, False), (4, False, True), (4, True, False)]
)
def test_the_one_task_gives_up_on_a_connection_that_is_missing_after_as_many_tries_as_open_unless_an_epoch_is_decided(
    number: int, decided: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retries are those of a commit, which would go on for an hour with a misspelled name."""
    with pytest.raises(EpochError, match=codes.CONNECTION_MISSING.name) as missing:
        connection("nowhere")
    step = operator(EpochsOperator)
    assert isinstance(step, EpochsOperator) and step.retries > OpenEpochOperator.retry_defaults["retries"] == 3
    step._decided = decided
    context = cast(Context, {**CONTEXT, "ti": SimpleNamespace(try_number=number)})
    told = raised_by(step, missing.value, monkeypatch, context)
    assert isinstance(told, AirflowFailException) is ends
    assert "AIRFLOW_CONN_NOWHERE" in str(told)
    other = raised_by(step, NotApplied("The broker is down.", remedy="Wait."), monkeypatch, context)
    assert not isinstance(other, AirflowFailException)


def test_the_abort_task_fails_for_good_with_the_reason_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    step = operator(AbortEpochOperator)
    monkeypatch.setattr(step, "_coordinator", lambda context: scenario.coordinator())
    with pytest.raises(AirflowFailException) as raised:  # Airflow does not try again
        step.execute(CONTEXT)
    cause, where, remedy = str(raised.value).splitlines()
    assert cause.startswith(f"{codes.GLOBAL_ABORT.name}: ") and "run run 1 of DAG dag failed before a decision" in cause
    assert where == "Where: pipeline orders, epoch 1, attempt 1"
    assert remedy == "What to do: " + codes.GLOBAL_ABORT.remedy.replace("PIPELINE", "orders")


def test_a_step_that_does_not_find_the_opened_epoch_names_its_ledger_and_why_it_may_be_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, elsewhere = Scenario(), Scenario()
    opening = elsewhere.coordinator()
    checkpoint = opening.checkpoint(opening.open_epoch(run(1)))
    monkeypatch.setattr(here.world.store, "root", "/lake/ledger", raising=False)
    step = operator(StageEpochOperator, checkpoint=to_xcom(checkpoint))
    monkeypatch.setattr(step, "_coordinator", lambda context: here.coordinator())
    with pytest.raises(AirflowFailException) as raised:
        step.execute(CONTEXT)
    cause, _, remedy = str(raised.value).splitlines()
    assert cause.startswith(f"{codes.LEDGER_NOT_SHARED.name}: ") and checkpoint.txn_id in cause
    seen = f"The ledger at /lake/ledger (connection 'epochs_default'), seen from host {socket.gethostname()}, has no"
    assert seen in cause
    assert "`ledger_conn_id` of the DAG or `ledger_root` of the connection was changed, or this worker sees" in cause
    assert remedy.startswith("What to do: Set `ledger_conn_id`, or `ledger_root`, back if it was changed, and clear")
    assert "put the ledger into an object store, or on a disk that all workers share" in remedy


def test_a_step_of_a_run_that_opened_nothing_is_told_to_clear_the_open_task(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario()
    opening = scenario.coordinator()
    past = opening.checkpoint(opening.open_epoch(run(1)))
    assert scenario.airflow_run(run(1)) is None
    for given in (None, to_xcom(past)):
        step = operator(StageEpochOperator, checkpoint=given)
        monkeypatch.setattr(step, "_coordinator", lambda context: scenario.coordinator())
        with pytest.raises(AirflowFailException, match=codes.EPOCH_NOT_OPENED.name):
            step.execute(cast(Context, {**CONTEXT, "run_id": "another"}))


# -- packages that are missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("kafka", "kafka"),
        ("deltalake", "delta"),
        ("pyspark.sql", "spark"),
        ("airflow.providers.apache.spark.hooks", "spark"),
        ("airflow.providers.apache", "spark"),
    ],
)
@pytest.mark.parametrize("importer", ["airflow_epochs.sources", "pyspark.sql.pandas"])
def test_a_missing_package_of_an_extra_is_named_with_the_extra_and_not_tried_again(
    module: str, extra: str, importer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = missing_in(importer, module, monkeypatch)
    raised = raised_by(operator(OpenEpochOperator), missing, monkeypatch)
    assert isinstance(raised, AirflowFailException)
    assert str(raised).startswith(f"{codes.PACKAGE_MISSING.name}: The Python package {module} is not installed here.")
    assert f"`pip install 'airflow-provider-epochs[{extra}]'`" in str(raised)


@pytest.mark.parametrize(
    ("importer", "module"),
    [
        ("votes", "pandas"),
        ("votes", "airflow.providers.apache.spark"),
        ("airflow_epochs.sources", "airflow.providers.apache.kafka"),
    ],
)
def test_a_package_that_the_users_code_misses_or_that_no_extra_installs_is_named_with_no_extra(
    importer: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = missing_in(importer, module, monkeypatch)
    assert raised_by(operator(OpenEpochOperator), missing, monkeypatch) is missing


def missing_in(importer: str, module: str, monkeypatch: pytest.MonkeyPatch) -> ModuleNotFoundError:
    """What Python raises if a module of this name imports another one that is not installed."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as missing:
        exec(f"import {module}", {"__name__": importer})
    return missing.value


def test_every_extra_that_is_named_for_a_package_installs_it() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {"kafka": "kafka-python", "airflow.providers.apache.spark": "apache-airflow-providers-apache-spark"}
    for package, extra in packages._EXTRAS.items():
        wanted = named.get(package, package.replace("_", "-"))
        assert any(given.startswith(wanted) for given in extras[extra]), (package, extra)


def test_a_source_whose_client_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    env = connected(Connection(conn_id="kafka_default", conn_type="kafka", extra={"bootstrap.servers": "127.0.0.1:1"}))
    limits = Limits()

    def plan(context: Context) -> None:
        KafkaSource(topics=["t"]).plan(None, limits, env)

    step = operator(OpenEpochOperator)
    monkeypatch.setattr(step, "_coordinator", plan)
    with pytest.raises(AirflowFailException, match=r"EPOCHS-PACKAGE-MISSING(?s:.*)airflow-provider-epochs\[kafka\]"):
        step.execute(CONTEXT)


def test_a_missing_module_of_the_users_own_stays_an_error_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'kafka_of_ours'", name="kafka_of_ours")
    assert raised_by(operator(OpenEpochOperator), missing, monkeypatch) is missing


def test_a_command_that_lacks_a_package_ends_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = missing_in("airflow_epochs.delta", "deltalake", monkeypatch)

    @tells_refusals
    def command(args: Namespace) -> None:
        raise missing

    with pytest.raises(SystemExit, match=r"EPOCHS-PACKAGE-MISSING(?s:.*)airflow-provider-epochs\[delta\]"):
        command(Namespace())


# -- the cause of an abort -------------------------------------------------------------------------------------------


class TaskInstance:
    """What two tasks of a run share: XComs."""

    def __init__(self, xcoms: dict[tuple[str, str], object], task_id: str) -> None:
        self.xcoms, self.task_id = xcoms, task_id

    def xcom_push(self, *, key: str, value: object) -> None:
        self.xcoms[self.task_id, key] = value

    def xcom_pull(self, *, task_ids: str, key: str) -> object:
        return self.xcoms.get((task_ids, key))


def aborted(error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reason on record after ``stage`` has failed with the error, and ``abort`` has run."""
    scenario, xcoms = Scenario(), {}  # type: ignore[var-annotated]
    scenario.coordinator().open(run(1))
    stage, abort = operator(StageEpochOperator), operator(AbortEpochOperator)
    staging = cast(Context, {**CONTEXT, "ti": TaskInstance(xcoms, "stage")})
    raised_by(stage, error, monkeypatch, staging)
    abort.upstream_task_ids.update({"stage", "vote"})
    monkeypatch.setattr(abort, "_coordinator", lambda context: scenario.coordinator())
    with pytest.raises(AirflowFailException):
        abort.execute({**CONTEXT, "ti": TaskInstance(xcoms, "abort")})  # type: ignore[typeddict-item]
    decision = scenario.coordinator().task.ledger.view(1).decision
    assert decision
    return decision.reason


def test_the_cause_of_a_failed_stage_stands_in_the_decision_of_its_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Refused("The transform raised\nKeyError.", code=codes.TRANSFORM_RAISED)
    assert aborted(error, monkeypatch) == (
        "run run 1 of DAG dag failed before a decision. EPOCHS-TRANSFORM-RAISED: The transform raised KeyError."
    )


def test_the_cause_on_record_is_one_line_of_bounded_length_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrecy.keep_options({"kafka.a": "hunter2-secret"})
    reason = aborted(RuntimeError("with hunter2-secret\n" + "x" * 5_000), monkeypatch)
    assert reason.startswith("run run 1 of DAG dag failed before a decision. RuntimeError: with ****** xxx")
    assert len(reason) < 600


def test_the_cause_that_a_task_leaves_for_the_abort_holds_no_secret() -> None:
    secrecy.keep_options({"kafka.a": "hunter2-secret"})
    xcoms: dict[tuple[str, str], object] = {}
    task_instance = TaskInstance(xcoms, "stage")
    with pytest.raises(RuntimeError), causes.noted({"ti": task_instance}):  # type: ignore[typeddict-item]
        raise RuntimeError("with hunter2-secret")
    assert xcoms == {("stage", "epoch_failure"): "RuntimeError: with ******"}


def test_an_abort_without_a_known_cause_says_that_the_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, abort = Scenario(), operator(AbortEpochOperator)
    scenario.coordinator().open(run(1))
    abort.upstream_task_ids.update({"stage"})
    monkeypatch.setattr(abort, "_coordinator", lambda context: scenario.coordinator())
    with pytest.raises(AirflowFailException, match="failed before a decision"):
        abort.execute({**CONTEXT, "ti": TaskInstance({}, "abort")})  # type: ignore[typeddict-item]
    decision = scenario.coordinator().task.ledger.view(1).decision
    assert decision and decision.reason == "run run 1 of DAG dag failed before a decision"
