"""Every kind of failure that the provider tells of, by its code: what has happened, and what to do.

The code begins the text of the error and names its section in docs/failures.md, which is written from this module
(``scripts/failure_guide.py``). An error that needs names or numbers in its remedy brings a remedy of its own; the one
here must be right for every error with this code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_epochs.errors import (
    Code,
    Corrupt,
    EpochError,
    Fenced,
    NoNewData,
    NotApplied,
    OutcomeUnknown,
    Refused,
    RowsGone,
    RowsLost,
)


@dataclass(frozen=True)
class Chapter:
    """Codes that the guide shows under one heading: what the reader was doing."""

    title: str
    codes: list[Code] = field(default_factory=list)

    def code(self, name: str, kind: type[EpochError], happened: str, remedy: str) -> Code:
        """Declare a code of this chapter."""
        self.codes.append(Code(name, kind, happened, remedy))
        return self.codes[-1]


CONFIGURATION = Chapter("Connections and configuration")

CONNECTION_MISSING = CONFIGURATION.code(
    "EPOCHS-CONNECTION-MISSING",
    Refused,
    "Airflow has no connection of this name.",
    "Add it under Admin > Connections, or set AIRFLOW_CONN_<NAME>.",
)
LEDGER_ROOT_MISSING = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-MISSING",
    Refused,
    "The connection of type epochs does not say where the ledger is.",
    "Set its field `ledger_root` to an absolute path or a URL such as s3://bucket/epochs.",
)
LEDGER_ROOT_UNUSABLE = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-UNUSABLE",
    Refused,
    "The ledger root is no absolute path and no URL, or its URL has a '#' or a '?'.",
    "Correct the field `ledger_root` of the connection of type epochs.",
)
SIGNING_PASSWORD_MISSING = CONFIGURATION.code(
    "EPOCHS-SIGNING-PASSWORD-MISSING",
    Refused,
    "The ledger must be signed, or has signed records, and its connection has no password.",
    "Set the password of the connection of type epochs to the key that the ledger is signed with.",
)
REQUIRE_SIGNED_UNCLEAR = CONFIGURATION.code(
    "EPOCHS-REQUIRE-SIGNED-UNCLEAR",
    Refused,
    "The field `require_signed` of the connection is neither true nor false.",
    "Correct the field.",
)
STORAGE_OPTIONS_UNREADABLE = CONFIGURATION.code(
    "EPOCHS-STORAGE-OPTIONS-UNREADABLE",
    Refused,
    "The extra field storage_options of a connection is not a JSON object.",
    'Write it like {"aws_region": "eu-central-1"}. The keys are those of the object_store crate.',
)
LOGIN_IN_URL = CONFIGURATION.code(
    "EPOCHS-LOGIN-IN-URL",
    Refused,
    "A URL in the DAG holds a login, which records and asset events would show.",
    "Put the login into the connection that `storage_conn_id` or `work_conn_id` names.",
)
PIPELINE_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-PIPELINE-MISCONFIGURED",
    Refused,
    "An argument of the pipeline, known only when a task runs, is not usable.",
    "Correct the DAG file, then clear the task.",
)
SOURCE_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-SOURCE-MISCONFIGURED",
    Refused,
    "An argument of KafkaSource, or a param of the run, is not usable.",
    "Correct the KafkaSource of the DAG, or the params of the run.",
)
SINK_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-SINK-MISCONFIGURED",
    Refused,
    "An argument of a sink is not usable.",
    "Correct the sink in the DAG, then clear the task.",
)
SINK_KIND_UNKNOWN = CONFIGURATION.code(
    "EPOCHS-SINK-KIND-UNKNOWN",
    Refused,
    "A record of the ledger names a kind or class of sink that this worker does not have. Nothing was imported.",
    "Install the version or package that has it on every worker, until its last epoch is complete.",
)

STORAGE = Chapter("Disks and object stores")

STORE_UNUSABLE = STORAGE.code(
    "EPOCHS-STORE-UNUSABLE",
    Refused,
    "The object store's URL or its storage options are not usable.",
    "Correct the URL, or the storage options of its connection.",
)
STORE_UNCONDITIONAL = STORAGE.code(
    "EPOCHS-STORE-UNCONDITIONAL",
    Refused,
    "The store overwrites an object although it was asked not to: two writers could replace each other's records.",
    "Use a local disk, or an object store with conditional writes (If-None-Match), and remove "
    "aws_conditional_put from the storage options.",
)
STORE_WRITE_UNKNOWN = STORAGE.code(
    "EPOCHS-STORE-WRITE-UNKNOWN",
    OutcomeUnknown,
    "The store did not answer to a write.",
    "Let Airflow retry the task, or clear it: it looks at the store first.",
)
STORE_UNREACHABLE = STORAGE.code(
    "EPOCHS-STORE-UNREACHABLE",
    NotApplied,
    "The object store or the file system does not answer.",
    "Check that the store or the disk is up, and clear the task.",
)
STORE_FORBIDDEN = STORAGE.code(
    "EPOCHS-STORE-FORBIDDEN",
    Refused,
    "The store does not permit what the provider needs.",
    "Grant the worker's user, or the connection's credentials, the rights to read, write, list and delete there.",
)
PATH_RELATIVE = STORAGE.code(
    "EPOCHS-PATH-RELATIVE",
    Refused,
    "A path is not absolute.",
    "Give an absolute path or a URL.",
)

LEDGER = Chapter("The ledger")

PIPELINE_OF_OTHER_DAG = LEDGER.code(
    "EPOCHS-PIPELINE-OF-OTHER-DAG",
    Refused,
    "The ledger says that the pipeline belongs to another DAG.",
    "Give this pipeline another name, or hand it over: `airflow epochs takeover PIPELINE --dag-id DAG --why …`.",
)
TAKEOVER_RACE = LEDGER.code(
    "EPOCHS-TAKEOVER-RACE",
    Refused,
    "The pipeline was handed to a DAG at the same moment.",
    "Look at the pipeline again, and repeat the takeover if you still want it.",
)
LEDGER_RECORD_LOST = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-LOST",
    Corrupt,
    "A record of a complete epoch is gone from the ledger.",
    "Restore the file from a backup of the ledger. If there is none, give the pipeline a new name, and "
    "`starting` offsets where the last complete epoch ended.",
)
LEDGER_CONTRADICTS = LEDGER.code(
    "EPOCHS-LEDGER-CONTRADICTS",
    Corrupt,
    "Two records of the ledger contradict each other: two backups were mixed, or a file was changed.",
    "Restore the epoch's folder as a whole.",
)
LEDGER_UNREADABLE = LEDGER.code(
    "EPOCHS-LEDGER-UNREADABLE",
    OutcomeUnknown,
    "The ledger's store does not answer to a read.",
    "Check the ledger's store and its connection, then clear the task.",
)
LEDGER_TOO_NEW = LEDGER.code(
    "EPOCHS-LEDGER-TOO-NEW",
    Refused,
    "A record was written by a newer version of the provider.",
    "Upgrade airflow-provider-epochs to at least the version that wrote it.",
)
LEDGER_NOT_WRITTEN = LEDGER.code(
    "EPOCHS-LEDGER-NOT-WRITTEN",
    NotApplied,
    "The ledger's disk or store takes no record: it is full or read-only, or does not answer.",
    "Make room there, or make it writable again, and clear the task.",
)
LEDGER_WRITE_UNKNOWN = LEDGER.code(
    "EPOCHS-LEDGER-WRITE-UNKNOWN",
    OutcomeUnknown,
    "The ledger did not answer when a record was written.",
    "Let Airflow retry the task, or clear it: it reads the record before it does anything.",
)
LEDGER_RECORD_TOO_LARGE = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-TOO-LARGE",
    Refused,
    "A record would be larger than the provider reads again.",
    "Let a run take less: fewer topics, partitions or sinks, or smaller options.",
)
LEDGER_RECORD_FORGED = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-FORGED",
    Corrupt,
    "A record is not signed with the ledger's key, although it has to be.",
    "Find out who wrote the file. docs/operations.md#the-signing-key lists the cases.",
)
LEDGER_RECORD_DAMAGED = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-DAMAGED",
    Corrupt,
    "A record of the ledger cannot be read: its text or a value in it is damaged.",
    "Restore this one file from a backup of the ledger. Do not delete it.",
)
LEDGER_RECORD_RACE = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-RACE",
    Refused,
    "Another process wrote a record of this name at the same moment.",
    "Clear the task, or type the command again.",
)
RECORD_CONNECTION_FOREIGN = LEDGER.code(
    "EPOCHS-RECORD-CONNECTION-FOREIGN",
    Refused,
    "An unsigned record has a sink use a connection that no sink of the DAG uses.",
    "Undo the change of the DAG until the epoch is complete. If you changed nothing, restore the record from a backup.",
)
RECORD_SINK_UNTRUSTED = LEDGER.code(
    "EPOCHS-RECORD-SINK-UNTRUSTED",
    Corrupt,
    "What a record says of a sink does not belong to this attempt. Nothing was read, written or deleted there.",
    "Find out who wrote the file, and restore it from a backup of the ledger.",
)

AGREEMENT = Chapter("Ledger and sinks do not agree")

ATTEMPT_UNDECIDED = AGREEMENT.code(
    "EPOCHS-ATTEMPT-UNDECIDED",
    Corrupt,
    "A sink shows a transaction that this ledger has not decided: the ledger is an old copy.",
    "Restore the newest copy of the ledger. If this is a copy on purpose, see docs/failures.md#the-ledger-is-behind.",
)
LEDGER_BEHIND = AGREEMENT.code(
    "EPOCHS-LEDGER-BEHIND",
    Corrupt,
    "A sink shows an epoch that the ledger does not have.",
    "Restore the newest copy of the ledger. If there is none, see docs/failures.md#the-ledger-is-behind.",
)
SINK_EMPTY = AGREEMENT.code(
    "EPOCHS-SINK-EMPTY",
    Corrupt,
    "A sink shows no epoch, and the ledger has epochs of it.",
    "Put back what was dropped, or point the sink back. Else give the sink another name, with `backfill`.",
)
SINK_BEHIND = AGREEMENT.code(
    "EPOCHS-SINK-BEHIND",
    Corrupt,
    "A sink shows an earlier epoch than the ledger: it was put back from an older copy.",
    "Put the newest copy back. If there is none, give the sink another name, with `backfill`.",
)
TWO_LEDGERS = AGREEMENT.code(
    "EPOCHS-TWO-LEDGERS",
    Corrupt,
    "A sink and the ledger have different transactions of one epoch: two ledgers of one pipeline name "
    "have written to the sink.",
    "Let only the ledger go on that has the sink's transaction.",
)
TABLE_GONE = AGREEMENT.code(
    "EPOCHS-TABLE-GONE",
    Corrupt,
    "The table that the last epoch was committed to is gone.",
    "Put it back from a backup, as a whole. Else give the sink another name, with `backfill`.",
)
TABLE_ELSEWHERE = AGREEMENT.code(
    "EPOCHS-TABLE-ELSEWHERE",
    Corrupt,
    "The sink points to another place than the last epoch was committed to.",
    "Point the sink back. To begin anew there, give the sink another name.",
)
TABLE_REPLACED = AGREEMENT.code(
    "EPOCHS-TABLE-REPLACED",
    Corrupt,
    "Another table stands where the last epoch was committed to.",
    "Put the old table back from a backup. To go on in the new one, give the sink another name.",
)
MARKERS_GONE = AGREEMENT.code(
    "EPOCHS-MARKERS-GONE",
    Corrupt,
    "The sink's target is there, and has lost the markers of its epochs.",
    "Put the target back from a backup, or the marker as the message says.",
)
TOPICS_GONE = AGREEMENT.code(
    "EPOCHS-TOPICS-GONE",
    Corrupt,
    "The topic of the rows and the topic of the markers are both gone or empty.",
    "Point the connection back to the old cluster, or follow docs/kafka-sink.md.",
)
MARKER_DELETED = AGREEMENT.code(
    "EPOCHS-MARKER-DELETED",
    Corrupt,
    "Another program has deleted the sink's marker from the marker topic.",
    "Find out which, and put the marker back: docs/kafka-sink.md, 'The marker is lost'.",
)
MARKER_FOREIGN = AGREEMENT.code(
    "EPOCHS-MARKER-FOREIGN",
    Corrupt,
    "The sink's marker was not written by the provider, or by a newer version.",
    "Use the version that wrote it. If another program writes there, stop it, and put the marker back.",
)

STEPS = Chapter("Running the steps: open, decide, complete, abort")

NO_NEW_DATA = STEPS.code(
    "EPOCHS-NO-NEW-DATA",
    NoNewData,
    "The source has no new records that may be read.",
    "Do nothing: the next run looks again.",
)
NOTHING_TO_ABORT = STEPS.code(
    "EPOCHS-NOTHING-TO-ABORT",
    NoNewData,
    "The run has no attempt that could be aborted.",
    "Do nothing here; look at the other tasks of the run.",
)
RUNS_COMPETE = STEPS.code(
    "EPOCHS-RUNS-COMPETE",
    Fenced,
    "Several runs of the pipeline keep opening epochs.",
    "Let one run at a time work on the pipeline: set max_active_runs=1 on the DAG.",
)
EPOCH_COMPLETED_BY_OTHER = STEPS.code(
    "EPOCHS-EPOCH-COMPLETED-BY-OTHER",
    Fenced,
    "Another run has completed this run's epoch.",
    "Clear `open` with its downstream tasks: the run passes its epoch on, or takes a new one.",
)
EPOCH_HELD_BY_OTHER = STEPS.code(
    "EPOCHS-EPOCH-HELD-BY-OTHER",
    Fenced,
    "Another run has taken the epoch over.",
    "Look at that run. Once it has completed the epoch, clear this one's task if you want it green.",
)
EPOCH_NOT_OPENED = STEPS.code(
    "EPOCHS-EPOCH-NOT-OPENED",
    Refused,
    "This run has opened no epoch.",
    "Clear the task `open` with its downstream tasks.",
)
NOTHING_STAGED = STEPS.code(
    "EPOCHS-NOTHING-STAGED",
    Refused,
    "This attempt has no staged rows.",
    "Clear the task `stage` with its downstream tasks.",
)
NOT_DECIDED = STEPS.code(
    "EPOCHS-NOT-DECIDED",
    Refused,
    "The attempt has no GLOBAL_COMMIT.",
    "Clear the task `stage` with its downstream tasks.",
)
RECEIPT_MISSING = STEPS.code(
    "EPOCHS-RECEIPT-MISSING",
    Refused,
    "The epoch cannot be completed: a sink has given no receipt.",
    "Clear the commit task of that sink with its downstream tasks.",
)
GLOBAL_ABORT = STEPS.code(
    "EPOCHS-GLOBAL-ABORT",
    Refused,
    "The votes led to GLOBAL_ABORT. No sink shows the epoch.",
    "Correct what the message names. Then clear the run's failed tasks, or let the next run take the same offsets.",
)
BACKFILL_TOO_LATE = STEPS.code(
    "EPOCHS-BACKFILL-TOO-LATE",
    Refused,
    "`backfill` names a later epoch than the one that is being opened.",
    "Let `backfill` name an epoch up to that one, or leave the sink out.",
)
BACKFILL_GONE = STEPS.code(
    "EPOCHS-BACKFILL-GONE",
    Corrupt,
    "The input of the epoch that `backfill` names is gone.",
    "Let `backfill` name a later epoch, or leave the sink out of it.",
)
SINKS_COLLIDE = STEPS.code(
    "EPOCHS-SINKS-COLLIDE",
    Refused,
    "Two sinks write to one table.",
    "Give each sink a table of its own in the DAG, and clear the run.",
)

COMMANDS = Chapter("The command line")

REASON_EMPTY = COMMANDS.code(
    "EPOCHS-REASON-EMPTY",
    Refused,
    "The command got an empty reason. Nothing was changed.",
    "Say after --why what happened: the ledger has no other account of it.",
)
PIPELINE_UNKNOWN = COMMANDS.code(
    "EPOCHS-PIPELINE-UNKNOWN",
    Refused,
    "The ledger has no pipeline of this name.",
    "Correct the pipeline's name, or the ledger's connection.",
)
EPOCH_NOT_IN_DOUBT = COMMANDS.code(
    "EPOCHS-EPOCH-NOT-IN-DOUBT",
    Refused,
    "The epoch is not in doubt, so it has nothing to waive.",
    "Name the epoch that `airflow epochs in-doubt` prints.",
)
SINK_NOT_AWAITED = COMMANDS.code(
    "EPOCHS-SINK-NOT-AWAITED",
    Refused,
    "The epoch does not wait for this sink.",
    "Name a sink that the epoch waits for.",
)
VERSION_MISSING = COMMANDS.code(
    "EPOCHS-VERSION-MISSING",
    Refused,
    "The sink has no versions, or took no part in the epoch.",
    "Choose another epoch, or the newest state of that sink.",
)

KAFKA = Chapter("Kafka, as source and sink")

KAFKA_CONNECTION = KAFKA.code(
    "EPOCHS-KAFKA-CONNECTION",
    Refused,
    "A field of a connection of type kafka is not usable.",
    "Correct the field that the message names. docs/kafka.md lists all fields.",
)
KAFKA_LOGIN = KAFKA.code(
    "EPOCHS-KAFKA-LOGIN",
    Refused,
    "Kafka does not accept the login of the connection.",
    "Check sasl.mechanism, sasl.username and sasl.password in the connection's extra.",
)
KAFKA_FORBIDDEN = KAFKA.code(
    "EPOCHS-KAFKA-FORBIDDEN",
    Refused,
    "Kafka does not permit what the source or the sink needs.",
    "Grant the rights that docs/kafka.md or docs/kafka-sink.md lists.",
)
KAFKA_TOO_OLD = KAFKA.code(
    "EPOCHS-KAFKA-TOO-OLD",
    Refused,
    "The brokers are too old.",
    "Use Kafka 0.11 or newer.",
)
KAFKA_UNREACHABLE = KAFKA.code(
    "EPOCHS-KAFKA-UNREACHABLE",
    NotApplied,
    "Kafka does not answer.",
    "Check from the task's machine that the brokers run, and that security.protocol is that of their "
    "listener; then clear the task.",
)
KAFKA_CLIENT = KAFKA.code(
    "EPOCHS-KAFKA-CLIENT",
    Refused,
    "The client confluent-kafka is not installed, or does not take the connection's settings.",
    "Install airflow-provider-epochs[kafka-sink], or correct the connection or the sink's options.",
)

SOURCE = Chapter("The Kafka source")

GROUP_OFFSETS_REFUSED = SOURCE.code(
    "EPOCHS-GROUP-OFFSETS-REFUSED",
    NotApplied,
    "Kafka did not take the offsets of the consumer group. Only lag monitors are affected.",
    "Choose another `group_id` for the KafkaSource if real consumers are in this group.",
)
GROUP_FOREIGN = SOURCE.code(
    "EPOCHS-GROUP-FOREIGN",
    Refused,
    "The consumer group has offsets that no pipeline has committed.",
    "Choose a `group_id` for the KafkaSource that nobody else uses, or leave it out.",
)
RECORDS_EXPIRED = SOURCE.code(
    "EPOCHS-RECORDS-EXPIRED",
    Corrupt,
    "Retention deleted the epoch's first records before the epoch read them.",
    "Clear the failed tasks, or let the next run open the epoch again; it begins with the oldest record that is left.",
)
CLUSTER_CHANGED = SOURCE.code(
    "EPOCHS-CLUSTER-CHANGED",
    Corrupt,
    "The connection leads to another Kafka cluster than before. Offsets mean nothing there.",
    "Point the connection back. To move on purpose, give the pipeline a new name.",
)
RECORDS_GONE = SOURCE.code(
    "EPOCHS-RECORDS-GONE",
    Corrupt,
    "Records that the pipeline has not read are gone from Kafka.",
    "Restore the records. To accept the loss, go on under a new pipeline name, as the message says.",
)
TOPIC_MISSING = SOURCE.code(
    "EPOCHS-TOPIC-MISSING",
    Refused,
    "The Kafka cluster has no such topic.",
    "Create the topic, or correct its name in the DAG.",
)
STARTING_UNUSABLE = SOURCE.code(
    "EPOCHS-STARTING-UNUSABLE",
    Refused,
    "`starting` names a partition or an offset that the topic does not have.",
    "Correct `starting` of the KafkaSource.",
)
LOOP = SOURCE.code(
    "EPOCHS-LOOP",
    Refused,
    "A sink writes to a topic that the pipeline reads. Its rows would come back as input, for ever.",
    "Let the sink write to another topic. If the transform sorts those rows out, say KafkaSource(allow_loop=True).",
)

TRANSFORM = Chapter("The transform")

TRANSFORM_MISSING = TRANSFORM.code(
    "EPOCHS-TRANSFORM-MISSING",
    Refused,
    "The transform's file or function is not there.",
    "Correct `transform=` in the DAG.",
)
TRANSFORM_BROKEN = TRANSFORM.code(
    "EPOCHS-TRANSFORM-BROKEN",
    Refused,
    "The transform's file is no valid Python, or raises when it is loaded.",
    "Correct the file, and clear the stage task.",
)
TRANSFORM_RAISED = TRANSFORM.code(
    "EPOCHS-TRANSFORM-RAISED",
    Refused,
    "The transform raised an error. Nothing was written.",
    "Correct the transform, and clear the stage task.",
)
TRANSFORM_RESULT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-RESULT",
    Refused,
    "The transform did not return one DataFrame for each sink.",
    "Return a dict of DataFrames with the names of the sinks as keys, built from the batch.",
)
TRANSFORM_NOT_SENT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-NOT-SENT",
    Refused,
    "A file that the transform imports cannot be sent to Spark.",
    "Put the file beside the transform, keep it small, or install it on Spark's machines.",
)

SPARK = Chapter("Spark")

SPARK_CONNECTION = SPARK.code(
    "EPOCHS-SPARK-CONNECTION",
    Refused,
    "The connection to Spark is not usable.",
    "Correct the connection as the message says.",
)
SPARK_CLEAR_TEXT = SPARK.code(
    "EPOCHS-SPARK-CLEAR-TEXT",
    Refused,
    "Others could read Kafka's credentials on the way to Spark.",
    "Use TLS or a token, or `kafka_credentials_file` in the connection's extra (docs/spark.md).",
)
SPARK_CREDENTIALS_FILE = SPARK.code(
    "EPOCHS-SPARK-CREDENTIALS-FILE",
    Refused,
    "Spark cannot log in to Kafka by the file that `kafka_credentials_file` names.",
    "Write the file by `airflow epochs kafka-credentials`, on the server and on all executors.",
)
SPARK_LOGIN = SPARK.code(
    "EPOCHS-SPARK-LOGIN",
    Refused,
    "The Spark Connect server does not accept the task's token.",
    "Put the server's token into the password of the connection of type spark_connect.",
)
SPARK_UNREACHABLE = SPARK.code(
    "EPOCHS-SPARK-UNREACHABLE",
    NotApplied,
    "The Spark server does not answer.",
    "Check that the server runs, and clear the task.",
)
SPARK_SETTING = SPARK.code(
    "EPOCHS-SPARK-SETTING",
    Refused,
    "The Spark session does not take a setting.",
    "Take it out of `session_conf`: the server itself must have static settings.",
)
SPARK_INCOMPLETE = SPARK.code(
    "EPOCHS-SPARK-INCOMPLETE",
    Refused,
    "Spark lacks a package, an extension or a program that the provider needs.",
    "Start Spark with what the message names.",
)
SPARK_PLAN_REFUSED = SPARK.code(
    "EPOCHS-SPARK-PLAN-REFUSED",
    Refused,
    "Spark refuses the plan.",
    "Correct what the message names, then clear the task.",
)
SPARK_JOB_FAILED = SPARK.code(
    "EPOCHS-SPARK-JOB-FAILED",
    NotApplied,
    "A job of Spark's failed.",
    "Look at Spark's message and at the driver's log, then clear the task.",
)
SPARK_VERSION_MIXED = SPARK.code(
    "EPOCHS-SPARK-VERSION-MIXED",
    Refused,
    "The task and Spark's driver run different versions of the provider.",
    "Install the same version for tasks and Spark.",
)

STAGED = Chapter("Staged rows")

STAGING_PATH = STAGED.code(
    "EPOCHS-STAGING-PATH",
    Refused,
    "`staging` of a sink is neither an absolute path nor a URL.",
    "Give `staging` an absolute path or a URL that Spark and the workers share, for example s3://bucket/staging.",
)
STAGING_PLACE = STAGED.code(
    "EPOCHS-STAGING-PLACE",
    Refused,
    "A staging place does not lie where this sink stages its rows.",
    "Point the sink back to the table and the `staging` folder that it had when the epoch was opened. Change them "
    "after the epoch is complete.",
)
STAGING_FOLDER_FOREIGN = STAGED.code(
    "EPOCHS-STAGING-FOLDER-FOREIGN",
    Refused,
    "The file `_owner.json` says that a staging folder belongs to another sink, pipeline or ledger. Nothing was "
    "deleted.",
    "Leave the folder to its owner. Delete it by hand only if no table and no unfinished epoch refers to its files.",
)
STAGED_BY_ANOTHER = STAGED.code(
    "EPOCHS-STAGED-BY-ANOTHER",
    Refused,
    "The staged rows belong to another transaction or another sink.",
    "Clear the stage task. It stages into a new folder.",
)
STAGED_INCOMPLETE = STAGED.code(
    "EPOCHS-STAGED-INCOMPLETE",
    Refused,
    "Staged rows or files are missing, incomplete or damaged.",
    "Clear the stage task. It stages into a new folder.",
)
STAGED_STATISTICS = STAGED.code(
    "EPOCHS-STAGED-STATISTICS",
    Refused,
    "The statistics of a staged file are missing or not strict JSON, so Delta readers could not use the file.",
    "Set the table property `delta.dataSkippingNumIndexedCols` and Spark's setting "
    "`spark.databricks.delta.stats.collect` back to their defaults. Then clear the stage task.",
)
STAGED_CALENDAR = STAGED.code(
    "EPOCHS-STAGED-CALENDAR",
    Refused,
    "Spark staged old dates in the Julian calendar, which was in use before 1582. The commit would write other dates.",
    "Remove spark.sql.parquet.datetimeRebaseModeInWrite and spark.sql.parquet.int96RebaseModeInWrite from the "
    "transform, if it sets them. Then clear the stage task.",
)
PROMISED_ROWS_GONE = STAGED.code(
    "EPOCHS-PROMISED-ROWS-GONE",
    RowsGone,
    "The staged rows that the vote promised are gone or damaged, and the sink does not show them yet.",
    "Clear the commit task. It stages the same offsets again. If a VACUUM deleted the files, let VACUUM keep files "
    "for longer than an epoch may be in doubt.",
)
PROMISED_ROWS_CHANGED = STAGED.code(
    "EPOCHS-PROMISED-ROWS-CHANGED",
    Corrupt,
    "The staged rows are not the rows that the vote promised: the staging table was changed. Nothing was written.",
    "Restore the folder that the message names from a backup, or delete it. Then clear the commit task. If the folder "
    "is gone, the task stages the same offsets again.",
)
DIGEST_OF_OTHER_VERSION = STAGED.code(
    "EPOCHS-DIGEST-OF-OTHER-VERSION",
    Corrupt,
    "Another version of the provider computed the digest of the promised rows. This version cannot compare the staged "
    "rows with it. Nothing was written.",
    "Install the version of the provider that voted, and clear the commit task. Or complete the epoch without the "
    "sink's rows: `airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
RESTAGED_OTHERWISE = STAGED.code(
    "EPOCHS-RESTAGED-OTHERWISE",
    Corrupt,
    "Promised rows are gone, and the same rows cannot be staged again.",
    "Restore the files from a backup, or undo what has changed. Then clear the commit task. If neither is possible, "
    "complete the epoch without the sink's rows: `airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
RESTAGED_BY_OTHER_CODE = STAGED.code(
    "EPOCHS-RESTAGED-BY-OTHER-CODE",
    Corrupt,
    "Promised rows were staged again, but the transform's code has changed since the epoch was opened.",
    "Put the transform's file, and the files that it imports, back as they were when the epoch was opened. Then clear "
    "the commit task. Bring the new code back after the epoch is complete.",
)

DELTA = Chapter("Delta tables")

DELTA_UNREACHABLE = DELTA.code(
    "EPOCHS-DELTA-UNREACHABLE",
    NotApplied,
    "The provider cannot reach the table.",
    "Check that the table's store is up, and that the sink's storage connection is correct. Then clear the failed "
    "task.",
)
DELTA_NOT_A_TABLE = DELTA.code(
    "EPOCHS-DELTA-NOT-A-TABLE",
    Refused,
    "The sink does not point to a Delta table: the folder has other files, or the catalog has no such Delta table.",
    "Point the sink to a Delta table, or to a place where there is nothing yet. Create a table that is named in a "
    "catalog first, because the sink does not create it. Then clear the failed task.",
)
DELTA_TABLE_UNREADABLE = DELTA.code(
    "EPOCHS-DELTA-TABLE-UNREADABLE",
    Refused,
    'The library deltalake cannot open the table, and the sink has commit="deltalake".',
    'Repair the table, or give the sink commit="spark". Then clear the failed task.',
)
DELTA_TABLE_SPARK_ONLY = DELTA.code(
    "EPOCHS-DELTA-TABLE-SPARK-ONLY",
    Refused,
    "Only Spark can open the table: a column has a type that version 0.1 of the provider wrote.",
    "Repair the table in Spark with the command in the message. Then clear the failed task. See docs/delta.md, 'A "
    "table that only Spark can open'.",
)
DELTA_TABLE_ALTERED = DELTA.code(
    "EPOCHS-DELTA-TABLE-ALTERED",
    Refused,
    "The table was created, altered or replaced between stage and vote.",
    "Clear the stage task. It stages the rows for the table as it is now.",
)
DELTA_MARKER_CHANGED = DELTA.code(
    "EPOCHS-DELTA-MARKER-CHANGED",
    Refused,
    "The epoch marker in the table changed between open and vote: the table was restored or replaced, or another "
    "program wrote to it under this pipeline's name.",
    "Clear the open task, or let the next run start. The error of `open` says what happened and what to do.",
)
DELTA_ROWS_UNFIT = DELTA.code(
    "EPOCHS-DELTA-ROWS-UNFIT",
    Refused,
    "The rows do not fit the table or the sink's keys: columns, types or NULLs.",
    "Correct the transform or the table. Then clear the stage task.",
)
DELTA_PARTITIONS = DELTA.code(
    "EPOCHS-DELTA-PARTITIONS",
    Refused,
    "The table's partition columns do not fit the sink's `partition_by`, or the rows of mode 'overwrite_partitions'.",
    "Correct `partition_by` or `mode` of the sink, or let the transform return every partition column. Then clear the "
    "stage task.",
)
DELTA_APPEND_ONLY = DELTA.code(
    "EPOCHS-DELTA-APPEND-ONLY",
    Refused,
    "The table takes new rows only, and the sink's mode changes and deletes rows.",
    "Remove the property from the table (ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly')), or choose mode "
    "'append'. Then clear the stage task.",
)
DELTA_NEEDS_SPARK = DELTA.code(
    "EPOCHS-DELTA-NEEDS-SPARK",
    Refused,
    "The library deltalake cannot commit to the table, because it does not support features of the table.",
    'Give the sink commit="spark", or leave `commit` out. Then clear the stage task.',
)
DELTA_TYPE_UNREADABLE = DELTA.code(
    "EPOCHS-DELTA-TYPE-UNREADABLE",
    Refused,
    "The rows have types that only Spark can read, and the table would get them.",
    'Let the transform return another type, for example by `.cast("string")`. Then clear the stage task.',
)
DELTA_MARKERS_EXPIRE = DELTA.code(
    "EPOCHS-DELTA-MARKERS-EXPIRE",
    Refused,
    "The table forgets transactions after a time, so its epoch marker would expire.",
    "Remove the property from the table: ALTER TABLE … UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration'). "
    "If the sink creates the table, remove it from `properties` of the sink. Then clear the stage task.",
)
DELTA_DELETIONS_GONE = DELTA.code(
    "EPOCHS-DELTA-DELETIONS-GONE",
    Refused,
    "The notes about keys that the sink deleted are gone.",
    "Restore the folder that the message names from a backup. If no row can come that is older than the deletion of "
    "its key, create the notes again without rows instead: docs/delta.md, 'upsert', has the command. Then clear the "
    "failed task.",
)
DELTA_OTHER_PIPELINE = DELTA.code(
    "EPOCHS-DELTA-OTHER-PIPELINE",
    Refused,
    "Another pipeline has rows in the table that the sink's mode would delete.",
    "Give each pipeline a table of its own. If the rows of the other pipeline may go, delete them first, or set "
    "replaces_others=True on the sink, also if the other pipeline no longer writes to the table. Then clear the stage "
    "task.",
)
DELTA_FOREIGN_CHANGE = DELTA.code(
    "EPOCHS-DELTA-FOREIGN-CHANGE",
    Corrupt,
    "Another program has removed rows of complete epochs (by RESTORE, REPLACE or an overwrite). No epoch was opened.",
    "Put the rows back by RESTORE TABLE, as the message says. If the change was intended, set on_foreign_change='warn' "
    "on the sink until the next epoch is complete. Then clear the open task.",
)
DELTA_ROWS_LOST = DELTA.code(
    "EPOCHS-DELTA-ROWS-LOST",
    RowsLost,
    "The table shows the epoch, but a VACUUM deleted files of it while the commit ran.",
    "Clear the commit task. It stages the same offsets again and puts their rows in the place of the lost rows. Let "
    "VACUUM keep files for longer than an epoch takes.",
)
DELTA_FILES_LOST = DELTA.code(
    "EPOCHS-DELTA-FILES-LOST",
    Corrupt,
    "A VACUUM deleted files of a commit while it ran. The table still refers to them, and the provider cannot replace "
    "them.",
    "Restore the files from a backup, or from the store's own versions of them. Then clear the commit task. If there "
    "is no backup, do what the message says.",
)
DELTA_COMMIT_UNKNOWN = DELTA.code(
    "EPOCHS-DELTA-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The outcome of the commit is unknown. Nothing is lost.",
    "Clear the commit task: it looks at the table before it writes.",
)
DELTA_COMMIT_REFUSED = DELTA.code(
    "EPOCHS-DELTA-COMMIT-REFUSED",
    Corrupt,
    "The table does not take the promised rows any more: it was changed after the vote.",
    "Undo the change of the table, and clear the commit task. Or complete the epoch without the sink's rows: "
    "`airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
DELTA_TABLE_REPLACED = DELTA.code(
    "EPOCHS-DELTA-TABLE-REPLACED",
    Corrupt,
    "The table was dropped or replaced after the vote.",
    "Put the old table back, and clear the commit task. Or complete the epoch without the sink's rows: "
    "`airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
DELTA_REFERENCES_UNKNOWN = DELTA.code(
    "EPOCHS-DELTA-REFERENCES-UNKNOWN",
    NotApplied,
    "The provider cannot tell whether the table refers to staged files. It deleted none of them.",
    "Do nothing: VACUUM of the table deletes files that the table does not refer to.",
)
DELTA_COMPACTION_MISCOUNTED = DELTA.code(
    "EPOCHS-DELTA-COMPACTION-MISCOUNTED",
    Refused,
    "A compaction read another number of rows than the table's log counts: another writer logged wrong counts. The "
    "compaction replaced no file.",
    "Compare the rows of the table with what they should be. Then set `compact_every=0` on the sink, and leave the "
    "compaction to Spark's OPTIMIZE.",
)

KAFKA_SINK = Chapter("The Kafka sink")

TOPIC_SETTINGS = KAFKA_SINK.code(
    "EPOCHS-TOPIC-SETTINGS",
    Refused,
    "A setting of the topic makes it refuse the rows.",
    "Change the setting as the message says, then clear the stage task.",
)
TRANSACTION_TIMEOUT = KAFKA_SINK.code(
    "EPOCHS-TRANSACTION-TIMEOUT",
    Refused,
    "The sink's transaction_timeout is too short for the rows, or longer than the brokers permit.",
    "Change `transaction_timeout` of the sink, or transaction.max.timeout.ms of the brokers.",
)
TOPIC_ROWS_UNFIT = KAFKA_SINK.code(
    "EPOCHS-TOPIC-ROWS-UNFIT",
    Refused,
    "The rows are no records that the topic takes.",
    "Correct the transform or the topic's settings, then clear the stage task.",
)
MARKER_TOO_LARGE = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOO-LARGE",
    Refused,
    "The marker topic does not take a marker of the epoch's size.",
    "Raise max.message.bytes of the marker topic, as the message says.",
)
MARKER_CHANGED = KAFKA_SINK.code(
    "EPOCHS-MARKER-CHANGED",
    Refused,
    "The marker is not that of the ledger's last epoch.",
    "Find out who else sends under these names, or what was restored.",
)
MARKER_TOPIC_OCCUPIED = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-OCCUPIED",
    Refused,
    "The marker topic has records of other programs.",
    "Give the sink a `marker_topic` of its own.",
)
MARKER_TOPIC_SETTINGS = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-SETTINGS",
    Refused,
    "The marker topic could lose markers: its cleanup policy, replicas or durability are too weak.",
    "Change the setting as the message says, then clear the failed task.",
)
MARKER_TOPIC_GONE = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-GONE",
    Refused,
    "The marker topic is gone.",
    "Put the marker back: docs/kafka-sink.md, 'The marker is lost'.",
)
KAFKA_SENT_UNKNOWN = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SENT-UNKNOWN",
    Corrupt,
    "Whether the epoch was sent cannot be told: the marker topic has changed since the vote.",
    "Look whether the topic has the epoch, and put the marker back: docs/kafka-sink.md, 'The marker is lost'.",
)
KAFKA_COMMIT_UNKNOWN = KAFKA_SINK.code(
    "EPOCHS-KAFKA-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "Whether the transaction was committed is not known.",
    "Clear the commit task: it looks at the marker first.",
)
TOPIC_CHANGED = KAFKA_SINK.code(
    "EPOCHS-TOPIC-CHANGED",
    NotApplied,
    "The topic was deleted or created again after the vote.",
    "Create it with as many partitions as before, and clear the commit task.",
)
KAFKA_SEND_FAILED = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SEND-FAILED",
    NotApplied,
    "The transaction failed and was ended. No row is visible.",
    "Correct what the message names, and clear the commit task.",
)
MARKER_WOULD_DUPLICATE = KAFKA_SINK.code(
    "EPOCHS-MARKER-WOULD-DUPLICATE",
    Refused,
    "The marker to be put back is older than rows that the topic has: they would be sent twice.",
    "Name the transaction of the newest epoch that the topic has.",
)

SQL = Chapter("SQL databases")

SQL_CONNECTION = SQL.code(
    "EPOCHS-SQL-CONNECTION",
    Refused,
    "The connection or the table's name does not fit the database.",
    "Correct the connection, or `table` of the sink.",
)
SQL_UNREACHABLE = SQL.code(
    "EPOCHS-SQL-UNREACHABLE",
    NotApplied,
    "The database does not answer, or did not carry the statement out.",
    "Check that the server or file is there, and who holds locks for long; then clear the task.",
)
SQL_COMMIT_UNKNOWN = SQL.code(
    "EPOCHS-SQL-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The database did not say whether it has committed.",
    "Clear the task when the database is back: it looks at the marker first.",
)
SQL_ROW_REFUSED = SQL.code(
    "EPOCHS-SQL-ROW-REFUSED",
    Refused,
    "The database refuses a row or a statement.",
    "Correct the rows, the table or the rights of the connection's user, and clear the failed task.",
)
SQL_ROWS_UNFIT = SQL.code(
    "EPOCHS-SQL-ROWS-UNFIT",
    Refused,
    "The rows do not fit the table: columns, types or keys.",
    "Correct the transform or the table, and clear the stage task.",
)
SQL_ROWS_DROPPED = SQL.code(
    "EPOCHS-SQL-ROWS-DROPPED",
    Refused,
    "The table took fewer rows than were staged: a trigger or a rule drops some.",
    "Leave such rows out in the transform, or change what drops them.",
)
SQL_TABLE_MISSING = SQL.code(
    "EPOCHS-SQL-TABLE-MISSING",
    Refused,
    "The database has no such table, or the connection's user may not see it.",
    "Create the table, or grant the right, and clear the failed task.",
)
SQL_TABLE_UNUSABLE = SQL.code(
    "EPOCHS-SQL-TABLE-UNUSABLE",
    Refused,
    "The table is of a kind that cannot be a sink.",
    "Give the sink an ordinary table that the connection's user may write to.",
)
SQL_MARKER_TABLE = SQL.code(
    "EPOCHS-SQL-MARKER-TABLE",
    Refused,
    "The table of markers is not usable, or does not take the marker.",
    "Make it an ordinary table without triggers, rules and policies.",
)
SQL_COMMIT_REFUSED = SQL.code(
    "EPOCHS-SQL-COMMIT-REFUSED",
    Corrupt,
    "The table does not take the promised rows any more: the database was changed after the vote.",
    "Undo the change and clear the commit task; or waive the sink's rows.",
)
SINK_UNANSWERED = SQL.code(
    "EPOCHS-SINK-UNANSWERED",
    OutcomeUnknown,
    "A sink cannot be asked whether it shows the epoch.",
    "Follow the remedy in the message, and clear the task.",
)

CHAPTERS = (
    CONFIGURATION,
    STORAGE,
    LEDGER,
    AGREEMENT,
    STEPS,
    COMMANDS,
    KAFKA,
    SOURCE,
    TRANSFORM,
    SPARK,
    STAGED,
    DELTA,
    KAFKA_SINK,
    SQL,
)
"""In the order of the guide."""

BY_NAME = {code.name: code for chapter in CHAPTERS for code in chapter.codes}
