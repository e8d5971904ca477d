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
    NotApplied,
    "Airflow has no connection with this name, or its secrets backend or API server did not answer. Airflow does not "
    "tell the provider which, so a task tries again.",
    "Add the connection if it is missing: under Admin > Connections, or as the variable AIRFLOW_CONN_<NAME>. If it is "
    "there, look at Airflow's secrets backend and API server. Then let Airflow retry, or clear the failed task.",
)
LEDGER_ROOT_MISSING = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-MISSING",
    Refused,
    "The field `ledger_root` of the connection of type epochs is empty. It says where the ledger is.",
    "Set `ledger_root` to an absolute path, or to a URL such as s3://bucket/epochs. Then clear the failed task.",
)
LEDGER_FOLDER_MISSING = CONFIGURATION.code(
    "EPOCHS-LEDGER-FOLDER-MISSING",
    Refused,
    "The folder that `ledger_root` names does not exist on this machine. Nothing was created.",
    "Correct `ledger_root` if it is misspelled. If the folder is new, set `create` to true, and test again.",
)
LEDGER_ROOT_UNUSABLE = CONFIGURATION.code(
    "EPOCHS-LEDGER-ROOT-UNUSABLE",
    Refused,
    "The field `ledger_root` must be an absolute path without '%' before two hexadecimal digits, or a URL without '#' "
    "and '?'. A URL of a file has three slashes: file:///srv/epochs. If it has blanks around it, no folder may have "
    "them in its name. No file may be where the folder has to be.",
    "Correct the field `ledger_root` of the connection of type epochs. Then clear the failed task.",
)
PACKAGE_MISSING = CONFIGURATION.code(
    "EPOCHS-PACKAGE-MISSING",
    Refused,
    "A Python package that one of the provider's extras installs is missing.",
    "Install the extra that the message names on every worker, and where you type `airflow epochs`. Then clear the "
    "failed task.",
)
LEDGER_NOT_SHARED = CONFIGURATION.code(
    "EPOCHS-LEDGER-NOT-SHARED",
    Refused,
    "A task does not find the epoch in the ledger that an earlier task of its run has opened: `ledger_conn_id` of the "
    "DAG, or `ledger_root` of its connection, was changed between the two tasks, the folder of the ledger is another "
    "one on its worker, or the ledger was lost or restored from an older copy.",
    "Set `ledger_conn_id`, or `ledger_root`, back if it was changed, and clear the failed task. If the workers see "
    "different folders, put the ledger into an object store, or on a disk that all workers share: copy its folder "
    "there from the worker that has the newest records, and set `ledger_root` of the connection. Then clear the open "
    "task with its downstream tasks. If no copy is left, see docs/operations.md#rebuild-a-lost-ledger.",
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
    "The field `require_signed`, or `create`, of the connection of type epochs is neither true nor false.",
    "Set the field to true or to false. Then clear the failed task.",
)
STORAGE_OPTIONS_UNREADABLE = CONFIGURATION.code(
    "EPOCHS-STORAGE-OPTIONS-UNREADABLE",
    Refused,
    "The extra of a connection, or its field `storage_options`, is not a JSON object.",
    'Write it as a JSON object. `storage_options` is like {"aws_region": "eu-central-1"}: its keys are the options of '
    "the object_store library. Then clear the failed task.",
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
    "An argument of the source, or a param of the run, is not valid.",
    "Correct the source in the DAG and clear the failed task, or start a run with other params.",
)
SINK_MISCONFIGURED = CONFIGURATION.code(
    "EPOCHS-SINK-MISCONFIGURED",
    Refused,
    "An argument of a sink is not valid.",
    "Correct the sink in the DAG, then clear the failed task.",
)
SINK_FAULTY = CONFIGURATION.code(
    "EPOCHS-SINK-FAULTY",
    NotApplied,
    "A method of a sink of your own returned something that it must not return, or raised an error that does not say "
    "what is known of the effect. The message names the sink, its class and the method.",
    "Correct the method in the class of the sink: docs/write-your-own-sink.md says what it must return, and which "
    "errors it raises. Then type `airflow epochs retry PIPELINE --why …`, or wait for the next run.",
)
SINK_COMMIT_FAULTY = CONFIGURATION.code(
    "EPOCHS-SINK-COMMIT-FAULTY",
    OutcomeUnknown,
    "The method `commit` of a sink of your own did not return a receipt of the epoch, or raised an error that does not "
    "say what is known of the effect. The sink may show the epoch.",
    "Correct `commit` in the class of the sink: docs/write-your-own-sink.md says what it must return, and which errors "
    "it raises. Do not change its table. Then clear the commit task: `commit` reads the marker before it writes.",
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
    "The provider cannot open the object store: its URL, its connection or its storage options are not valid.",
    "Correct the URL, the connection, or the storage options of the connection.",
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
STORE_PLACE_UNUSABLE = STORAGE.code(
    "EPOCHS-STORE-PLACE-UNUSABLE",
    Refused,
    "Nothing can be written to a place on the disk, because a file is where a folder has to be, or because the file "
    "system takes no new folders there. To try again does not help.",
    "Correct the path in the DAG, or move the file away if it is in the way. Then clear the failed task.",
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
    "The ledger says that another DAG owns the pipeline, or that the pipeline was ended.",
    "Type `airflow epochs takeover PIPELINE --dag-id DAG --why …` if you renamed or moved the DAG: the pipeline goes "
    "on where it is. Then clear the failed task. Only if this is another pipeline, give it another name, and sinks of "
    "its own: it begins at `starting`, and would write the other's rows once more. If it was ended, the message says "
    "by whom: use the name of the pipeline that goes on after its rows, if there is one.",
)
PIPELINE_RENAMED = LEDGER.code(
    "EPOCHS-PIPELINE-RENAMED",
    Refused,
    "The pipeline is new in the ledger, or was handed to its DAG since its last epoch. It would read again what "
    "another pipeline has read or is reading, and write it to the same table or topic once more; or it would begin "
    "behind the end of that one, so that nobody reads what lies between. That one is not in the DAG any more; or it is "
    "in another DAG, with the same transform. Nothing was opened.",
    "Give the pipeline its old name again, which the message has, and, if its DAG was renamed too, type the takeover "
    "in the message: it goes on where it ended. Then clear the failed task. Only if it is to have the new name, or is "
    "another pipeline, do what the message says.",
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
    "run `airflow epochs rebuild PIPELINE --why …`: the pipeline goes on after the newest epoch that its sinks show.",
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
    "A newer version of the provider wrote a record of the ledger, or staged the rows of a state.",
    "Upgrade airflow-provider-epochs to at least the version that wrote it.",
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
    "Undo the change of the DAG or of the connection until the epoch is complete. If it is complete, and the log only "
    "warns, undo nothing: what the sink has staged stays. If you changed neither, find out who wrote the record, and "
    "restore it from a backup of the ledger.",
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
    "A sink shows an epoch for which this ledger has no decision: a newer copy of the ledger, or another ledger of the "
    "pipeline, went on without it.",
    "Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the ledger that has the newest records if "
    "it was changed, and clear the failed task. Otherwise restore the newest copy of the ledger. If there is none, "
    "pause the DAG, run `airflow epochs rebuild PIPELINE --why …`, unpause the DAG and clear the failed task. If you "
    "use this copy on purpose, see docs/failures.md#the-ledger-is-behind.",
)
LEDGER_BEHIND = AGREEMENT.code(
    "EPOCHS-LEDGER-BEHIND",
    Corrupt,
    "A sink shows an epoch that the ledger does not have.",
    "Set `ledger_conn_id` of the DAG, or `ledger_root` of its connection, to the ledger that has the newest records if "
    "it was changed, and clear the failed task. Otherwise restore the newest copy of the ledger. If another worker has "
    "it, in a folder of its own, see EPOCHS-LEDGER-NOT-SHARED. If there is none, pause the DAG, run `airflow epochs "
    "rebuild PIPELINE --why …`, unpause the DAG and clear the failed task: the pipeline goes on where its sinks end. "
    "See docs/failures.md#the-ledger-is-behind.",
)
BACKFILL_OVERTAKEN = AGREEMENT.code(
    "EPOCHS-BACKFILL-OVERTAKEN",
    Corrupt,
    "A waived commit of a new sink, or of the sink under its old name, landed late, and an epoch that is decided has "
    "its rows among its own.",
    "Type `airflow epochs waive PIPELINE EPOCH SINK --why …`, so that the epoch is completed without this sink's rows. "
    "Then clear the failed task. To have all rows, do what the message adds.",
)
SINK_EMPTY = AGREEMENT.code(
    "EPOCHS-SINK-EMPTY",
    Corrupt,
    "A sink shows no epoch, but the ledger has epochs of this sink.",
    "Restore the target of the sink from a backup, or point the sink back to the old place. If neither is "
    "possible, take the sink as it is (`airflow epochs adopt-sink PIPELINE SINK --why …`), or give it another "
    "name, with `backfill`.",
)
ADOPTION_OUTDATED = AGREEMENT.code(
    "EPOCHS-ADOPTION-OUTDATED",
    Corrupt,
    "The command `adopt-sink` took a sink as it was, and the sink shows something else now, before an epoch obeyed the "
    "command.",
    "Correct the DAG if it should point the sink to another table. Otherwise type `airflow epochs adopt-sink PIPELINE "
    "SINK --why …` again: it looks anew at the table of the sink's last epoch. If that is not the table of the DAG, "
    "add `--new-table`, or `--shows` with the epoch that its table shows. Then clear the failed task.",
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
    "The table of the sink is gone.",
    "Give the table its old name back, or restore the whole table from a backup, or correct the sink. If there is no "
    "backup, give the sink another name, with `backfill`.",
)
TABLE_ELSEWHERE = AGREEMENT.code(
    "EPOCHS-TABLE-ELSEWHERE",
    Corrupt,
    "The sink points to another place than the place of its last epoch.",
    "Point the sink back to the old place. To begin a new table at the new place, type `airflow epochs adopt-sink "
    "PIPELINE SINK --new-table --why …`. If the table there shows an epoch of the sink, add `--shows` with this epoch "
    "instead. Or give the sink another name.",
)
TABLE_REPLACED = AGREEMENT.code(
    "EPOCHS-TABLE-REPLACED",
    Corrupt,
    "Somebody replaced the table of the sink's last epoch with another table.",
    "Restore the old table from a backup. To go on in the new table, type `airflow epochs adopt-sink PIPELINE SINK "
    "--why …`, or give the sink another name.",
)
MARKERS_GONE = AGREEMENT.code(
    "EPOCHS-MARKERS-GONE",
    Corrupt,
    "The table or the topic of the sink exists, but the marker of its last epoch is gone.",
    "Restore the table or the topic from a backup, or follow the message: it says how to put the marker back, or "
    "how to go on without it.",
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
SINKS_DISAGREE = AGREEMENT.code(
    "EPOCHS-SINKS-DISAGREE",
    Refused,
    "The sinks of the pipeline do not all show the same epoch, so the ledger cannot be rebuilt from them. Nothing was "
    "changed.",
    "Restore the newest copy of the sink that the message names: it must show the epoch of the others. If there is "
    "none, type the command with --without SINK, and give that sink another name in the DAG, with the `backfill` that "
    "the command prints. First point a state table to a new table: it begins anew there. See "
    "docs/operations.md#rebuild-a-lost-ledger.",
)
ENDS_UNKNOWN = AGREEMENT.code(
    "EPOCHS-ENDS-UNKNOWN",
    Refused,
    "No sink knows the offsets where its last epoch ended: version 0.1 committed it, somebody put its marker back by "
    "hand, the table's log no longer has the commit, or a sink of your own has no `last_epoch`. Nothing was changed.",
    "Write the offsets of the pipeline's consumer group into a file (docs/operations.md#where-the-offsets-are), and "
    "type `airflow epochs rebuild PIPELINE --offsets FILE --why …`. If a sink of your own has no `last_epoch`, write "
    "it first: docs/write-your-own-sink.md#optional-methods.",
)
STATE_COMMIT_GONE = AGREEMENT.code(
    "EPOCHS-STATE-COMMIT-GONE",
    Refused,
    "The log of a state table no longer has the commit of its last epoch, so it is not known which version the next "
    "epoch must read. Nothing was changed.",
    "Restore the newest copy of the ledger, or of the state table with its whole log, and type the command again. If "
    "there is none, point the state to a new table in the DAG, and type `airflow epochs rebuild PIPELINE --without "
    "SINK --why …`: the state begins anew there, and the other sinks go on (docs/state.md, 'A state that is lost').",
)
WATERMARK_UNKNOWN = AGREEMENT.code(
    "EPOCHS-WATERMARK-UNKNOWN",
    Refused,
    "The pipeline has an event time, and no sink knows the watermark of its last epoch. With another watermark, "
    "rows that were late would open windows again, and take the place of right results. Nothing was changed.",
    "Take the watermark from the line `epoch N: the watermark is …` in the log of `open`, or of the task `epochs`, "
    "where N is the epoch that the sinks show, and type `airflow epochs rebuild PIPELINE --watermark TIME --why "
    "…`. If there is no such log, take the end of the newest window in the results.",
)
LEDGER_CHANGED = AGREEMENT.code(
    "EPOCHS-LEDGER-CHANGED",
    Refused,
    "The ledger or a sink changed while the command was at work. Nothing that it announced was changed.",
    "Pause the DAG, wait for its runs to end, and type the command again: it looks at everything anew. Then unpause "
    "the DAG.",
)
LEDGER_IN_PARTS = AGREEMENT.code(
    "EPOCHS-LEDGER-IN-PARTS",
    Refused,
    "The pipeline's folder in the ledger has records that contradict the sinks, or lacks pipeline.json. "
    "Nothing was changed.",
    "Restore the whole folder from one backup of the ledger. If there is none, move the folder away, and type "
    "`airflow epochs rebuild PIPELINE --why …` again: it begins a new ledger where the sinks end.",
)
BACKFILL_UNKNOWN = AGREEMENT.code(
    "EPOCHS-BACKFILL-UNKNOWN",
    Refused,
    "`backfill` names an epoch whose input the ledger does not know, because the ledger was lost and rebuilt since.",
    "Let `backfill` name the epoch that the message says, or a later one. Or remove the sink from `backfill`: it "
    "then begins with the next epoch. Then clear the failed task.",
)
EPOCH_BEFORE_REBUILDING = AGREEMENT.code(
    "EPOCHS-EPOCH-BEFORE-REBUILDING",
    Fenced,
    "The run belongs to an epoch that was unfinished in an old copy of the ledger. Since then the ledger was rebuilt.",
    "Leave this run failed: its rows are in the sinks, by an earlier run. The next run goes on with new data.",
)

STEPS = Chapter("Running the steps: open, decide, complete, abort")

NO_NEW_DATA = STEPS.code(
    "EPOCHS-NO-NEW-DATA",
    NoNewData,
    "The source has no new data that may be read.",
    "Do nothing: the next run looks again.",
)
PIPELINE_PAUSED = STEPS.code(
    "EPOCHS-PIPELINE-PAUSED",
    NoNewData,
    "Somebody has paused the pipeline, so no run takes a new epoch. An epoch that an earlier run has left in doubt "
    "is finished all the same.",
    "Do nothing as long as the pipeline is to stay paused. To go on, type `airflow epochs unpause PIPELINE --why "
    "…`, and start a run.",
)
EPOCH_BLOCKED = STEPS.code(
    "EPOCHS-EPOCH-BLOCKED",
    Refused,
    'An earlier run has not completed its epoch, and the pipeline has `on_failed_epoch="block"`, or reads data '
    "intervals. So no other run takes that epoch over. This run has changed nothing.",
    "Type `airflow epochs retry PIPELINE --why …`: it clears the tasks of the run that the message names, or, if the "
    "backfill of that run was cancelled, names the backfill that goes on. When the epoch is complete, clear the failed "
    "task with its downstream tasks.",
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
    "pipeline in a second Airflow. Then clear the open task with its downstream tasks.",
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
    "Look at that run. When it has completed the epoch, clear the failed task with its downstream tasks if you "
    "want this run green.",
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
    "No rows are staged for this attempt, or the XCom of the stage task was deleted.",
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
    "The epoch cannot be completed yet, because the ledger has no receipt of a sink. Somebody marked its commit task "
    "as success, or a branch skipped the task, or the run has no such task.",
    "Type `airflow epochs retry PIPELINE --why …`. If a sink that the message names was added to the DAG shortly "
    "before the run, first wait until Airflow shows its commit task in the DAG. If a branch skipped its commit task, "
    "first take the task out of the branch in the DAG: else Airflow skips it again.",
)
GLOBAL_ABORT = STEPS.code(
    "EPOCHS-GLOBAL-ABORT",
    Refused,
    "The attempt was aborted, because a sink voted against it or a task failed before the decision. No sink shows its "
    "rows.",
    "Correct what the message, or the log of the failed task, names. Then type `airflow epochs retry PIPELINE "
    "--why …`, or let the next run take the same offsets.",
)
BACKFILL_TOO_LATE = STEPS.code(
    "EPOCHS-BACKFILL-TOO-LATE",
    Refused,
    "`backfill` names an epoch that is later than the epoch that the run is opening.",
    "Let `backfill` name that epoch or an earlier one, or remove the sink from `backfill`. Then clear the failed task.",
)
SINK_RENAMED = STEPS.code(
    "EPOCHS-SINK-RENAMED",
    Refused,
    "`backfill` names a new sink whose table or topic has rows of these epochs already: the pipeline wrote them under "
    "another name. They would be written once more. Nothing was opened.",
    "Let `backfill` name the epoch in the message. If it names no epoch, remove the sink from `backfill`: it begins "
    "with the next epoch, and no row is written again. Or give the sink its old name again, unless another sink has "
    "it. For a second copy of the rows, give the sink another table or topic. Then clear the failed task.",
)
BACKFILL_GONE = STEPS.code(
    "EPOCHS-BACKFILL-GONE",
    Corrupt,
    "Something that `backfill` asks for is gone: input of the source or, in a pipeline with state or event time, "
    "the open record of an earlier epoch or the state that it has read.",
    "Let `backfill` name a later epoch that still has everything it needs, or remove the sink from `backfill`. "
    "Then clear the failed task.",
)
BACKFILL_MOVED = STEPS.code(
    "EPOCHS-BACKFILL-MOVED",
    Refused,
    "`backfill` names an epoch from before a command moved the pipeline's input.",
    "Let `backfill` name the epoch in the message, or a later one. Then clear the failed task.",
)
SINKS_COLLIDE = STEPS.code(
    "EPOCHS-SINKS-COLLIDE",
    Refused,
    "Two sinks write to the same table.",
    "Give each sink a table of its own in the DAG, or remove one of them. Then type `airflow epochs retry PIPELINE "
    "--why …`, or let the next run take the same offsets.",
)
TABLE_IN_TABLE = STEPS.code(
    "EPOCHS-TABLE-IN-TABLE",
    Refused,
    "The table of a new sink lies inside another Delta table, or has one of another sink inside it. A VACUUM of the "
    "outer table would delete the files of the inner one. Nothing was staged.",
    "Give the new sink in the DAG a table that is not inside another one and has no table inside it. Then type "
    "`airflow epochs retry PIPELINE --why …`, or let the next run take the same offsets.",
)
LEDGER_IN_TABLE = STEPS.code(
    "EPOCHS-LEDGER-IN-TABLE",
    Refused,
    "The pipeline's ledger lies inside the table of a new sink, or, before the first epoch, inside any Delta table. A "
    "VACUUM of the table would delete the ledger. Nothing was staged.",
    "Let the pipeline's `ledger_conn_id` name a connection of type epochs whose `ledger_root` is outside all tables, "
    "and start a new run, if the pipeline has no complete epoch yet. Otherwise give the sink in the DAG a table that "
    "does not contain the ledger. Then type `airflow epochs retry PIPELINE --why …`, or let the next run take the same "
    "offsets.",
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
    "The reason (--why) is empty. Nothing was changed.",
    "Write after --why, or into the form of the page, what has happened. The ledger keeps only this text.",
)
REASON_TOO_LONG = COMMANDS.code(
    "EPOCHS-REASON-TOO-LONG",
    Refused,
    "The reason (--why) has more than 1000 characters. Nothing was changed.",
    "Write a shorter reason. For more, name a place in it, such as a ticket: the ledger keeps the reason for ever.",
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
NOTHING_FOUND = COMMANDS.code(
    "EPOCHS-NOTHING-FOUND",
    Refused,
    "No complete epoch has the record, the version or the file that the command was asked for.",
    "Look at `airflow epochs lag PIPELINE` if the record may not be read yet. A version or a file of a table that a "
    "compaction or another writer made is of no epoch: ask for an earlier version, or a file in it.",
)
RUN_WITHOUT_EPOCH = COMMANDS.code(
    "EPOCHS-RUN-WITHOUT-EPOCH",
    Refused,
    "No run with this id has opened or completed an epoch of any pipeline that the ledger has. It may have failed, or "
    "been skipped, before it opened one.",
    "Compare the run id with the one that Airflow shows. If it is right, look at the log of the run's task `open` (in "
    "the single-task layout, `epochs`): it says why the run has no epoch. `airflow epochs in-doubt PIPELINE` prints "
    "the epoch that is unfinished, if there is one.",
)
LAG_UNKNOWN = COMMANDS.code(
    "EPOCHS-LAG-UNKNOWN",
    Refused,
    "The command cannot tell how far the pipeline is behind.",
    "Wait for the first complete epoch if the source is a KafkaSource. If it is a DeltaSource, compare the table's "
    "newest version (DESCRIBE HISTORY) with the one that `airflow epochs show PIPELINE` prints.",
)
EPOCH_UNKNOWN = COMMANDS.code(
    "EPOCHS-EPOCH-UNKNOWN",
    Refused,
    "The pipeline has no epoch with this number.",
    "Choose an epoch that `airflow epochs list PIPELINE` prints.",
)
DRY_RUN_UNFINISHED = COMMANDS.code(
    "EPOCHS-DRY-RUN-UNFINISHED",
    Refused,
    "The epoch is open, aborted or in doubt. A dry run compares with what an epoch has published, so the epoch must be "
    "complete. A preview shows records that no run has taken yet, so no epoch may be open or in doubt.",
    "Choose a complete epoch that `airflow epochs list PIPELINE` prints. Or complete the epoch, as the preview of one "
    "in doubt needs: type `airflow epochs retry PIPELINE --why …`, or start a run. To preview the records of an open "
    "epoch before they are published, type `airflow epochs pause PIPELINE --why …`, mark a run that is at work as "
    "failed in Airflow, and type `airflow epochs abort PIPELINE --why …`. Unpause the pipeline after the preview.",
)
DRY_RUN_GONE = COMMANDS.code(
    "EPOCHS-DRY-RUN-GONE",
    Corrupt,
    "Something that the epoch read is gone: its open record was pruned (`keep_epochs`), records of its input were "
    "deleted or their topic was recreated, or the version of a state table can no longer be read. Nothing was staged.",
    "Choose a later epoch that still has everything it needs: `airflow epochs list PIPELINE` prints the epochs.",
)
DRY_RUN_UNSUITABLE = COMMANDS.code(
    "EPOCHS-DRY-RUN-UNSUITABLE",
    Refused,
    "The epoch read no input, or it read no state that today's pipeline has. So today's code cannot run on it. Or the "
    "next epoch, for a preview, reads no input, or has the data interval of a run.",
    "Choose another epoch that `airflow epochs list PIPELINE` prints.",
)
DRY_RUN_UNTOLD = COMMANDS.code(
    "EPOCHS-DRY-RUN-UNTOLD",
    Refused,
    "A dry run cannot distinguish the rows that the epoch published from other rows of its sink. So it compares only "
    "the row counts, and says so beside them.",
    "Choose a later epoch to compare rows. Or do nothing: the counts are right.",
)
EPOCH_NOT_IN_DOUBT = COMMANDS.code(
    "EPOCHS-EPOCH-NOT-IN-DOUBT",
    Refused,
    "The epoch is not in doubt. Only an epoch in doubt has rows to waive.",
    "Choose the epoch in doubt that `airflow epochs in-doubt PIPELINE` prints, and the pipeline's page shows. If there "
    "is none, do nothing.",
)
ATTEMPT_NOT_OPEN = COMMANDS.code(
    "EPOCHS-ATTEMPT-NOT-OPEN",
    Refused,
    "No attempt is undecided, or another one than the command was about. Only an undecided attempt can be aborted.",
    "Do nothing if no epoch is unfinished, or if it was aborted: the next run goes on by itself. If the epoch is in "
    "doubt, type `airflow epochs retry PIPELINE --why …`, or start a run: it finishes the epoch.",
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
COMMAND_OPTIONS = COMMANDS.code(
    "EPOCHS-COMMAND-OPTIONS",
    Refused,
    "An option or an argument of the command is not valid, or two of them do not fit each other. Nothing was changed.",
    "Do what the message says, and try again.",
)
EPOCH_UNFINISHED = COMMANDS.code(
    "EPOCHS-EPOCH-UNFINISHED",
    Refused,
    "A run is at work on an epoch, or left it in doubt. The command acts only after an epoch is complete or aborted. "
    "Nothing was changed.",
    "Let the run end, or start one: it completes the epoch or aborts it. `airflow epochs in-doubt PIPELINE` shows what "
    "the epoch waits for. `airflow epochs abort PIPELINE --why …` aborts one that is not decided, if no run can. Then "
    "try again.",
)
COMMAND_RACE = COMMANDS.code(
    "EPOCHS-COMMAND-RACE",
    Refused,
    "A run opened the epoch, or somebody else changed something, before this change was confirmed. Nothing was "
    "changed.",
    "Let the run end. Then try again: what it changes is looked up anew, and told before you confirm it.",
)
NOTHING_TO_PAUSE = COMMANDS.code(
    "EPOCHS-NOTHING-TO-PAUSE",
    Refused,
    "Of `pause`: the pipeline is paused already. Of `unpause`: it is not paused. Nothing was changed.",
    "Do nothing: the pipeline is as you want it. `airflow epochs history PIPELINE` says who paused it, and when.",
)
NOTHING_TO_REWIND = COMMANDS.code(
    "EPOCHS-NOTHING-TO-REWIND",
    Refused,
    "The pipeline goes on at this place in any case, so there is nothing to go back to. Nothing was changed.",
    "Choose an earlier epoch. `airflow epochs list PIPELINE` prints them.",
)
RUN_AT_WORK = COMMANDS.code(
    "EPOCHS-RUN-AT-WORK",
    Refused,
    "A run of the pipeline's DAG is at work, or waits for its turn. So there is nothing to start, and a sink that the "
    "run may yet commit is not waived. Nothing was changed.",
    "Wait until that run has ended. If its log says that it waits because the runs before it failed, clear its task: "
    "then it begins at once. If it hangs, mark it as failed in Airflow, then try again. A run that is queued does not "
    "start while its backfill is paused in Airflow: unpause the backfill. It never starts if the backfill was "
    "cancelled: mark the run as failed in Airflow, then try again.",
)
RETRY_REFUSED = COMMANDS.code(
    "EPOCHS-RETRY-REFUSED",
    Refused,
    "Airflow does not know the DAG that owns the pipeline, or does not start a run of it by hand.",
    "Look at the DAG in Airflow: whether it is there, has no import error, and allows manual runs. If the pipeline has "
    "moved to another DAG, type `airflow epochs takeover PIPELINE --dag-id DAG --why …`.",
)
RETRY_NEEDS_BACKFILL = COMMANDS.code(
    "EPOCHS-RETRY-NEEDS-BACKFILL",
    Refused,
    "Neither a run that is cleared nor a new one goes on. Airflow starts no run of a backfill that was cancelled, or "
    "that ended while it was paused. And a pipeline that reads data intervals needs runs that have one: a run that "
    '`retry` starts has no interval. With `on_failed_epoch="block"`, an epoch whose run Airflow no longer has needs '
    "another run of the same interval. Nothing was changed.",
    "Create a backfill of the DAG for the interval of that run, or for the interval that is to be read next: "
    "`airflow backfill create --reprocess-behavior failed`. See docs/intervals.md#backfills-that-were-cancelled.",
)
POSITION_MISSING = COMMANDS.code(
    "EPOCHS-POSITION-MISSING",
    Refused,
    "The pipeline has not opened an epoch, so it has no position that a command could change.",
    "Check the pipeline's name. For a new pipeline, set `starting` of the source in the DAG instead.",
)
SOURCE_NOT_MOVABLE = COMMANDS.code(
    "EPOCHS-SOURCE-NOT-MOVABLE",
    Refused,
    "The command cannot change the position of this kind of source.",
    "Use `adopt-checkpoint`, `adopt-group`, `export-checkpoint` and `export-group` only for a pipeline with a "
    "KafkaSource, and `skip`, `reset-source`, `rewind` and `replan` only for one with a KafkaSource or a DeltaSource.",
)
TOPIC_UNKNOWN = COMMANDS.code(
    "EPOCHS-TOPIC-UNKNOWN",
    Refused,
    "The pipeline does not read this topic.",
    "Name one of the topics in the message. To read a new topic, add it to `topics` in the DAG.",
)
TOPIC_REPLACED = COMMANDS.code(
    "EPOCHS-TOPIC-REPLACED",
    Refused,
    "The topic was deleted, or deleted and created again. The old offsets mean nothing there, so nothing can be "
    "skipped.",
    "Type `airflow epochs reset-source PIPELINE --topic TOPIC --starting earliest --why …` if the topic was created "
    "again. If it is gone, remove it from `topics` in the DAG, and type `airflow epochs replan PIPELINE --why …` if an "
    "aborted epoch has records of it.",
)
OFFSETS_UNUSABLE = COMMANDS.code(
    "EPOCHS-OFFSETS-UNUSABLE",
    Refused,
    "The offsets of the command cannot be read, or the topics do not have them. Nothing was changed.",
    'Write a JSON object such as {"orders": {"0": 4711}} into the file, with offsets that the message allows.',
)
PIPELINE_NOT_NEW = COMMANDS.code(
    "EPOCHS-PIPELINE-NOT-NEW",
    Refused,
    "The command says where a new pipeline begins, and this one has opened an epoch already. Nothing was changed.",
    "Type `airflow epochs rewind PIPELINE --offsets FILE --why …` to go on at other offsets of the same topics, or "
    "`airflow epochs reset-source PIPELINE --offsets FILE --why …` if the topics or the cluster are others now. Or "
    "give the new pipeline a name and sinks of its own.",
)
CHECKPOINT_UNUSABLE = COMMANDS.code(
    "EPOCHS-CHECKPOINT-UNUSABLE",
    Refused,
    "The folder is not the checkpoint of a Structured Streaming query with one Kafka source, or something in it is "
    "missing or cannot be read. Nothing was changed.",
    "Name the folder that the query has as `checkpointLocation`. If a file is missing, restore it, or let the old "
    "query run once more. For a query with other sources, set `starting` in the DAG instead.",
)
SINK_TABLE_UNKNOWN = COMMANDS.code(
    "EPOCHS-SINK-TABLE-UNKNOWN",
    Refused,
    "The table of --sink-table has no batch of the query whose checkpoint the command reads. Nothing was changed.",
    "Check the path. The query must write the table as its own sink: the command does not recognise "
    "what `foreachBatch` or a query with `txnAppId` has written. Without --sink-table, the command goes by the "
    "checkpoint alone.",
)
GROUP_OFFSETS_MISSING = COMMANDS.code(
    "EPOCHS-GROUP-OFFSETS-MISSING",
    Refused,
    "The consumer group has no committed offset of a partition that the pipeline reads. Nothing was changed.",
    "Check the group's name and the source's connection. To begin at another place in the partitions that the message "
    "names, add --starting with earliest, latest, or a time like 2026-01-31T00:00Z.",
)
GROUP_ACTIVE = COMMANDS.code(
    "EPOCHS-GROUP-ACTIVE",
    Refused,
    "The consumer group has members. They would read and commit on, whatever the command does. Nothing was changed.",
    "Stop the consumers that the message names. After a crash, wait until Kafka has let them go (their "
    "session.timeout.ms). Then type the command again.",
)
OTHER_READER_WORKS = COMMANDS.code(
    "EPOCHS-OTHER-READER-WORKS",
    Refused,
    "The checkpoint, the group or the pipeline has moved on while the command waited for a confirmation. Nothing was "
    "changed.",
    "Stop the reader that is still at work. Then type the command again: it looks anew.",
)
EXPORT_OCCUPIED = COMMANDS.code(
    "EPOCHS-EXPORT-OCCUPIED",
    Refused,
    "The place of the export is taken: the folder is not empty, or the consumer group has offsets of these topics. The "
    "command overwrites nothing.",
    "Name a new folder, or a group that nobody uses. If what is there comes from an earlier export that failed, delete "
    "it, and type the command again.",
)
EXPORT_INCOMPLETE = COMMANDS.code(
    "EPOCHS-EXPORT-INCOMPLETE",
    OutcomeUnknown,
    "Kafka has not taken all offsets of the group.",
    "Start no consumer of this group; stop one that has joined it meanwhile. Delete the group, and type the command "
    "again.",
)
NOTHING_TO_REPLAN = COMMANDS.code(
    "EPOCHS-NOTHING-TO-REPLAN",
    Refused,
    "No epoch was aborted since the newest complete one, so the next run plans its epoch anew in any case.",
    "Do nothing, or start a run.",
)
SAVEPOINT_NAME = COMMANDS.code(
    "EPOCHS-SAVEPOINT-NAME",
    Refused,
    "The name of the savepoint is taken or not valid. Nothing was changed.",
    "Choose another name. A name is never used again, also after its savepoint was disposed of.",
)
SAVEPOINT_UNKNOWN = COMMANDS.code(
    "EPOCHS-SAVEPOINT-UNKNOWN",
    Refused,
    "The pipeline has no savepoint of this name.",
    "Choose one that `airflow epochs savepoints PIPELINE` prints.",
)
SAVEPOINT_EPOCH_PRUNED = COMMANDS.code(
    "EPOCHS-SAVEPOINT-EPOCH-PRUNED",
    Refused,
    "The epoch is too old for a savepoint: its records were pruned (`keep_epochs`), or the ledger was rebuilt since.",
    "Choose a newer epoch that `airflow epochs list PIPELINE` prints.",
)
NOTHING_TO_RESTORE = COMMANDS.code(
    "EPOCHS-NOTHING-TO-RESTORE",
    Refused,
    "`--restore-tables` finds no table that can go back: no sink is a Delta table that showed an epoch by then.",
    "Leave out `--restore-tables`, or the tick for the tables on the page. Or choose a later epoch.",
)
RESTORE_LACKS_SINK = COMMANDS.code(
    "EPOCHS-RESTORE-LACKS-SINK",
    Refused,
    "The next epoch brings tables back (`rewind --restore-tables`), and the DAG lacks the sink of one of them. No "
    "table goes back unless all do. Nothing was opened.",
    "Put the sink back into the DAG, and clear the failed task. When the epoch is complete, you may remove the sink.",
)
SINK_NOT_ADOPTED = COMMANDS.code(
    "EPOCHS-SINK-NOT-ADOPTED",
    Refused,
    "The command cannot take the sink as it is. Nothing was changed.",
    "Do what the message says. Or give the sink another name in the DAG: a new sink begins with the next epoch.",
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
PIPELINE_NOT_IN_DAGS = COMMANDS.code(
    "EPOCHS-PIPELINE-NOT-IN-DAGS",
    Refused,
    "The command needs the sinks of the pipeline's DAG, and it finds no such DAG, or several. Nothing was changed.",
    "Name the DAG with --dag-id. If its file has an import error (`airflow dags list-import-errors`), correct that "
    "first.",
)
DAG_UNKNOWN = COMMANDS.code(
    "EPOCHS-DAG-UNKNOWN",
    Refused,
    "This installation has no DAG with this name, or the DAG has no pipeline. Nothing was checked.",
    "Type the name of a DAG with a pipeline: the message lists them.",
)
DAG_NOT_IMPORTED = COMMANDS.code(
    "EPOCHS-DAG-NOT-IMPORTED",
    Refused,
    "A DAG file has an import error, so the command cannot see which DAGs it has. Nothing was checked.",
    "Correct the file. Then run the command again.",
)
TEMPLATE_NEEDS_RUN = COMMANDS.code(
    "EPOCHS-TEMPLATE-NEEDS-RUN",
    Refused,
    "A template in the pipeline's definition cannot be rendered outside of a run. Nothing was changed.",
    "Write the value itself into the DAG instead of the template, for as long as the command runs. Variables and "
    "connections (`var`, `conn`) may stay.",
)

KAFKA = Chapter("Kafka, as source and sink")

KAFKA_CONNECTION = KAFKA.code(
    "EPOCHS-KAFKA-CONNECTION",
    Refused,
    "A field of a connection of type kafka is missing or wrong.",
    "Correct the field that the message names. docs/kafka.md lists all fields.",
)
KAFKA_LOGIN = KAFKA.code(
    "EPOCHS-KAFKA-LOGIN",
    Refused,
    "Kafka rejects the login of the connection's user.",
    "Check sasl.mechanism, sasl.username and sasl.password in the connection's extra, or the connection's login and "
    "password. Clear the failed task.",
)
KAFKA_FORBIDDEN = KAFKA.code(
    "EPOCHS-KAFKA-FORBIDDEN",
    Refused,
    "The connection's user lacks a right in Kafka.",
    "Grant the user the rights that docs/kafka.md lists for the source and docs/kafka-sink.md for the sink. Clear the "
    "failed task.",
)
KAFKA_TOO_OLD = KAFKA.code(
    "EPOCHS-KAFKA-TOO-OLD",
    Refused,
    "The brokers are too old for a request of the provider.",
    "Use Kafka 0.11 or newer. To show which transactions hang, `airflow epochs in-doubt` needs Kafka 3.0 or newer.",
)
KAFKA_UNREACHABLE = KAFKA.code(
    "EPOCHS-KAFKA-UNREACHABLE",
    NotApplied,
    "Kafka does not answer a request, or answers with an error.",
    "Check that the brokers run, and that the task's machine can reach every address in the message. Check that "
    "security.protocol in the connection's extra is the protocol of the brokers' listener. Clear the failed task.",
)
KAFKA_CLIENT_MISSING = KAFKA.code(
    "EPOCHS-KAFKA-CLIENT-MISSING",
    Refused,
    "The Python package confluent-kafka is not installed. The KafkaSink needs it.",
    "Install it where Airflow's tasks run: pip install 'airflow-provider-epochs[kafka-sink]'. Clear the failed task.",
)
PROTOC_MISSING = KAFKA.code(
    "EPOCHS-PROTOC-MISSING",
    Refused,
    "The Python package grpcio-tools is not installed. Schemas of Protobuf that are texts need its compiler, protoc.",
    "Install it where Airflow's tasks run: pip install grpcio-tools. Clear the failed task.",
)
PROTOC_FAILED = KAFKA.code(
    "EPOCHS-PROTOC-FAILED",
    NotApplied,
    "The compiler of Protobuf's schemas, protoc, did not say whether a schema is valid. Nothing was written.",
    "Look at what it wrote, which the message quotes. Clear the failed task.",
)
KAFKA_CLIENT_SETTINGS = KAFKA.code(
    "EPOCHS-KAFKA-CLIENT-SETTINGS",
    Refused,
    "The client confluent-kafka rejects a setting of the connection or of the sink.",
    "Correct the connection, or the `options` of the sink. For GSSAPI, install a confluent-kafka that was built with "
    "it. Clear the failed task.",
)
TOPIC_MISSING = KAFKA.code(
    "EPOCHS-TOPIC-MISSING",
    Refused,
    "The Kafka cluster does not have a topic that the source reads or a sink writes to.",
    "Create the topic, or correct its name or `conn_id` in the DAG. Clear the failed task.",
)

SOURCE = Chapter("The Kafka source")

GROUP_OFFSETS_REFUSED = SOURCE.code(
    "EPOCHS-GROUP-OFFSETS-REFUSED",
    NotApplied,
    "Kafka rejects the offsets that the pipeline writes for its consumer group. This affects lag monitors only.",
    "Choose another `group_id` for the KafkaSource if real consumers are in this group. Otherwise correct what the "
    "message names: the next epoch writes the offsets again.",
)
GROUP_FOREIGN = SOURCE.code(
    "EPOCHS-GROUP-FOREIGN",
    Refused,
    "The consumer group has offsets that no pipeline has committed.",
    "Choose a `group_id` for the KafkaSource that no other program uses, or leave it out. If no program uses the group "
    "any more, you can delete it instead: `kafka-consumer-groups.sh --bootstrap-server <brokers> --delete --group "
    "<group>`. Clear the failed task.",
)
RECORDS_EXPIRED = SOURCE.code(
    "EPOCHS-RECORDS-EXPIRED",
    Corrupt,
    "Retention deleted the first records of the epoch before the epoch read them.",
    "Type `airflow epochs retry PIPELINE --why …`, or let the next run start: it opens the epoch again, which then "
    "begins with the oldest records that are left.",
)
CLUSTER_CHANGED = SOURCE.code(
    "EPOCHS-CLUSTER-CHANGED",
    Corrupt,
    "The connection leads to another Kafka cluster than before. Offsets of one cluster have no meaning in another, and "
    "what was voted on in one is not sent to another.",
    "Point the connection back to the old cluster, and clear the failed task. To move to the new cluster on purpose, "
    "run `airflow epochs reset-source PIPELINE --offsets FILE --why …`, with the offsets at which the pipeline goes on "
    "there: docs/operations.md#another-topic-or-cluster.",
)
RECORDS_GONE = SOURCE.code(
    "EPOCHS-RECORDS-GONE",
    Corrupt,
    "Kafka no longer has records that the pipeline must read, or the topic or partition where it goes on.",
    "Restore the records, with the topics' ids and the offsets that they had, and clear the failed task. To accept "
    "the loss instead, run the command that the message names: it prints what is lost, and asks.",
)
STARTING_UNUSABLE = SOURCE.code(
    "EPOCHS-STARTING-UNUSABLE",
    Refused,
    "`starting` names a partition or an offset that the topic does not have, or a version that the table does not "
    "have.",
    "Correct `starting` of the source, and clear the failed task. If a param of the run set it, start a run with "
    "another value.",
)
RECORD_TIME_INVALID = SOURCE.code(
    "EPOCHS-RECORD-TIME-INVALID",
    Refused,
    "The timestamp of a Kafka record is too large for Spark: the producer wrote nanoseconds, for example, in place of "
    "milliseconds. Spark does not read such a record, so no transform sees it.",
    "Correct the producer, or set message.timestamp.type=LogAppendTime for the topic. If records before this one are "
    "unread, type `airflow epochs replan PIPELINE --why …`, and start runs with the param max_records = the number of "
    "these in its partition, until they are read. Then type `airflow epochs skip PIPELINE --offsets FILE --why …` with "
    "the offset behind it: that record is lost.",
)
LOOP = SOURCE.code(
    "EPOCHS-LOOP",
    Refused,
    "A sink writes to a topic or a table that the pipeline reads. The pipeline would read its own rows again and "
    "again.",
    "Let the sink write elsewhere. If it writes to a topic, and the transform filters these rows out, set "
    "KafkaSource(allow_loop=True). If a task failed, clear it.",
)

DELTA_SOURCE = Chapter("The Delta source")

DELTA_SOURCE_MISSING = DELTA_SOURCE.code(
    "EPOCHS-DELTA-SOURCE-MISSING",
    Refused,
    "There is no Delta table where the source reads.",
    "Put the table back, or correct `table` of the DeltaSource. If another pipeline has yet to create the table, let "
    "that one run first. Then clear the failed task.",
)
DELTA_SOURCE_UNREADABLE = DELTA_SOURCE.code(
    "EPOCHS-DELTA-SOURCE-UNREADABLE",
    Refused,
    "The table has a feature with which the source cannot read what its versions append.",
    "Set changes='feed' in the DAG, and the table property delta.enableChangeDataFeed=true, if the message is about "
    "what versions append. If deltalake cannot open the table at all, let the source read another table, without the "
    "feature that the message names. Then clear the failed task.",
)
FIRST_EPOCH_TOO_LARGE = DELTA_SOURCE.code(
    "EPOCHS-FIRST-EPOCH-TOO-LARGE",
    Refused,
    "An epoch that reads all rows of the table would read more than `max_files` or `max_bytes` of the source.",
    "Set `starting` of the DeltaSource to 0: then the epochs go through the table's versions in steps. After "
    "`reset-source`, also type `airflow epochs reset-source PIPELINE --starting 0 --why …`. If the old versions "
    "are gone, remove `max_files` and `max_bytes` from the DAG for this one epoch instead. Then clear the failed "
    "task.",
)
SOURCE_TABLE_REPLACED = DELTA_SOURCE.code(
    "EPOCHS-SOURCE-TABLE-REPLACED",
    Corrupt,
    "The table is not the one that the pipeline has read: it was dropped and created again, restored from a copy, or "
    "the DAG names another source. Versions of one table have no meaning in another.",
    "Put the old table back, or correct the source in the DAG, and clear the failed task. To go on with the table that "
    "is there now, run `airflow epochs reset-source PIPELINE --starting earliest --why …`: it reads all rows of that "
    "table. With `--starting latest`, it reads only what comes later. Then clear the failed task.",
)
VERSIONS_GONE = DELTA_SOURCE.code(
    "EPOCHS-VERSIONS-GONE",
    Corrupt,
    "The log entries or the files of versions that the pipeline has yet to read are gone: the log was cleaned up, or "
    "VACUUM deleted the files.",
    "Put them back, and clear the failed task. To accept the loss instead, run `airflow epochs skip PIPELINE "
    "--to-available --why …`: it prints which versions are lost, and asks. Then clear the failed task.",
)
ROWS_CHANGED = DELTA_SOURCE.code(
    "EPOCHS-ROWS-CHANGED",
    Corrupt,
    "A version of the table updates or deletes rows, or takes the table back to an earlier version although the "
    "pipeline has read later ones. The source reads only what versions append.",
    "Let the pipeline go back, too, if the table did: rewind it with `--restore-tables`. The message has the "
    "commands. Otherwise leave the version out with `airflow epochs skip PIPELINE --to-available --why …`, which "
    "prints it and asks. Or, if the table had delta.enableChangeDataFeed=true before this version, set changes='feed' "
    "in the DAG. Then clear the failed task.",
)
CHANGE_FEED_OFF = DELTA_SOURCE.code(
    "EPOCHS-CHANGE-FEED-OFF",
    Corrupt,
    "The source reads the change data feed, and the table did not record it for a version that the pipeline has yet to "
    "read.",
    "Set the table property delta.enableChangeDataFeed=true: changes are on record from then on. Then run the command "
    "that the message names, which prints what is lost, and asks. Then clear the failed task.",
)
COLUMNS_CHANGED = DELTA_SOURCE.code(
    "EPOCHS-COLUMNS-CHANGED",
    Corrupt,
    "The source reads the change data feed, and Spark does not read the changes before the table got other columns, or "
    "other partitions. Or the source reads appends, and the files of a version call a column by another name.",
    "Leave these versions out: `airflow epochs skip PIPELINE --to-available --why …` goes on with the first version "
    "that can be read. It prints what is lost, and asks. Or read the whole table again: `airflow epochs reset-source "
    "PIPELINE --starting earliest --why …`. Then clear the failed task.",
)

REGISTRY = Chapter("The schema registry")

REGISTRY_PACKAGE_MISSING = REGISTRY.code(
    "EPOCHS-REGISTRY-PACKAGE-MISSING",
    Refused,
    "The worker lacks a Python package by which the provider asks a schema registry.",
    "Install the provider's extra `schema-registry` on every worker: `pip install "
    "'airflow-provider-epochs[schema-registry]'`. Then clear the failed task.",
)
REGISTRY_CONNECTION = REGISTRY.code(
    "EPOCHS-REGISTRY-CONNECTION",
    Refused,
    "The connection of the schema registry has no address, or one at which no registry answers but something else, or "
    "a setting that the registry's client does not take, or it does not name the authority that signed the registry's "
    "certificate.",
    "Correct the connection: its host is the registry's URL, such as https://registry:8081. Its extra may have the "
    "settings of Confluent's client, such as `ssl.ca.location`. Then clear the failed task.",
)
REGISTRY_UNREACHABLE = REGISTRY.code(
    "EPOCHS-REGISTRY-UNREACHABLE",
    NotApplied,
    "The schema registry does not answer, or it answers with a failure of its own, or the server of its tokens gives "
    "no token.",
    "Let Airflow retry, or clear the failed task once the registry answers. If it never did, correct the host of the "
    "connection.",
)
REGISTRY_REFUSED = REGISTRY.code(
    "EPOCHS-REGISTRY-REFUSED",
    Refused,
    "The schema registry does not let this user in, or does not let them read a subject.",
    "Correct the login and the password of the connection, or let its user read the subjects. Then clear the failed "
    "task.",
)
REGISTRY_SUBJECT_MISSING = REGISTRY.code(
    "EPOCHS-REGISTRY-SUBJECT-MISSING",
    Refused,
    "The schema registry has no subject with this name.",
    "Name the subjects of the topics' schemas with `subjects=[…]` in the KafkaSource. Then clear the failed task.",
)
REGISTRY_NOT_ASKED = REGISTRY.code(
    "EPOCHS-REGISTRY-NOT-ASKED",
    Refused,
    "A parser names a schema registry that the source of the epoch does not name.",
    "Give the source the same connection as `registry_conn_id`. Then clear the failed task.",
)
REGISTRY_SCHEMA_UNKNOWN = REGISTRY.code(
    "EPOCHS-REGISTRY-SCHEMA-UNKNOWN",
    Refused,
    "The subject of a KafkaSink's topic does not have the schema of the rows, and the sink may not register it.",
    "Set `register_schemas=True` in the KafkaSink, or register the schema that the message shows. Then clear the "
    "failed task.",
)
REGISTRY_SCHEMA_REFUSED = REGISTRY.code(
    "EPOCHS-REGISTRY-SCHEMA-REFUSED",
    Refused,
    "The schema registry does not take the schema of the rows: it is not valid, or not compatible with the subject's "
    "earlier ones.",
    "Let the transform return columns that fit the earlier schemas, or name another `subject`, or change the subject's "
    "compatibility in the registry. Then clear the failed task.",
)
SCHEMAS_LOST = REGISTRY.code(
    "EPOCHS-SCHEMAS-LOST",
    Corrupt,
    "The ledger has lost the file with the schemas that an epoch is decoded with.",
    "Restore this file from a backup of the ledger. Then clear the failed task.",
)

INTERVALS = Chapter("Data intervals")

INTERVAL_MISSING = INTERVALS.code(
    "EPOCHS-INTERVAL-MISSING",
    Refused,
    'The KafkaSource has `bounds="data_interval"`, and the run has no data interval, or one without duration. Runs '
    "for asset events have no interval. A run that is started by hand has one only if it has a logical date, or, with "
    "CronPartitionTimetable, a partition key. The interval of a cron text in `schedule` has no duration in Airflow 3, "
    "unless `[scheduler] create_cron_data_intervals` is set.",
    "Create a backfill in place of a run that was started by hand: `airflow backfill create`. `airflow epochs retry "
    "PIPELINE --why …` names the dates that are next, if they are known. Or, with CronPartitionTimetable, start a run "
    "with a partition key: the time in the timetable's zone when the partition begins, such as 2026-01-31T09:00:00. If "
    "runs of the schedule fail so, give the DAG a timetable with intervals, such as "
    'CronDataIntervalTimetable("@hourly", timezone="UTC") or '
    'CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1). Delete the failed run: it has changed nothing.',
)
INTERVAL_NOT_OVER = INTERVALS.code(
    "EPOCHS-INTERVAL-NOT-OVER",
    Refused,
    "The run's data interval ends later than `open` may wait for: records of it may still come.",
    "Clear the failed task after the interval. If every run fails so, let the timetable start runs at the end of their "
    "intervals: CronPartitionTimetable needs run_offset=-1.",
)
INTERVAL_COVERED = INTERVALS.code(
    "EPOCHS-INTERVAL-COVERED",
    NoNewData,
    "Complete epochs have read the run's data interval. The run has nothing to do.",
    "Do nothing. To read the interval once more, type `airflow epochs rewind PIPELINE --to-timestamp … --why …` first: "
    "docs/intervals.md#process-history-again.",
)
INTERVAL_BEFORE = INTERVALS.code(
    "EPOCHS-INTERVAL-BEFORE",
    Refused,
    "The run's data interval lies before the place where the pipeline began, or to where it was moved by a command.",
    "Type `airflow epochs rewind PIPELINE --to-timestamp … --why …`, with the interval's start, and clear the failed "
    "task. Or delete the run.",
)
INTERVAL_MISSED = INTERVALS.code(
    "EPOCHS-INTERVAL-MISSED",
    Refused,
    'Earlier intervals have no epoch yet, and the KafkaSource has `missed="refuse"`. Nothing was changed, and nothing '
    "is lost.",
    "Type `airflow epochs retry PIPELINE --why …`, once for each interval that is left out: it clears the run of the "
    "oldest one if that failed. Else it names the `airflow backfill create` for it, which also repeats runs after a "
    "command. If another run has the logical date of the interval, it names that run, which must be deleted first: "
    "docs/intervals.md#runs-by-hand. If the pipeline has no epoch yet, create the runs of all earlier intervals: "
    "docs/intervals.md#runs-that-were-missed. Then clear the failed task with its downstream tasks. Or set "
    '`missed="read"`: this run then reads those records, too.',
)
INTERVAL_HELD = INTERVALS.code(
    "EPOCHS-INTERVAL-HELD",
    NotApplied,
    "Open transactions of producers hold records back, and some may be of the run's data interval. So the epoch waits, "
    "although other partitions could be read.",
    "Do nothing if the producer is still at work: the task tries again. If it has failed, clear it when the "
    "transaction has ended. If the producer is gone, run `airflow epochs in-doubt PIPELINE`: it lists the open "
    "transactions, and how to end them.",
)

TRANSFORM = Chapter("The transform")

TRANSFORM_MISSING = TRANSFORM.code(
    "EPOCHS-TRANSFORM-MISSING",
    Refused,
    "The task cannot find or read the transform's file, or the file does not have the function.",
    "Correct `transform=` in the DAG, or put the file or the function there. Then clear the failed task.",
)
CODE_NOT_ACKNOWLEDGED = TRANSFORM.code(
    "EPOCHS-CODE-NOT-ACKNOWLEDGED",
    Refused,
    "The code of the transform has changed since the epoch before, and the pipeline has on_code_change='stop'. No "
    "reader sees rows of the new code.",
    "Compare the transform's file, and the files that it imports, with their earlier state. Then type `airflow epochs "
    "acknowledge-code PIPELINE --why …`, and after it `airflow epochs retry PIPELINE --why …`. To go on with the old "
    "code, put the files back instead.",
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
UDF_RAISED = TRANSFORM.code(
    "EPOCHS-UDF-RAISED",
    Refused,
    "A Python function of the transform, such as a UDF, raised an error in a Python worker of Spark. Nothing was "
    "written. A retry would meet the same row, so the task is not retried, unless the error's class says that a "
    "service did not answer or that memory ran out.",
    "Correct the function, or let it return NULL for such a row. If a module is missing, install it on Spark's "
    "machines. Then clear the failed task.",
)
TRANSFORM_RESULT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-RESULT",
    Refused,
    "The transform did not return one DataFrame for each sink. Or it changed together with the sinks of the DAG while "
    "an epoch was under way: an attempt keeps the sinks that it was opened with. Nothing was written.",
    "Return a dict of DataFrames that are built from the batch, with the names of the sinks as keys: the message lists "
    "them. With one sink, the DataFrame alone is enough. Then clear the failed task.",
)
TRANSFORM_COLUMNS = TRANSFORM.code(
    "EPOCHS-TRANSFORM-COLUMNS",
    Refused,
    "The rows that the transform returned for a sink have several columns of one name, or of names that differ in "
    "upper and lower case only. Spark and Delta take these for one. Nothing was written.",
    "Give each of the columns another name, or return one of them only. Then clear the failed task.",
)
TRANSFORM_NOT_SENT = TRANSFORM.code(
    "EPOCHS-TRANSFORM-NOT-SENT",
    Refused,
    "The provider cannot send the transform and the modules that it imports to Spark: a module is a link out of the "
    "transform's folder, a folder has no `__init__.py`, or the files are too large.",
    "Put the module itself beside the transform, and keep data out of packages that the transform imports. Or install "
    "the module on Spark's machines. Then clear the failed task.",
)
OPERATOR_ARGUMENT = TRANSFORM.code(
    "EPOCHS-OPERATOR-ARGUMENT",
    Refused,
    "An argument of an operator of `airflow_epochs.transforms` is not valid, or the session's time zone does not fit "
    "the operator. Nothing was written.",
    "Correct the transform as the message says. Then clear the failed task.",
)
OPERATOR_COLUMNS = TRANSFORM.code(
    "EPOCHS-OPERATOR-COLUMNS",
    Refused,
    "Rows or a state that the transform gives to an operator of `airflow_epochs.transforms` lack a column, have one "
    "that the operator makes itself, or have one of a type that does not fit; or the type that the state declares "
    "does not have a number exactly; or the state table expires by another column than the operator needs. Nothing was "
    "written.",
    "Correct the transform, or the state table, as the message says. Then clear the failed task.",
)

EVENT_TIME_MISSING = TRANSFORM.code(
    "EPOCHS-EVENT-TIME-MISSING",
    Refused,
    "The transform called `epoch.event_time`, and the pipeline has no `event_time`. Nothing was written.",
    "Give EpochPipeline `event_time=EventTime(…)`, or remove the call. Then clear the failed task.",
)
EVENT_TIME_COLUMN = TRANSFORM.code(
    "EPOCHS-EVENT-TIME-COLUMN",
    Refused,
    "The rows or the column that `epoch.event_time` got do not fit. It needs a column of type TIMESTAMP, and the "
    "columns `partition` and, with several topics, `topic` of the batch. Nothing was written.",
    "Let the rows keep these columns, and cast the event time: `.cast('timestamp')`. Then clear the failed task.",
)
EVENT_TIME_DEPTH = TRANSFORM.code(
    "EPOCHS-EVENT-TIME-DEPTH",
    Refused,
    "`epoch.chained` was asked for more operators than the pipeline's EventTime allows. Nothing was written.",
    "Set `depth` of EventTime to the number of stateful operators that stand one behind another. Then clear the failed "
    "task.",
)

EXPECTATION_UNMET = TRANSFORM.code(
    "EPOCHS-EXPECTATION-UNMET",
    Refused,
    "Rows of the epoch do not meet what `expectations` of the pipeline says of them. The sink voted VOTE_ABORT, and no "
    "sink shows the epoch.",
    "Correct the transform: let it leave such rows out, or put them right. If such rows are right, change or remove "
    "the expectation in the DAG. Then clear the stage task.",
)
DEAD_LETTERS_UNFIT = TRANSFORM.code(
    "EPOCHS-DEAD-LETTERS-UNFIT",
    Refused,
    "The transform returned other columns for the sink that `dead_letters` names than dead letters have. Nothing "
    "was written.",
    "Let the transform return `topic`, `partition`, `offset` and `error` for it; it may add `timestamp`, `key`, "
    "`value`, `row` and `sink`. Leave out other columns. Then clear the stage task.",
)
DEAD_LETTERS_CHANGED = TRANSFORM.code(
    "EPOCHS-DEAD-LETTERS-CHANGED",
    NotApplied,
    "Rows were left out of the sinks as dead letters. Spark computed them once more, for the sink of the dead letters, "
    "and found another number of them. Nothing is shown.",
    "Make the transform deterministic: it must return the same rows each time. See docs/spark.md. Then clear the stage "
    "task.",
)
DEAD_LETTERS_APART = TRANSFORM.code(
    "EPOCHS-DEAD-LETTERS-APART",
    Refused,
    "Rows were left out of the sinks as dead letters, in a Spark job that does not stage the sink of the dead letters. "
    "They would be in no table. Nothing is shown. This is a defect of the provider.",
    'Remove `dead_letters`, and what is expected with `otherwise="quarantine"`, from the DAG: such a row then aborts '
    "its epoch, and no row is lost. Then clear the stage task. Report the error.",
)
VOTED_AGAINST = TRANSFORM.code(
    "EPOCHS-VOTED-AGAINST",
    Refused,
    "The pipeline's own function, `vote=` in the DAG, voted against the epoch. No sink shows it.",
    "Look at what the message says. Correct the transform, or change the function if such an epoch is right. Then "
    "clear the stage task.",
)
VOTE_FUNCTION_FAILED = TRANSFORM.code(
    "EPOCHS-VOTE-FUNCTION-FAILED",
    Refused,
    "The pipeline's own function, `vote=` in the DAG, raised an exception, or returned neither None nor a text. So the "
    "epoch was not judged, and no sink shows it.",
    "Look at the traceback in the task's log, and correct the function or what it needs. Then clear the stage task.",
)
EXPECTATION_INVALID = TRANSFORM.code(
    "EPOCHS-EXPECTATION-INVALID",
    Refused,
    "The condition of an expectation cannot be computed over the rows that the transform returns for its sink. Nothing "
    "was written.",
    "Correct the condition in the DAG: it must be true or false, in Spark's SQL, over the columns of these rows. Then "
    "clear the failed task.",
)

STATE = Chapter("State")

STATE_SKIPPED = STATE.code(
    "EPOCHS-STATE-SKIPPED",
    Refused,
    "Epochs were completed without a state table of the DAG. Their rows are not in it, so results would be wrong. "
    "Nothing was opened.",
    "Remove the state from the DAG again. Or point it to a new table, and run `airflow epochs adopt-sink PIPELINE SINK "
    "--new-table --why …`: it then begins empty, or with the rows of the table that `initial` names. Then clear the "
    "failed task.",
)
STATE_REPLACED = STATE.code(
    "EPOCHS-STATE-REPLACED",
    Refused,
    "A state of the last epoch is not in the DAG any more, and a new one is, without an `initial` of its own. If it is "
    "the same state under another name, later results would lack rows, and nobody would see it. Nothing was opened.",
    "Give the state its old name and its old table again. If the new state must begin with the rows of the old one, "
    "write them to another Delta table (docs/state.md, 'Keep the rows of a state'), and name this one in `initial`. If "
    "it is to begin empty, or with the rows with which the old one began, type `airflow epochs adopt-sink PIPELINE "
    "STATE --new-table --why …` with its new name. Then clear the failed task.",
)
STATE_CHANGED = STATE.code(
    "EPOCHS-STATE-CHANGED",
    Corrupt,
    "Another program has changed rows of a state table. The next results would rest on rows that no epoch made.",
    "Undo the change: RESTORE the table to the version that the message names. Then clear the failed task. If a VACUUM "
    "has deleted files of that version, put them back from a backup first. Without a backup the state must begin anew, "
    "with the rows that are left, as the message says.",
)
STATE_NOT_EMPTY = STATE.code(
    "EPOCHS-STATE-NOT-EMPTY",
    Refused,
    "A state begins, and its table exists already. Rows that no epoch of this pipeline made would be taken for state.",
    "Give the state a table that does not exist yet. To begin with the rows of an existing table, name that table in "
    "`initial`; of another state's table, first write the state to a table of its own (docs/state.md, 'Query the "
    "state'). Then clear the failed task.",
)
STATE_INITIAL_MISSING = STATE.code(
    "EPOCHS-STATE-INITIAL-MISSING",
    Refused,
    "There is no Delta table at the place that `initial` of a state table names, or its URL of a file has two slashes "
    "in place of three. Nothing was opened.",
    "Correct `initial`. Then clear the failed task.",
)
STATE_INITIAL_LOG = STATE.code(
    "EPOCHS-STATE-INITIAL-LOG",
    Refused,
    "`initial` of a state table names the table of another state. That is a log: its old and deleted rows would be "
    "state again. Nothing was opened.",
    "Write that state, as of its newest epoch, to another Delta table (docs/state.md, 'Query the state'), and name "
    "this one in `initial`. Then clear the failed task.",
)
STATE_GONE = STATE.code(
    "EPOCHS-STATE-GONE",
    Corrupt,
    "The version of a state table that the epoch must read cannot be read any more: files or log entries are gone.",
    "Restore the files from a backup, or from the store's own versions of them. Then clear the failed task. If they "
    "are lost, point the state to a new table in the DAG, and run `airflow epochs adopt-sink PIPELINE SINK --new-table "
    "--why …`: the state begins anew there. Then clear the failed task.",
)
STATE_SCHEMA = STATE.code(
    "EPOCHS-STATE-SCHEMA",
    Refused,
    "`schema`, `keys` or `expires` of a state table does not fit its rows, Spark cannot read the schema, Delta does "
    "not take a name in it, the table has it with other capital letters, or the table has column mapping or "
    "partitions. Nothing was written.",
    "Correct the argument. New columns may be added to `schema`. To change the type of a column, the keys or "
    "`expires`, write the state of the newest epoch, converted, to another Delta table (docs/state.md, 'Query the "
    "state'). Then give the state a new name and a new table, and name that other table in `initial`. Then clear the "
    "failed task.",
)
BACKFILL_WITH_STATE = STATE.code(
    "EPOCHS-BACKFILL-WITH-STATE",
    Refused,
    "`backfill` names an earlier epoch. The pipeline has state or event time, so its transform must run for each epoch "
    "by itself, and the sink cannot take what these runs return: its mode writes each epoch anew, or there are too "
    "many epochs. Nothing was opened.",
    "Remove the sink from `backfill`: it then begins with this epoch. If there are too many epochs, you may let "
    "`backfill` name a later one instead. To fill the sink with earlier rows, give a second pipeline the same source, "
    "transform and state tables of its own, `starting` at those offsets, and this sink. Then clear the failed task.",
)
STATE_KEYS = STATE.code(
    "EPOCHS-STATE-KEYS",
    Refused,
    "The transform returned several changes of one key of a state table. Only one row per key can be the state.",
    "Correct the transform: let it return each changed key once. Then type `airflow epochs retry PIPELINE "
    "--why …`, or let the next run take the same offsets.",
)
STATE_UNKNOWN = STATE.code(
    "EPOCHS-STATE-UNKNOWN",
    Refused,
    "The pipeline has no such state table as of this epoch, or the epoch is not complete. Nothing was read.",
    "Choose a complete epoch that `airflow epochs list PIPELINE` prints, and a state table that `airflow epochs state "
    "PIPELINE` prints.",
)
STATE_EPOCH_GONE = STATE.code(
    "EPOCHS-STATE-EPOCH-GONE",
    Refused,
    "The state as of this epoch cannot be read any more: VACUUM has deleted files of the version, or the clean-up of "
    "the log has deleted entries.",
    "Read a newer epoch. To keep later ones readable for longer, set `delta.deletedFileRetentionDuration` and "
    "`delta.logRetentionDuration` in `properties` of the state table.",
)
STATE_TEXT_UNREADABLE = STATE.code(
    "EPOCHS-STATE-TEXT-UNREADABLE",
    Refused,
    "A row of the state has a text that is not UTF-8. An earlier version of the provider wrote it.",
    "Read the state with Spark: `sql_spark()` has the statement. To let others read it, let the transform return the "
    "row once more with another text: epochs from the next fold on can be read. If the text is in a key, begin the "
    "state anew in a new table, by `initial`: see docs/state-how-it-works.md, 'The change log'.",
)
STATE_KEYS_UNKNOWN = STATE.code(
    "EPOCHS-STATE-KEYS-UNKNOWN",
    Refused,
    "No record of the ledger says any more which columns are the keys of a state that was removed from the pipeline.",
    "Restore the open record of the state's last epoch from a backup of the ledger. Or query the table yourself: "
    "docs/state.md, 'Query the state', has the statement.",
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
    "A record of the ledger says that a connection leads to a Spark Connect server, and the connection has another "
    "type. Nothing was sent there.",
    "Name a connection of type spark_connect in the DAG, if the DAG names this one. Otherwise find out who wrote the "
    "record, or who changed the type of the connection, and restore the one or the other. Then clear the failed task.",
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
    "The Spark Connect server, or the Spark master of SparkSubmit, does not answer.",
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
SPARK_VALUE_INVALID = SPARK.code(
    "EPOCHS-SPARK-VALUE-INVALID",
    Refused,
    "Spark cannot compute a value of some row: for example a cast of text that is no number, a division by zero, an "
    "overflow, or `raise_error`. Nothing was written. A retry would meet the same row, so the task is not retried.",
    "Let the transform use a function that returns NULL for such a row, as `try_cast` and `try_divide` do, and let it "
    "send the row to the dead letters. Then clear the failed task.",
)
SPARK_JOB_FAILED = SPARK.code(
    "EPOCHS-SPARK-JOB-FAILED",
    NotApplied,
    "A Spark job failed.",
    "Look at Spark's message and at the driver's log, and correct the cause. Then clear the failed task.",
)
SPARK_WORKER_DIED = SPARK.code(
    "EPOCHS-SPARK-WORKER-DIED",
    NotApplied,
    "A Python worker of Spark ended in the middle of its work: it was killed, for example because memory ran out, or "
    "native code crashed in it, or a function of the transform ended it (`os._exit`). Nothing was written.",
    "Find out how the worker ended: the logs of the executor and of its machine or container say if it was killed. If "
    "memory ran out, give the container more (`spark.executor.memoryOverhead` on YARN and Kubernetes), let fewer "
    "workers run beside each other (`spark.executor.cores`), or let a function of pandas or Arrow get fewer rows at "
    "once (`spark.sql.execution.arrow.maxRecordsPerBatch`). If native code crashed, set "
    "`spark.sql.execution.pyspark.udf.faulthandler.enabled` to true, in `session_conf` of SparkConnect or `conf` of "
    "SparkSubmit: then Spark's message has the lines of Python. With Connect it stands in the server's log only. Then "
    "clear the failed task.",
)
YARN_UNREACHABLE = SPARK.code(
    "EPOCHS-YARN-UNREACHABLE",
    NotApplied,
    "YARN's ResourceManager does not answer, so the task cannot see whether its application has ended. An application "
    "that was submitted runs on.",
    "Check that the ResourceManager runs, and that `yarn_resourcemanager_webapp_address` in the extra of the Spark "
    "connection, or yarn-site.xml, has its address. Then clear the failed task: it goes on with the application that "
    "it submitted.",
)
SPARK_VERSION_MIXED = SPARK.code(
    "EPOCHS-SPARK-VERSION-MIXED",
    Refused,
    "The task and Spark's driver run different versions of the provider.",
    "Install the same version for tasks and for Spark. Then clear the failed task.",
)
SPARK_PYTHON_MIXED = SPARK.code(
    "EPOCHS-SPARK-PYTHON-MIXED",
    Refused,
    "The program that plans the job and Spark's workers run different versions of Python, and a Python function of the "
    "transform must go from the one to the other. Nothing was written.",
    "Set PYSPARK_PYTHON, where the Spark Connect server or the cluster starts, to a Python of the driver's version. Or "
    "run Airflow's workers with the Python of Spark's workers. Then clear the failed task.",
)
SPARK_REPORT_UNFIT = SPARK.code(
    "EPOCHS-SPARK-REPORT-UNFIT",
    Refused,
    "The task cannot read the report of a Spark job: fields are missing, or the task does not know them. The driver "
    "runs another version of the provider, or another program wrote the report. The task used nothing of the report: "
    "no sink voted on the rows that the job staged, and no sink shows them.",
    "Install the same version for tasks and for Spark. If SparkSubmit has `work_url`, check that nothing else writes "
    "to that folder. Then clear the failed task.",
)
SPARK_SINK_UNREPORTED = SPARK.code(
    "EPOCHS-SPARK-SINK-UNREPORTED",
    Refused,
    "Spark reported nothing for this sink. The driver runs another version of the provider, or the job ended early. "
    "The sink did not vote for the rows, and no sink shows them.",
    "Install the same version for tasks and for Spark, and look at the driver's log for an error. Then clear the stage "
    "task.",
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
    "Clear the stage task: it stages into a new folder.",
)
ROWS_UNFIT = STAGED.code(
    "EPOCHS-ROWS-UNFIT",
    Refused,
    "Spark could not stage the rows for a sink: their columns or types do not fit its table, or a row breaks a rule "
    "of the table. Nothing was staged for the sink.",
    "Correct the transform or the table. Then clear the stage task.",
)
STAGED_INCOMPLETE = STAGED.code(
    "EPOCHS-STAGED-INCOMPLETE",
    Refused,
    "Staged rows or files are missing, incomplete or damaged.",
    "Clear the stage task: it stages into a new folder.",
)
STAGED_STATISTICS = STAGED.code(
    "EPOCHS-STAGED-STATISTICS",
    Refused,
    "The statistics of a staged file are damaged or not strict JSON, so Delta readers could not use the file.",
    "Clear the stage task: it stages into a new folder.",
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
    "The staged rows that the sink voted for are gone or damaged, and the sink does not show them yet.",
    "Clear the commit task. It stages the same offsets again. If a VACUUM deleted the files, let VACUUM keep files "
    "for longer than an epoch may be in doubt.",
)
PROMISED_ROWS_CHANGED = STAGED.code(
    "EPOCHS-PROMISED-ROWS-CHANGED",
    Corrupt,
    "The staged rows are not the rows that the sink voted for: the staging table was changed. Nothing was written.",
    "Restore the folder that the message names from a backup, or delete it. Then clear the commit task. If the folder "
    "is gone, the task stages the same offsets again.",
)
DIGEST_OF_OTHER_VERSION = STAGED.code(
    "EPOCHS-DIGEST-OF-OTHER-VERSION",
    Corrupt,
    "Another version of the provider computed the digest of the rows at the vote. This version cannot compare the "
    "staged rows with it. Nothing was written.",
    "Install the version of the provider that voted, and clear the commit task. Or complete the epoch without the "
    "sink's rows: `airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
RESTAGED_OTHERWISE = STAGED.code(
    "EPOCHS-RESTAGED-OTHERWISE",
    Corrupt,
    "Promised rows are gone, and the same rows cannot be staged again.",
    "Restore the files from a backup, or undo what has changed, also in what the transform reads beside the batch. "
    "Then clear the commit task. If neither is possible, "
    "complete the epoch without the sink's rows: `airflow epochs waive PIPELINE EPOCH SINK --why …`.",
)
RESTAGED_BY_OTHER_CODE = STAGED.code(
    "EPOCHS-RESTAGED-BY-OTHER-CODE",
    Corrupt,
    "Promised rows were staged again, but the transform's code has changed since they were first staged.",
    "Put the transform's file, the files that it imports, and the function that `transform` of the DAG names, back as "
    "they were when the rows were first staged. Then clear the commit task. Bring the new code back after the epoch is "
    "complete.",
)

DELTA = Chapter("Delta tables")

DELTA_UNREACHABLE = DELTA.code(
    "EPOCHS-DELTA-UNREACHABLE",
    NotApplied,
    "The provider cannot reach the table.",
    "Check that the table's store is up, and that the storage connection of the sink or source is correct. It needs "
    "the right to read every file in the table's `_delta_log`, also checkpoints that Spark encrypts with a key of its "
    "own. Then clear the failed task.",
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
    'Repair the table. A sink that is no state table may get commit="spark" instead, if no epoch of it is in doubt. '
    "Then clear the failed task.",
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
    "Clear the stage task: it stages the rows for the table as it is now.",
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
    "failed task.",
)
DELTA_APPEND_ONLY = DELTA.code(
    "EPOCHS-DELTA-APPEND-ONLY",
    Refused,
    "The table takes new rows only, and the sink's mode changes and deletes rows.",
    "Remove the property from the table (ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly')), or choose mode "
    "'append'. Then clear the failed task.",
)
DELTA_NOT_RESTORABLE = DELTA.code(
    "EPOCHS-DELTA-NOT-RESTORABLE",
    Refused,
    "The table cannot go back to the version that it had after an earlier epoch: `rewind --restore-tables` brings all "
    "tables back, or no table.",
    "Type the command `rewind` again, with a later epoch, or without `--restore-tables`: then the rows that are read "
    "again come twice in the tables.",
)
DELTA_NOT_RESTORABLE_NOW = DELTA.code(
    "EPOCHS-DELTA-NOT-RESTORABLE-NOW",
    Corrupt,
    "The table was altered after the decision to bring an earlier version of it back.",
    "Undo the change that the message names, and clear the commit task. Or complete the epoch without this sink: "
    "`airflow epochs waive PIPELINE EPOCH SINK --why …`. Its table then stays as it is, and the rows that are "
    "read again come twice in it.",
)
DELTA_NEEDS_SPARK = DELTA.code(
    "EPOCHS-DELTA-NEEDS-SPARK",
    Refused,
    "The library deltalake cannot commit to the table, because it does not support features of the table.",
    'Give the sink commit="spark", or leave `commit` out. Then clear the failed task.',
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
    "If the sink creates the table, remove it from `properties` of the sink. Then clear the failed task.",
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
    "Another program may have removed rows of complete epochs (by RESTORE, REPLACE or an overwrite). No epoch was "
    "opened.",
    "Compare the rows with the version before. If rows are missing, put them back by RESTORE TABLE, as the "
    "message says. Otherwise, or if the change was intended, set on_foreign_change='warn' on the sink until the next "
    "epoch is complete. Then clear the open task.",
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
DELTA_FILE_DAMAGED = DELTA.code(
    "EPOCHS-DELTA-FILE-DAMAGED",
    Corrupt,
    "Spark cannot read a file of the table any more, so it cannot commit to it. A power cut leaves such a file if it "
    "was not flushed to the disk; so does a fault of the disk, or a program that deletes files.",
    "Restore the file from a backup, or from the store's own versions of it. Then clear the commit task. If there is "
    "no backup, do what the message says.",
)
DELTA_COMMIT_UNKNOWN = DELTA.code(
    "EPOCHS-DELTA-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The outcome of the commit is unknown. Nothing is lost.",
    "Clear the commit task: it looks at the table before it writes.",
)
DELTA_COMMIT_FORGOTTEN = DELTA.code(
    "EPOCHS-DELTA-COMMIT-FORGOTTEN",
    Corrupt,
    "The table shows the epoch that waits for its receipt, but a clean-up of the table's log has removed the commit. "
    "So the table no longer tells whether it has this transaction's rows, or rows of another ledger.",
    "Find out whether the table has the rows that are staged at the place in the message. If it has them, run `airflow "
    "epochs waive PIPELINE EPOCH SINK --why …`, and clear the failed task: the sink goes on with the next epoch. Do "
    "not rename the sink, and do not backfill it. If it does not have them, another ledger wrote the epoch: see "
    "docs/failures.md#the-ledger-is-behind.",
)
DELTA_COMMIT_REFUSED = DELTA.code(
    "EPOCHS-DELTA-COMMIT-REFUSED",
    Corrupt,
    "The table does not take the rows that the sink voted for: it was changed after the vote, or the values that a "
    "`MERGE` makes of these rows and the table's break a rule of the table, or several rows are for one row of "
    "the table. Nothing was written.",
    "Undo the change of the table, or remove the rule, and clear the commit task. If `stage` warned of settings that "
    "the transform changes, set them in `session_conf` of SparkConnect, or in `conf` of SparkSubmit, and clear the "
    "commit task. Or complete the epoch without the sink's rows: `airflow epochs waive PIPELINE EPOCH SINK --why …`.",
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
    "The provider cannot tell whether the table refers to staged files. It deleted no staged file.",
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
    "With its present settings, the topic would reject the sink's records.",
    "Change the setting as the message says. Then clear the failed task.",
)
TRANSACTION_TIMEOUT_SHORT = KAFKA_SINK.code(
    "EPOCHS-TRANSACTION-TIMEOUT-SHORT",
    Refused,
    "The sink cannot send the epoch within its transaction_timeout.",
    "Raise `transaction_timeout` of the sink, and transaction.max.timeout.ms of the brokers if it is lower. Or set "
    "a lower `max_records` of the source, and type `airflow epochs replan PIPELINE --why …`: then this epoch is "
    "cut, too. Clear the stage task.",
)
TRANSACTION_TIMEOUT_LONG = KAFKA_SINK.code(
    "EPOCHS-TRANSACTION-TIMEOUT-LONG",
    Refused,
    "The sink's transaction_timeout is longer than the brokers permit.",
    "Raise transaction.max.timeout.ms of the brokers, or lower `transaction_timeout` of the sink. (An epoch in doubt "
    "keeps the timeout that it was opened with if that is longer.) Clear the failed task.",
)
TOPIC_ROWS_UNFIT = KAFKA_SINK.code(
    "EPOCHS-TOPIC-ROWS-UNFIT",
    Refused,
    "The sink cannot make records that the topic takes of the rows.",
    "Correct the transform or the topic's settings. Clear the stage task.",
)
MARKER_TOO_LARGE = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOO-LARGE",
    Refused,
    "The marker topic does not take a record as large as the epoch's marker. The vote finds this out, or the commit if "
    "somebody lowered max.message.bytes or segment.bytes of the marker topic, or added partitions to the topic, after "
    "the vote.",
    "Raise the settings of the marker topic as the message says. Clear the failed task.",
)
MARKER_CHANGED = KAFKA_SINK.code(
    "EPOCHS-MARKER-CHANGED",
    Refused,
    "The sink's marker is not the marker of its last epoch in the ledger.",
    "Find out whether another program sends under these names, and whether the ledger or the topics were restored. "
    "See docs/kafka-sink.md, 'The marker topic'. Clear the stage task: if the marker still differs, the task says what "
    "to do.",
)
MARKER_TOPIC_OCCUPIED = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-OCCUPIED",
    Refused,
    "The marker topic has records that its partition 0 does not assign to a sink.",
    "Give a new sink a `marker_topic` of its own, which is empty or does not exist yet. If other sinks use this topic, "
    "also stop the program that writes other records to it. If its partition 0 lost its records, see "
    "docs/kafka-sink.md, 'The marker is lost'. Clear the stage task.",
)
MARKER_TOPIC_SETTINGS = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-SETTINGS",
    Refused,
    "The marker topic could lose markers: its cleanup policy, replicas or durability are too weak. Or the brokers "
    "refuse to create it with the settings that it needs.",
    "Change the setting as the message says. Clear the failed task. Never delete the marker topic.",
)
MARKER_TOPIC_GONE = KAFKA_SINK.code(
    "EPOCHS-MARKER-TOPIC-GONE",
    Refused,
    "The marker topic is gone, and the ledger expects a marker in it.",
    "Point the connection back if it leads to another cluster than before. Else put the marker back: "
    "docs/kafka-sink.md, 'The marker is lost'. Then clear the failed task.",
)
KAFKA_SENT_UNKNOWN = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SENT-UNKNOWN",
    Corrupt,
    "The sink cannot tell whether the epoch was sent, because the marker topic has lost records since the vote.",
    "Look whether the topic has the epoch, and put the marker back: docs/kafka-sink.md, 'The marker is lost'. Clear "
    "the commit task.",
)
KAFKA_COMMIT_UNKNOWN = KAFKA_SINK.code(
    "EPOCHS-KAFKA-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The sink does not know whether the brokers committed its transaction.",
    "Clear the commit task: it reads the marker first, and sends the epoch only if the marker is missing.",
)
TOPIC_CHANGED = KAFKA_SINK.code(
    "EPOCHS-TOPIC-CHANGED",
    NotApplied,
    "The topic was deleted after the vote, or created again with another number of partitions.",
    "Let the topic have as many partitions as before, and clear the commit task. Or waive the sink's rows.",
)
TOPIC_NOT_READY = KAFKA_SINK.code(
    "EPOCHS-TOPIC-NOT-READY",
    NotApplied,
    "The marker topic has no partition for the sink yet: not all brokers know the topic or its new partitions, or "
    "other sinks are being assigned theirs.",
    "Let Airflow retry the task, or clear the failed task. If the error comes again, check that all brokers run.",
)
TRANSACTION_OPEN = KAFKA_SINK.code(
    "EPOCHS-TRANSACTION-OPEN",
    NotApplied,
    "The sink cannot read a partition to its end, because a transaction is still open there or brokers do not answer. "
    "Or a transaction of the sink's own hangs in its topic, and would hide the rows that it commits.",
    "Let Airflow retry the task, or clear the failed task later: the brokers end an abandoned transaction after its "
    "transaction timeout. If the error comes again, check that all brokers run. If they do, look for a transaction "
    "that hangs: docs/kafka-sink.md, 'A transaction that hangs'.",
)
TRANSACTION_ENDING = KAFKA_SINK.code(
    "EPOCHS-TRANSACTION-ENDING",
    NotApplied,
    "The brokers have not ended an earlier transaction of the sink's transactional id yet.",
    "Let Airflow retry the task, or clear the failed task later. If the error comes again, a broker cannot write the "
    "end of that transaction. Type `kafka-transactions.sh --bootstrap-server … describe --transactional-id …` with the "
    "id in the message: it lists the partitions. See that they have leaders and replicas in sync, and read the "
    "leaders' logs for the cause. Repair it. If it was a max.message.bytes that was too small, restart that broker. "
    "Clear the failed task.",
)
KAFKA_SEND_FAILED = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SEND-FAILED",
    NotApplied,
    "Kafka did not accept rows of the epoch. No row is visible.",
    "Check that the brokers run, that nobody deleted or altered the topic, and that the connection's user still has "
    "its rights. Clear the commit task: it sends the epoch again.",
)
KAFKA_SEND_TIMEOUT = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SEND-TIMEOUT",
    NotApplied,
    "The brokers ended the sink's transaction, because sending took longer than transaction_timeout.",
    "Clear the commit task: it reads the marker first. If the error comes again, raise `transaction_timeout` of the "
    "sink in the DAG, and transaction.max.timeout.ms of the brokers if it is lower, and clear the commit task again: "
    "an epoch in doubt uses today's timeout of the DAG if that is longer.",
)
KAFKA_SEND_FENCED = KAFKA_SINK.code(
    "EPOCHS-KAFKA-SEND-FENCED",
    NotApplied,
    "Another process has taken over the sink's transactional id, or the brokers ended the sink's transaction.",
    "Clear the commit task: it reads the marker first. If the error comes again and no other process sends the epoch, "
    "look at the brokers' logs.",
)
MARKER_WOULD_DUPLICATE = KAFKA_SINK.code(
    "EPOCHS-MARKER-WOULD-DUPLICATE",
    Refused,
    "The topic has rows of a later epoch than the marker that was to be put back. They would be sent twice.",
    "Put the transaction of the newest epoch that the topic has.",
)

SQL = Chapter("SQL databases")

SQL_CONNECTION = SQL.code(
    "EPOCHS-SQL-CONNECTION",
    Refused,
    "The provider cannot use the connection, or the table's name, for this kind of database.",
    "Correct the connection, or `table` of the sink. Then clear the failed task.",
)
SQL_DRIVER_MISSING = SQL.code(
    "EPOCHS-SQL-DRIVER-MISSING",
    Refused,
    "The worker lacks the PostgreSQL driver psycopg.",
    "Install airflow-provider-epochs[postgres] on all workers. Then clear the failed task.",
)
SQL_UNREACHABLE = SQL.code(
    "EPOCHS-SQL-UNREACHABLE",
    NotApplied,
    "The provider cannot connect to the database, or the database did not complete a statement.",
    "Check that the server is up, or that the SQLite file exists. Check which sessions hold locks for a long time. "
    "Then clear the failed task.",
)
SQL_COMMIT_UNKNOWN = SQL.code(
    "EPOCHS-SQL-COMMIT-UNKNOWN",
    OutcomeUnknown,
    "The provider sent COMMIT and does not know the result: the database did not confirm the commit, or no "
    "synchronous standby did.",
    "Clear the failed task when the database is up again: the task reads the marker before it writes.",
)
SQL_ROW_REFUSED = SQL.code(
    "EPOCHS-SQL-ROW-REFUSED",
    Refused,
    "The database refused a row or a statement, or its driver did not send one.",
    "Correct the transform, the table (docs/sql.md, 'Other unique columns'), or the rights of the connection's user. "
    "Then clear the failed task.",
)
SQL_LIMIT = SQL.code(
    "EPOCHS-SQL-LIMIT",
    Refused,
    "A row exceeds a limit of the database. Most often, a value is too long for an index: PostgreSQL takes about 2,700 "
    "bytes of it, after compression.",
    "Let the transform send such rows to a sink for rejected records, also those that delete such a key: the table "
    "cannot have it. 2,600 bytes in all columns of an index always fit. Or let a digest of the value be the key. Then "
    "clear the failed task. See docs/sql.md, 'Long keys'.",
)
SQL_ROWS_UNFIT = SQL.code(
    "EPOCHS-SQL-ROWS-UNFIT",
    Refused,
    "The rows do not fit the table: columns, types or keys differ.",
    "Correct the transform or the table. Then clear the stage task.",
)
BAD_RECORD = SQL.code(
    "EPOCHS-BAD-RECORD",
    Refused,
    "A row has a value that the sink cannot write, for example bytes that are not UTF-8.",
    "Change the transform: let it send such records to a sink for rejected records, as spark_apps/orders.py does. See "
    "docs/sql.md, 'Records that no table takes'. Then clear the failed task: it stages the same offsets again.",
)
SQL_NOTES_UNFIT = SQL.code(
    "EPOCHS-SQL-NOTES-UNFIT",
    Refused,
    "A column of the table got another type, and the sink cannot compare it with the keys and sequences that earlier "
    "epochs noted of their deletions.",
    "Give the column of the notes that type too, or drop the notes, if no row can come any more that is older than one "
    "of the deletions. Then clear the failed task.",
)
SQL_ROWS_DROPPED = SQL.code(
    "EPOCHS-SQL-ROWS-DROPPED",
    Refused,
    "The database wrote fewer rows than the sink sent, or others: a trigger or a rule drops rows, or changes their "
    "keys or their `sequence_by`, without an error.",
    "Remove such rows in the transform, or change the trigger or rule that drops them (for example, a trigger that "
    "returns NULL or calls RAISE(IGNORE)), or that changes their keys or `sequence_by`. Then clear the failed task.",
)
SQL_TABLE_MISSING = SQL.code(
    "EPOCHS-SQL-TABLE-MISSING",
    Refused,
    "The sink's table does not exist, or the connection's user cannot see it.",
    "Create the table, or restore it with its rows if epochs were committed to it. If it exists, grant its rights to "
    "the connection's user. Then clear the failed task.",
)
SQL_TABLE_UNUSABLE = SQL.code(
    "EPOCHS-SQL-TABLE-UNUSABLE",
    Refused,
    "A sink cannot write to this kind of table, or the connection's user may not write to it, or may not see all rows.",
    "Give the sink an ordinary or partitioned table that the connection's user may write to, and whose row-level "
    "security does not apply to this user. Then clear the failed task.",
)
SQL_UNIQUE_INDEX_MISSING = SQL.code(
    "EPOCHS-SQL-UNIQUE-INDEX-MISSING",
    Refused,
    "Mode 'upsert' needs a unique index on exactly the sink's `keys`, and the table has no such index, or it has a "
    "deferrable constraint on these columns, by which PostgreSQL lets no upsert go.",
    "Create a unique index on these columns, neither partial nor deferrable; drop a deferrable constraint on them "
    "first. Then clear the failed task.",
)
SQL_SEQUENCE_EXHAUSTED = SQL.code(
    "EPOCHS-SQL-SEQUENCE-EXHAUSTED",
    Refused,
    "A sequence of the table has fewer numbers left than the epoch has rows.",
    "Raise the limit of the sequence with ALTER SEQUENCE. Then clear the failed task.",
)
SQL_MARKER_TABLE = SQL.code(
    "EPOCHS-SQL-MARKER-TABLE",
    Refused,
    "The provider cannot use the marker table, or cannot write the marker into it.",
    "Make it an ordinary table without triggers, rules and policies, that the connection's user may write to. Then "
    "clear the failed task.",
)
SQL_MARKER_CHANGED = SQL.code(
    "EPOCHS-SQL-MARKER-CHANGED",
    Refused,
    "The sink's marker in the database changed after the epoch was opened, or the connection leads to another "
    "database. The marker does not show the previous epoch of the ledger.",
    "Clear the task `open` with its downstream tasks, or start a new run: `open` compares the marker with the ledger "
    "again, and its error says how to repair it.",
)
SQL_COMMIT_REFUSED = SQL.code(
    "EPOCHS-SQL-COMMIT-REFUSED",
    Corrupt,
    "The database refuses the rows of an epoch that the sink voted for: somebody changed the database "
    "after the vote, the connection leads to another database, or the vote did not rehearse the rows "
    "(`rehearse=False`).",
    "Undo the change, remove what conflicts with the rows, or point the connection back. Then clear the commit task. "
    "If that is impossible, complete the epoch without the rows of the sink that the message names: `airflow epochs "
    "waive`. If it names several, find out first whose rows the database refuses (docs/sql.md, 'Several sinks of one "
    "database').",
)
SINK_UNANSWERED = SQL.code(
    "EPOCHS-SINK-UNANSWERED",
    OutcomeUnknown,
    "A sink does not answer, so the provider does not know whether the sink shows the epoch.",
    "Follow the remedy in the message. Then clear the commit task.",
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
KAFKA_SOURCE_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-KAFKA-SOURCE-ARGUMENT",
    BadArgument,
    "An argument of KafkaSource is not valid.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
DELTA_SOURCE_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-DELTA-SOURCE-ARGUMENT",
    BadArgument,
    "An argument of DeltaSource is not valid.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
DELTA_SINK_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-DELTA-SINK-ARGUMENT",
    BadArgument,
    "An argument of DeltaSink is not valid, or two arguments do not fit each other.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
STATE_TABLE_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-STATE-TABLE-ARGUMENT",
    BadArgument,
    "An argument of StateTable is not valid, or two arguments do not fit each other.",
    "Correct the argument. The message names it, its value, and the values that are valid.",
)
EVENT_TIME_ARGUMENT = DAG_IMPORT.code(
    "EPOCHS-EVENT-TIME-ARGUMENT",
    BadArgument,
    "An argument of EventTime is not valid.",
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
    REGISTRY,
    INTERVALS,
    DELTA_SOURCE,
    TRANSFORM,
    STATE,
    SPARK,
    STAGED,
    DELTA,
    KAFKA_SINK,
    SQL,
    DAG_IMPORT,
)
"""In the order of the guide."""

BY_NAME = {code.name: code for chapter in CHAPTERS for code in chapter.codes}
