"""Several commands before one epoch: the last text says what a stranger finds in each sink afterwards. No broker.

The model beside it knows nothing of the package: a sink has rows up to where its table goes back, and gets what is
read from the last position on.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from airflow_epochs.coordinator.admin.actions import Waive
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.rewind_action import Rewind
from airflow_epochs.model import CompleteRecord, OffsetRange, Run
from airflow_epochs.operators import definitions
from airflow_epochs.sources.kafka import reader
from airflow_epochs.sources.kafka.logs import Log
from airflow_epochs.testing import Crash
from orders_demo.duck import duck
from stack.broker import Broker
from tests.support.faults_world import crash
from tests.support.lanes import long_but
from tests.support.remedies import in_the_environment, ordered
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TABLE, TopicWorld
from tests.unit.test_order_commands import Told

pytestmark = pytest.mark.proof

TOPICS, SINKS = ("in", "more"), ("lake", "rows")
ENDS = {"in": (0, 10, 20, 30, 40), "more": (0, 5, 10, 15, 20)}
"""Where epoch 1, 2, 3 and 4 have ended; before that, where epoch 1 has begun."""
STEP = {"in": 10, "more": 5}
"""So many records wait before each run."""
NEWEST, COPIED = 4, 2

Offsets = Counter[tuple[str, int]]
"""How often an offset of a topic is there."""
At = frozenset[tuple[str, int]]
Ends = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Typed:
    """A command. ``to``: of some topics, where they go on. ``restores``: whether the table goes back to ``epoch``."""

    name: str
    epoch: int = 0
    to: Ends = ()
    restores: bool = False
    on_the_page: bool = False

    def __str__(self) -> str:
        to = f"epoch {self.epoch}" if self.epoch else " ".join(f"{topic} {at}" for topic, at in self.to)
        return f"{self.name} {to}{' with tables' * self.restores}{' by page' * self.on_the_page}".strip()


RUN, ABORT, COPY = Typed("RUN"), Typed("ABORT"), Typed("COPY")
"""A run; a run that is aborted; an older copy of the table, with the rows of epoch 2, takes its place."""
REPLAN, ADOPT = Typed("replan"), Typed("adopt-sink")
REWINDS = tuple(Typed("rewind", epoch, restores=restores) for epoch in (1, 3) for restores in (False, True))
TO_THE_NEWEST = Typed("rewind", NEWEST)
BY_PAGE = tuple(Typed("rewind", 3, restores=restores, on_the_page=True) for restores in (False, True))
MOVES = (
    Typed("skip", to=(("in", 45),)),
    Typed("skip", to=(("more", 12),)),
    Typed("rewind", to=(("in", 15), ("more", 20))),
)
EVERY = (*REWINDS, TO_THE_NEWEST, *BY_PAGE, *MOVES)
PAIRS = [pair for pair in product(EVERY, repeat=2) if pair[0] != TO_THE_NEWEST]
SERIES = [
    (REWINDS[1], MOVES[0], REWINDS[3]),
    (REWINDS[1], REWINDS[2], MOVES[1]),
    (REWINDS[3], MOVES[1], MOVES[2]),
    (REWINDS[3], Typed("skip", to=(("more", 18),)), MOVES[2]),
    (MOVES[0], REWINDS[1], MOVES[1]),
    (REWINDS[0], MOVES[0], TO_THE_NEWEST),
    (REWINDS[1], REWINDS[0], REWINDS[1]),
    (MOVES[2], REWINDS[3], BY_PAGE[0]),
    (ABORT, REPLAN),
    (ABORT, REWINDS[1], MOVES[1]),
    (REWINDS[1], ABORT, REPLAN),
    (REWINDS[0], ABORT, REPLAN),
    (MOVES[0], ABORT, REPLAN),
    (REWINDS[1], ABORT, REWINDS[2]),
    (REWINDS[1], COPY, ADOPT),
    (REWINDS[0], COPY, ADOPT),
    (MOVES[0], COPY, ADOPT),
    (COPY, ADOPT, REWINDS[0]),
    (COPY, ADOPT, MOVES[0]),
    (COPY, ADOPT, RUN, REWINDS[0]),
    (REWINDS[0], RUN, COPY, ADOPT, RUN, REWINDS[0], MOVES[0]),
    (REWINDS[1], COPY, ADOPT, RUN, RUN, REWINDS[0]),
    (REWINDS[1], COPY, ADOPT, REWINDS[2]),
    (REWINDS[1], RUN, MOVES[0]),
    (REWINDS[1], RUN, REWINDS[0], MOVES[1]),
    (REWINDS[1], RUN, RUN, REWINDS[2]),
    (REWINDS[1], RUN, RUN, REWINDS[3]),
    (REWINDS[1], MOVES[1], RUN, RUN, REWINDS[0]),
    (REWINDS[1], RUN, Typed("rewind", NEWEST, restores=True), REWINDS[2]),
    (MOVES[0], RUN, REWINDS[0]),
    (MOVES[0], RUN, REWINDS[3], MOVES[1]),
    (REWINDS[0], RUN, REWINDS[3]),
    (REWINDS[2], RUN, MOVES[0], REWINDS[1]),
]


SHORT = (
    (REWINDS[1], REWINDS[2]),
    (REWINDS[0], REWINDS[3]),
    (REWINDS[1], REWINDS[3]),
    (REWINDS[1], MOVES[0]),
    (MOVES[0], REWINDS[0]),
    (REWINDS[3], BY_PAGE[0]),
    (REWINDS[0], MOVES[0], TO_THE_NEWEST),
    (REWINDS[3], Typed("skip", to=(("more", 22),)), Typed("rewind", to=(("in", 15),))),
    (REWINDS[1], ABORT, REPLAN),
    (REWINDS[1], COPY, ADOPT),
    (COPY, ADOPT, REWINDS[0]),
    (COPY, ADOPT, RUN, REWINDS[0]),
    (REWINDS[1], RUN, REWINDS[0], MOVES[1]),
    (REWINDS[1], RUN, RUN, REWINDS[3]),
    (REWINDS[1], MOVES[1], RUN, RUN, REWINDS[0]),
)
"""Each of them alone shows a defect that was there, or could be."""


class Read(NamedTuple):
    """What one epoch has read, what the table showed then, and where the next one began."""

    offsets: At
    lake: Offsets
    ends: Ends


@dataclass(frozen=True)
class Model:
    """What the sinks show, and what the next epoch does.

    ``position``: where it begins. ``back_to``: the epoch whose table comes back; None: it reads. ``adopts``: whether
    it takes the table as it is. ``waits``: whether a command waits.
    """

    epochs: tuple[Read, ...]
    lake: Offsets
    rows: Offsets
    log: Ends
    position: Ends
    back_to: int | None = None
    adopts: bool = False
    waits: bool = False

    @classmethod
    def of_four_epochs(cls) -> Model:
        nothing: Offsets = Counter()
        model = cls((), nothing, nothing, tuple((t, 0) for t in TOPICS), tuple((t, 0) for t in TOPICS)).grown()
        for _ in range(NEWEST):
            model = model.run()
        return model

    @property
    def ends(self) -> Ends:
        return self.epochs[-1].ends

    def grown(self) -> Model:
        return replace(self, log=tuple((topic, end + STEP[topic]) for topic, end in self.log))

    def after(self, step: Typed) -> Model:
        if step in (RUN, COPY, ADOPT):
            return {RUN: self.run, COPY: self.copied, ADOPT: self.adopted}[step]()
        if step.name not in ("rewind", "skip"):
            return self
        to = dict(self.epochs[step.epoch - 1].ends if step.epoch else step.to)
        position = tuple((topic, to.get(topic, at)) for topic, at in self.position)
        back_to = self.back_to if step.name == "skip" else step.epoch if step.restores else None
        waits = self.waits or (position, back_to) != (self.position, self.back_to)
        return replace(self, position=position, back_to=back_to, waits=waits)

    def adopted(self) -> Model:
        return replace(self, back_to=None, adopts=True, waits=True)

    def copied(self) -> Model:
        return replace(self, lake=self.epochs[COPIED - 1].lake)

    def run(self) -> Model:
        """The next epoch, and then more records."""
        read: Offsets = Counter() if self.back_to else span(self.position, self.log)
        lake = (self.epochs[self.back_to - 1].lake if self.back_to else self.lake) + read
        ends = self.position if self.back_to else self.log
        epochs = (*self.epochs, Read(frozenset(read), lake, ends))
        return Model(epochs, lake, self.rows + read, self.log, ends).grown()

    def read_on(self) -> Model:
        """Runs up to the end of what there is."""
        run = self.run()
        return replace(run, log=self.log).run() if self.back_to else run

    def without_commands(self) -> Model:
        return replace(self, position=self.ends, back_to=None, waits=False)

    def sink(self, name: str) -> Offsets:
        return self.lake if name == "lake" else self.rows

    def lost(self, name: str) -> At:
        """What the sink lacks by the commands that wait."""
        there, else_there = self.read_on().sink(name), self.without_commands().read_on().sink(name)
        had = self.epochs[-1].lake if name == "lake" else self.rows
        return frozenset((else_there + had).keys() - there.keys())

    def twice(self, name: str) -> At:
        """What the sink gets once more by the commands that wait."""
        shown = self.epochs[self.back_to - 1].lake if name == "lake" and self.back_to else self.sink(name)
        there = self.read_on().sink(name)
        return frozenset(at for at, count in shown.items() if there[at] > count)


def span(starts: Ends, ends: Ends) -> Offsets:
    return Counter((topic, offset) for topic, end in ends for offset in range(dict(starts)[topic], end))


def between(bootstrap: str, topic: str, partition: int, start: int, end: int) -> list[Any]:
    return [{"source": topic, "payload": "-", "partition": partition, "offset": at} for at in range(start, end)]


@pytest.fixture(scope="module")
def four_epochs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TopicWorld, Told]]:
    """Four epochs are complete, here and in a copy of the folder."""
    folder, brokers = tmp_path_factory.mktemp("world") / "now", Told()
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Brokers", lambda access: brokers)
        patch.setattr("tests.support.kafka_staging._between", between)
        nowhere = cast(Broker, SimpleNamespace(bootstrap="127.0.0.1:1"))
        db = new_sqlite(folder)
        db.run(TABLE)
        world = TopicWorld(folder=folder, broker=nowhere, db=db, id="x", sinks=SINKS, topics=TOPICS)
        for name, value in in_the_environment(world.kafka, db.connection()).items():
            patch.setenv(name, value)
        patch.setattr(definitions, "find", no_dag)
        for number in range(1, NEWEST + 1):
            grown(world, brokers, {topic: ends[number] for topic, ends in ENDS.items()})
            assert world.run(number) is None
            if number == COPIED:
                shutil.copytree(folder / "lake", folder / "copy")
                shutil.copy(db.path, folder / "copy.db")
        shutil.copytree(folder, folder.parent / "then")
        yield world, brokers


def no_dag(name: str, dag_id: str, ledger: str) -> None:
    raise RuntimeError("no DAG here")


def grown(world: TopicWorld, brokers: Told, ends: Mapping[str, int]) -> None:
    brokers.logs |= {world.topic(topic): Log(0, end, 3) for topic, end in ends.items()}


@pytest.fixture
def world(four_epochs: tuple[TopicWorld, Told]) -> TopicWorld:
    """As after the four epochs, whatever the test before has done."""
    world, brokers = four_epochs
    brokers.made, brokers.epoch_ends = 1, {}
    shutil.rmtree(world.folder)
    shutil.copytree(world.folder.parent / "then", world.folder)
    return world


@pytest.fixture
def brokers(four_epochs: tuple[TopicWorld, Told]) -> Told:
    return four_epochs[1]


def done(world: TopicWorld, step: Typed, number: int) -> str:
    """What a command tells; nothing is told of the other steps."""
    if step == RUN:
        assert world.run(100 + number) is None
    elif step == ABORT:
        world.opened(100 + number)
        world.task().abort(Run("dag", f"run {100 + number}"), "out of memory")
    elif step == COPY:
        shutil.rmtree(world.folder / "lake")
        (world.folder / "copy").rename(world.folder / "lake")
    else:
        return typed(world, step, f"reason {number}")
    return ""


def typed(world: TopicWorld, command: Typed, why: str) -> str:
    """What the command tells."""
    if command.on_the_page:
        action = Rewind.of(world.ledger, world.name, command.epoch, command.restores)
        try:
            told = action.told(world.ledger)
        except Refused as nothing:
            return str(nothing)
        return "\n".join([*told, action.do(world.ledger, Account(who="page", why=why))])
    words = {"replan": [], "adopt-sink": ["lake"]}.get(command.name, ["--to-epoch", str(command.epoch)])
    if command.to:
        file = world.folder / "offsets.json"
        file.write_text(json.dumps({world.topic(topic): {"0": at} for topic, at in command.to}))
        words = ["--offsets", str(file)]
    tables = ["--restore-tables"] if command.restores else []
    return ordered(world.ledger_root, "epochs", command.name, world.name, *words, *tables, "--why", why)


def seen(world: TopicWorld, sink: str) -> Offsets:
    """The rows, as DuckDB and SQLite see them."""
    if sink == "rows":
        found = world.db.run('SELECT source, "offset" FROM rows')
    else:
        with duck() as db:
            found = db.execute('SELECT source, "offset" FROM delta_scan(?)', [str(world.folder / sink)]).fetchall()
    return Counter((str(topic).partition("-")[0], int(offset)) for topic, offset in found)


# -- what a text says ---------------------------------------------------------------------------------------------


def offsets_in(text: str) -> set[tuple[str, int]]:
    found = re.findall(r"(\w+)-x\[0\] \[(\d+), (\d+)\)", text)
    return {(topic, offset) for topic, start, end in found for offset in range(int(start), int(end))}


def said(screen: str, sink: str, beginning: str) -> set[tuple[str, int]]:
    """The offsets in lines that begin so, of all sinks or of this one."""
    found = re.findall(rf"^  {beginning}(?: in sink ([\w, ]+))?: (.*)$", screen, re.MULTILINE)
    return set().union(*(offsets_in(text) for sinks, text in found if not sinks or sink in sinks.split(", ")))


def said_twice(screen: str, sink: str, model: Model) -> set[tuple[str, int]]:
    found = said(screen, sink, "read again, so rows that are there come twice")
    for line in re.findall(rf"^  sink {sink}(?: stays as it is)?: .*$", screen, re.MULTILINE):
        found |= offsets_in(line)
        if epochs := re.search(r"its rows of epochs? (\d)(?: to (\d))? come twice", line):
            first, last = int(epochs[1]), int(epochs[2] or epochs[1])
            found |= {at for read in model.epochs[first - 1 : last] for at in read.offsets}
    return found


@pytest.mark.parametrize(
    "steps",
    long_but(SHORT, dict.fromkeys([*((each,) for each in EVERY), *PAIRS, *SERIES, *SHORT])),
    ids=lambda steps: ", ".join(map(str, steps)),
)
def test_the_last_command_tells_what_a_stranger_finds(
    world: TopicWorld, brokers: Told, steps: tuple[Typed, ...]
) -> None:
    model, screen, restores = Model.of_four_epochs(), "", ""
    for number, step in enumerate(steps):
        grown(world, brokers, dict(model.log))
        model, was = model.after(step), model
        told = done(world, step, number)
        if model == was and told and step != REPLAN:
            assert "Nothing to do" in told or "goes on there in any case" in told
            continue
        screen = told
        if was.back_to and told:
            require_told_of_tables(screen, was.back_to, model.back_to, restores)
        restores = f"reason {number}" if step.restores else restores
    grown(world, brokers, dict(model.log))
    first = len(model.epochs) + 1
    for number in (201, 202):
        world.run(number)
    for sink in SINKS:
        assert seen(world, sink) == model.read_on().sink(sink)
        told_of = (frozenset(said(screen, sink, "lost for good")), frozenset(said_twice(screen, sink, model)))
        assert not screen or told_of == (model.lost(sink), model.twice(sink)), screen
    require_recorded(world, world.completed(first), model)


def test_of_rows_that_a_sink_lost_and_gets_with_others_once_more_only_the_others_are_said_to_come_twice(
    world: TopicWorld, brokers: Told
) -> None:
    shutil.copy(world.folder / "copy.db", world.db.path)
    ordered(world.ledger_root, "epochs", "adopt-sink", world.name, "rows", "--why", "the database was restored")
    model = Model.of_four_epochs()
    grown(world, brokers, dict(model.log))
    assert world.run(100) is None
    before = seen(world, "rows")
    screen = typed(world, Typed("rewind", 3, restores=True), "wrong rates")
    grown(world, brokers, {topic: end + STEP[topic] for topic, end in dict(model.log).items()})
    for number in (201, 202):
        world.run(number)
    twice = {at for at, count in seen(world, "rows").items() if count > 1}
    assert twice and twice <= before.keys() and twice == said_twice(screen, "rows", model)


def require_told_of_tables(screen: str, was: int, now: int | None, why: str) -> None:
    """One line, with the earlier command."""
    told = {
        None: f"no table goes back to epoch {was} any more (lake): this takes the place of",
        was: f"the tables still go back to epoch {was}, by",
    }.get(now, f"the tables go back to epoch {now}, not to epoch {was}: this takes the place of")
    (line,) = [line for line in screen.splitlines() if told in line]
    assert line.endswith(f", because: {why}")


def require_recorded(world: TopicWorld, obeyed: CompleteRecord, model: Model) -> None:
    """The record has what was obeyed, and no more. It says so if the epoch only brought the table back."""
    assert offsets_in_ranges(obeyed.ranges) == model.run().epochs[-1].offsets
    assert obeyed.only_restored == bool(model.back_to)
    version = {"lake": world.completed(model.back_to).receipts["lake"].version} if model.back_to else {}
    restores = [command.restores for command in obeyed.commands]
    assert all(each in ({}, version) for each in restores) and (not version or restores[-1] == version)
    again = {at for each in obeyed.commands for at in offsets_in_ranges(each.again)}
    assert again == span(model.position, model.ends).keys()
    losses, of_table = [at for each in obeyed.commands for at in offsets_in_ranges(each.lost)], model.lost("lake")
    lost = set(losses)
    assert len(losses) == len(lost), "no offset is lost twice"
    assert lost - of_table == model.lost("rows") - of_table
    assert model.adopts or lost == of_table | model.lost("rows"), "`adopt-sink` has recorded what the table lacks"


def offsets_in_ranges(ranges: Mapping[str, Any]) -> set[tuple[str, int]]:
    every = [(t.partition("-")[0], offset) for t, of in ranges.items() for r in of for offset in range(r.start, r.end)]
    assert len(every) == len(set(every)), "no offset is counted twice"
    return set(every)


# -- single cases ---------------------------------------------------------------------------------------------------


def lines_of(screen: str, *words: str) -> list[str]:
    return [line for line in screen.splitlines() if any(word in line for word in words)]


def test_a_rewind_that_calls_tables_off_says_so_and_which_rows_come_twice(world: TopicWorld, brokers: Told) -> None:
    grown(world, brokers, {"in": 50, "more": 25})
    typed(world, Typed("rewind", 1, restores=True), "wrong rows")
    screen = typed(world, Typed("rewind", 3), "not so far back")
    twice = "15 offsets, in-x[0] [30, 40), more-x[0] [15, 20)"
    off = "no table goes back to epoch 1 any more (lake): this takes the place of"
    assert lines_of(screen, "table", "twice", "lost", "begin") == [
        "Epoch 5 of pipeline orders will begin elsewhere:",
        f"  {off} `rewind` by root, because: wrong rows",
        f"  read again, so rows that are there come twice: {twice}",
    ]
    assert "The next run obeys." in screen, "it does not only bring tables back"


def test_a_rewind_to_where_the_last_epoch_ended_says_that_nothing_changes(world: TopicWorld, brokers: Told) -> None:
    typed(world, Typed("rewind", 1), "a mistake")
    screen = typed(world, Typed("rewind", NEWEST), "as it was")
    assert "Epoch 5 of pipeline orders will begin where epoch 4 ended:" in screen
    assert "  counted together with an earlier command: `rewind` by root, because: a mistake" in screen
    assert lines_of(screen, "lost", "twice", "read again") == []


def test_topics_of_the_same_names_are_left_where_each_sink_has_ended(world: TopicWorld, brokers: Told) -> None:
    """New topics: what they have comes for the first time, whatever offsets were read in the old ones."""
    typed(world, Typed("rewind", 1, restores=True), "the transform was wrong")
    brokers.made = 2
    grown(world, brokers, {"in": 7, "more": 7})
    words = ("epochs", "reset-source", world.name, "--starting", "earliest", "--why", "created again")
    screen = ordered(world.ledger_root, *words)
    assert "  the tables still go back to epoch 1, by `rewind` by root" in screen
    assert lines_of(screen, "left for good", "lost for good", "read again") == [
        "  left for good in sink lake: the old topics, from these offsets on: in-x[0] 10, more-x[0] 5",
        "  left for good in sink rows: the old topics, from these offsets on: in-x[0] 40, more-x[0] 20",
    ]
    screen = typed(world, Typed("skip", to=(("in", 5),)), "the first ones are wrong")
    assert (
        said(screen, "lake", "lost for good")
        == said(screen, "rows", "lost for good")
        == set(span((("in", 0),), (("in", 5),)))
    )
    screen = typed(world, Typed("skip", to=(("in", 2),)), "not so many")
    assert lines_of(screen, "lost for", "come twice") == ["  lost for good: 2 offsets, in-x[0] [0, 2)"]
    for number in (201, 202):
        assert world.run(number) is None
    new = span((("in", 2), ("more", 0)), (("in", 7), ("more", 7)))
    old = {"lake": span((("in", 0), ("more", 0)), (("in", 10), ("more", 5)))}
    for sink in SINKS:
        assert seen(world, sink) == old.get(sink, span((("in", 0), ("more", 0)), (("in", 40), ("more", 20)))) + new
    assert [command.lost for command in world.completed(5).commands[2:]] == [
        {},
        {"in-x": (OffsetRange(0, 0, 2),)},
    ]


def test_offsets_that_were_written_anew_are_not_said_to_come_twice(world: TopicWorld, brokers: Told) -> None:
    """The log was cut at 35, behind where a command has put the position of the other topic."""
    grown(world, brokers, {"in": 45, "more": 25})
    typed(world, Typed("rewind", to=(("more", 15),)), "wrong rows")
    brokers.logs[world.topic()] = Log(0, 45, 4)
    brokers.epoch_ends = {(world.topic(), 0): 35}
    words = ("epochs", "skip", world.name, "--to-available", "--why", "an unclean election")
    assert said_twice(ordered(world.ledger_root, *words), "lake", Model.of_four_epochs()) == {
        ("more", offset) for offset in range(15, 20)
    }
    screen = typed(world, Typed("rewind", to=(("in", 33),)), "wrong rows, too")
    assert said_twice(screen, "lake", Model.of_four_epochs()) == {
        *(("in", offset) for offset in (33, 34)),
        *(("more", offset) for offset in range(15, 20)),
    }


def test_who_waives_a_table_that_is_to_go_back_is_told_what_comes_twice_there(world: TopicWorld, brokers: Told) -> None:
    grown(world, brokers, {"in": 50, "more": 25})
    typed(world, Typed("rewind", 1, restores=True), "the transform was wrong")
    with pytest.raises(Crash):
        world.run(201, {"decision.landed": crash})
    lines = {sink: "\n".join(Waive(world.name, 5, sink).told(world.ledger)) for sink in SINKS}
    assert "does not go back to epoch 1: it keeps its rows of epochs 2 to 4. The next epochs read them" in lines["lake"]
    assert "go back" not in lines["rows"]
    Waive(world.name, 5, "lake").do(world.ledger, Account(who="me", why="it cannot"))
    for number in (202, 203):
        assert world.run(number) is None
    twice = span((("in", 10), ("more", 5)), (("in", 40), ("more", 20)))
    assert seen(world, "lake") == span((("in", 0), ("more", 0)), (("in", 50), ("more", 25))) + twice


def test_rows_of_a_waived_epoch_are_said_to_come_twice_only_if_the_sink_has_them(
    world: TopicWorld, brokers: Told
) -> None:
    grown(world, brokers, {"in": 50, "more": 25})
    with pytest.raises(Crash):
        world.run(201, {"decision.landed": crash})
    Waive(world.name, 5, "rows").do(world.ledger, Account(who="me", why="it cannot"))
    assert world.run(202) is None
    screen = typed(world, Typed("rewind", 3), "wrong rows")
    for number in (203, 204):
        world.run(number)
    there = span((("in", 30), ("more", 15)), (("in", 50), ("more", 25))).keys()
    twice = {sink: {at for at, count in seen(world, sink).items() if count > 1} for sink in SINKS}
    assert twice["rows"] < twice["lake"] == there
    assert [said(screen, sink, "read again, so rows that are there come twice") for sink in SINKS] == [there, there]
