"""Why a sink's marker is not the one that the ledger expects: what the brokers can tell, with a remedy for each case.

Topics are told apart by the brokers' ids: a topic that was deleted and created again has its old name and another id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Shown, TransactionId, compare
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers

PRINTED_MAX = 600
"""Characters of offsets that an error prints; the docs tell how to have longer ones."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is known.

    Attributes:
        topic: Where the sink sends rows today.
        expected: The transaction that the ledger expects.
        recorded: ``detail`` of its receipt: topics and their ids then. Empty if the ledger does not have it.
    """

    markers: Markers
    topic: str
    expected: TransactionId | None
    recorded: JsonDict

    def diagnosed(self) -> Corrupt | None:
        """The error; None if the marker is as expected by now."""
        found = self.markers.newest()
        shown = found.txn if found else None
        stands = compare(shown, self.expected)
        if stands is Shown.EXPECTED:
            return None
        if shown is None:
            return self._lost()
        if stands is Shown.ANOTHER:
            return self._of_another_ledger(shown)
        return self._behind(shown) if stands is Shown.BEHIND else self._ahead(found, shown)

    # -- the cases -----------------------------------------------------------------------------------------------

    def _lost(self) -> Corrupt:
        assert self.expected
        what = (
            f"The ledger expects {self.expected} of {self.markers.key}, and there is no marker: topic "
            f"{self.markers.topic} {self._state_of_markers()}"
        )
        if rows := self._state_of_rows():
            return Corrupt(
                f"{what}, and topic {self._rows} {rows}.",
                code=codes.TOPICS_GONE,
                remedy="If the connection leads to another cluster than before, point it back. If the topics are lost, "
                "send their epochs again under a new sink name: docs/kafka-sink.md, 'Topic and marker are lost'. "
                "Nothing was read or written.",
            )
        return Corrupt(
            f"{what}. Topic {self._rows} is there.",
            code=codes.MARKERS_GONE,
            remedy=f"Look whether topic {self._rows} has epoch {self.expected.epoch}, and put the marker back: "
            "docs/kafka-sink.md, 'The marker is lost'. Nothing was read or written.",
        )

    def _behind(self, shown: TransactionId) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, older than {self.expected}, "
            f"which the ledger expects: topic {self.markers.topic} was restored to an older state, or lost records.",
            code=codes.SINK_BEHIND,
            remedy=f"Look which epochs topic {self._rows} has, and put the marker or the epochs back: "
            "docs/kafka-sink.md, 'The marker is behind the ledger'. Nothing was read or written.",
        )

    def _ahead(self, found: MarkerRecord | None, shown: TransactionId) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, which the ledger does not "
            f"know: it expects {self.expected or 'no epoch'}. The ledger was lost or restored to an older state, or "
            "another pipeline has the same name.",
            code=codes.LEDGER_BEHIND,
            remedy="Put the ledger's newest records back. If they are gone, give the pipeline a new name and begin "
            f"behind that epoch, with starting={self._ends(found)}. If the pipeline has more sinks, see first where "
            "each ends: docs/kafka-sink.md, 'The ledger is behind the marker'. Nothing was read or written.",
        )

    def _of_another_ledger(self, shown: TransactionId) -> Corrupt:
        return Corrupt(
            f"The marker of {self.markers.key} in topic {self.markers.topic} is {shown}, but the ledger has "
            f"{self.expected} under that number: two ledgers went on from one copy, or two pipelines have one name.",
            code=codes.TWO_LEDGERS,
            remedy="Go on with the ledger that has the marker's transaction, and give the other pipeline a new name: "
            "docs/kafka-sink.md, 'The marker is of another ledger'. Nothing was read or written.",
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

    def _ends(self, found: MarkerRecord | None) -> str:
        if not found or not found.ends:
            return "{…} (the offsets of the pipeline's consumer group: this marker has none)"
        text = json.dumps(found.ends)
        return text if len(text) <= PRINTED_MAX else "{…} (the offsets that the marker has under `ends`)"


def state(markers: Markers, recorded_id: str | None) -> str:
    """What became of the marker topic, so that there is no marker of the sink."""
    facts = markers.cluster.topic(markers.topic)
    if facts is None:
        return "is gone"
    if facts.id != (recorded_id or facts.id):
        return "was deleted and created again"
    if markers.assignment() is None:
        return "has no partition of the sink: it was deleted and created again, or its partition 0 lost records"
    beginning, _ = markers.log.bounds()
    return f"lost the records before offset {beginning} of the sink's partition" if beginning else "has no record of it"
