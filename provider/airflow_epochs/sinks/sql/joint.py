"""Sinks of one connection vote and commit in one transaction, in the DAG's order: rows may refer to one another.

A row of ``order_lines`` may need its ``orders`` row, be it at once or when the transaction ends. So the vote rehearses
all of them together, and the first commit task that comes commits all; each of the others finds its sink's marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, NotApplied, Refused, RowsGone, located
from airflow_epochs.model import Receipt, Staged, StagedClaim, Vote, VoteKind, attempt_fields
from airflow_epochs.sinks.participant import unknown_without_answer, vote_against, vote_on
from airflow_epochs.sinks.sql.database import RowRefused, Session, part_of
from airflow_epochs.sinks.sql.marker import MarkerRow
from airflow_epochs.sinks.sql.participant import Rehearsed, SqlParticipant
from airflow_epochs.sinks.sql.sequences import shortages
from airflow_epochs.sinks.sql.table import SqlTable
from airflow_epochs.staged.staging import Staging

log = secrecy.logger(__name__)


@dataclass(frozen=True)
class Member:
    """A sink of the group."""

    of: SqlParticipant
    attempt: SinkAttempt

    @property
    def name(self) -> str:
        return self.of.sink.name

    def located(self) -> AbstractContextManager[None]:
        """Lets each error name this sink. It tells which sink of the group must be staged again."""
        return located(sink=self.name, **attempt_fields(self.attempt.txn))


@dataclass(frozen=True)
class Voter(Member):
    """A sink that is asked for its vote on its staged rows."""

    claim: StagedClaim


@dataclass(frozen=True)
class Committer(Member):
    """A sink that must show the rows that it voted for."""

    staged: Staged


# -- vote -------------------------------------------------------------------------------------------------------------


def vote(voters: Sequence[Voter]) -> dict[str, Vote]:
    """Look at the staged rows, and rehearse the commit; what is refused is a VOTE_ABORT with its reason."""
    found: list[tuple[Voter, Staging, Staged]] = []
    votes = {voter.name: vote_on(voter.claim, partial(_looked, voter, found)) for voter in voters}
    if found:
        rehearsed, old = _rehearsed(found, [name for name, said in votes.items() if not said.staged])
        votes |= rehearsed
        if all(said.staged for said in votes.values()):
            _reserve([voter for voter in voters if voter.of.sink.reserves and not voter.attempt.previous])
            _add_columns(old)
    return votes


def _looked(voter: Voter, found: list[tuple[Voter, Staging, Staged]]) -> Staged:
    """The staged rows at the claimed place, checked, and added to ``found`` for the rehearsal."""
    staging, staged = voter.of.staged.checked(voter.attempt, voter.claim)
    found.append((voter, staging, staged))
    return staged


def _rehearsed(
    found: Sequence[tuple[Voter, Staging, Staged]], missing: list[str]
) -> tuple[dict[str, Vote], list[Voter]]:
    """Run the commit's transaction, and roll it back. Returns the votes, and the voters with an older table of markers.

    ``missing``: sinks whose rows cannot take part.
    """
    votes: dict[str, Vote] = {}
    rehearsed: dict[str, Rehearsed] = {}
    with _session([voter for voter, _, _ in found]) as session:
        for voter, staging, staged in found:
            try:
                with part_of(session), voter.located():
                    said = voter.of.rehearse(session, voter.attempt, staging, staged)
                rehearsed[voter.name] = said
                votes[voter.name] = Vote(
                    vote=VoteKind.VOTE_COMMIT, staged=replace(staged, detail=staged.detail | said.detail)
                )
            except (Refused, RowsGone) as refused:  # as in every sink: any other Corrupt is for a person to look at
                votes[voter.name] = _against(refused, missing)
                missing = [*missing, voter.name]
        short = shortages(session, {name: said.draw for name, said in rehearsed.items()})
        votes |= {name: _against(refused, missing) for name, refused in short.items()}
        try:
            session.settle()
        except Refused as refused:  # it is not known whose rows they are
            votes |= {name: _against(refused, missing) for name, said in votes.items() if said.staged}
    return votes, [voter for voter, _, _ in found if voter.name in rehearsed and rehearsed[voter.name].takes_columns]


def _against(refused: Refused | RowsGone, missing: Sequence[str]) -> Vote:
    if missing:
        refused.what += f" The vote left out the rows of {', '.join(missing)}, which also voted VOTE_ABORT."
    return vote_against(refused)


def _reserve(voters: Sequence[Voter]) -> None:
    """Leave the reservation for each sink's first epoch, before its commit."""
    if voters:
        with _session(voters) as session:
            for voter in voters:
                with voter.located():
                    voter.of.reserve(session, voter.attempt)
            session.commit()


