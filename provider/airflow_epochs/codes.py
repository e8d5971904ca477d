"""Every kind of failure that the provider tells of, by its code: what has happened, and what to do.

The code begins the text of the error and names its section in docs/failures.md, which is written from this module
(``scripts/failure_guide.py``). An error that needs names or numbers in its remedy brings a remedy of its own; the one
here must be right for every error with this code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_epochs.errors import (
    BadArgument,
    Code,
    Corrupt,
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

    def code(self, name: str, kind: type[Exception], happened: str, remedy: str) -> Code:
        """Declare a code of this chapter."""
        self.codes.append(Code(name, kind, happened, remedy))
        return self.codes[-1]


CONFIGURATION = Chapter("Connections and configuration")

CONNECTION_MISSING = CONFIGURATION.code(
    "EPOCHS-CONNECTION-MISSING",
    Refused,
    "Airflow has no connection with this name.",
    "Add the connection under Admin > Connections, or set the variable AIRFLOW_CONN_<NAME>. Then clear the failed "
    "task.",
)
LEDGER_ROOT_MISSING = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-MISSING",
    Refused,
    "The field `ledger_root` of the connection of type epochs is empty. It says where the ledger is.",
    "Set `ledger_root` to an absolute path, or to a URL such as s3://bucket/epochs. Then clear the failed task.",
)
LEDGER_ROOT_UNUSABLE = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-UNUSABLE",
    Refused,
    "The field `ledger_root` is not an absolute path and not a URL, or its URL has a '#' or a '?'.",
    "Correct the field `ledger_root` of the connection of type epochs. Then clear the failed task.",
)
SIGNING_PASSWORD_MISSING = CONFIGURATION.code(
    "EPOCHS-SIGNING-PASSWORD-MISSING",
    Refused,
    "The provider needs a key to sign or to check the ledger's records. The password of the connection of type epochs "
    "is this key, and it is empty.",
    "Set the password to the key that signed the ledger. If the ledger was never signed, set it to a new random key. "
    "Then clear the failed task.",
)
REQUIRE_SIGNED_UNCLEAR = CONFIGURATION.code(
    "EPOCHS-REQUIRE-SIGNED-UNCLEAR",
    Refused,
    "The field `require_signed` of the connection of type epochs is neither true nor false.",
    "Set `require_signed` to true or to false. Then clear the failed task.",
)
STORAGE_OPTIONS_UNREADABLE = CONFIGURATION.code(
    "EPOCHS-STORAGE-OPTIONS-UNREADABLE",
    Refused,
    "The extra field `storage_options` of a connection is not a JSON object.",
    'Write it as a JSON object, like {"aws_region": "eu-central-1"}. Its keys are the options of the object_store '
    "library. Then clear the failed task.",
)
LOGIN_IN_URL = CONFIGURATION.code(
    "EPOCHS-LOGIN-IN-URL",
    Refused,
    "A URL in the DAG contains a login. Others could read the login, because records, asset events or the arguments "
    "of spark-submit show the URL.",
    "Take the login out of the URL. Put it into the connection that `storage_conn_id` or `work_conn_id` names.",
)
PIPELINE_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-PIPELINE-MISCONFIGURED",
    Refused,
    "An argument of the pipeline is not valid. The provider saw this only when the task ran: the argument is a "
    "template, or the DAG does not use EpochPipeline.",
    "Correct the DAG file, then clear the failed task.",
)
SOURCE_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-SOURCE-MISCONFIGURED",
    Refused,
    "An argument of KafkaSource, or a param of the run, is not valid.",
    "Correct the KafkaSource in the DAG and clear the failed task, or start a run with other params.",
)
SINK_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-SINK-MISCONFIGURED",
    Refused,
    "An argument of a sink is not valid.",
    "Correct the sink in the DAG, then clear the failed task.",
)
SINK_KIND_UNKNOWN = CONFIGURATION.code(
    "EPOCHS-SINK-KIND-UNKNOWN",
    Refused,
    "A record of the ledger names a kind or a class of sink that this worker does not have.",
    "Install the version or the package that has this sink on every worker. Keep it until the sink's last epoch is "
    "complete.",
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
    "The reason of the command (--why) is empty. Nothing was changed.",
    "Type the command again, and write after --why what has happened. The ledger keeps this reason and no other.",
)
NOT_CONFIRMED = COMMANDS.code(
    "EPOCHS-NOT-CONFIRMED",
    Refused,
    "Nobody confirmed the change: the answer was no, or the command has no terminal to ask at. Nothing was changed.",
    "Type the command at a terminal, and answer y. In a script, add --yes.",
)
PIPELINE_UNKNOWN = COMMANDS.code(
    "EPOCHS-PIPELINE-UNKNOWN",
    Refused,
    "The ledger has no pipeline with this name.",
    "Correct the name of the pipeline, or name the connection of its ledger with --ledger-conn-id.",
)
EPOCH_UNKNOWN = COMMANDS.code(
    "EPOCHS-EPOCH-UNKNOWN",
    Refused,
    "The pipeline has no epoch with this number.",
    "Choose an epoch that `airflow epochs list PIPELINE` prints.",
)
EPOCH_NOT_IN_DOUBT = COMMANDS.code(
    "EPOCHS-EPOCH-NOT-IN-DOUBT",
    Refused,
    "The epoch is not in doubt. Only an epoch in doubt has rows to waive.",
    "Choose the epoch in doubt that `airflow epochs in-doubt PIPELINE` prints. If it prints none, do nothing.",
)
SINK_NOT_AWAITED = COMMANDS.code(
    "EPOCHS-SINK-NOT-AWAITED",
    Refused,
    "The epoch does not wait for this sink.",
    "Choose a sink that the epoch waits for. The message lists them.",
)
VERSION_MISSING = COMMANDS.code(
    "EPOCHS-VERSION-MISSING",
    Refused,
    "The sink has no versions, or it has no part in this epoch.",
    "Read another epoch, or the newest state of the sink.",
)
CREDENTIALS_EMPTY = COMMANDS.code(
    "EPOCHS-CREDENTIALS-EMPTY",
    Refused,
    "The Kafka connection has no password and no key, so Spark needs no credentials file for it. Nothing was written.",
    "Leave this connection out of the command.",
)
CREDENTIALS_NOT_WRITTEN = COMMANDS.code(
    "EPOCHS-CREDENTIALS-NOT-WRITTEN",
    Refused,
    "The command cannot write the credentials file.",
    "Name a file in a folder that exists, has room, and lets you write to it.",
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
    "The task cannot find or read the transform's file, or the file does not have the function.",
    "Correct `transform=` in the DAG, or put the file or the function there. Then clear the failed task.",
)
TRANSFORM_BROKEN = TRANSFORM.code(
    "EPOCHS-TRANSFORM-BROKEN",
    Refused,
    "The transform's file, or a module that it imports, is not valid Python, or it raises an error when it is loaded. "
    "Nothing was read or written.",
    "Correct the file. Then clear the failed task.",
)
TRANSFORM_RAISED = TRANSFORM.code(
    "EPOCHS-TRANSFORM-RAISED",
    Refused,
    "The transform raised an error. Nothing was written.",
    "Correct the transform. Then clear the failed task.",
)
TRANSFORM_RESULT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-RESULT",
    Refused,
    "The transform did not return one DataFrame for each sink. Nothing was written.",
    "Return a dict of DataFrames that are built from the batch, with the names of the sinks as keys. With one sink, "
    "the DataFrame alone is enough. Then clear the failed task.",
)
TRANSFORM_NOT_SENT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-NOT-SENT",
    Refused,
    "The provider cannot send the transform and the modules that it imports to Spark: a module is a link out of the "
    "transform's folder, or the files are too large.",
    "Put the module itself beside the transform, and keep data out of packages that the transform imports. Or install "
    "the module on Spark's machines. Then clear the failed task.",
)

SPARK = Chapter("Spark")

SPARK_CONNECTION = SPARK.code(
    "EPOCHS-SPARK-CONNECTION",
    Refused,
    "The connection to Spark, or SparkSubmit in the DAG, lacks a value or has a wrong one.",
    "Correct the connection or the DAG as the message says. Then clear the failed task.",
)
SPARK_CONNECTION_TYPE = SPARK.code(
    "EPOCHS-SPARK-CONNECTION-TYPE",
    Refused,
    "A record of the ledger names a connection as that of a Spark Connect server, and the connection has another type. "
    "Nothing was sent there.",
    "Find out who wrote the record, or who changed the type of the connection.",
)
SPARK_CLEAR_TEXT = SPARK.code(
    "EPOCHS-SPARK-CLEAR-TEXT",
    Refused,
    "Others could read secrets, such as Kafka's credentials, on the way to Spark or in Spark's event log. Nothing was "
    "sent.",
    "Use TLS or a token for Spark Connect, and let Spark redact Kafka's options. Or set `kafka_credentials_file` in "
    "the connection's extra (docs/spark.md). Then clear the failed task.",
)
SPARK_CREDENTIALS_FILE = SPARK.code(
    "EPOCHS-SPARK-CREDENTIALS-FILE",
    Refused,
    "Spark cannot log in to Kafka with the file that `kafka_credentials_file` names.",
    "Write the file with `airflow epochs kafka-credentials`, and put it at this absolute path on the Spark server and "
    "on all its executors. Then clear the failed task.",
)
SPARK_LOGIN = SPARK.code(
    "EPOCHS-SPARK-LOGIN",
    Refused,
    "The Spark Connect server does not accept the task's token.",
    "Put the server's token into the password of the connection of type spark_connect. Then clear the failed task.",
)
SPARK_UNREACHABLE = SPARK.code(
    "EPOCHS-SPARK-UNREACHABLE",
    NotApplied,
    "The Spark Connect server does not answer.",
    "Check that the server runs, and that host and port of the connection are right. Then clear the failed task.",
)
SPARK_SETTING = SPARK.code(
    "EPOCHS-SPARK-SETTING",
    Refused,
    "The Spark session does not accept a setting.",
    "Take the setting out of `session_conf`. If it is a static setting, start the Spark server with it. Then clear the "
    "failed task.",
)
SPARK_INCOMPLETE = SPARK.code(
    "EPOCHS-SPARK-INCOMPLETE",
    Refused,
    "Spark, or the worker, lacks a package, an extension or a program that the provider needs.",
    "Add what the message names. Then clear the failed task.",
)
SPARK_PLAN_REFUSED = SPARK.code(
    "EPOCHS-SPARK-PLAN-REFUSED",
    Refused,
    "Spark cannot run the plan: it names, for example, a column or a function that does not exist.",
    "Correct what the message names, mostly in the transform. Then clear the failed task.",
)
SPARK_JOB_FAILED = SPARK.code(
    "EPOCHS-SPARK-JOB-FAILED",
    NotApplied,
    "A Spark job failed.",
    "Look at Spark's message and at the driver's log, and correct the cause. Then clear the failed task.",
)
SPARK_VERSION_MIXED = SPARK.code(
    "EPOCHS-SPARK-VERSION-MIXED",
    Refused,
    "The task and Spark's driver run different versions of the provider.",
    "Install the same version for tasks and for Spark. Then clear the failed task.",
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

DAG_IMPORT = Chapter("DAG import errors")

NAME = DAG_IMPORT.code(
    "EPOCHS-NAME",
    BadArgument,
    "The name of a pipeline, of a sink or of a topic is not valid.",
    "Choose a name that follows the rule in the message.",
)
PIPELINE_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-PIPELINE-ARGUMENT",
    BadArgument,
    "An argument of EpochPipeline, or `max_active_runs` of its DAG, is not valid.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
PIPELINE_LOOP = DAG_IMPORT.code(
    "EPOCHS-PIPELINE-LOOP",
    BadArgument,
    "A sink writes to a topic that the pipeline reads. The pipeline would read its own rows again and again.",
    "Let the sink write to another topic. If the transform filters these rows out, set KafkaSource(allow_loop=True).",
)
KAFKA_SOURCE_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-KAFKA-SOURCE-ARGUMENT",
    BadArgument,
    "An argument of KafkaSource is not valid.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
DELTA_SINK_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-DELTA-SINK-ARGUMENT",
    BadArgument,
    "An argument of DeltaSink is not valid, or two arguments do not fit each other.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
KAFKA_SINK_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-KAFKA-SINK-ARGUMENT",
    BadArgument,
    "An argument of KafkaSink is not valid, or two arguments do not fit each other.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
SQL_SINK_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-SQL-SINK-ARGUMENT",
    BadArgument,
    "An argument of SqlSink is not valid, or two arguments do not fit each other.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
SPARK_SUBMIT_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-SPARK-SUBMIT-ARGUMENT",
    BadArgument,
    "An argument of SparkSubmit is not valid.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
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
    DAG_IMPORT,
)
"""In the order of the guide."""

BY_NAME = {code.name: code for chapter in CHAPTERS for code in chapter.codes}
