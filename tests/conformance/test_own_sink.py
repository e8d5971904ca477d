"""The worked example of docs/write-your-own-sink.md does what the page says; the suite finds defects put into it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import SparkJob
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.rebuilding import planning, recording
from airflow_epochs.coordinator.rebuilding.evidence import Told
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.testing import (
    DictStore,
    MemoryEnvironment,
    MemorySink,
    MemorySpark,
    MemoryWorld,
    memory_coordinator,
    memory_pipeline,
)
from airflow_epochs.testing import run_epoch as run_all
from airflow_epochs.testing.conformance import SinkConformance
from tests.support.delta_world import stage_with_deltalake

PAGE = Path(__file__).parents[2] / "docs" / "write-your-own-sink.md"
SINK, TESTS = "folder_sink", "test_folder_sink"
BY = Account(who="ann", why="the disk is gone")


class Defect(NamedTuple):
    """Text of the example, what stands there instead, and the tests that must fail."""

    text: str
    instead: str
    found_by: str


_IN_TWO_STEPS = """env.reached("folder.written")
            if self._shown(attempt.txn.pipeline) != attempt.previous:
                return
            marker, *rows = temporary.read_text().splitlines(keepends=True)
            temporary.write_text(marker)
            {first}
            env.reached("folder.between")
            {second}
            return  #"""
_MARK, _SHOW = "os.link(temporary, path)", "path.with_name(f'{uuid.uuid4().hex}.jsonl').write_text(''.join(rows))"
"""The rows come into a file of their own, and nobody else commits meanwhile: only a process that dies shows it."""


DEFECTS = [
    Defect(
        'env.reached("folder.written")',
        _IN_TWO_STEPS.format(first=_SHOW, second=_MARK),
        "test_a_commit_that_dies_at_any_moment",
    ),
    Defect(
        'env.reached("folder.written")',
        _IN_TWO_STEPS.format(first=_MARK, second=_SHOW),
        "test_a_commit_that_dies_at_any_moment",
    ),
    Defect(
        "_, staged = self._area().checked(attempt, claim)",  # it marks the rows, and trusts no mark of another try
        "mark = Path(self.folder, f'.{claim.place[-32:]}'); mark.touch(exist_ok=False); env.reached('mark'); "
        "_, staged = self._area().checked(attempt, claim); mark.unlink()",
        "test_a_vote_that_dies_at_any_moment",
    ),
    Defect(
        "self._area().discard(attempt, place)",
        "mark = Path(self.folder, f'.{place[-32:]}'); gone = mark.exists(); mark.touch(); env.reached('mark'); "
        "gone or self._area().discard(attempt, place); mark.unlink() #",
        "test_a_clean_up_that_dies_at_any_moment",
    ),
    Defect(
        "if shown == attempt.previous:",
        "if shown == attempt.previous or (shown == txn and not path.unlink()):",  # the same rows once more
        "test_a_repeated_commit_changes_nothing",
    ),
    Defect("if shown == attempt.previous:", "if shown != txn:", "test_an_epoch_after_a_gap_is_refused"),
    Defect("if shown != txn:", "if shown.epoch != txn.epoch:", "test_another_transaction_of_a_shown_epoch_is_refused"),
    Defect("if shown != txn:", "if shown.epoch < txn.epoch:", "test_a_late_commit_after_its_successors"),
    Defect("os.link(temporary, path)", "os.replace(temporary, path)", "test_a_commit_that_is_overtaken"),
    Defect(
        "return  # commit then reads",  # the name is no guard: rows are added if the marker is the commit's own
        "path.open('a').write(temporary.read_text() if self._shown(attempt.txn.pipeline) == attempt.txn else '')  #",
        "test_a_commit_that_is_overtaken_by_another_try",
    ),
    Defect(
        "shown = self._shown(txn.pipeline)  # ours",
        "shown = txn  #",
        "test_a_commit_that_is_overtaken_by_another_transaction",
    ),
    Defect(
        "if shown == attempt.previous:", "if shown == attempt.previous and staged.rows:", "test_an_epoch_without_rows"
    ),
    Defect("self._area().discard(attempt, place)", "pass", "test_an_aborted_attempt_leaves_nothing"),
    Defect("self._require_writable(attempt)", "pass", "test_a_sink_that_shows_another_epoch_than_the_ledger_says"),
    Defect("for row in batch.to_pylist())", "for row in batch.to_pylist()[1:])", "test_one_row_is_shown"),
    Defect(
        "in self._area().rows(attempt, staged):", "in [next(self._area().rows(attempt, staged))]:", "test_many_rows"
    ),
    Defect("{pipeline}.{self.name}.{number}", "{self.name}.{number}", "test_a_commit_shows_the_rows_with_their_marker"),
    Defect(
        'ends=first["ends"]',
        'ends={t: {p: o - 1 for p, o in of.items()} for t, of in first["ends"].items()}',
        "test_epochs_follow_one_another",
    ),
    Defect('"ends": attempt.ends', '"ends": None', "test_an_epoch_without_rows"),
    Defect("txn=txn, ends", "txn=None, ends", "test_epochs_follow_one_another"),
    Defect(
        "for row in batch.to_pylist())", "for row in {r['id']: r for r in batch.to_pylist()}.values())", "test_equal"
    ),
    Defect("json.dumps(row, default=str)", "json.dumps({'id': row['id']})", "test_a_commit_shows_the_rows"),
    Defect("if claim.problem:", "if claim.problem or attempt.promised:", "test_a_repeated_vote_says_the_same"),
    Defect('"staging": self.staging}', '"staging": self.staging, "db_password": "x"}', "test_the_specification"),
    Defect("path.stat().st_mtime", "path.stat().st_atime + id(path) % 1000", "test_a_repeated_commit_changes_nothing"),
]


