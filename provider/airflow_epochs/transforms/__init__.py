"""Stateful operators for transforms: windows, duplicates, sessions, joins of two streams, and any state by key.

Each is a function of DataFrames: the epoch's rows, the state as the last complete epoch left it, and the epoch's two
watermarks. It gives the rows to show, the changes of the state, and the late rows. A transform returns each of them
for a sink or a state table. No engine runs, nothing reads a clock, and Spark evaluates all of it as an ordinary batch.

What all of them do:

* **Close first, then add.** What ends in (P, W] closes from the state alone; then this epoch's rows are added, unless
  they are late. W is the epoch's watermark, P is the watermark of the epoch before. Without one, nothing is late and
  nothing closes.
* **Nothing is deleted because time passed.** A row of the state has a column that says until when it matters. The state
  table hides rows that have expired by P, and drops them later. This column never falls for a key.
* **Nothing vanishes.** A row without a time, or with a NULL among its keys, counts nowhere. Nor does one whose time, or
  whose window, session or expiry, is outside of the years 1 to 9999. It is among the late rows.

Sums of floating-point numbers depend on the order of the rows: sum decimals.
"""

from airflow_epochs.transforms.avro_records import parse_avro
from airflow_epochs.transforms.changes import DELETED, JoinResult, Result
from airflow_epochs.transforms.debezium import Changes, parse_debezium
from airflow_epochs.transforms.debezium_decimals import debezium_decimal
from airflow_epochs.transforms.duplicates import dedupe
from airflow_epochs.transforms.event_time import EpochWatermarks
from airflow_epochs.transforms.joins import interval_join
from airflow_epochs.transforms.json_records import parse_json
from airflow_epochs.transforms.keyed import stateful
from airflow_epochs.transforms.parsed import Parsed
from airflow_epochs.transforms.protobuf_records import parse_protobuf
from airflow_epochs.transforms.sessions import sessionize
from airflow_epochs.transforms.windows import windowed

__all__ = [
    "DELETED",
    "Changes",
    "EpochWatermarks",
    "JoinResult",
    "Parsed",
    "Result",
    "debezium_decimal",
    "dedupe",
    "interval_join",
    "parse_avro",
    "parse_debezium",
    "parse_json",
    "parse_protobuf",
    "sessionize",
    "stateful",
    "windowed",
]
