"""What the run leaves for the checkers: the ledger, the tables, the topic, what the readers saw."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from airflow_epochs.delta.table import App
from airflow_epochs.model import CompleteRecord, JsonDict
from airflow_epochs.staged.owner import OWNER
from airflow_epochs.testing.checkers import Report, check
from airflow_epochs.testing.history import History, Origin, Repeat, Rest, copy_of_ledger
from airflow_epochs.testing.ledger_facts import LedgerFacts
from tests.chaos.reader import Reader, ReaderOfWindows
from tests.chaos.system import STATE, TABLES, System
from tests.chaos.transfers import Transfers
from tests.chaos.windows import Judgement, Shown, Transfer, Wanted, judged_by_oracle, taken
from tests.support.delta_history import places_of, referenced_by
from tests.support.delta_world import log_of


def judged(
    system: System, reader: Reader, transfers: Transfers, produced: Mapping[Origin, bytes], rest: Rest, repeat: Repeat
) -> Report:
    """All invariants of one pipeline."""
    tables = [system.table(reader.pipeline, name) for name in TABLES[reader.pipeline]]
    empty = [each.txn_id for each in _complete(reader) if not any(receipt.rows for receipt in each.receipts.values())]
    return check(
        History.of_ledger(
            reader.ledger,
            sinks={sink: book.state(empty) for sink, book in system.books[reader.pipeline].items()},
            produced={origin: str(zlib.crc32(value)) for origin, value in produced.items()},
            withdrawn=transfers.withdrawn,
            observations=reader.observations,
            rest=rest,
            repeats=[repeat],
            places={place for table in tables for place in places_of(table)} | _staged(system),
            referenced={file for table in tables for file in referenced_by(table)},
            **(_of_windows(reader, produced) if isinstance(reader, ReaderOfWindows) else {"balance": 0}),
        )
    )


def _of_windows(reader: ReaderOfWindows, produced: Mapping[Origin, bytes]) -> dict[str, Any]:
    """A transfer is in ``late``, or it is counted in a window, where nobody finds it again."""
    epochs, topic = taken(_facts(reader)), _transfers(produced)
    counted = {origin for epoch in epochs for origin in epoch.origins(topic)} - set(Wanted.of(epochs, topic).late)
    return {"rewritten": {"closed", STATE}, "filtered": counted}


def judged_windows(system: System, reader: ReaderOfWindows, produced: Mapping[Origin, bytes]) -> Judgement:
    """What strangers read in the tables of windows, compared with what should be there."""
    closed, late, still_open = system.windows
    newest = reader.ledger.complete_record(reader.ledger.newest_complete())
    assert newest is not None
    shown = Shown(
        closed=closed.windows(), late=late.transfers(), open=still_open.still_open(newest), totals=reader.totals
    )
    facts = _facts(reader)
    return Judgement(
        wrong=judged_by_oracle(taken(facts), _transfers(produced), shown),
        judged={
            "windows closed": len(shown.closed),
            "windows open": len(shown.open),
            "late transfers": len(shown.late),
            "epochs looked at": len(shown.totals),
        },
        upkeep=_upkeep(facts, log_of(still_open.path)),
    )


def _upkeep(facts: LedgerFacts, log: list[list[JsonDict]]) -> dict[str, int]:
    """How many epochs have put the whole state into new files, and how many others have dropped expired files."""
    complete = {number: facts.opens[number, record.txn_id.attempt] for number, record in facts.complete.items()}
    folds = {number for number, opened in complete.items() if opened.state[STATE].fold}
    app = App.of("bank_windows", STATE).epoch
    dropping = {
        action["txn"]["version"]
        for entry in log
        for action in entry
        if action.get("txn", {}).get("appId") == app and any("remove" in each for each in entry)
    }
    return {"folds": len(folds), "epochs that dropped expired files": len(dropping - folds)}


def _facts(reader: Reader) -> LedgerFacts:
    return LedgerFacts.of(copy_of_ledger(reader.ledger._store, reader.pipeline))


def _transfers(produced: Mapping[Origin, bytes]) -> dict[Origin, Transfer]:
    return {origin: Transfer.of(value) for origin, value in produced.items()}


def _staged(system: System) -> set[str]:
    """What is left of rows that were staged for the topic and the databases."""
    return {str(path) for path in system.staging.rglob("*") if path.is_file() and path.name != OWNER}


def _complete(reader: Reader) -> list[CompleteRecord]:
    epochs = range(1, reader.ledger.newest_complete() + 1)
    return [record for epoch in epochs if (record := reader.ledger.complete_record(epoch))]


def producers_view(transfers: Transfers, produced: Mapping[Origin, bytes]) -> list[str]:
    """What Kafka itself got wrong: then the run says nothing about us."""
    lost, shown = transfers.acknowledged - produced.keys(), transfers.withdrawn & produced.keys()
    told = [f"Kafka lost {len(lost)} acknowledged records"] if lost else []
    return told + ([f"Kafka shows {len(shown)} withdrawn records"] if shown else [])
