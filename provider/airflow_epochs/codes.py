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
    "The provider cannot open the object store: its URL or its storage options are not valid.",
    "Correct the URL, or the storage options of the connection.",
)
STORE_UNCONDITIONAL = STORAGE.code(
    "EPOCHS-STORE-UNCONDITIONAL",
    Refused,
    "The store does not support put-if-absent: two writers could overwrite each other's files.",
    "Use a local disk, or an object store with conditional writes (If-None-Match). Remove `aws_conditional_put` from "
    "the storage options, or correct it.",
)
STORE_WRITE_UNKNOWN = STORAGE.code(
    "EPOCHS-STORE-WRITE-UNKNOWN",
    OutcomeUnknown,
    "The object store did not confirm a write. The file may exist, or not.",
    "Let Airflow retry, or clear the failed task: it looks at the store first.",
)
STORE_UNREACHABLE = STORAGE.code(
    "EPOCHS-STORE-UNREACHABLE",
    NotApplied,
    "A request to the object store, or an operation of the file system, failed.",
    "Check that the object store is up and that the bucket exists, or that the disk is mounted and has free space. "
    "Then clear the failed task.",
)
STORE_FORBIDDEN = STORAGE.code(
    "EPOCHS-STORE-FORBIDDEN",
    Refused,
    "The object store or the file system denies access.",
    "Grant the user of the Airflow worker, or the credentials of the connection, the permissions to read, write, list "
    "and delete there.",
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
    "The ledger says that another DAG owns the pipeline.",
    "Give this pipeline another name, or hand it over: `airflow epochs takeover PIPELINE --dag-id DAG --why …`.",
)
TAKEOVER_RACE = LEDGER.code(
    "EPOCHS-TAKEOVER-RACE",
    Refused,
    "Somebody else handed the pipeline to a DAG before this takeover. This takeover changed nothing.",
    "Look at the pipeline again. Repeat the takeover if you still want it.",
)
LEDGER_RECORD_LOST = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-LOST",
    Corrupt,
    "The ledger has lost the completion record of an epoch.",
    "Restore the file from a backup of the ledger, and every other file that is then missing. If there is no backup, "
    "give the pipeline a new name, and `starting` offsets where the sinks end: "
    "docs/operations.md#where-the-offsets-are.",
)
LEDGER_CONTRADICTS = LEDGER.code(
    "EPOCHS-LEDGER-CONTRADICTS",
    Corrupt,
    "Records of the ledger contradict each other: somebody mixed files of two backups, or changed a file.",
    "Restore the whole folder of the epoch from one backup of the ledger.",
)
LEDGER_UNREADABLE = LEDGER.code(
    "EPOCHS-LEDGER-UNREADABLE",
    OutcomeUnknown,
    "The provider cannot read the ledger.",
    "Check that the ledger's store is up, and that its connection is correct. Then let Airflow retry, or clear the "
    "failed task: it goes on where it stopped.",
)
LEDGER_TOO_NEW = LEDGER.code(
    "EPOCHS-LEDGER-TOO-NEW",
    Refused,
    "A newer version of the provider wrote a record of the ledger.",
    "Upgrade airflow-provider-epochs to at least the version that wrote the record.",
)
LEDGER_NOT_WRITTEN = LEDGER.code(
    "EPOCHS-LEDGER-NOT-WRITTEN",
    NotApplied,
    "The provider cannot write to the ledger. No record was written.",
    "Check that the ledger's store is up, has free space, and lets its connection write. Then clear the failed task.",
)
LEDGER_WRITE_UNKNOWN = LEDGER.code(
    "EPOCHS-LEDGER-WRITE-UNKNOWN",
    OutcomeUnknown,
    "The ledger's store did not confirm that it wrote a record. The record may exist, or not.",
    "Let Airflow retry, or clear the failed task: it reads the record before it does anything else.",
)
LEDGER_RECORD_TOO_LARGE = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-TOO-LARGE",
    Refused,
    "A record is too large, or nested too deeply, for the provider to read it again. It was not written.",
    "Use fewer topics, partitions or sinks in the pipeline, or smaller options of its source and its sinks.",
)
LEDGER_RECORD_FORGED = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-FORGED",
    Corrupt,
    "A record of the ledger has no valid signature, although it must have one. Nothing was written.",
    "Find out who wrote the file. Then follow docs/operations.md#the-signing-key, which lists the cases.",
)
LEDGER_RECORD_DAMAGED = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-DAMAGED",
    Corrupt,
    "A record of the ledger is damaged, or it is a copy of another record.",
    "Restore this one file from a backup of the ledger. Do not delete it.",
)
LEDGER_RECORD_RACE = LEDGER.code(
    "EPOCHS-LEDGER-RECORD-RACE",
    Refused,
    "Another process wrote a record of this name at the same moment.",
    "Clear the failed task, or run the command again.",
)
RECORD_CONNECTION_FOREIGN = LEDGER.code(
    "EPOCHS-RECORD-CONNECTION-FOREIGN",
    Refused,
    "A record of the ledger names a connection that the DAG does not use, or a connection of another type. The "
    "provider did not use the connection.",
    "Undo the change of the DAG or of the connection until the epoch is complete. If you changed neither, find out who "
    "wrote the record, and restore it from a backup of the ledger.",
)
RECORD_SINK_UNTRUSTED = LEDGER.code(
    "EPOCHS-RECORD-SINK-UNTRUSTED",
    Corrupt,
    "The provider does not trust what a record of the ledger says about a sink: its name, its options or its staging "
    "place cannot be right. Nothing was read, written or deleted there.",
    "Find out who wrote this file, and restore it from a backup of the ledger. If an earlier version of the provider, "
    "or another class of the sink, wrote it, finish the epoch with that version or class.",
)

