"""The lines that the demo shows of its epochs: moving ones in a terminal, plain ones elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from airflow_epochs.ledger.queries import newest_epochs
from airflow_epochs.model import Run
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_ledger, memory_pipeline
from orders_demo.lines import Line, Lines

RUN = Run("orders", "r1")


class Pipeline:
    """Two sinks, and three records to read."""

    def __init__(self) -> None:
        self.world = MemoryWorld()
        self.world.produce("orders", 0, ["a", "b", "c"])
        pipeline = memory_pipeline(self.world, ("orders", "rejected"))
        self.task = memory_coordinator(self.world, pipeline)
        self.ledger = memory_ledger(store=self.world.store)

    def steps(self) -> Iterator[None]:
        """The tasks of a run, one after the other."""
        self.task.open(RUN)
        yield
        report = self.task.stage(RUN).stage
        yield
        self.task.vote(RUN, report)
        yield
        for sink in ("orders", "rejected"):
            self.task.commit(RUN, sink)
            yield
        self.task.complete(RUN)
        yield

    def lines(self) -> list[Line]:
        return [Line.of(view, staging=bool(self.ledger.tries(view.number))) for view in newest_epochs(self.ledger, 10)]


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=130, highlight=False, force_terminal=terminal, legacy_windows=False), text


def test_an_epoch_comes_nearer_to_its_end_with_every_task(pipeline: Pipeline) -> None:
    seen = []
    for _ in pipeline.steps():
        (line,) = pipeline.lines()
        seen.append((line.phase, line.done, line.rows))
    assert seen == [
        ("open", 1, "3 in, 0 out"),
        ("stage", 2, "3 in, 0 out"),
        ("commit", 3, "3 in, 0 out"),
        ("commit", 4, "3 in, 3 out"),
        ("commit", 5, "3 in, 3 + 3 out"),
        ("complete", 6, "3 in, 3 + 3 out"),
    ]
    assert pipeline.lines()[0].steps == 6


def test_in_a_pipe_an_epoch_has_a_plain_line_for_each_attempt_and_for_its_end(pipeline: Pipeline) -> None:
    out, text = console(terminal=False)
    lines = Lines(out, pipeline.lines)
    pipeline.task.open(RUN)
    lines.show()
    pipeline.task.abort(RUN, "killed")
    lines.killed(1, "the stage task")
    lines.show()
    for _ in pipeline.steps():
        lines.show()
        lines.show()  # nothing has changed: no line
    assert text.getvalue().splitlines() == [
        "  epoch 1: open: 3 in, 0 out",
        "  epoch 1: aborted: 3 in, 0 out; killed: the stage task",
        "  epoch 1: open, attempt 2: 3 in, 0 out; killed: the stage task",
        "  epoch 1: complete, attempt 2: 3 in, 3 + 3 out; killed: the stage task",
    ]


def test_in_a_terminal_the_lines_move_while_the_demo_does_something_else(pipeline: Pipeline) -> None:
    out, text = console(terminal=True)
    with Lines(out, pipeline.lines).running():
        for _ in pipeline.steps():
            pass
    shown = text.getvalue()
    assert "\x1b[" in shown and "━" in shown
    assert "complete: 3 in, 3 + 3 out" in shown
