"""A pipeline whose DAG, or connection, names another ledger than before: each remedy is followed to right counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.operators.base import EpochOperator
from tests.support.layout_lab import Lab

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


class Moved(Lab):
    """A pipeline, and a folder for a second ledger with a connection of its own.

    Attributes:
        said: What the tasks said that failed for good, the oldest first.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.said = monkeypatch, list[str]()
        self.old, self.new = folder / "ledger", folder / "elsewhere"
        self.new.mkdir()
        super().__init__(folder, monkeypatch)
        self.connection("epochs_other", self.new)
        told = EpochOperator._told

        def tell(operator: EpochOperator, context: Context) -> object:
            try:
                return told(operator, context)
            except AirflowFailException as error:
                self.said.append(str(error))
                raise

        monkeypatch.setattr(EpochOperator, "_told", tell)

    def connection(self, conn_id: str, root: Path) -> None:
        described = {"conn_type": "epochs", "extra": {"ledger_root": str(root)}}
        self.patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(described))

    def when_opened(self, happens: Callable[[], object]) -> None:
        """As soon as the next epoch is opened, this happens."""

        def reached(_: AirflowEnvironment, phase: str) -> None:
            if phase == "open.landed":
                patched.undo()
                happens()

        patched = pytest.MonkeyPatch()
        patched.setattr(AirflowEnvironment, "reached", reached)

    def complete_in(self, root: Path) -> int:
        return Ledger(LocalStore(root), "orders").newest_complete()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    return Moved(tmp_path, monkeypatch)


def moved_while_it_runs(lab: Moved, run_id: str) -> None:
    """Between two tasks of the run, somebody changes ``ledger_root`` of the connection."""
    lab.when_opened(lambda: lab.connection("epochs_default", lab.new))
    assert lab.run(run_id).state == "failed"
    assert lab.said[-1].startswith("EPOCHS-LEDGER-NOT-SHARED: ") and str(lab.new) in lab.said[-1]


def test_a_run_whose_ledger_root_was_changed_goes_on_when_it_is_set_back_and_the_failed_task_is_cleared(
    lab: Moved,
) -> None:
    lab.produce("a")
    moved_while_it_runs(lab, "r1")
    assert "`ledger_root` of the connection was changed" in lab.said[-1]
    assert (
        "What to do: Set `ledger_conn_id`, or `ledger_root`, back if it was changed, and clear the fai" in lab.said[-1]
    )
    lab.connection("epochs_default", lab.old)
    assert lab.clear("r1", only_failed=True).state == "success"
    lab.produce("b")
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert (lab.complete_in(lab.old), list(lab.new.iterdir())) == (2, [])


def test_a_run_whose_dag_got_another_ledger_connection_goes_on_when_it_is_set_back(lab: Moved) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    lab.laid_out(ledger_conn_id="epochs_other")
    assert lab.clear("r1", only_failed=True).state == "failed"
    assert lab.said[-1].startswith("EPOCHS-LEDGER-NOT-SHARED: ")
    assert "(connection 'epochs_other')" in lab.said[-1]
    lab.laid_out()
    assert lab.clear("r1", only_failed=True).state == "success"
    assert lab.shown() == [["a"], ["a"]]
    assert (lab.complete_in(lab.old), list(lab.new.iterdir())) == (1, [])


def test_workers_with_folders_of_their_own_go_on_when_the_newest_one_is_copied_to_a_place_that_all_see(
    lab: Moved, tmp_path: Path
) -> None:
    lab.produce("a")
    moved_while_it_runs(lab, "r1")
    shared = tmp_path / "shared"
    shutil.copytree(lab.old, shared)
    lab.connection("epochs_default", shared)
    assert lab.clear("r1").state == "success"
    assert lab.shown() == [["a"], ["a"]]
    assert lab.complete_in(shared) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("with_records", [False, True], ids=["a new ledger", "a copy of the ledger"])
def test_a_dag_that_goes_back_to_the_ledger_that_was_left_is_told_of_the_other_one_and_goes_on_there(
    lab: Moved, with_records: bool
) -> None:
    lab.produce("a")
    moved_while_it_runs(lab, "r1")
    if with_records:
        shutil.copytree(lab.old, lab.new, dirs_exist_ok=True)
    assert lab.clear("r1").state == "success"
    assert lab.complete_in(lab.new) == 1
    lab.connection("epochs_default", lab.old)
    lab.produce("b")
    assert lab.run("r2").state == "failed"
    assert lab.said[-1].startswith("EPOCHS-ATTEMPT-UNDECIDED: ")
    assert "a newer copy of the ledger, or another ledger of this pipeline, went on without it" in lab.said[-1]
    assert "What to do: Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the" in lab.said[-1]
    lab.laid_out(ledger_conn_id="epochs_other")
    assert lab.clear("r2", only_failed=True).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert (lab.complete_in(lab.old), lab.complete_in(lab.new)) == (0, 2)


def test_a_dag_that_is_moved_to_a_new_ledger_between_two_runs_goes_on_when_it_is_set_back(lab: Moved) -> None:
    lab.produce("a")
    assert lab.run("r1").state == "success"
    lab.produce("b")
    lab.laid_out(ledger_conn_id="epochs_other")
    assert lab.run("r2").state == "failed"
    assert lab.said[-1].startswith("EPOCHS-LEDGER-BEHIND: ")
    assert "What to do: Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the" in lab.said[-1]
    lab.laid_out()
    assert lab.clear("r2", only_failed=True).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.complete_in(lab.old) == 2
