"""What the run leaves for the checkers: the ledger, the tables, the topic, what the readers saw."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_epochs.model import CompleteRecord
from airflow_epochs.staged.owner import OWNER
from airflow_epochs.testing.checkers import Report, check
from airflow_epochs.testing.history import History, Origin, Repeat, Rest
from tests.chaos.reader import Reader
from tests.chaos.system import TABLES, System
from tests.chaos.transfers import Transfers
from tests.support.delta_history import places_of, referenced_by


def judged(
    system: System, reader: Reader, transfers: Transfers, produced: Mapping[Origin, str], rest: Rest, repeat: Repeat
) -> Report:
    """All invariants of one pipeline."""
    tables = [system.table(reader.pipeline, name) for name in TABLES[reader.pipeline]]
    empty = [each.txn_id for each in _complete(reader) if not any(receipt.rows for receipt in each.receipts.values())]
    return check(
        History.of_ledger(
            reader.ledger,
            sinks={sink: book.state(empty) for sink, book in system.books[reader.pipeline].items()},
            produced=produced,
            withdrawn=transfers.withdrawn,
            observations=reader.observations,
            balance=0,
            rest=rest,
            repeats=[repeat],
            places={place for table in tables for place in places_of(table)} | _staged(system),
            referenced={file for table in tables for file in referenced_by(table)},
        )
    )


def _staged(system: System) -> set[str]:
    """What is left of rows that were staged for the topic and the databases."""
    return {str(path) for path in system.staging.rglob("*") if path.is_file() and path.name != OWNER}


def _complete(reader: Reader) -> list[CompleteRecord]:
    epochs = range(1, reader.ledger.newest_complete() + 1)
    return [record for epoch in epochs if (record := reader.ledger.complete_record(epoch))]


def producers_view(transfers: Transfers, produced: Mapping[Origin, str]) -> list[str]:
    """What Kafka itself got wrong: then the run says nothing about us."""
    lost, shown = transfers.acknowledged - produced.keys(), transfers.withdrawn & produced.keys()
    told = [f"Kafka lost {len(lost)} acknowledged records"] if lost else []
    return told + ([f"Kafka shows {len(shown)} withdrawn records"] if shown else [])