AGREEMENT = Chapter("Ledger and sinks do not agree")

ATTEMPT_UNDECIDED = AGREEMENT.code(
    "EPOCHS-ATTEMPT-UNDECIDED",
    Corrupt,
    "A sink shows an epoch for which this ledger has no decision: the ledger is an old copy.",
    "Restore the newest copy of the ledger. If you use this copy on purpose, see "
    "docs/failures.md#the-ledger-is-behind.",
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
    "A sink shows no epoch, but the ledger has epochs of this sink.",
    "Restore the target of the sink from a backup, or point the sink back to the old place. If neither is possible, "
    "give the sink another name, with `backfill`.",
)
SINK_BEHIND = AGREEMENT.code(
    "EPOCHS-SINK-BEHIND",
    Corrupt,
    "A sink shows an earlier epoch than the ledger: the sink was restored from an older copy.",
    "Restore the newest copy of the sink, or follow the message. It says how to write the missing epochs again.",
)
TWO_LEDGERS = AGREEMENT.code(
    "EPOCHS-TWO-LEDGERS",
    Corrupt,
    "A sink and the ledger have different transactions of one epoch. Two ledgers with one pipeline name wrote to the "
    "sink, or one ledger was restored and ran the epoch again.",
    "Find the ledger that has the sink's transaction, and let only that ledger go on. If both must go on, follow the "
    "message.",
)
TABLE_GONE = AGREEMENT.code(
    "EPOCHS-TABLE-GONE",
    Corrupt,
    "The table of the sink's last epoch is gone.",
    "Restore the whole table from a backup, or correct the sink. If there is no backup, give the sink another name, "
    "with `backfill`.",
)
TABLE_ELSEWHERE = AGREEMENT.code(
    "EPOCHS-TABLE-ELSEWHERE",
    Corrupt,
    "The sink points to another place than the place of its last epoch.",
    "Point the sink back to the old place. To begin a new table at the new place, give the sink another name.",
)
TABLE_REPLACED = AGREEMENT.code(
    "EPOCHS-TABLE-REPLACED",
    Corrupt,
    "Somebody replaced the table of the sink's last epoch with another table.",
    "Restore the old table from a backup. To go on in the new table, give the sink another name.",
)
MARKERS_GONE = AGREEMENT.code(
    "EPOCHS-MARKERS-GONE",
    Corrupt,
    "The table or the topic of the sink exists, but the marker of its last epoch is gone.",
    "Restore the table or the topic from a backup, or put the marker back as the message says.",
)
TOPICS_GONE = AGREEMENT.code(
    "EPOCHS-TOPICS-GONE",
    Corrupt,
    "The topic of the rows and the topic of the markers are both gone or empty.",
    "Point the connection back to the old cluster. If the topics are lost, follow docs/kafka-sink.md, 'Topic and "
    "marker are lost'.",
)
MARKER_DELETED = AGREEMENT.code(
    "EPOCHS-MARKER-DELETED",
    Corrupt,
    "Another program deleted the sink's marker from the marker topic.",
    "Find out which program it was. Then put the marker back: docs/kafka-sink.md, 'The marker is lost'.",
)
MARKER_FOREIGN = AGREEMENT.code(
    "EPOCHS-MARKER-FOREIGN",
    Corrupt,
    "This version of the provider did not write the marker of the sink: another program or a newer version did.",
    "Upgrade the provider to the version that wrote the marker. If another program wrote it, stop that program, and "
    "put the marker back.",
)

