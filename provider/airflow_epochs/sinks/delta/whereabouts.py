"""Where a Delta sink works: its table, its staging places in it, its notes beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.delta.table import NOTES_FOLDER, STAGING_FOLDER, App, TableLocation, newest_after_checkpoint
from airflow_epochs.errors import Refused
from airflow_epochs.model import attempt_fields
from airflow_epochs.names import normalised
from airflow_epochs.sinks.delta import checks, spark_commit
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.storage import vacuum
from airflow_epochs.storage.options import storage_options

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.sink import DeltaSink

DELTALAKE, SPARK = "deltalake", "spark"
_TRY_ID = re.compile(r"[0-9a-zA-Z]+")


@dataclass(frozen=True)
class Whereabouts:
    """The table, staging places and notes of one sink, in one task's environment."""

    sink: DeltaSink
    env: Environment

    def app(self, pipeline: str) -> App:
        """The name under which the sink signs."""
        return App.of(pipeline, self.sink.name)

    def look(self, location: TableLocation, pipeline: str) -> Target:
        """The table as it is now."""
        only = self.sink.commit_by == DELTALAKE
        return Target.seen(location, self.app(pipeline), self.env, deltalake_only=only)

    def location(self) -> TableLocation:
        """Where the table lies. For a catalog table, this asks Spark."""
        url = self.sink.target
        if self.sink.in_catalog:
            about = spark_commit.describe(self.sink.target, self.env)
            url = normalised(spark_commit.require_table(about, self.sink.target).location)
        return self._at(url)

    def location_of(self, place: str, attempt: SinkAttempt) -> TableLocation:
        """Where the table lies, found from one of its staging places, without asking Spark.

        Raises:
            Refused: ``place`` is not a place of this attempt, or not in this sink's own folder of this table.
        """
        root = self.root_of(place, attempt)
        if root is None:
            raise Refused(
                f"{place!r} is not a staging place of sink {self.sink.name!r} in {self.sink.target}.",
                code=codes.STAGING_PLACE,
                remedy="Point the sink back to the table that it had when the epoch was opened. Change it after the "
                "epoch is complete.",
                **attempt_fields(attempt.txn),
                sink=self.sink.name,
            )
        return self._at(root)

    def other(self, url: str) -> TableLocation:
        """Another table, in the same store."""
        return replace(self._at(url), name=url)

    def tables_around(self, url: str) -> Iterator[tuple[str, str]]:
        """The tables in whose folders a table lies."""
        return vacuum.tables_around(url, self._at(url).options)

    def _at(self, url: str) -> TableLocation:
        conn_id = self.sink.storage_conn_id
        options = storage_options(self.env.connection(conn_id) if conn_id else None)
        return TableLocation(self.sink.target, url, options, conn_id)

    def place(self, attempt: SinkAttempt, try_id: str) -> str:
        """A place in a visible folder of the table: VACUUM ignores hidden folders, so their files would stay."""
        return f"{self.location().url}{self._stem(attempt)}{try_id}"

    def root_of(self, place: str, attempt: SinkAttempt) -> str | None:
        """The table's location, from one of its staging places; None if ``place`` cannot be a place of this attempt.

        Only the catalog knows where its table lies, so for a catalog table only the part of the place below that is
        compared.
        """
        root, _, try_id = place.partition(self._stem(attempt))
        is_own = _TRY_ID.fullmatch(try_id) and (self.sink.in_catalog or root == self.sink.target)
        return root if is_own else None

    def _stem(self, attempt: SinkAttempt) -> str:
        return f"/{self.folder(attempt)}/{attempt.txn.epoch}-{attempt.txn.attempt}-"

    def folder(self, attempt: SinkAttempt) -> str:
        return f"{STAGING_FOLDER}/{attempt.ledger_id}.{self.sink.name}"

    def notes_folder(self, attempt: SinkAttempt) -> str:
        """The folder of the sink's notes. It is hidden: VACUUM must not delete its files, which are not the table's."""
        return f"{NOTES_FOLDER}/{attempt.ledger_id}.{self.sink.name}"

    def notes_in(self, location: TableLocation, ending: str) -> list[str]:
        """The notes in all folders whose name ends with ``ending``, also other sinks' notes."""
        folders = [f"{NOTES_FOLDER}/{name}" for name in sorted(location.files.names(NOTES_FOLDER))]
        own = [folder for folder in folders if folder.endswith(ending)]
        return [f"{location.url}/{folder}/{name}" for folder in own for name in sorted(location.files.names(folder))]

    def notes_of_others(self, location: TableLocation, attempt: SinkAttempt) -> dict[str, int]:
        """Each place of other sinks' notes of deletions -> the version of these notes, which grows with each note."""
        own = f"{location.url}/{self.notes_folder(attempt)}/"
        others = [place for place in self.notes_in(location, "") if not place.startswith(own)]
        return {place: newest_after_checkpoint(location.files, location.relative(place)) for place in others}

    def require_notes(self, target: Target, attempt: SinkAttempt) -> None:
        """Require the notes about deleted keys, if the sink's last commit says that it has any."""
        if place := self.last_notes(target, attempt):
            checks.require_notes(target.location, place)

    def last_notes(self, target: Target, attempt: SinkAttempt) -> str | None:
        """Where in the table's folder the notes are that the sink's last commit names; None if it names no notes."""
        if attempt.previous is None or not self.sink.how.notes_deletions:
            return None
        found = target.commit_of(attempt.previous)
        ours = (found.user_metadata or {}) if found else {}
        folder = _notes_beside(ours.get("place")) or self.notes_folder(attempt)
        return f"{folder}/{ours['deletions']}" if ours.get("deletions") else None


def _notes_beside(place: str | None) -> str | None:
    """Where a commit of this staging place has made its notes: in another ledger's folder if ours was rebuilt since."""
    _, _, folder = (place or "").partition(f"{STAGING_FOLDER}/")
    return f"{NOTES_FOLDER}/{folder.partition('/')[0]}" if folder else None
