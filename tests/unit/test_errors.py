"""The error tree says what is known about the effect, where it was, and what to do next."""

from __future__ import annotations

import logging

import pytest

from airflow_epochs import errors
from airflow_epochs.errors import (
    Corrupt,
    EpochError,
    Fenced,
    NoNewData,
    NotApplied,
    OutcomeUnknown,
    Refused,
    RowsGone,
    RowsLost,
    tolerated,
)

TREE = {
    EpochError: Exception,
    NotApplied: EpochError,
    Refused: NotApplied,
    NoNewData: NotApplied,
    OutcomeUnknown: EpochError,
    Fenced: EpochError,
    Corrupt: EpochError,
    RowsGone: Corrupt,
    RowsLost: RowsGone,
}


def test_the_tree_is_the_documented_one_and_has_no_other_branch() -> None:
    found = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert found == set(TREE)
    assert {kind: kind.__base__ for kind in found} == TREE
    for kind in found:
        assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", TREE)
def test_an_error_names_the_place_as_far_as_known_and_the_remedy(kind: type[EpochError]) -> None:
    everywhere = kind("It broke.", remedy="mend it.", pipeline="p", epoch=3, attempt=2, sink="s")
    assert str(everywhere) == "[pipeline p, epoch 3, attempt 2, sink s] It broke. What to do: mend it."
    assert str(kind("It broke.", remedy="mend it.")) == "It broke. What to do: mend it."
    assert (everywhere.pipeline, everywhere.epoch, everywhere.attempt, everywhere.sink) == ("p", 3, 2, "s")


@pytest.mark.parametrize("kind", TREE)
def test_an_error_without_a_remedy_cannot_be_made(kind: type[EpochError]) -> None:
    with pytest.raises(TypeError, match="remedy"):
        kind("It broke.")  # type: ignore[call-arg]  # which is the point


def gone() -> None:
    raise Corrupt("Gone.", remedy="look.")


def test_what_is_tolerated_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), tolerated("sweeping"):
        gone()
    assert "sweeping failed" in caplog.text and "Gone." in caplog.text


def test_a_dying_process_is_not_tolerated() -> None:
    with pytest.raises(KeyboardInterrupt), tolerated("sweeping"):
        raise KeyboardInterrupt
