"""The interfaces between the parts of an epoch: sinks, sources, Spark, and the environment they run in.

Every sink implements ``Sink``, every source ``Source``. The smaller protocols are optional abilities. A class gets one
by having its methods, without a base class; callers ask ``isinstance(sink, Maintained)``.
A sink stages durably, then publishes atomically with a marker. A source plans ranges from the last position and
describes how Spark reads them. Both work through an ``Environment``, which Airflow's edge and the tests implement.

The names are imported from here, whatever file they stand in.

For all:
    runner       how jobs run on Spark
    environment  connections and Spark
    connection_types  what is said of a connection of the wrong type
    lineage      what OpenLineage calls a table or a topic
Sources:
    source       what every source does
    position     where the last epoch ended
    pace         when an epoch is due, how large it is, how far it is behind
    reading      checks and answers around Spark's read
    moving       how a command moves the position
Sinks:
    sink         what every sink does
    places       where it stages, and what else lies there
    readiness    what it can tell before Spark runs
    last_epoch   what its last commit says
    versions     earlier versions that are read, or come back
    rows         its rows, to be shown and compared
    committing   what is special about its commit
    fencing      how a commit that hangs is kept from landing
    afterwards   what may become of rows after their commit
    diagnosis    why its marker is not the expected one
    remedies     what an operator does then
"""

from __future__ import annotations

from airflow_epochs.contracts.afterwards import (
    Holding,
    KnownByMarker,
    Maintained,
    Perishable,
    Undoable,
    Vacating,
    Watching,
)
from airflow_epochs.contracts.committing import Adapting, Joint, Noting, Replacing, replaces_by
from airflow_epochs.contracts.connection_types import names_a_service, typed, used_as
from airflow_epochs.contracts.diagnosis import Diagnosing, Disagreement
from airflow_epochs.contracts.environment import Connection, Environment
from airflow_epochs.contracts.fencing import Fencing
from airflow_epochs.contracts.last_epoch import Elsewhere, LastEpoch, Positioned
from airflow_epochs.contracts.lineage import Dataset, Traceable, TraceableSource
from airflow_epochs.contracts.moving import Before, ByTime, LeavingOut, Movable, Move, Truncatable
from airflow_epochs.contracts.pace import (
    Awaited,
    ByInterval,
    Interval,
    Lagging,
    NotYet,
    Pacing,
    Past,
    Unread,
    is_by_interval,
)
from airflow_epochs.contracts.places import InFolder, Leftovers, Located, Planning, Recognising, Surrounded
from airflow_epochs.contracts.position import TABLE_ID, TOPIC_IDS, Position
from airflow_epochs.contracts.readiness import Fitting, Preflight, Probing
from airflow_epochs.contracts.reading import Confirming, Explaining, Preparing, Renewing, Versioned, WithSchemas
from airflow_epochs.contracts.remedies import FIRST_AGAIN, backfill_from, rebuild_remedy, rename_in_doubt, waive_command
from airflow_epochs.contracts.rows import Row, Sampling, StagedSample, Telling
from airflow_epochs.contracts.runner import Following, Placing, Rejoining, RunsOn, SparkJob, SparkRunner
from airflow_epochs.contracts.sink import Ends, Sink, SinkAttempt
from airflow_epochs.contracts.source import Limits, PlannedEpoch, Source, SparkRead
from airflow_epochs.contracts.versions import Restorable, Stateful

__all__ = [
    "FIRST_AGAIN",
    "TABLE_ID",
    "TOPIC_IDS",
    "Adapting",
    "Awaited",
    "Before",
    "ByInterval",
    "ByTime",
    "Confirming",
    "Connection",
    "Dataset",
    "Diagnosing",
    "Disagreement",
    "Elsewhere",
    "Ends",
    "Environment",
    "Explaining",
    "Fencing",
    "Fitting",
    "Following",
    "Holding",
    "InFolder",
    "Interval",
    "Joint",
    "KnownByMarker",
    "Lagging",
    "LastEpoch",
    "LeavingOut",
    "Leftovers",
    "Limits",
    "Located",
    "Maintained",
    "Movable",
    "Move",
    "NotYet",
    "Noting",
    "Pacing",
    "Past",
    "Perishable",
    "Placing",
    "PlannedEpoch",
    "Planning",
    "Position",
    "Positioned",
    "Preflight",
    "Preparing",
    "Probing",
    "Recognising",
    "Rejoining",
    "Renewing",
    "Replacing",
    "Restorable",
    "Row",
    "RunsOn",
    "Sampling",
    "Sink",
    "SinkAttempt",
    "Source",
    "SparkJob",
    "SparkRead",
    "SparkRunner",
    "StagedSample",
    "Stateful",
    "Surrounded",
    "Telling",
    "Traceable",
    "TraceableSource",
    "Truncatable",
    "Undoable",
    "Unread",
    "Vacating",
    "Versioned",
    "Watching",
    "WithSchemas",
    "backfill_from",
    "is_by_interval",
    "names_a_service",
    "rebuild_remedy",
    "rename_in_doubt",
    "replaces_by",
    "typed",
    "used_as",
    "waive_command",
]
