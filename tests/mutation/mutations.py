"""Deliberate defects, each an exact replacement in the package, and the tests that must notice it.

A text that is not found exactly once makes the gate fail: a mutation that went stale proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

Edit = tuple[str, str, str]
"""File below the package, text, replacement."""


class Mutation(NamedTuple):
    """A defect. ``tests``: what pytest is given; at least one of them must fail."""

    name: str
    edits: list[Edit]
    tests: list[str]


MATRIX = "tests/protocol/test_matrix.py"
INTERLEAVED = "tests/protocol/test_interleavings.py"
ZOMBIES = "tests/protocol/test_zombies.py"
RESTORED = "tests/protocol/test_restored_ledger.py"
PROTOCOL = "tests/protocol/test_protocol.py"
CRASHES = "tests/protocol/test_crashes.py"
STRANGERS = "tests/protocol/test_strangers.py"
SINKS = "tests/conformance/test_sink_conformance.py"

REFERENCES = "tests/unit/test_delta_references.py"
LOST = "tests/protocol/test_lost_commits.py"

SIGNATURES = "tests/unit/test_signatures.py"
CONNECTIONS = "tests/unit/test_recorded_connections.py"
WATERMARKS = "tests/protocol/test_watermarks.py"
EVENT_TIME = "tests/unit/test_event_time.py"
STATE_LOG = "tests/unit/test_state_log.py"
STATE_NAMES = "tests/unit/test_state_names.py"
LEDGER = "tests/unit/test_ledger.py"
ORDERS = "tests/unit/test_orders.py"
TOGETHER = "tests/unit/test_orders_together.py"
SCHEMAS = "tests/unit/test_schemas_on_record.py"
AVRO_SCHEMAS = "tests/unit/test_avro_schemas.py"
STATISTICS = "tests/unit/test_file_statistics.py"

MUTATIONS = [
    Mutation(
        "a place is cleared away although its sink does not show what the ledger says",
        [
            ("coordinator/cleanup.py", "return None if self.confirms(sink) else", "return None if True else"),
        ],
        [RESTORED, "-k", "copy"],
    ),
    Mutation(
        "a staged file is deleted although a version of the table has it",
        [("sinks/delta/cleanup.py", "if kept & location.files.sizes(relative).keys():", "if False:")],
        [REFERENCES],
    ),
    Mutation(
        "a commit that was lost after its receipt is not done again",
        [("coordinator/completing.py", "return Promise(task, view, name).keep()", "return receipt")],
        [LOST],
    ),
    Mutation(
        "the fence is dropped: a run goes on with another run's attempt",
        [("coordinator/task.py", "if view.open.run != run and not (view.open.command and number):", "if False:")],
        [STRANGERS],
    ),
    Mutation(
        "the fence is dropped: who loses the put of an open record goes on with the winner's",
        [("coordinator/opening.py", "if standing.writer != record.writer:", "if False:")],
        [ZOMBIES, "-k", "open_at_once"],
    ),
    Mutation(
        "put-if-absent is dropped: a record overwrites the one before",
        [
            (
                "ledger/records.py",
                "if self._store.put_if_absent(self.key(key), value):",
                "self._store.delete(self.key(key))\n"
                "                if self._store.put_if_absent(self.key(key), value):",
            )
        ],
        [INTERLEAVED, "-k", "vote_and_the_abort"],
    ),
    Mutation(
        "the loser of a put does not obey the winner",
        [
            (
                "ledger/records.py",
                "if standing := self.get(key, type(record)):\n                    return standing",
                "if self.get(key, type(record)):\n                    return record",
            )
        ],
        [ZOMBIES, "-k", "open_at_once"],
    ),
    Mutation(
        "<= for ==: a sink that is behind is taken for one that is where it should be",
        [("model/marker.py", "        return Shown.BEHIND\n", "        return Shown.EXPECTED\n")],
        [RESTORED],
    ),
    Mutation(
        "> for >=: a sink that shows the very epoch that is undecided goes unnoticed",
        [
            (
                "coordinator/agreement.py",
                "compare(found, opened.txn_id) is not Shown.BEHIND",
                "compare(found, opened.txn_id) is Shown.AHEAD",
            )
        ],
        [RESTORED],
    ),
    Mutation(
        "staged files are deleted when the outcome of a commit is unknown",
        [
            (
                "coordinator/restaging.py",
                "        with self.task.unless_overtaken(self.view):\n"
                "            return joint_sinks.commit(those, self._env)[self.name]\n",
                "        try:\n"
                "            return joint_sinks.commit(those, self._env)[self.name]\n"
                "        except Exception:\n"
                "            self._clear_away(staged[self.name].place)\n"
                "            raise\n",
            )
        ],
        [MATRIX, "-k", "answer_to_a_commit"],
    ),
    Mutation(
        "the receipt is recorded before the commit, and complete does not ask the sink again",
        [
            (
                "coordinator/coordinator.py",
                "        receipt = Promise(self.task, view, sink).keep()\n",
                "        promise = Promise(self.task, view, sink)\n"
                "        staged = promise.staged()\n"
                "        self.task.ledger.put(\n"
                "            Receipt(txn_id=view.opened.txn_id, sink=sink, rows=staged.rows, files=staged.files,\n"
                "                    bytes=staged.bytes, version=None, committed_at=self.task.now())\n"
                "        )\n"
                "        receipt = promise.keep()\n",
            ),
            (
                "coordinator/completing.py",
                "holding[name] = _shown_again(task, view, name, receipt)",
                "holding[name] = receipt",
            ),
        ],
        [CRASHES],
    ),
    Mutation(
        "a sink commits without reading what was decided",
        [
            (
                "coordinator/coordinator.py",
                "if view.state is not State.IN_DOUBT:\n            raise _undecided(view)\n        if sink not in",
                "if view.decision is None:\n            raise _undecided(view)\n        if sink not in",
            ),
            (
                "coordinator/coordinator.py",
                "        assert view.decision and view.decision.decision is DecisionKind.GLOBAL_COMMIT\n",
                "",
            ),
        ],
        [STRANGERS],
    ),
    Mutation(
        "a try of staging uses the place of the one before",
        [("coordinator/staging.py", "try_id = task.draw_id()", "try_id = opened.txn_id.nonce")],
        [STRANGERS],
    ),
    Mutation(
        "the transaction id is not compared: the epoch's number is enough",
        [("model/marker.py", "return Shown.EXPECTED if is_it else Shown.ANOTHER", "return Shown.EXPECTED")],
        [RESTORED, "-k", "same_epoch_of_another_history"],
    ),
    Mutation(
        "what is staged for another transaction is voted on",
        [("coordinator/coordinator.py", "if report is None or report.txn_id != opened.txn_id:", "if report is None:")],
        [STRANGERS],
    ),
    Mutation(
        "transaction ids are made of numbers alone",
        [
            (
                "coordinator/opening.py",
                "TransactionId(task.pipeline.name, epoch, attempt, task.draw_id())",
                'TransactionId(task.pipeline.name, epoch, attempt, "0" * 32)',
            )
        ],
        [STRANGERS],
    ),
    Mutation(
        "clean-up by a pattern: a table's own files are deleted",
        [("coordinator/cleanup.py", "place in self.published", "False")],
        [MATRIX, "-k", "process_is_killed"],
    ),
    Mutation(
        "clean-up by a pattern over epochs: the places of all of them are swept, whichever try made them",
        [
            (
                "ledger/ledger.py",
                'return [key for key in self._records.keys_in(epoch_folder(number)) if ".try." in key]',
                'return [key for key in self._records.keys_in("epochs") if ".try." in key]',
            ),
            ("coordinator/cleanup.py", "if place != sink.place(attempt, try_id, self.env):", "if False:"),
            ("coordinator/cleanup.py", "if not is_own_place(sink, attempt, place, self.env):", "if False:"),
        ],
        [MATRIX, "-k", "process_is_killed"],
    ),
    Mutation(
        "clean-up of an aborted attempt takes the next one's places, too",
        [
            ("coordinator/cleanup.py", "ledger.tries_of(opened)", "ledger.tries(opened.txn_id.epoch)"),
            ("coordinator/cleanup.py", "if place != sink.place(attempt, try_id, self.env):", "if False:"),
            ("coordinator/cleanup.py", "if not is_own_place(sink, attempt, place, self.env):", "if False:"),
        ],
        [STRANGERS],
    ),
    Mutation(
        "complete.json is pruned",
        [("ledger/pruning.py", " if not key.endswith(kept)]\n", "]\n")],
        [ZOMBIES, "-k", "pruned"],
    ),
    Mutation(
        "the second attempt plans its ranges anew",
        [
            (
                "coordinator/opening.py",
                "            txn_id=again,\n            ranges=planned.ranges,\n",
                "            txn_id=again,\n"
                "            ranges=task.pipeline.source.plan(None, Limits(), task.env).ranges,\n",
            )
        ],
        [STRANGERS],
    ),
    Mutation(
        "the second attempt draws a new seed",
        [
            (
                "coordinator/opening.py",
                "            last,\n            txn_id=again,",
                "            last,\n            seed=last.seed + 1,\n            txn_id=again,",
            )
        ],
        [CRASHES],
    ),
    Mutation(
        "an undecided attempt is skipped, not aborted",
        [
            (
                "coordinator/coordinator.py",
                "                    self._presume_abort(view, run, reason)\n",
                "                    return EpochView(number=view.number, open=reopen(self.task, view, run, limits))\n",
            )
        ],
        [CRASHES],
    ),
    Mutation(
        "who rolls an epoch forward keeps it to himself",
        [
            (
                "coordinator/coordinator.py",
                "            self.task.ledger.put_run(run, view.number)  # first",
                "            pass  # first",
            )
        ],
        [CRASHES, "-k", "told_of_every"],
    ),
    Mutation(
        "another run's young attempt is aborted at sight",
        [
            (
                "coordinator/coordinator.py",
                "                if not leave_alone(self.task, view, run):\n",
                "                if True:\n",
            )
        ],
        ["tests/protocol/test_waiting_for_others.py", "-k", "long_they_stage and 30"],
    ),
    Mutation(
        "an undecided attempt is aborted without asking those of its sinks that the DAG has no more",
        [
            (
                "coordinator/coordinator.py",
                "        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)\n        for name",
                "        for name",
            )
        ],
        [RESTORED, "-k", "need_not_have"],
    ),
    Mutation(
        "one vote is enough",
        [("protocol.py", "if sinks and all(", "if sinks and any(")],
        [PROTOCOL],
    ),
    Mutation(
        "an epoch in doubt may still be aborted",
        [
            (
                "protocol.py",
                "State.IN_DOUBT: {Acknowledge: State.IN_DOUBT,",
                "State.IN_DOUBT: {GlobalAbort: State.ABORTED, Acknowledge: State.IN_DOUBT,",
            )
        ],
        [PROTOCOL],
    ),
    Mutation(
        "an epoch is completed without all receipts",
        [
            (
                "coordinator/coordinator.py",
                "if missing := sorted(view.epoch.unacknowledged):",
                "if missing := list[str]():",
            )
        ],
        [STRANGERS],
    ),
    Mutation(
        "complete.json is not read again after an attempt was pruned",
        [
            (
                "ledger/ledger.py",
                "return view if view.open else replace(view, complete=self.complete_record(number))",
                "return view",
            )
        ],
        [LEDGER, "-k", "pruned_while"],
    ),
    Mutation(
        "markers are not looked at before an epoch is opened",
        [
            (
                "coordinator/agreement.py",
                "    if not agree(found, expected):\n        seen",
                "    if False:\n        seen",
            )
        ],
        [RESTORED],
    ),
    Mutation(
        "what was staged again need not be what was promised",
        [("coordinator/restaging.py", "    if vote.staged.has_rows_of(promised):\n", "    if vote.staged:\n")],
        ["tests/protocol/test_restaging.py", "-k", "differently"],
    ),
    Mutation(
        "what was staged again is not put on record before it is published",
        [
            (
                "coordinator/restaging.py",
                "standing = self._put_on_record(vote.staged, len(before) + 1)",
                "standing = vote.staged",
            )
        ],
        ["tests/protocol/test_restaging.py"],
    ),
    Mutation(
        "the sweep follows the decision, not what the sink published",
        [("coordinator/cleanup.py", "    if receipt.place:\n", "    if not receipt:\n")],
        ["tests/protocol/test_restaging_interleavings.py"],
    ),
    Mutation(
        "a sink without a receipt may be completed though it shows nothing of the epoch",
        [
            (
                "coordinator/completing.py",
                "holding[name] = _shown_again(task, view, name, receipt)",
                "holding[name] = receipt",
            )
        ],
        [RESTORED],
    ),
    Mutation(
        "an aborted attempt is decided without asking the sinks",
        [
            (
                "coordinator/coordinator.py",
                "        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)\n        votes",
                "        votes",
            )
        ],
        [RESTORED],
    ),
    Mutation(
        "the epoch before is swept by its own completion alone",
        [
            (
                "coordinator/coordinator.py",
                "                    self._sweep(opened.number - 1)",
                "                    pass",
            )
        ],
        [CRASHES, "-k", "in_a_row"],
    ),
    Mutation(
        "a database takes an epoch although its marker is not the previous one",
        [
            (
                "sinks/sql/participant.py",
                "attempt.previous) is not Shown.EXPECTED:\n            raise diagnosis",
                "attempt.previous) and False:\n            raise diagnosis",
            )
        ],
        [SINKS, "-k", "TestSqliteSink and gap"],
    ),
    Mutation(
        "a database's marker is taken for this transaction's by its epoch alone",
        [("sinks/sql/participant.py", "stands is Shown.ALREADY:", "found.txn.epoch == attempt.txn.epoch:")],
        [SINKS, "-k", "TestSqliteSink and another_transaction"],
    ),
    Mutation(
        "a database takes an epoch once more, and upserts it into what is there",
        [
            ("sinks/sql/participant.py", "isinstance(found, MarkerRow) and stands is Shown.ALREADY:", "False:"),
            (
                "sinks/sql/participant.py",
                "if compare(txn_of(found), attempt.previous) is not Shown.EXPECTED:\n            raise diagnosis",
                "if txn_of(found) not in (attempt.previous, attempt.txn):\n            raise diagnosis",
            ),
        ],
        [SINKS, "-k", "TestSqliteSinkThatUpserts and repeated_commit"],
    ),
    Mutation(
        "a database's marker stays behind where an epoch has no rows",
        [
            (
                "sinks/sql/joint.py",
                "        session.commit()\n    env",
                "        committers[0].staged.rows and session.commit()\n    env",
            )
        ],
        [SINKS, "-k", "TestSqliteSink and without_rows"],
    ),
    Mutation(
        "of a database's rows only the first batch arrives",
        [
            (
                "sinks/sql/sqlite.py",
                "taken += self._connection.executemany(statement, rows).rowcount",
                "taken += batch.num_rows if taken else self._connection.executemany(statement, rows).rowcount",
            )
        ],
        [SINKS, "-k", "TestSqliteSink and many_rows and not Upserts"],
    ),
    Mutation(
        "of a database's rows the first one of a batch is lost",
        [("sinks/sql/sqlite.py", "tuples_of(batch, fields)", "tuples_of(batch.slice(1), fields)")],
        [SINKS, "-k", "TestSqliteSink and one_row"],
    ),
    Mutation(
        "the greatest instant of a file is cut off like the least one",
        [("staged/file_statistics.py", "-(-micros // 1000) if greatest else micros // 1000", "micros // 1000")],
        [STATISTICS],
    ),
    Mutation(
        "a file's greatest number is told though NaN may be greater",
        [("staged/file_statistics.py", " and not greatest else None  #", " else None  #")],
        [STATISTICS],
    ),
    Mutation(
        "a row group without bounds is taken for one without values",
        [("staged/file_statistics.py", "if chunk.has_min_max or chunk.num_values]", "if chunk.has_min_max]")],
        [STATISTICS],
    ),
    Mutation(
        "a long text's greatest value is cut off and not rounded up",
        [("staged/file_statistics.py", '(_LAST_CHARACTER if end < len(text) else "")', '""')],
        [STATISTICS],
    ),
    Mutation(
        "an aborted attempt's rows stay where they were staged",
        [("staged/table.py", "self._where.files.delete(self._where.relative(place))", "pass")],
        [SINKS, "-k", "TestSqliteSink and aborted_attempt"],
    ),
    Mutation(
        "a table's commit follows whatever came after the look at it",
        [
            (
                "sinks/delta/publish.py",
                '    env.reached("delta.commit.before")\n',
                '    env.reached("delta.commit.before")\n'
                "    version = read_snapshot(this.location, this.app).version + 1\n",
            )
        ],
        [SINKS, "-m", "not jvm", "-k", "TestDeltaSink and overtaken"],
    ),
    Mutation(
        "rows that are gone are staged again although the table has gone on",
        [("sinks/delta/commit.py", "        except RowsGone:\n", "        except ZeroDivisionError:\n")],
        [SINKS, "-m", "not jvm", "-k", "TestDeltaSink and late_commit"],
    ),
    Mutation(
        "clean-up takes the files of a table's epoch that is shown, and does not ask the table's log",
        [
            ("sinks/delta/cleanup.py", "if published and not _copied(", "if False and not _copied("),
            ("sinks/delta/cleanup.py", "if kept & location.files.sizes(relative).keys():", "if False:"),
        ],
        [SINKS, "-m", "not jvm", "-k", "TestDeltaSink and cleared_away"],
    ),
    Mutation(
        "a database promises an epoch without looking at its marker",
        [
            (
                "sinks/sql/participant.py",
                "        self._require_unchanged(attempt, marker, marker.make())\n",
                "        marker.make()\n",
            )
        ],
        [SINKS, "-k", "TestSqliteSink and does_not_promise"],
    ),
    Mutation(
        "a Delta table promises an epoch without looking at its marker",
        [
            (
                "sinks/delta/vote.py",
                "        checks.require_marker(target.marker, attempt.previous, target.location.name)\n",
                "        pass\n",
            )
        ],
        [SINKS, "-k", "TestDeltaSink and does_not_promise"],
    ),
    Mutation(
        "any signature will do",
        [("ledger/signing.py", "hmac.compare_digest(_hmac(key, message), signature)", "True")],
        [SIGNATURES],
    ),
    Mutation(
        "a signature does not say where its record lies",
        [("ledger/signing.py", "ledger_id.encode(), key.encode(), body", "ledger_id.encode(), body")],
        [SIGNATURES],
    ),
    Mutation(
        "a signature does not say of which ledger its record is",
        [("ledger/signing.py", "ledger_id.encode(), key.encode(), body", "key.encode(), body")],
        [SIGNATURES],
    ),
    Mutation(
        "what the next epoch rests on may be changed after signing has begun",
        [("ledger/trust.py", "return signing.trusted[key] == digest(value)", "return True")],
        [SIGNATURES],
    ),
    Mutation(
        "records of an epoch in flight need no signature once signing has begun",
        [("ledger/trust.py", "epoch <= signing.epoch and", "epoch <= signing.epoch + 1 and")],
        [SIGNATURES],
    ),
    Mutation(
        "a ledger that has lost its signing record passes for an old one",
        [("ledger/trust.py", "            self._require_beginning(key)\n", "")],
        [SIGNATURES],
    ),
    Mutation(
        "a key that changes is taken over without a look at what it is to vouch for",
        [
            (
                "ledger/signed.py",
                "            self._records.require_believed(key, value)\n        # No epoch",
                "            pass\n        # No epoch",
            )
        ],
        [SIGNATURES],
    ),
    Mutation(
        "an unsigned record leads to any connection",
        [("coordinator/recorded_sinks.py", "if opened.format == FORMAT:", "if True:")],
        [CONNECTIONS],
    ),
    Mutation(
        "a rerun of an epoch gets a watermark of its own",
        [
            (
                "coordinator/opening.py",
                "            last,\n            txn_id=again,",
                "            last,\n            txn_id=again,\n"
                "            watermarks=next_watermarks(task.pipeline.event_time, before, task.now()),",
            )
        ],
        [WATERMARKS],
    ),
    Mutation(
        "a watermark falls",
        [("event_time.py", "return reached if last is None else max(reached, last)", "return reached")],
        [EVENT_TIME],
    ),
    Mutation(
        "without event time the watermarks stand as they are, so that windows close twice",
        [
            (
                "event_time.py",
                "    if event_time is None or before is None:\n        return last",
                "    if before is None:\n        return last\n"
                "    if event_time is None:\n        return before.watermarks[-1]",
            )
        ],
        [EVENT_TIME],
    ),
    Mutation(
        "what the decision has seen of event times does not move the watermark",
        [("coordinator/restaging.py", "seen = view.decision.event_times if view.decision else {}", "seen = {}")],
        [WATERMARKS],
    ),
    Mutation(
        "a change of state by others goes unnoticed",
        [
            (
                "sinks/delta/state/table_log.py",
                "    if live not in same_rows:\n        raise",
                "    if False:\n        raise",
            )
        ],
        [STATE_LOG],
    ),
    Mutation(
        "a change of state by others goes unnoticed once its files are rearranged",
        [("sinks/delta/state/table_log.py", "if had_the_rows and not any", "if not any")],
        [STATE_LOG],
    ),
    Mutation(
        "a state table gets two columns of one name",
        [("delta/shape.py", ' or _same_names(self.schema["fields"])', "")],
        [STATE_NAMES],
    ),
    Mutation(
        "a file is dropped although a row of it never expires",
        [("sinks/delta/state/table_log.py", "newest is not None and nulls == 0 and", "newest is not None and")],
        [STATE_LOG],
    ),
    Mutation(
        "a fold leaves what it stands for",
        [
            (
                "sinks/delta/state/table_log.py",
                "if facts.fold or _has_expired(file, facts)]",
                "if _has_expired(file, facts)]",
            )
        ],
        [STATE_LOG],
    ),
    Mutation(
        "a command is taken for an attempt that a run may stage",
        [("ledger/view.py", "        if opened.command:", "        if False:")],
        [ORDERS],
    ),
    Mutation(
        "an aborted attempt that obeyed a command is opened again from where the epoch before ended",
        [("coordinator/orders/orders.py", "self.order or self.before", "self.before")],
        [ORDERS],
    ),
    Mutation(
        "an outlook is counted from where an earlier command of the epoch would begin",
        [("coordinator/orders/orders.py", "Position.after(self.before)", "Position.after(self.order or self.before)")],
        [TOGETHER, "-k", "where_the_last_epoch_ended"],
    ),
    Mutation(
        "a table that goes back is counted as if it stayed",
        [("coordinator/orders/outlook.py", "    if name in back.points:", "    if False:")],
        [TOGETHER, "-k", "same_names"],
    ),
    Mutation(
        "an epoch's record has what a later command has called off",
        [("model/obeying.py", "    if not later:", "    if True:")],
        [TOGETHER, "-k", "same_names"],
    ),
    Mutation(
        "an epoch's record names the same loss under two commands",
        [("model/obeying.py", "in_two(command.lost, _lost_by(later))[0]", "command.lost")],
        [TOGETHER, "-k", "same_names"],
    ),
    Mutation(
        "what a sink lacks since it was taken as it was is said to come twice",
        [("coordinator/orders/read_before.py", "record.adopted_in.get(sink) == epoch", "False")],
        [TOGETHER, "-k", "COPY and RUN"],
    ),
    Mutation(
        "an epoch reads nothing although no table is left that goes back",
        [("coordinator/orders/orders.py", "    if not (at.order and left):", "    if not at.order:")],
        [TOGETHER, "-k", "COPY and tables"],
    ),
    Mutation(
        "a command is told to be recorded although a run opened the epoch first",
        [("coordinator/orders/orders.py", "if standing.writer != record.writer or complete:", "if complete:")],
        [ORDERS],
    ),
    Mutation(
        "a command takes effect on an epoch that was completed and pruned meanwhile",
        [
            (
                "coordinator/orders/orders.py",
                "if standing.writer != record.writer or complete:",
                "if standing.writer != record.writer:",
            )
        ],
        [ORDERS],
    ),
    Mutation(
        "a command acts on an epoch that is undecided or in doubt",
        [("coordinator/orders/orders.py", "if view.state not in (State.NEW, State.ABORTED):", "if False:")],
        [ORDERS],
    ),
    Mutation(
        "the next attempt does not obey the command",
        [("coordinator/opening.py", "    if last.command:\n        return", "    if False:\n        return")],
        [ORDERS],
    ),
    Mutation(
        "a run takes a command for its own although it never had the epoch",
        [("coordinator/task.py", "and not (view.open.command and number)", "and not view.open.command")],
        [ORDERS],
    ),
    Mutation(
        "an epoch does not say that a command moved its input",
        [("coordinator/completing.py", "moved_in(opened, before)", "before.moved_in if before else 0")],
        [ORDERS],
    ),
    Mutation(
        "a rerun asks the schema registry anew",
        [
            (
                "coordinator/schemas.py",
                "return last.schemas if last.schemas and same else asked(task, on_record=on_record)",
                "return asked(task, on_record=on_record)",
            )
        ],
        [SCHEMAS],
    ),
    Mutation(
        "an epoch whose schemas are lost is decoded without them",
        [
            (
                "coordinator/schemas.py",
                "    if opened.schemas is None:",
                "    if task.ledger.schemas(opened.schemas or '') is None:",
            )
        ],
        [SCHEMAS],
    ),
    Mutation(
        "the digest of schemas leaves out of which kind they are",
        [("model/schema.py", "[number, each.kind, each.text, each.flaw]", "[number, each.text, each.flaw]")],
        [SCHEMAS],
    ),
    Mutation(
        "a ledger that is signed refuses schemas, which are not",
        [
            (
                "ledger/trust.py",
                "        if isinstance(record, SchemaRecord):  # what",
                "        if record is None:  # what",
            )
        ],
        [SCHEMAS],
    ),
    Mutation(
        "milliseconds of Avro are read as microseconds",
        [("transforms/avro_schemas.py", "elif mine in _UNITS and theirs in _UNITS and mine != theirs:", "elif False:")],
        [AVRO_SCHEMAS],
    ),
    Mutation(
        "a decimal of Avro is read with another scale",
        [("transforms/avro_schemas.py", 'written.get("scale", 0) != wanted.get("scale", 0) or ', "")],
        [AVRO_SCHEMAS],
    ),
]
