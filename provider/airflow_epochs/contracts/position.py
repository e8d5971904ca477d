"""Where the last complete epoch ended."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.model import CompleteRecord, JsonDict, OpenRecord, Ranges

TOPIC_IDS = "topic_ids"
"""In the state of a position in topics: topic -> its id, which another topic of its name does not have."""
TABLE_ID = "table_id"
"""In the state of a position in a table: the table's identity, which it keeps where it is moved to."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where the last complete epoch ended.

    Attributes:
        ranges: That epoch's ranges. The next epoch starts at their ends.
        state: What the source recorded for itself, such as topic ids.
    """

    ranges: Ranges
    state: JsonDict

    @classmethod
    def after(cls, record: OpenRecord | CompleteRecord | None) -> Position | None:
        """The position that a completion record, or the record of a command, leaves behind; None: there is none."""
        return cls.of(record) if record else None

    @classmethod
    def of(cls, record: OpenRecord | CompleteRecord) -> Position:
        """As ``after``, for a record that exists."""
        return cls(ranges=record.ranges, state=record.source_state)

    def id_of(self, topic: str) -> str | None:
        """The id that tells the topic or table from another one of its name; None if the source does not say."""
        return self.state.get(TOPIC_IDS, {}).get(topic) or self.state.get(TABLE_ID)

    def named_as_in(self, now: Position) -> Ranges:
        """The ranges, by the name that their table has in ``now``, if it was moved since."""
        known = self.state.get(TABLE_ID)
        if not known or known != now.state.get(TABLE_ID) or not len(now.ranges) == len(self.ranges) == 1:
            return self.ranges
        (name,), (of,) = now.ranges, self.ranges.values()
        return {name: of}