STEPS = Chapter("Running the steps: open, decide, complete, abort")

NO_NEW_DATA = STEPS.code(
    "EPOCHS-NO-NEW-DATA",
    NoNewData,
    "The source has no new data that may be read.",
    "Do nothing: the next run looks again.",
)
NOTHING_TO_ABORT = STEPS.code(
    "EPOCHS-NOTHING-TO-ABORT",
    NoNewData,
    "The run has no undecided attempt.",
    "Do nothing here. Look at the other tasks of the run, and clear the one that failed.",
)
RUNS_COMPETE = STEPS.code(
    "EPOCHS-RUNS-COMPETE",
    Fenced,
    "Several runs of the pipeline open and end epochs at the same time.",
    "Let only one run at a time work on the pipeline: set max_active_runs=1 on the DAG, and do not run the same "
    "pipeline in a second Airflow. Then clear the open task.",
)
EPOCH_COMPLETED_BY_OTHER = STEPS.code(
    "EPOCHS-EPOCH-COMPLETED-BY-OTHER",
    Fenced,
    "Another run, or another try of this run, has completed the epoch.",
    "Clear the open task with its downstream tasks: the run then succeeds with its complete epoch, or opens a new one.",
)
EPOCH_HELD_BY_OTHER = STEPS.code(
    "EPOCHS-EPOCH-HELD-BY-OTHER",
    Fenced,
    "Another run, or a newer attempt of this run, now has the epoch.",
    "Look at that run. When it has completed the epoch, clear the failed task if you want this run green.",
)
EPOCH_NOT_OPENED = STEPS.code(
    "EPOCHS-EPOCH-NOT-OPENED",
    Refused,
    "This run has not opened an epoch.",
    "Clear the open task with its downstream tasks.",
)
NOTHING_STAGED = STEPS.code(
    "EPOCHS-NOTHING-STAGED",
    Refused,
    "No rows are staged for this attempt.",
    "Clear the stage task with its downstream tasks.",
)
NOT_DECIDED = STEPS.code(
    "EPOCHS-NOT-DECIDED",
    Refused,
    "The attempt has no GLOBAL_COMMIT.",
    "Clear the stage task with its downstream tasks.",
)
RECEIPT_MISSING = STEPS.code(
    "EPOCHS-RECEIPT-MISSING",
    Refused,
    "The epoch cannot be completed yet, because the ledger has no receipt of a sink.",
    "Clear the commit task of each sink that the message names, with its downstream tasks.",
)
GLOBAL_ABORT = STEPS.code(
    "EPOCHS-GLOBAL-ABORT",
    Refused,
    "The attempt was aborted, because a sink voted against it or a task failed before the decision. No sink shows its "
    "rows.",
    "Correct what the message, or the log of the failed task, names. Then clear the failed tasks of the run, or let "
    "the next run take the same offsets.",
)
BACKFILL_TOO_LATE = STEPS.code(
    "EPOCHS-BACKFILL-TOO-LATE",
    Refused,
    "`backfill` names an epoch that is later than the epoch that the run is opening.",
    "Let `backfill` name that epoch or an earlier one, or remove the sink from `backfill`.",
)
BACKFILL_GONE = STEPS.code(
    "EPOCHS-BACKFILL-GONE",
    Corrupt,
    "The source does not have all the input any more that `backfill` asks for.",
    "Let `backfill` name a later epoch whose input is still there, or remove the sink from `backfill`.",
)
SINKS_COLLIDE = STEPS.code(
    "EPOCHS-SINKS-COLLIDE",
    Refused,
    "Two sinks write to the same table.",
    "Give each sink a table of its own in the DAG, or remove one of them. Then clear the failed tasks of the run, or "
    "let the next run take the same offsets.",
)
STAGING_PLACE_UNRECOGNISED = STEPS.code(
    "EPOCHS-STAGING-PLACE-UNRECOGNISED",
    Refused,
    "A sink of your own does not recognise the staging place that its method `place` returned.",
    "Return a place from `place` that contains the id of the try unchanged. Then clear the stage task.",
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

STAGING_PLACE = STAGED.code(
    "EPOCHS-STAGING-PLACE",
    Refused,
    "The place for staged rows is not usable.",
    "Give `staging` an absolute path or a URL that Spark and the workers share.",
)
STAGED_NOT_OURS = STAGED.code(
    "EPOCHS-STAGED-NOT-OURS",
    Refused,
    "The folder of staged rows does not belong to this try.",
    "Clear the stage task: it stages into a fresh folder.",
)
STAGED_INCOMPLETE = STAGED.code(
    "EPOCHS-STAGED-INCOMPLETE",
    Refused,
    "The staged files are not those that Spark wrote: rows or files are missing or damaged.",
    "Clear the stage task: it stages into a fresh folder.",
)
STAGED_CALENDAR = STAGED.code(
    "EPOCHS-STAGED-CALENDAR",
    Refused,
    "Spark staged old dates in the calendar that was in use before 1582.",
    "Take the two rebase settings out of the transform, then clear the stage task with its downstream tasks.",
)
PROMISED_ROWS_GONE = STAGED.code(
    "EPOCHS-PROMISED-ROWS-GONE",
    RowsGone,
    "Promised rows are gone, and the sink does not show them yet.",
    "Clear the commit task: it stages the same offsets again.",
)
PROMISED_ROWS_CHANGED = STAGED.code(
    "EPOCHS-PROMISED-ROWS-CHANGED",
    Corrupt,
    "The staged rows are not those that were promised.",
    "Restore the folder from a backup, or delete it and clear the commit task, which stages the same offsets again.",
)
RESTAGED_OTHERWISE = STAGED.code(
    "EPOCHS-RESTAGED-OTHERWISE",
    Corrupt,
    "Promised rows are gone, and cannot be staged again as they were.",
    "Restore the files, or put back what has changed, and clear the commit task. Else waive the sink's rows.",
)
RESTAGED_BY_OTHER_CODE = STAGED.code(
    "EPOCHS-RESTAGED-BY-OTHER-CODE",
    Corrupt,
    "The rows were staged again by other code than the epoch was opened with.",
    "Put the transform's files back as they were, and clear the commit task.",
)

DELTA = Chapter("Delta tables")

DELTA_UNREACHABLE = DELTA.code(
    "EPOCHS-DELTA-UNREACHABLE",
    NotApplied,
    "The table's store does not answer.",
    "Check the store and the sink's storage connection, then clear the task.",
)
DELTA_NOT_A_TABLE = DELTA.code(
    "EPOCHS-DELTA-NOT-A-TABLE",
    Refused,
    "What the sink points to is no Delta table, or cannot be opened.",
    "Point the sink to a Delta table, or to a place where there is nothing yet.",
)
DELTA_TABLE_ALTERED = DELTA.code(
    "EPOCHS-DELTA-TABLE-ALTERED",
    Refused,
    "The table was created, altered, replaced or put back between stage and vote.",
    "Clear the stage task: it stages for the table that is there now.",
)
DELTA_ROWS_UNFIT = DELTA.code(
    "EPOCHS-DELTA-ROWS-UNFIT",
    Refused,
    "The rows do not fit the table: columns, types, constraints, keys or partitions.",
    "Correct the transform or the table, and clear the stage task.",
)
DELTA_APPEND_ONLY = DELTA.code(
    "EPOCHS-DELTA-APPEND-ONLY",
    Refused,
    "The table takes new rows only, and the sink's mode changes rows.",
    "Take delta.appendOnly off the table, or choose mode 'append'.",
)
DELTA_NEEDS_SPARK = DELTA.code(
    "EPOCHS-DELTA-NEEDS-SPARK",
    Refused,
    "The table cannot be committed to by deltalake: it has features that only Spark writes.",
    'Give the sink commit="spark", or leave `commit` out.',
)
DELTA_TYPE_UNREADABLE = DELTA.code(
    "EPOCHS-DELTA-TYPE-UNREADABLE",
    Refused,
    "The table would get, or has, types that only Spark can read.",
    "Let the transform return another type; a table that has one is repaired as the message says.",
)
DELTA_MARKERS_EXPIRE = DELTA.code(
    "EPOCHS-DELTA-MARKERS-EXPIRE",
    Refused,
    "The table forgets transactions after a time, so its epoch markers would expire.",
    "Take delta.setTransactionRetentionDuration off the table.",
)
DELTA_DELETIONS_GONE = DELTA.code(
    "EPOCHS-DELTA-DELETIONS-GONE",
    Refused,
    "The notes of keys that the sink deleted are gone.",
    "Restore that folder from a backup, and clear the failed task.",
)
DELTA_OTHER_PIPELINE = DELTA.code(
    "EPOCHS-DELTA-OTHER-PIPELINE",
    Refused,
    "Another pipeline has rows in the table that the sink's mode would take away.",
    "Give each pipeline a table of its own.",
)
DELTA_FOREIGN_CHANGE = DELTA.code(
    "EPOCHS-DELTA-FOREIGN-CHANGE",
    Corrupt,
    "Others took rows of complete epochs out of the table (RESTORE, REPLACE).",
    "Put the table back. If it was meant, set on_foreign_change='warn' until the next epoch is complete.",
)
DELTA_ROWS_LOST = DELTA.code(
    "EPOCHS-DELTA-ROWS-LOST",
    RowsLost,
    "The table shows the epoch, and files of it were deleted since.",
    "Clear the commit task: it stages the same offsets again and puts the rows back.",
)
DELTA_FILES_LOST = DELTA.code(
    "EPOCHS-DELTA-FILES-LOST",
    Corrupt,
    "Files of a complete commit are gone, and the table still refers to them.",
    "Restore the files from a backup, and clear the commit task.",
)
DELTA_COMMIT_UNKNOWN = DELTA.code(
    "EPOCHS-DELTA-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The commit did not end, or its outcome is not known.",
    "Clear the commit task: it looks at the table first. Nothing is lost.",
)
DELTA_COMMIT_REFUSED = DELTA.code(
    "EPOCHS-DELTA-COMMIT-REFUSED",
    Corrupt,
    "The table does not take the promised rows any more: it was changed after the vote.",
    "Put the table back as it was, and clear the commit task; or waive the sink's rows.",
)
DELTA_TABLE_CHANGED = DELTA.code(
    "EPOCHS-DELTA-TABLE-CHANGED",
    Corrupt,
    "The table was dropped or replaced after the vote.",
    "Put the old table back, and clear the commit task; or waive the sink's rows.",
)
DELTA_REFERENCES_UNKNOWN = DELTA.code(
    "EPOCHS-DELTA-REFERENCES-UNKNOWN",
    NotApplied,
    "Whether the table refers to staged files is not known. The files are left alone.",
    "Do nothing: VACUUM of the table deletes files that it does not refer to.",
)
DELTA_COMPACTION_MISCOUNTED = DELTA.code(
    "EPOCHS-DELTA-COMPACTION-MISCOUNTED",
    Refused,
    "A compaction came to another number of rows than the log counts. Nothing was swapped.",
    "Leave the table to Spark's OPTIMIZE, with `compact_every=0`.",
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
