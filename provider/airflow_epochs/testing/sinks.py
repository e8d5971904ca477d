"""A sink that stores its rows in a ``MemoryWorld``. It fulfils all of ``contracts.Sink``, without a disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, Vote, VoteKind
from airflow_epochs.testing.world import MemoryWorld, Place, TableCommit, marker_of

_EPOCH_0 = "1970-01-01T00:00:00+00:00"
"""The time of every commit in memory, because a repeat must return the same receipt."""


@dataclass(frozen=True, kw_only=True)
class MemorySink:
    """Writes to the table ``table`` of the world named ``world``. By default the table has the sink's name."""

    name: str
    world: str
    table: str = ""

    def spec(self) -> JsonDict:
        """The sink's fields, with ``kind``."""
        return {"kind": "memory", "name": self.name, "world": self.world, "table": self.table}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> MemorySink:
        """The sink that ``spec`` describes."""
        return cls(name=spec["name"], world=spec["world"], table=spec["table"])

    def asset_uri(self, pipeline: str) -> str:
        """``memory://<world>/<table>``."""
        return f"memory://{self.world}/{self._table}"

    def destination(self) -> str:
        """World and table."""
        return f"{self.world}/{self._table}"

    @property
    def _table(self) -> str:
        return self.table or self.name

    def _app(self, pipeline: str) -> str:
        return f"{pipeline}.{self.name}"

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """A name in ``MemoryWorld.places``."""
        return f"{self._table}/{attempt.ledger_id}.{self.name}/{attempt.txn.epoch}-{attempt.txn.attempt}-{try_id}"

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """The plan by which ``MemorySpark`` fills the place."""
        place = self.place(attempt, try_id, env)
        return {"kind": "memory", "place": place, "world": self.world, "txn_id": str(attempt.txn)}

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Check the place, its transaction, the table's marker and ``MemoryWorld.refusals``."""
        world = MemoryWorld.named(self.world)
        place = world.place(claim.place)
        if place is None or not place.log or not place.files:
            return Vote(vote=VoteKind.VOTE_ABORT, reason="no rows are staged at the claimed place")
        if reason := self._objection(world, attempt, place):
            return Vote(vote=VoteKind.VOTE_ABORT, reason=reason)
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=_staged(claim.place, place))

    def _objection(self, world: MemoryWorld, attempt: SinkAttempt, place: Place) -> str | None:
        if place.txn_id != attempt.txn:
            return f"the staged rows belong to {place.txn_id}"
        if world.marker(self._table, self._app(attempt.txn.pipeline)) != attempt.previous:
            return "the table's marker does not show the previous epoch"
        return world.refusals.get(self.name)

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Publish the place in the world. A repeat returns the same receipt."""
        commit = TableCommit(self._app(attempt.txn.pipeline), attempt.txn, staged.place)
        published = MemoryWorld.named(self.world).publish(self._table, commit, attempt.previous)
        return Receipt(
            txn_id=attempt.txn,
            sink=self.name,
            rows=staged.rows,
            files=staged.files,
            bytes=staged.bytes,
            version=published.version,
            place=published.place,
            committed_at=_EPOCH_0,
        )

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete the place; of a published one, only its log."""
        MemoryWorld.named(self.world).discard(place, published=published)

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The marker of the sink's last commit to the table."""
        return marker_of(MemoryWorld.named(self.world).marker(self._table, self._app(pipeline)))


def _staged(name: str, place: Place) -> Staged:
    content = repr([tuple(row) for row in place.rows]).encode()
    return Staged(
        place=name,
        version=1,
        files=1 if place.rows else 0,
        rows=len(place.rows),
        bytes=len(content),
        digest=hashlib.sha256(content).hexdigest(),
    )
