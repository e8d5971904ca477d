"""``vote=``: a user's own function judges an epoch whose rows are staged; a real broker, and strangers who count."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from deltalake import DeltaTable

from airflow_epochs import Ballot, codes
from airflow_epochs.ballot import VoteFunction
from airflow_epochs.errors import Refused
from airflow_epochs.model import Run
from airflow_epochs.testing import Crash
from orders_demo.duck import duck
from tests.support.faults_world import crash
from tests.support.remedies import ordered
from tests.support.topic_world import TopicWorld

pytestmark = pytest.mark.jvm


@pytest.fixture
def world(known_topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    """A table and a database; epoch 1 has read a, b and c."""
    world = known_topic_world(sinks=("lake", "rows"))
    world.produce("abc")
    assert world.run(1) is None
    return world


def shown(world: TopicWorld) -> set[str]:
    return {world.shown(sink) for sink in world.sinks}


def no_fewer_rows(ballot: Ballot) -> str | None:
    fewer = [sink for sink, rows in ballot.rows.items() if rows < ballot.rows_before[sink]]
    return f"{', '.join(fewer)} got fewer rows than in the epoch before" if fewer else None


def test_what_the_function_has_against_an_epoch_aborts_it_in_every_sink_until_it_is_right(world: TopicWorld) -> None:
    world.produce("de")
    error = world.but(vote=no_fewer_rows).run(2)
    assert isinstance(error, Refused) and "EPOCHS-VOTED-AGAINST" in str(error)
    assert "voted against it: EPOCHS-VOTED-AGAINST: lake, rows got fewer rows than" in str(error)
    assert "change the function if such an epoch is right" in str(error)
    assert shown(world) == {"abc"}
    assert not list((world.folder / "staging").rglob("*.parquet")), "what was staged is swept"
    assert world.run(3) is None
    assert shown(world) == {"abcde"}
    record = world.completed(2)
    assert record.receipts.keys() == {"lake", "rows"}, "the function is no sink"


def test_the_function_sees_the_input_and_the_staged_rows_of_every_sink(world: TopicWorld) -> None:
    seen: list[tuple[Ballot, set[str]]] = []

    def look(ballot: Ballot) -> None:
        with duck() as db:
            found = {
                "".join(sorted(p for (p,) in db.execute("SELECT payload FROM delta_scan(?)", [place]).fetchall()))
                for place in ballot.places.values()
            }
        seen.append((ballot, found | {str(DeltaTable(ballot.places["rows"]).to_pyarrow_table().num_rows)}))

    world.produce("defg")
    assert world.but(vote=look).run(2) is None
    ((ballot, rows),) = seen
    assert rows == {"defg", "4"}
    assert (ballot.pipeline, ballot.epoch, ballot.attempt) == (world.name, 2, 1)
    assert (ballot.rows, ballot.rows_before) == ({"lake": 4, "rows": 4}, {"lake": 3, "rows": 3})
    assert sum(r.end - r.start for r in ballot.ranges[world.topic()]) == 4
    assert shown(world) == {"abcdefg"}


def raises(ballot: Ballot) -> None:
    raise ConnectionError("the catalog does not answer")


def exits(ballot: Ballot) -> None:
    sys.exit("the catalog does not answer")


def counts(ballot: Ballot) -> int:
    return len(ballot.rows)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises, "The function raises raised ConnectionError: the catalog does not answer"),
        (exits, "The function exits raised SystemExit: the catalog does not answer"),
        (counts, "The function counts returned 2: not None, not a text"),
        (lambda ballot: "x" * 9_000, "xxx…"),
        (lambda ballot: "", "The function <lambda> is against the epoch"),
    ],
)
def test_a_function_that_cannot_judge_shows_nothing(world: TopicWorld, function: VoteFunction, says: str) -> None:
    world.produce("de")
    error = world.but(vote=function).run(2)
    assert isinstance(error, Refused) and says in str(error)
    assert shown(world) == {"abc"}
    assert world.run(3) is None
    assert shown(world) == {"abcde"}


def test_the_function_is_asked_once_for_each_attempt_and_not_after_the_decision(world: TopicWorld) -> None:
    asked: list[int] = []
    asking = world.but(vote=lambda ballot: asked.append(ballot.attempt))
    world.produce("de")
    with pytest.raises(Crash):
        asking.run(2, {"decision.put": crash})
    with pytest.raises(Crash):
        asking.run(3, {"decision.landed": crash})
    assert asked == [1, 2]
    again, run = asking.but(vote=lambda ballot: "too late").task(), Run("dag", "run 3")
    again.vote(run, None)
    assert asking.run(4) is None
    assert (asked, shown(world)) == ([1, 2], {"abcde"})


def test_the_function_is_asked_only_if_every_sink_is_for_the_epoch(world: TopicWorld) -> None:
    asked: list[int] = []
    world.db.run("ALTER TABLE rows RENAME COLUMN payload TO other")
    world.produce("de")
    error = world.but(vote=lambda ballot: asked.append(1)).run(2)
    assert isinstance(error, Refused) and "Sink rows voted against it" in str(error) and not asked


def test_the_function_is_not_asked_about_an_epoch_that_only_brings_tables_back(world: TopicWorld) -> None:
    world.produce("de")
    assert world.run(2) is None
    ordered(
        world.ledger_root, "epochs", "rewind", world.name, "--to-epoch", "1", "--restore-tables", "--why", "wrong rows"
    )
    assert world.but(vote=lambda ballot: "no").run(3) is None
    assert world.shown("lake") == "abc"
    error = world.but(vote=lambda ballot: "no").run(4)
    assert isinstance(error, Refused) and error.code == codes.GLOBAL_ABORT
