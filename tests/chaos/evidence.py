"""What the run leaves for the checkers: the ledger, the tables, the topic, what the readers saw."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable
from reader import Reader
from system import SINKS, System
from transfers import Transfers

from airflow_epochs.sinks.delta_table import App
from airflow_epochs.testing.checkers import Report, check
from airflow_epochs.testing.history import History, Origin, Repeat, Rest, SinkState, VisibleRow
from delta_history import commits_of, places_of, referenced_by


def judged(
    system: System, reader: Reader, transfers: Transfers, produced: Mapping[Origin, str], rest: Rest, repeat: Repeat
) -> Report:
    """All invariants of one pipeline."""
    tables = [system.table(reader.pipeline, sink) for sink in SINKS]
    return check(
        History.of_ledger(
            reader.ledger,
            sinks={sink: _state(system, reader.pipeline, sink) for sink in SINKS},
            produced=produced,
            withdrawn=transfers.withdrawn,
            observations=reader.observations,
            balance=0,
            rest=rest,
            repeats=[repeat],
            places={place for table in tables for place in places_of(table)},
            referenced={file for table in tables for file in referenced_by(table)},
        )
    )


def _state(system: System, pipeline: str, sink: str) -> SinkState:
    path = system.table(pipeline, sink)
    table = DeltaTable(str(path)).to_pyarrow_table(columns=["topic", "partition", "offset", "crc"])
    columns = [column.to_pylist() for column in table.columns]
    rows = [VisibleRow(topic, p, offset, str(crc)) for topic, p, offset, crc in zip(*columns, strict=True)]
    return SinkState(rows=rows, commits=commits_of(path, App.of(pipeline, sink)))


def producers_view(transfers: Transfers, produced: Mapping[Origin, str]) -> list[str]:
    """What Kafka itself got wrong: then the run says nothing about us."""
    lost, shown = transfers.acknowledged - produced.keys(), transfers.withdrawn & produced.keys()
    told = [f"Kafka lost {len(lost)} acknowledged records"] if lost else []
    return told + ([f"Kafka shows {len(shown)} withdrawn records"] if shown else [])
