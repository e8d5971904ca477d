"""A mistake in the class of a user's own sink stops an epoch before it does harm, and the error names the method."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.former_names import recorded_places
from airflow_epochs.coordinator.inspection.checking import CheckedPipeline, looks_at
from airflow_epochs.coordinator.looks import CheckResult, PlannedCheck, made
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict, Receipt, Run, StagedClaim, Vote, VoteKind
from airflow_epochs.operators.causes import cause_of
from airflow_epochs.sinks import names_its_class
from airflow_epochs.testing import MemorySink, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch

RUN, NEXT = Run("dag", "run 1"), Run("dag", "run 2")


class Own(MemorySink):
    """A sink as a user would write it: each test puts one mistake into its class."""

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": f"{__name__}:{type(self).__name__}"}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> Own:
        return cls(name=spec["name"], world=spec["world"], table=spec["table"])


class Another(Own):
    """Says that it is an ``Own``."""

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": f"{__name__}:Own"}


@pytest.fixture
def world() -> MemoryWorld:
    world = MemoryWorld()
    world.produce("orders", 0, ["a", "b"])
    return world


def coordinator(world: MemoryWorld, *sinks: MemorySink) -> Coordinator:
    """Another process: nothing is in it of those before."""
    return memory_coordinator(world, replace(memory_pipeline(world), sinks=sinks or (own(world),)))


def own(world: MemoryWorld, name: str = "archive") -> Own:
    return Own(name=name, world=world.name)


def shown(world: MemoryWorld) -> list[Any]:
    return sorted(world.table("archive").values())


def failing(error: BaseException) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


def aborts_without_a_reason(*_: Any) -> Vote:
    return Vote(vote=VoteKind.VOTE_ABORT)


def of_another_place(self: MemorySink, attempt: Any, claim: StagedClaim, env: Any) -> Vote:
    vote = MemorySink.vote(self, attempt, claim, env)
    assert vote.staged
    return replace(vote, staged=replace(vote.staged, place="elsewhere"))


ASKED = [
    ("place", lambda *_: None, "`place` of sink archive (class Own) returned None. It must return a text"),
    ("place", failing(OSError("no folder")), "`place` of sink archive (class Own) raised OSError: no folder"),
    ("plan_stage", lambda *_: None, "`plan_stage` of sink archive (class Own) returned None. It must return a dict"),
    ("plan_stage", lambda *_: {"place": "x"}, "`plan_stage` of sink archive (class Own) returned a plan whose `place`"),
    ("vote", lambda *_: None, "`vote` of sink archive (class Own) returned None. It must return a Vote"),
    ("vote", failing(OSError("disk on fire")), "`vote` of sink archive (class Own) raised OSError: disk on fire"),
    ("vote", failing(SystemExit(0)), "`vote` of sink archive (class Own) raised SystemExit: 0"),
    ("spec", failing(SystemExit(0)), "`spec` of sink archive (class Own) raised SystemExit: 0"),
    ("vote", aborts_without_a_reason, "`vote` of sink archive (class Own) raised ValueError: VOTE_ABORT without a"),
    (
        "vote",
        of_another_place,
        "`vote` of sink archive (class Own) returned a Vote whose `staged.place` is 'elsewhere'",
    ),
    (
        "last_committed",
        lambda *_: 7,
        "`last_committed` of sink archive (class Own) returned 7. It must return a Marker",
    ),
    ("last_committed", None, "`last_committed` of sink archive (class Own) raised TypeError: 'NoneType' object is not"),
    (
        "spec",
        lambda *_: None,
        "`spec` of sink archive (class Own) returned NoneType. It must return a dict with the `kind`",
    ),
    ("spec", lambda *_: {"name": "archive"}, "`spec` of sink archive (class Own) returned `kind` None. It must return"),
    (
        "from_spec",
        lambda spec: own(MemoryWorld.named(spec["world"]), "x"),
        "`from_spec` of sink archive (class Own) makes a",
    ),
    ("from_spec", lambda spec: spec["folder"], "`from_spec` of sink archive (class Own) raised KeyError: 'folder'"),
    ("from_spec", failing(SystemExit(0)), "`from_spec` of sink archive (class Own) raised SystemExit: 0"),
]


@pytest.mark.proof
@pytest.mark.parametrize(("method", "wrong", "says"), ASKED)
def test_a_wrong_answer_before_the_decision_names_sink_and_method_and_the_next_run_of_a_mended_class_shows_all_once(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, method: str, wrong: Any, says: str
) -> None:
    with monkeypatch.context() as mistake:
        mistake.setattr(Own, method, wrong)
        with pytest.raises(NotApplied) as stopped:
            run_epoch(coordinator(world), RUN)
    assert says in cause_of(stopped.value), "the record of the abort says it too"
    assert (stopped.value.code, stopped.value.sink) == (codes.SINK_FAULTY, "archive")
    assert shown(world) == []
    run_epoch(coordinator(world), NEXT)
    assert shown(world) == ["a", "b"]
    assert coordinator(world).task.ledger.newest_complete() == 1


def nothing_after_the_rows(self: MemorySink, *call: Any) -> None:
    MemorySink.commit(self, *call)


def of_another_transaction(self: MemorySink, *call: Any) -> Receipt:
    return replace(MemorySink.commit(self, *call), txn_id="nonsense")  # type: ignore[arg-type]  # as users may


def of_another_sink(self: MemorySink, *call: Any) -> Receipt:
    return replace(MemorySink.commit(self, *call), sink="x")


COMMITTED = [
    (nothing_after_the_rows, "returned None. It must return a Receipt with txn_id='orders/1/1/"),
    (of_another_transaction, "returned Receipt("),
    (of_another_sink, "returned Receipt("),
    (failing(RuntimeError("marker differs")), "raised RuntimeError: marker differs"),
    (failing(SystemExit(0)), "raised SystemExit: 0"),
]


@pytest.mark.parametrize(("wrong", "says"), COMMITTED)
def test_a_wrong_answer_of_a_commit_leaves_the_epoch_in_doubt_and_the_mended_class_shows_all_once(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, wrong: Any, says: str
) -> None:
    with monkeypatch.context() as mistake:
        mistake.setattr(Own, "commit", wrong)
        with pytest.raises(OutcomeUnknown) as stopped:
            run_epoch(coordinator(world), RUN)
    assert f"it waits for sink archive. The method `commit` of sink archive (class Own) {says}" in stopped.value.what
    assert stopped.value.code is codes.SINK_COMMIT_FAULTY
    cleared = coordinator(world)
    cleared.commit(RUN, "archive")
    assert cleared.complete(RUN).epoch == 1
    assert shown(world) == ["a", "b"]


def test_a_receipt_may_name_its_transaction_by_the_text_alone(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_text(self: MemorySink, attempt: SinkAttempt, *call: Any) -> Receipt:
        text: Any = str(attempt.txn)
        return replace(MemorySink.commit(self, attempt, *call), txn_id=text)

    monkeypatch.setattr(Own, "commit", with_text)
    run_epoch(coordinator(world), RUN)
    assert shown(world) == ["a", "b"]


def test_the_remedy_of_a_wrong_answer_after_the_decision_holds_for_an_epoch_whose_offsets_are_not_taken_again(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = coordinator(world)
    first.open(RUN)
    first.vote(RUN, first.stage(RUN).stage)
    first.commit(RUN, "archive")
    with monkeypatch.context() as mistake:
        mistake.setattr(Own, "last_committed", lambda *_: 7)
        with pytest.raises(Refused) as stopped:
            first.complete(RUN)
    assert stopped.value.code is codes.SINK_FAULTY
    assert str(stopped.value).endswith("Then type `airflow epochs retry orders --why …`, or wait for the next run.")
    run_epoch(coordinator(world), NEXT)
    ledger = coordinator(world).task.ledger
    assert (shown(world), ledger.newest_complete(), ledger.open_record(1, 2)) == (["a", "b"], 1, None)


def test_a_sink_that_fails_while_an_epoch_is_rolled_forward_does_not_keep_the_others_from_it(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = own(world, "archive"), MemorySink(name="orders", world=world.name)
    first = coordinator(world, *sinks)
    first.open(RUN)
    first.vote(RUN, first.stage(RUN).stage)
    monkeypatch.setattr(Own, "commit", failing(RuntimeError("disk on fire")))
    with pytest.raises(OutcomeUnknown, match="disk on fire"):
        coordinator(world, *sinks).open(NEXT)
    assert (world.table("orders").values(), shown(world)) == (["a", "b"], [])


@pytest.mark.parametrize("method", ["vote", "commit", "from_spec"])
def test_what_ends_the_task_goes_through_a_sink(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(Own, method, failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_epoch(coordinator(world), RUN)


@pytest.mark.proof
@pytest.mark.parametrize("method", ["discard", "maintain"])
def test_a_sink_that_exits_while_it_is_tidied_keeps_no_epoch_from_its_end(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(Own, method, failing(SystemExit(0)), raising=False)
    run_epoch(coordinator(world), RUN)
    assert shown(world) == ["a", "b"]
    assert coordinator(world).task.ledger.newest_complete() == 1


def test_a_sink_on_record_that_exits_is_one_that_cannot_be_made(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator(world).open(RUN)
    monkeypatch.setattr(Own, "from_spec", failing(SystemExit(0)))
    with pytest.raises(Corrupt, match=r"SystemExit\(0\)"):
        coordinator(world).stage(RUN)
    assert recorded_places.is_at(own(world), own(world).spec(), [own(world)]) is False


def test_a_check_whose_sink_exits_has_failed_and_the_next_one_is_made() -> None:
    asks: dict[str, Callable[[], str]] = {"a": failing(SystemExit(0)), "b": str}
    looks = [PlannedCheck(about="sink archive", check=check, where="", ask=ask) for check, ask in asks.items()]
    assert [(told.result, told.details) for told in made("orders", looks)] == [
        (CheckResult.FAILED, "SystemExit: 0"),
        (CheckResult.OK, ""),
    ]


def test_a_class_in_a_package_that_exits_is_found_by_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exiting_sinks").mkdir()
    (tmp_path / "exiting_sinks" / "__init__.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    assert names_its_class("exiting_sinks.own:Own", Own) is False


def test_what_a_sink_says_itself_of_an_error_stays_as_it_is(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Corrupt("The table is another one.", remedy="Look at it.")
    monkeypatch.setattr(Own, "vote", failing(told))
    with pytest.raises(Corrupt) as stopped:
        run_epoch(coordinator(world), RUN)
    assert stopped.value is told


def test_an_error_of_pythons_own_in_a_sink_of_this_package_stays_as_it_is(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no mistake of the reader: its traceback is what a report needs."""
    monkeypatch.setattr(MemorySink, "vote", failing(OSError("disk on fire")))
    with pytest.raises(OSError, match="disk on fire"):
        run_epoch(coordinator(world, MemorySink(name="archive", world=world.name)), RUN)


