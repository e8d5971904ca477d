"""Why a sink's marker is not the one that the ledger expects: what the brokers can tell, with a remedy for each case.

Topics are told apart by the brokers' ids: a topic that was deleted and created again has its old name and another id.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.contracts import rebuild_remedy, rename_in_doubt
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Shown, TransactionId, compare
from airflow_epochs.sinks.kafka.marker import Markers


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sink whose marker is not the expected one, and what is known about it.

    Attributes:
        topic: Where the sink sends rows today.
        expected: The transaction that the ledger expects.
        recorded: ``detail`` of its receipt: topics and their ids then. Empty if the ledger does not have it.
        in_doubt: The transaction of the epoch in doubt, if there is one.
    """

    markers: Markers
    topic: str
    expected: TransactionId | None
    recorded: JsonDict
    in_doubt: TransactionId | None = None

    def diagnosed(self) -> Corrupt | None:
        """The error; None if the marker is as expected by now."""
        found = self.markers.newest()
        shown = found.txn_id if found else None
        stands = compare(shown, self.expected)
        if stands is Shown.EXPECTED:
            return None
        if shown is None:
            return self._lost()
        if stands is Shown.ANOTHER:
            return self._of_another_ledger(shown, self.expected)
        if self.in_doubt and stands is Shown.AHEAD and shown.epoch == self.in_doubt.epoch:
            error = self._of_another_ledger(shown, self.in_doubt)
            error.remedy += (
                f" If topic {self._rows} lacks the rows of {shown}, only the marker is the other pipeline's: "
                f"{self._another_name()}."
            )
            return error
        return self._behind(shown) if stands is Shown.BEHIND else self._ahead(shown)

    # -- the cases -----------------------------------------------------------------------------------------------

    def _lost(self) -> Corrupt:
        assert self.expected
        what = (
            f"The ledger expects the marker {self.expected} of {self.markers.key}, but topic {self.markers.topic} "
            f"{self._state_of_markers()}"
        )
        if rows := self._state_of_rows():
            return Corrupt(
                f"{what}, and topic {self._rows} {rows}. Nothing was read or written.",
                code=codes.TOPICS_GONE,
                remedy="Point the connection back if it leads to another cluster than before. If the topics are lost, "
                "send their epochs again under a new sink name: docs/kafka-sink.md, 'Topic and marker are lost'.",
            )
        return Corrupt(
            f"{what}. Topic {self._rows} still exists. Nothing was read or written.",
            code=codes.MARKERS_GONE,
            remedy="Point the connection back if it leads to another cluster than before. Else look whether topic "
            f"{self._rows} has epoch {self.expected.epoch}, and put the marker back: docs/kafka-sink.md, 'The marker "
            "is lost'.",
        )

    def _behind(self, shown: TransactionId) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, but the ledger expects the "
            f"later {self.expected}. Topic {self.markers.topic} was restored to an older state, or lost records. "
            "Nothing was read or written.",
            code=codes.SINK_BEHIND,
            remedy=f"Look which epochs topic {self._rows} has. Then put the marker back, or send the missing epochs "
            "again: docs/kafka-sink.md, 'The marker is behind the ledger'.",
        )

    def _ahead(self, shown: TransactionId) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, but the ledger expects "
            f"{self.expected or 'no epoch'}. The ledger was lost or restored to an older state, or another pipeline "
            "has the same names of pipeline and sink. Nothing was read or written.",
            code=codes.LEDGER_BEHIND,
            remedy=f"Check that topic {self._rows} has the rows of epoch {shown.epoch}. If it does not, the marker is "
            f"another pipeline's: {self._another_name()}. If it does: "
            + rebuild_remedy(shown.pipeline, "docs/kafka-sink.md, 'The ledger is behind the marker'"),
        )

    def _another_name(self) -> str:
        """What to do about a marker that another pipeline has written."""
        if self.in_doubt:
            return rename_in_doubt(self.in_doubt, self.markers.key.rpartition("/")[2])
        return "give this sink another name, or a `marker_topic` of its own"

    def _of_another_ledger(self, shown: TransactionId, expected: TransactionId | None) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, but the ledger has "
            f"{expected} for this epoch. Two ledgers were made from one copy, or two pipelines have the same "
            "name. Nothing was read or written.",
            code=codes.TWO_LEDGERS,
            remedy="Use the ledger that has the marker's transaction, and give the other pipeline a new name: "
            "docs/kafka-sink.md, 'The marker is of another ledger'.",
        )

    # -- what can be seen ----------------------------------------------------------------------------------------

    @property
    def _rows(self) -> str:
        return str(self.recorded.get("topic", self.topic))

    def _state_of_markers(self) -> str:
        return state(self.markers, self.recorded.get("marker_topic_id"))

    def _state_of_rows(self) -> str | None:
        """What became of the topic that the rows went to; None if it is still the same."""
        facts = self.markers.cluster.topic(self._rows)
        if facts is None:
            return "is gone"
        return "was deleted and created again" if facts.id != self.recorded.get("topic_id", facts.id) else None


def state(markers: Markers, recorded_id: str | None) -> str:
    """What became of the marker topic: why it has no marker of the sink."""
    facts = markers.cluster.topic(markers.topic)
    if facts is None:
        return "is gone"
    if facts.id != (recorded_id or facts.id):
        return "was deleted and created again"
    if markers.assignment() is None:
        return "has no partition for the sink: it was deleted and created again, or its partition 0 lost records"
    beginning, _ = markers.log.bounds()
    return (
        f"lost the records before offset {beginning} of the sink's partition"
        if beginning
        else "has no record of this sink"
    )
