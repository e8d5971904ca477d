"""What tests give to sinks, sources and coordinators in Airflow's place: connections, Spark if need be, and phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict

Action = Callable[[], object]


class NoSpark:
    """A Spark that must not be asked."""

    def new_session(self) -> JsonDict:
        raise AssertionError("Spark was asked for a session")

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        raise AssertionError(f"Spark was asked for {job.kind}")

    def cancel(self) -> None:
        raise AssertionError("Spark was asked to cancel")

    def stop(self, session: JsonDict) -> None:
        raise AssertionError("Spark was asked to stop")


@dataclass
class Environment:
    """``at`` says what happens at a phase, or at its n-th time: ``phase#n``. ``phases`` are those that were reached."""

    connections: dict[str, Connection] = field(default_factory=dict)
    at: dict[str, Action] = field(default_factory=dict)
    spark: Any = field(default_factory=NoSpark)
    phases: list[str] = field(default_factory=list)

    def connection(self, conn_id: str) -> Connection:
        if conn_id not in self.connections:
            raise Refused(f"There is no connection {conn_id!r}.", remedy="add it.")
        return self.connections[conn_id]

    def reached(self, phase: str) -> None:
        self.phases.append(phase)
        numbered = f"{phase}#{self.phases.count(phase)}"
        if action := self.at.get(phase) or self.at.get(numbered):
            action()


def connected(*connections: Connection, at: Mapping[str, Action] | None = None) -> Environment:
    """With these connections."""
    return Environment({connection.conn_id: connection for connection in connections}, dict(at or {}))


def once(env: Environment, phase: str, action: Action) -> None:
    """Do ``action`` the first time ``phase`` is reached."""

    def act() -> None:
        del env.at[phase]
        action()

    env.at[phase] = act
