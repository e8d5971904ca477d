"""The error tree says what is known about the effect, where it was, and what to do next."""

from __future__ import annotations

import logging

import pytest

from airflow_epochs import errors, secrecy
from airflow_epochs.errors import (
    BadArgument,
    Code,
    Corrupt,
    EpochError,
    Fenced,
    NoNewData,
    NotApplied,
    OutcomeUnknown,
    Refused,
    RowsGone,
    RowsLost,
    cause_and_remedy,
    located,
    tolerated,
    without_code,
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
    assert {kind: kind.__base__ for kind in found - {BadArgument}} == TREE
    assert BadArgument in found and BadArgument.__base__ is ValueError
    for kind in found:
        assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", TREE)
def test_an_error_names_the_place_as_far_as_known_and_the_remedy(kind: type[EpochError]) -> None:
    everywhere = kind("It broke.", remedy="mend it.", pipeline="p", epoch=3, attempt=2, sink="s")
    assert str(everywhere).splitlines() == [
        "It broke.",
        "Where: pipeline p, epoch 3, attempt 2, sink s",
        "What to do: mend it.",
    ]
    assert str(kind("It broke.", remedy="mend it.")) == "It broke.\nWhat to do: mend it."
    assert (everywhere.pipeline, everywhere.epoch, everywhere.attempt, everywhere.sink) == ("p", 3, 2, "s")


@pytest.mark.parametrize("kind", TREE)
def test_an_error_without_a_remedy_cannot_be_made(kind: type[EpochError]) -> None:
    with pytest.raises(TypeError, match="remedy"):
        kind("It broke.")


def test_an_error_with_a_code_begins_with_it_and_takes_its_remedy_unless_it_has_a_better_one() -> None:
    code = Code("EPOCHS-BROKEN", Refused, "Something is broken.", "Mend it.")
    assert str(Refused("A is broken.", code=code)) == "EPOCHS-BROKEN: A is broken.\nWhat to do: Mend it."
    assert str(Refused("A is broken.", code=code, remedy="Mend A.")).endswith("\nWhat to do: Mend A.")


def test_an_argument_that_is_not_valid_is_told_by_code_and_cause_and_quoted_without_the_code() -> None:
    code = Code("EPOCHS-MODE", BadArgument, "A mode is not valid.", "Correct it.")
    error = BadArgument("`mode` is 'x'. It must be 'y'.", code=code)
    assert str(error) == "EPOCHS-MODE: `mode` is 'x'. It must be 'y'."
    assert (error.what, error.code) == ("`mode` is 'x'. It must be 'y'.", code)
    assert without_code(error) == error.what and "EPOCHS" not in repr(error)
    assert without_code(ValueError("other")) == "other"


def test_an_argument_is_told_without_a_secret() -> None:
    secrecy.keep(["hunter2-secret"])
    code = Code("EPOCHS-MODE", BadArgument, "A mode is not valid.", "Correct it.")
    assert "hunter2" not in str(BadArgument("`mode` is 'hunter2-secret'.", code=code))


def test_the_reason_of_a_vote_comes_apart_again_also_one_of_version_0_1() -> None:
    code = Code("EPOCHS-BROKEN", Refused, "Something is broken.", "Mend it.")
    assert cause_and_remedy(Refused("A is broken.", code=code).reason) == ("EPOCHS-BROKEN: A is broken.", "Mend it.")
    assert cause_and_remedy("A is broken. What to do: Mend A.") == ("A is broken.", "Mend A.")
    assert cause_and_remedy("A is broken.") == ("A is broken.", "")


def gone() -> None:
    raise Corrupt("Gone.", remedy="look.")


def test_what_is_tolerated_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), tolerated("sweeping"):
        gone()
    assert caplog.messages == ["sweeping failed; it will be tried again with a later epoch: Gone."]


def broken(remedy: str = "Clear the failed task.") -> None:
    code = Code("EPOCHS-BROKEN", Refused, "Something is broken.", remedy)
    raise Refused("A is broken:\n  badly.", code=code, pipeline="orders")


def fail_otherwise() -> None:
    raise OSError("disk")


def test_the_log_says_of_an_error_that_is_tolerated_neither_its_remedy_nor_a_traceback_unless_somebody_debugs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), tolerated("sweeping", "what is left stays"):
        broken()
    assert caplog.messages == ["sweeping failed; what is left stays: EPOCHS-BROKEN: A is broken: badly."]
    assert "Traceback" not in caplog.text
    with caplog.at_level(logging.DEBUG), tolerated("sweeping"):
        gone()
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ("Grant the user\n  the rights. Clear the failed task.", " What to do: Grant the user the rights."),
        ("Give it Kafka 0.11. Then let Airflow retry, or clear the failed task.", " What to do: Give it Kafka 0.11."),
        ("Type `airflow epochs show PIPELINE`. Look.", " What to do: Type `airflow epochs show orders`. Look."),
        ("Clear the failed `complete` task with its downstream tasks.", ""),
    ],
)
def test_what_fails_beside_a_green_task_is_logged_with_the_remedy_but_for_the_clearing_of_a_task(
    caplog: pytest.LogCaptureFixture, remedy: str, told: str
) -> None:
    with caplog.at_level(logging.WARNING), tolerated("maintaining", remedied=True):
        broken(remedy)
    assert caplog.messages == [
        f"maintaining failed; it will be tried again with a later epoch: EPOCHS-BROKEN: A is broken: badly.{told}",
    ]


def test_an_error_of_somebody_elses_that_is_tolerated_is_logged_with_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), tolerated("sweeping"):
        fail_otherwise()
    assert "Traceback" in caplog.text and "OSError: disk" in caplog.text


def test_a_dying_process_is_not_tolerated() -> None:
    with pytest.raises(KeyboardInterrupt), tolerated("sweeping"):
        raise KeyboardInterrupt


def test_a_place_is_filled_in_only_where_the_error_names_none() -> None:
    with pytest.raises(NotApplied) as bare, located("orders", epoch=4, attempt=2, sink="audit"):
        raise NotApplied("It failed.", remedy="Look.")
    assert "Where: pipeline orders, epoch 4, attempt 2, sink audit\n" in str(bare.value)
    with pytest.raises(NotApplied) as placed, located("orders", epoch=4, attempt=2, sink="audit"):
        raise NotApplied("It failed.", remedy="Look.", epoch=3, sink="lines")
    assert "Where: pipeline orders, epoch 3, sink lines\n" in str(placed.value)