# -- what the ledger keeps of a sink ----------------------------------------------------------------------------------


def refused_at_open(world: MemoryWorld, *sinks: MemorySink) -> str:
    with pytest.raises(Refused) as stopped:
        coordinator(world, *sinks).open(RUN)
    assert (stopped.value.code, stopped.value.pipeline, stopped.value.sink) == (codes.SINK_FAULTY, "orders", "archive")
    assert not [key for key in world.store.values if key.endswith(".open.json")]
    return stopped.value.what


def test_a_value_that_the_ledger_cannot_keep_is_named_with_its_field(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Own.spec
    monkeypatch.setattr(Own, "spec", lambda self: {**spec(self), "table": Path("t"), "folders": [object()]})
    assert "values that JSON does not have: table (a PosixPath), folders (a list)" in refused_at_open(world)


def forgetful(spec: JsonDict) -> Own:
    return Own(name=spec["name"], world=spec["world"], table="other")


def test_a_sink_that_its_record_would_send_to_another_table_writes_nothing_until_the_class_is_mended(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as mistake:
        mistake.setattr(Own, "from_spec", forgetful)
        assert "`from_spec` of sink archive (class Own) makes a sink with another value of table" in refused_at_open(
            world
        )
    run_epoch(coordinator(world), RUN)
    assert (shown(world), world.table("other").values()) == (["a", "b"], [])


def test_a_value_that_the_record_spells_in_another_way_stops_a_new_sink_and_is_a_warning_for_one_that_has_shown_epochs(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec, drawn = Own.spec, count()
    with monkeypatch.context() as mistake:
        mistake.setattr(Own, "spec", lambda self: {**spec(self), "drawn": next(drawn)})
        assert "another value of drawn than the sink of the DAG" in refused_at_open(world)
    run_epoch(coordinator(world), RUN)
    assert shown(world) == ["a", "b"]
    world.produce("orders", 0, ["c"])
    monkeypatch.setattr(Own, "spec", lambda self: {**spec(self), "drawn": next(drawn)})
    run_epoch(coordinator(world), NEXT)
    assert shown(world) == ["a", "b", "c"]
    assert "another value of drawn than the sink of the DAG" in caplog.text


def test_two_classes_of_one_kind_are_not_mixed_up(world: MemoryWorld) -> None:
    sinks = own(world, "orders"), Another(name="archive", world=world.name)
    assert "makes a Own: another sink of the DAG has the same `kind`" in refused_at_open(world, *sinks)


@pytest.mark.proof
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "tests.unit.test_faulty_sink:Own",
            "tests.unit.test_faulty_sinks:Owned",
            "faulty:Own",
            "Own",
            "own",
            ":Own",
            "",
        ),
        *(
            "tests.no_unit.test_faulty_sinks:Own",
            "json:Own",
            "tests.unit.test_faulty_sinks:Another",
            "json.decoder.x:Own",
        ),
    ],
)
def test_a_kind_by_which_no_other_process_finds_the_class_is_refused_before_the_first_epoch(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec = Own.spec
    with monkeypatch.context() as typo:
        typo.setattr(Own, "spec", lambda self: {**spec(self), "kind": kind})
        assert f"returned the kind {kind!r}, and a new process does not find the class" in refused_at_open(world)
    run_epoch(coordinator(world), RUN)
    assert shown(world) == ["a", "b"]


@pytest.mark.proof
def test_a_sink_that_has_shown_epochs_goes_on_whatever_its_kind_is(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a pipeline worked before, and is not in danger as long as the DAG has the sink."""
    run_epoch(coordinator(world), RUN)
    spec = Own.spec
    monkeypatch.setattr(Own, "spec", lambda self: {**spec(self), "kind": "old_name:Own"})
    world.produce("orders", 0, ["c"])
    run_epoch(coordinator(world), NEXT)
    assert shown(world) == ["a", "b", "c"]


IN_A_DAG_FILE = """
from airflow_epochs.testing import MemorySink
class InFile(MemorySink):
    def spec(self):
        return {**super().spec(), "kind": "KIND:InFile"}
    @classmethod
    def from_spec(cls, spec):
        return cls(name=spec["name"], world=spec["world"], table=spec["table"])
"""


def in_a_dag_file(folder: Path, kind: str) -> Any:
    """The class, loaded as Airflow loads DAG files: under a name that no other process has."""
    file = folder / "orders_dag_of_sinks.py"
    file.write_text(IN_A_DAG_FILE.replace("KIND", kind))
    loaded = spec_from_file_location("unusual_prefix_1_orders", file)
    assert loaded and loaded.loader
    module = module_from_spec(loaded)
    sys.modules[module.__name__] = module
    loaded.loader.exec_module(module)
    return module.InFile


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python's path knows by another name, as where the folder of the DAG files is a symbolic link."""
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "dags").symlink_to(files)
    monkeypatch.syspath_prepend(tmp_path / "dags")
    monkeypatch.setitem(sys.modules, "unusual_prefix_1_orders", sys)  # so that it is taken away
    return files


def test_a_class_in_a_dag_file_is_found_by_the_name_of_the_file_and_the_file_is_not_run_for_that(
    world: MemoryWorld, dags: Path
) -> None:
    kind = in_a_dag_file(dags, "orders_dag_of_sinks")
    run_epoch(coordinator(world, kind(name="archive", world=world.name)), RUN)
    assert shown(world) == ["a", "b"]
    assert "orders_dag_of_sinks" not in sys.modules


def test_the_name_under_which_airflow_has_loaded_a_dag_file_is_no_kind(world: MemoryWorld, dags: Path) -> None:
    kind = in_a_dag_file(dags, "unusual_prefix_1_orders")
    assert "does not find the class" in refused_at_open(world, kind(name="archive", world=world.name))


def test_a_class_that_a_package_registers_is_found_by_the_name_of_its_entry(
    world: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "sinks_of_ours-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sinks-of-ours\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[airflow_epochs.sinks]\narchive_of_ours = {__name__}:Own\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = Own.spec
    monkeypatch.setattr(Own, "spec", lambda self: {**spec(self), "kind": "archive_of_ours"})
    run_epoch(coordinator(world), RUN)
    assert shown(world) == ["a", "b"]


def test_check_finds_what_open_refuses(world: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "from_spec", forgetful)
    task = coordinator(world).task
    subject = CheckedPipeline(
        pipeline=task.pipeline,
        env=task.env,
        ledger_conn_id="epochs",
        ledger=lambda: task.ledger,
        probe=str,
        keys=str,
        transform=lambda: task.pipeline.transform,
    )
    (told,) = (
        each for each in made("orders", looks_at(subject)) if (each.about, each.check) == ("sink archive", "marker")
    )
    assert told.result is CheckResult.FAILED and told.error
    assert "makes a sink with another value of table" in told.error.what