def example() -> dict[str, str]:
    """The page's files by name; the first line of each is its name."""
    blocks = re.findall(r"^```python\n(\"\"\"(\w+)\.py\"\"\"\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {name: text for text, name in blocks}


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def run(folder: Path, *those: str) -> subprocess.CompletedProcess[str]:
    """The tests in a folder, as a reader of the page would run them. ``those``: options that choose some of them."""
    options = [*those, "-q", "-p", "no:cacheprovider", "--tb=no", "-c", "/dev/null", "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.proof
@pytest.mark.long
def test_the_worked_example_passes_the_suite(tmp_path: Path) -> None:
    files = example()
    assert list(files) == [SINK, TESTS]
    for name, text in files.items():
        write(tmp_path, name, text)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^3[0-9] passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.proof
def test_the_suite_finds_each_of_the_planted_defects(tmp_path: Path) -> None:
    files = example()
    for number, defect in enumerate(DEFECTS):
        assert files[SINK].count(defect.text) == 1, defect.text
        names = {SINK: f"{SINK}_{number}", TESTS: f"{TESTS}_{number}"}
        broken = files[SINK].replace(defect.text, defect.instead).replace(f'"{SINK}:', f'"{names[SINK]}:')
        few = files[TESTS].replace("(SinkConformance):\n", "(SinkConformance):\n    many = 20_000\n")
        write(tmp_path, names[SINK], broken)
        write(tmp_path, names[TESTS], few.replace(f"from {SINK} ", f"from {names[SINK]} "))
    those = " or ".join(f"({TESTS}_{number} and {defect.found_by})" for number, defect in enumerate(DEFECTS))
    failed = re.findall(rf"^FAILED {TESTS}_(\d+)\.py::\w+::(\w+)", run(tmp_path, "-k", those).stdout, re.MULTILINE)
    for number, defect in enumerate(DEFECTS):
        found = [test for of, test in failed if int(of) == number]
        assert any(test.startswith(defect.found_by) for test in found), (defect, found)


class Upserts(SinkConformance):
    """As its author would describe a sink that upserts."""

    __test__ = False

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        return list({*before, *ids})


@pytest.mark.parametrize(
    ("method", "found"), [({}, "has no"), ({"replaces_by": lambda self: ()}, "says that all stay")]
)
def test_the_suite_finds_a_sink_that_replaces_rows_and_does_not_tell(
    own: Any, method: dict[str, Any], found: str
) -> None:
    sink = type("Upserting", (type(own),), method)("archive", own.folder, staging=own.staging)
    subject: Any = SimpleNamespace(sink=lambda: sink)
    with pytest.raises(AssertionError, match=found):
        Upserts().test_a_sink_that_replaces_rows_tells_by_which_columns(subject)


class SparkForBoth(MemorySpark):
    """Stages one row for the example, and what was produced for sinks in memory."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plans = job.args["sinks"]
        memory = {name: plan for name, plan in plans.items() if plan["kind"] == "memory"}
        report = super().run(replace(job, args={**job.args, "sinks": memory}), session)
        for name in plans.keys() - memory.keys():
            report["sinks"][name] = asdict(stage_with_deltalake(plans[name], pa.table({"id": [7]})))
        return report


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The folder of ``own``."""
    folder = tmp_path / "shown"
    folder.mkdir()
    return folder


Made = Callable[..., Any]
"""Makes the worked example from the text of its file, as a module of this name."""


@pytest.fixture
def made(tmp_path: Path, shown: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str, module: str) -> Any:
        write(tmp_path, module, text.replace(f'"{SINK}:', f'"{module}:'))
        return import_module(module).FolderSink("archive", str(shown), staging=str(tmp_path / "staging"))

    return make


@pytest.fixture
def own(made: Made) -> Any:
    """The worked example."""
    return made(example()[SINK], SINK)


def into(world: MemoryWorld, *sinks: Any) -> Coordinator:
    """A pipeline into these sinks, with a new ledger."""
    pipeline = replace(memory_pipeline(world), sinks=sinks)
    return memory_coordinator(world, pipeline, env=MemoryEnvironment(spark=SparkForBoth()), store=DictStore())


def orders(world: MemoryWorld) -> MemorySink:
    return MemorySink(name="orders", world=world.name)


@pytest.mark.proof
def test_the_worked_example_shows_an_epoch_with_the_other_sinks_or_not_at_all(own: Any, shown: Path) -> None:
    world = MemoryWorld()
    coordinator = into(world, orders(world), own)
    world.produce("orders", 0, ["a"])
    run_all(coordinator, Run("dag", "run 1"))
    (file,) = shown.iterdir()
    assert file.read_text().splitlines()[1:] == ['{"id": 7}']
    assert world.table("orders").values() == ["a"]
    world.produce("orders", 0, ["b"])
    world.refusals["orders"] = "it is full"
    run_2 = Run("dag", "run 2")
    coordinator.open(run_2)
    report = coordinator.stage(run_2).stage
    with pytest.raises(Refused, match="Sink orders voted against it: it is full"):
        coordinator.vote(run_2, report)
    assert list(shown.iterdir()) == [file]


@pytest.mark.proof
def test_a_lost_ledger_is_rebuilt_from_the_worked_example(own: Any, shown: Path) -> None:
    world = MemoryWorld()
    world.produce("orders", 0, ["a"])
    run_all(into(world, orders(world), own), Run("dag", "run 1"))
    coordinator = into(world, orders(world), own)
    plan = planning.plan(coordinator.task)
    assert plan and plan.told.ends == {}
    recording.carry_out(coordinator.task, plan, by=BY)
    world.produce("orders", 0, ["b"])
    assert run_all(coordinator, Run("dag", "run 2")).epoch == 2
    assert (world.table("orders").values(), len(list(shown.iterdir()))) == (["a", "b"], 2)


def test_a_ledger_is_not_rebuilt_with_an_id_that_a_sink_of_ones_own_cannot_have(made: Made) -> None:
    """Such a sink compares whole ids, as the page says: it would vote against every epoch."""
    world, own = MemoryWorld(), made(example()[SINK].replace("last_epoch", "_untold"), f"{SINK}_untold")
    world.produce("orders", 0, ["a"])
    run_all(into(world, own), Run("dag", "run 1"))
    task = into(world, own).task
    for ends in ({}, {"orders": {"0": 1}}):
        with pytest.raises(Refused, match="sink archive has no `last_epoch`") as refused:
            planning.plan(task, told=Told(ends=ends))
        assert refused.value.code is codes.ENDS_UNKNOWN
    assert task.ledger.identity() is None
