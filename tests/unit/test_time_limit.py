"""A call has a time limit, also if it has none of its own."""

from __future__ import annotations

from threading import Event

import pytest

from airflow_epochs.time_limit import bounded

LONG_S = 30.0


def fail(error: BaseException) -> None:
    raise error


def test_a_call_that_ends_in_time_gives_its_value_also_none() -> None:
    assert bounded(lambda: 7, LONG_S, TimeoutError()) == 7
    assert bounded(lambda: None, LONG_S, TimeoutError()) is None


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_a_call_raises_is_raised_where_it_was_made(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        bounded(lambda: fail(error), LONG_S, TimeoutError())
    assert raised.value is error


def test_a_call_that_is_late_is_left_alone_and_goes_on() -> None:
    may_end, ended, late = Event(), Event(), TimeoutError("late")

    def call() -> None:
        may_end.wait(LONG_S)
        ended.set()

    with pytest.raises(TimeoutError) as raised:
        bounded(call, 0.01, late)
    assert raised.value is late and not ended.is_set()
    may_end.set()
    assert ended.wait(LONG_S)