def _add_columns(voters: Sequence[Voter]) -> None:
    """Add to tables of markers of earlier versions the columns that they lack. No epoch needs these."""
    for voter in voters:
        try:
            with _session([voter]) as session:
                session.hurry()
                voter.of.marker(session, voter.attempt.txn.pipeline).add_columns()
                session.commit()
        except NotApplied as refused:  # a right that is missing, or a table in use
            log.info(
                "sink %s: the columns that its table of markers lacks were not added, and no epoch needs them: %s",
                voter.name,
                refused.what,
            )


# -- commit -----------------------------------------------------------------------------------------------------------


def commit(committers: Sequence[Committer]) -> dict[str, Receipt]:
    """Show the epoch: rows and markers in one transaction. A repeat finds the markers and does nothing."""
    with unknown_without_answer(committers[0].name), _session(committers) as session:
        return _committed(session, committers)


def _committed(session: Session, committers: Sequence[Committer]) -> dict[str, Receipt]:
    # All markers first, always in the same order: of two tasks, the second one waits here and then finds them set.
    found = {each.name: _locked(session, each) for each in committers}
    todo = [each for each in committers if found[each.name] is None]
    env = committers[0].of.env
    if todo:
        env.reached("sql.locked")
    rows = {name: row for name, row in found.items() if row}
    for each in todo:
        with each.located(), each.of.promised(each.attempt.txn):
            rows[each.name] = each.of.write(session, each.attempt, each.staged)
    receipts = {
        each.name: each.of.receipt(each.attempt, each.staged, rows[each.name], each.of.detail(session))
        for each in committers
    }
    if not todo:
        session.commit()  # ends the locks, and waits for the standby, which the first commit may not have reached
        return receipts
    with _located(todo), _blaming(todo, _tables(session, todo)):
        session.settle()
        env.reached("sql.commit.before")
        session.commit()
    env.reached("sql.commit.after")
    return receipts


def _tables(session: Session, todo: Sequence[Committer]) -> dict[str, SqlTable | None]:
    """The table of each sink, if there are several."""
    return {each.name: session.table(*each.of.sink.table_name) for each in todo} if len(todo) > 1 else {}


def _located(todo: Sequence[Committer]) -> AbstractContextManager[None]:
    """Lets each error name the epoch, and the sink if there is one only."""
    return todo[0].located() if len(todo) == 1 else located(**attempt_fields(todo[0].attempt.txn))


@contextmanager
def _blaming(todo: Sequence[Committer], tables: Mapping[str, SqlTable | None]) -> Iterator[None]:
    """Give an error about the rows of all sinks a place. It names a sink only if waiving that sink helps."""
    try:
        yield
    except Refused as refused:
        blamed = [each for each in todo if len(todo) == 1 or _is_to_blame(each, todo, tables[each.name], refused)]
        if len(blamed) != 1:
            raise _of_any(todo, refused) from refused
        with blamed[0].located(), blamed[0].of.promised(blamed[0].attempt.txn):
            raise


def _is_to_blame(each: Committer, todo: Sequence[Committer], table: SqlTable | None, refused: Refused) -> bool:
    """Whether the database names this sink's table, and no other sink can have broken the constraint.

    An upsert can break a foreign key to its table: it deletes rows, or changes other columns than its keys.
    """
    if not isinstance(refused, RowRefused) or not refused.table or not table or not table.has_rows_in(refused.table):
        return False
    return not (refused.refers and any(other.of.sink.keys for other in todo if other is not each))


def _of_any(todo: Sequence[Committer], refused: Refused) -> Corrupt:
    """The error for rows of unknown sinks. Its ``sink`` names all: a task gives its own to an error without a sink."""
    txn, names = todo[0].attempt.txn, ", ".join(each.name for each in todo)
    return Corrupt(
        f"The database refuses the rows of {txn} that the sinks {names} write in one transaction, and does "
        "not tell whose rows it refuses. All of these sinks promised the epoch in their votes. Nothing was written. "
        f"The reason: {refused.what}",
        code=codes.SQL_COMMIT_REFUSED,
        remedy="Undo what was changed in the database after the vote, remove what conflicts with the rows, or point "
        "the connection back if it leads to another database than at the vote. Then clear the commit task. If that is "
        "impossible, find out which sink has the rows that break the constraint, as docs/sql.md shows in 'Several "
        "sinks of one database', and waive this one only. A sink that is waived lacks the rows of this epoch for good.",
        sink=names,
        **attempt_fields(txn),
    )


def _locked(session: Session, each: Committer) -> MarkerRow | None:
    with each.located():
        return each.of.locked(session, each.attempt, each.staged)


def _session(those: Sequence[Member]) -> AbstractContextManager[Session]:
    return those[0].of.session([each.of.who(each.attempt.txn.pipeline) for each in those])
