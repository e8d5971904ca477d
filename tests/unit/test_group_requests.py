"""Who is in a consumer group, by what the brokers answer: an answer that is none must not look like an empty group."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import CoordinatorLoadInProgressError, GroupAuthorizationFailedError, KafkaError, NotCoordinatorError

from airflow_epochs.sources.kafka.group_requests import members

GONE = "[Error 69] GroupIdNotFoundError: Group g is not a classic group."


class Admin:
    """kafka-python's client, with these answers."""

    def __init__(self, state: str, error: str | None = None, *, listed: str | None = None) -> None:
        self.described: dict[str, Any] = {"group_state": state, "error": error, "members": []}
        self.listed = {"group_id": "g", "protocol_type": "consumer", "group_state": listed, "group_type": "streams"}

    def describe_groups(self, groups: list[str]) -> dict[str, Any]:
        return dict.fromkeys(groups, self.described)

    def list_groups(self) -> list[dict[str, Any]]:
        return [{**self.listed, "group_id": "other", "group_state": "Stable"}, *([self.listed] if self.listed else [])]


@pytest.mark.parametrize("kind", [CoordinatorLoadInProgressError, NotCoordinatorError, GroupAuthorizationFailedError])
@pytest.mark.parametrize("state", ["", "Dead"])
def test_an_error_is_raised(kind: type[KafkaError], state: str) -> None:
    with pytest.raises(kind):
        members(Admin(state, f"[Error {kind.errno}] {kind.__name__}: g"), "g")


@pytest.mark.parametrize("error", [None, GONE])
@pytest.mark.parametrize("state", ["Stable", "Assigning", "Reconciling", "NotReady"])
def test_a_group_of_another_protocol_is_at_work_unless_it_is_listed_as_empty(error: str | None, state: str) -> None:
    assert members(Admin("Dead", error, listed=state), "g") == [
        f"consumers of the protocol streams (the group is {state})"
    ]


@pytest.mark.parametrize("state", ["Empty", "Dead", None])
def test_a_group_that_is_empty_or_does_not_exist_has_no_members(state: str | None) -> None:
    assert members(Admin("Dead", GONE, listed=state), "g") == []
