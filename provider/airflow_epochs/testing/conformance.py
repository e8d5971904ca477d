"""One suite of tests for every sink: what exactly once demands of a sink, whatever it writes to.

Write a class that can do four things with your sink, and inherit the tests::

    class TestMySink(SinkConformance):
        @pytest.fixture
        def subject(self, tmp_path: Path) -> Subject:
            return MySubject(tmp_path)

The suite plays the coordinator: it draws transaction ids, stages rows, votes, commits, and does what a retry, a clear,
a zombie or a restored ledger would do. It needs pytest.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import pytest

from airflow_epochs.contracts import Ends, Environment, Fencing, Positioned, Replacing, Sink, SinkAttempt
from airflow_epochs.errors import Corrupt, EpochError, Fenced, NotApplied, RowsGone
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.testing._moments import MOMENTS_MAX, Dying, HeldUp, dies_at, dies_ever_later

T = TypeVar("T")

PIPELINE = "conformance"

_SECRET_NAME = re.compile(r"(.*[._-])?(password|passwd|passphrase|pwd|secret|secret[._-]?key|token)", re.I)


def label_of(row: int) -> str:
    """The value of the column ``label`` in the row with this id, if the subject stages this column."""
    return f"row {row}: \"ä\", 'b'\\\n"


class Subject(Protocol):
    """A sink under test, with a destination of its own that is empty at first."""

    @property
    def env(self) -> Environment:
        """The environment in which the suite calls the sink."""
        ...

    def sink(self) -> Sink:
        """A new instance of the sink, always on the same destination."""
        ...

    def stage(self, plan: JsonDict, ids: Sequence[int]) -> StagedClaim:
        """Do what Spark does with the sink's plan: stage one row per id, in a 64-bit column ``id``. Ids may repeat."""
        ...

    def visible(self) -> list[int]:
        """The ids that a reader of the destination sees, in any order, with duplicates."""
        ...

    def fingerprint(self) -> object:
        """Something that changes with every write, even of equal rows, for example a version or end offsets."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """A subject that also stages a column ``label``, a text: ``label_of`` each id. The suite then compares it too."""

    def labelled(self) -> list[tuple[int, str]]:
        """Id and label of each row that a reader sees, in any order, with duplicates. Asked after small epochs only."""
        ...


@runtime_checkable
class Relabelling(Subject, Labelled, Protocol):
    """A subject that also stages other labels, so that two rows of one key may differ. For a sink that upserts."""

    def stage_labelled(self, plan: JsonDict, rows: Sequence[tuple[int, str]]) -> StagedClaim:
        """As ``stage``: one row per id and label. Ids may repeat, with different labels."""
        ...


class SinkConformance:
    """The suite. Override the attributes and ``shows`` where your sink differs."""

    many = 1_000_000
    """The number of rows of the largest epoch."""

    names_moments = True
    """Whether a commit calls ``env.reached``. At its first call another one overtakes it; at each call a try dies."""

    overtaken_within_s = 60.0
    """How many seconds, at most, a commit waits at its first moment for another one to overtake it.

    If the sink holds a lock meanwhile, a moment is enough.
    """

    def shows(self, before: Sequence[int], ids: Sequence[int]) -> list[int]:
        """What readers see after an epoch of ``ids`` if they saw ``before``: both, unless the sink replaces rows."""
        return [*before, *ids]

    def after(self, *epochs: Sequence[int]) -> list[int]:
        """What readers see after these epochs in this order, sorted."""
        shown: list[int] = []
        for ids in epochs:
            shown = self.shows(shown, ids)
        return sorted(shown)

    def require_shown(self, subject: Subject, *epochs: Sequence[int]) -> None:
        """Check that readers see the rows of these epochs, each with its own label."""
        shown = self.after(*epochs)
        assert sorted(subject.visible()) == shown
        if isinstance(subject, Labelled):
            assert sorted(subject.labelled()) == [(n, label_of(n)) for n in shown], "a row must keep all its columns"

    @pytest.fixture
    def subject(self) -> Subject:
        """Override it: your sink with an empty destination, for one test."""
        raise NotImplementedError("override the fixture `subject`")

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def test_nothing_is_shown_before_the_commit(self, subject: Subject) -> None:
        attempt = _attempt(1)
        _staged(subject, attempt, [1, 2])
        assert subject.visible() == []
        assert _marker(subject) is None

    def test_a_commit_shows_the_rows_with_their_marker(self, subject: Subject) -> None:
        _require_position(subject, None)
        txn = _epoch(subject, 1, None, [1, 2])
        self.require_shown(subject, [1, 2])
        assert _marker(subject) == Marker.of(txn)
        assert subject.sink().last_committed("another", subject.env) is None, "each pipeline has its own"

    def test_epochs_follow_one_another(self, subject: Subject) -> None:
        previous, shown = None, []
        for epoch, ids in enumerate(([1, 2], [2, 3], [12]), 1):
            previous = _epoch(subject, epoch, previous, ids)
            shown.append(ids)
            self.require_shown(subject, *shown)
        _require_position(subject, previous)

    def test_one_row_is_shown(self, subject: Subject) -> None:
        _epoch(subject, 1, None, [7])
        assert subject.visible() == self.after([7])

    def test_equal_rows_of_an_epoch_are_all_shown_unless_the_sink_refuses_them(self, subject: Subject) -> None:
        """A sink with keys may vote against equal rows. It must not vote for three rows, and show two."""
        attempt, ids = _attempt(1), [1, 1, 2]
        vote = subject.sink().vote(attempt, _claim(subject, attempt, ids), subject.env)
        if vote.staged is not None:
            receipt = _rebuilt(subject).commit(attempt, vote.staged, subject.env)
            self.require_shown(subject, ids)
            promised, shown = vote.staged.rows, len(self.after(ids))
            assert promised == receipt.rows == shown, (
                f"the sink promised {promised} rows and shows {shown}: let it vote against rows that share their keys"
            )

    def test_many_rows_are_shown(self, subject: Subject) -> None:
        _epoch(subject, 1, None, range(self.many))
        assert sorted(subject.visible()) == self.after(range(self.many))

    def test_an_epoch_without_rows_moves_the_marker_all_the_same(self, subject: Subject) -> None:
        previous, shown = None, []
        for epoch, ids in enumerate(([], [1], []), 1):
            previous = _epoch(subject, epoch, previous, ids)
            shown.append(ids)
            assert (subject.visible(), _marker(subject)) == (self.after(*shown), Marker.of(previous))
        _require_position(subject, previous)

    # -- rows that share their key -----------------------------------------------------------------------------------

    def test_a_row_of_a_later_epoch_takes_the_place_of_the_one_with_its_key(self, subject: Subject) -> None:
        """Runs only for a sink that upserts, if its subject is ``Relabelling``."""
        if self._upserts and isinstance(subject, Relabelling):
            previous = None
            for epoch, rows in enumerate(([(1, "old"), (2, "old")], [(2, "new"), (3, "new")]), 1):
                attempt = _attempt(epoch, previous)
                vote = subject.sink().vote(attempt, _relabelled(subject, attempt, rows), subject.env)
                assert vote.staged is not None, vote.reason
                _rebuilt(subject).commit(attempt, vote.staged, subject.env)
                previous = attempt.txn
            assert sorted(subject.labelled()) == [(1, "old"), (2, "new"), (3, "new")]

    def test_different_rows_of_one_key_in_one_epoch_are_not_promised(self, subject: Subject) -> None:
        """For ``Relabelling``. Nobody could say which row counts: their order may change when they are staged again.

        Override it if your sink has an order of its own, and say there which row counts.
        """
        if self._upserts and isinstance(subject, Relabelling):
            attempt = _attempt(2, _epoch(subject, 1, None, [3]))
            with _untouched(subject):
                claim = _relabelled(subject, attempt, [(1, "one"), (2, "one"), (1, "another")])
                assert _vote_against(subject, attempt, claim), "the sink promised two different rows of one key"

    @property
    def _upserts(self) -> bool:
        return sorted(self.shows([1, 2], [2, 3])) == [1, 2, 3]

    # -- repeats -----------------------------------------------------------------------------------------------------

    def test_a_repeated_commit_changes_nothing_also_when_its_place_was_cleared_away(self, subject: Subject) -> None:
        attempt = _attempt(1)
        staged = _staged(subject, attempt, [1, 2])
        receipt = _rebuilt(subject).commit(attempt, staged, subject.env)
        assert (receipt.txn_id, receipt.sink, receipt.rows) == (attempt.txn, subject.sink().name, 2)
        with _untouched(subject):
            for _ in range(3):
                assert _rebuilt(subject).commit(attempt, staged, subject.env) == receipt
                subject.sink().discard(attempt, staged.place, subject.env, published=True)
        assert sorted(subject.visible()) == self.after([1, 2])

    def test_a_repeated_vote_says_the_same(self, subject: Subject) -> None:
        attempt = _attempt(1)
        claim = _claim(subject, attempt, [1, 2])
        votes = [subject.sink().vote(attempt, claim, subject.env) for _ in range(2)]
        assert votes[0] == votes[1]
        assert votes[0].vote is VoteKind.VOTE_COMMIT
        again = subject.sink().vote(replace(attempt, promised=True), claim, subject.env)
        assert again.vote is VoteKind.VOTE_COMMIT, "the epoch is decided: the sink must stand by its promise"

    def test_the_same_rows_staged_again_have_the_same_digest_in_another_place(self, subject: Subject) -> None:
        attempt = _attempt(1)
        first, second = (_staged(subject, attempt, [1, 2]) for _ in range(2))
        assert first.place != second.place
        assert (first.digest, first.rows) == (second.digest, second.rows)

    def test_a_try_may_be_planned_twice(self, subject: Subject) -> None:
        attempt, try_id = _attempt(1), uuid.uuid4().hex
        plans = [subject.sink().plan_stage(attempt, try_id, subject.env) for _ in range(2)]
        assert plans[0] == plans[1] == json.loads(json.dumps(plans[0]))
        assert subject.sink().place(attempt, try_id, subject.env) == plans[0]["place"]
        claim = subject.stage(plans[1], [1])
        assert subject.sink().vote(attempt, claim, subject.env).vote is VoteKind.VOTE_COMMIT

    # -- a process that dies -----------------------------------------------------------------------------------------

    def test_a_commit_that_dies_at_any_moment_shows_its_rows_once_when_it_is_repeated(self, subject: Subject) -> None:
        """Each try of epoch 1 dies one named moment later, until one gets through. Then an epoch for each moment."""
        attempt, shown = _attempt(1), [[1, 2]]
        commit = partial(_commit, subject, attempt, _staged(subject, attempt, [1, 2]))
        died: str | None = dies_ever_later(subject.env, commit)
        self._require_shown_once(subject, attempt, commit(subject.env), shown, died)
        moment, moments = 0, 1
        while moment < min(moments, MOMENTS_MAX):
            attempt, ids = _attempt(moment + 2, attempt.txn), [2 * moment + 3, 2 * moment + 4]
            commit = partial(_commit, subject, attempt, _staged(subject, attempt, ids))
            shown.append(ids)
            died, again = dies_at(subject.env, moment, commit), Dying(subject.env)
            self._require_shown_once(subject, attempt, commit(again), shown, died)
            moment, moments = moment + 1, max(moments, again.named)  # the first repeat names them all

    def _require_shown_once(
        self, subject: Subject, attempt: SinkAttempt, receipt: Receipt, shown: Sequence[Sequence[int]], died: str | None
    ) -> None:
        """Check what readers see of the epochs ``shown``. The last one's commit died at ``died``, and was repeated."""
        seen = (receipt.txn_id, receipt.rows, sorted(subject.visible()), _marker(subject))
        assert seen == (attempt.txn, len(shown[-1]), self.after(*shown), Marker.of(attempt.txn)), (
            f"a try died at {died}, and the next one must show each row once: one atomic step for rows and marker"
        )

    def test_a_vote_that_dies_at_any_moment_is_given_when_it_is_repeated(self, subject: Subject) -> None:
        attempt = _attempt(1)
        claim = _claim(subject, attempt, [1, 2])
        died = dies_ever_later(subject.env, partial(_vote, subject, attempt, claim))
        vote = _vote(subject, attempt, claim, subject.env)
        assert vote.staged is not None, f"after votes that died at {died}: {vote.reason}"
        assert (subject.visible(), _marker(subject)) == ([], None)
        if died:  # else nothing is left that a commit could meet
            subject.sink().commit(attempt, vote.staged, subject.env)
            assert sorted(subject.visible()) == self.after([1, 2])

    def test_a_clean_up_that_dies_at_any_moment_is_completed_when_it_is_repeated(self, subject: Subject) -> None:
        aborted, attempt = _attempt(1), _attempt(1, number=2)
        lost, kept = _staged(subject, aborted, [3]), _staged(subject, attempt, [1, 2])
        self._discarded(subject, aborted, lost.place, published=False)
        assert _vote_against(subject, aborted, StagedClaim(place=lost.place)), "discard has left the rows"
        subject.sink().commit(attempt, kept, subject.env)
        self._discarded(subject, attempt, kept.place, published=True)
        assert (sorted(subject.visible()), _marker(subject)) == (self.after([1, 2]), Marker.of(attempt.txn))

    def _discarded(self, subject: Subject, attempt: SinkAttempt, place: str, *, published: bool) -> None:
        """Delete a place: each try dies one named moment later than the last one, until one gets through."""
        dies_ever_later(subject.env, lambda env: subject.sink().discard(attempt, place, env, published=published))

    # -- what must be refused ----------------------------------------------------------------------------------------

    def test_another_transaction_of_a_shown_epoch_is_refused(self, subject: Subject) -> None:
        attempt, other = _attempt(1), _attempt(1)
        staged, others = _staged(subject, attempt, [1]), _staged(subject, other, [2])
        subject.sink().commit(attempt, staged, subject.env)
        with _refused(subject):
            subject.sink().commit(other, others, subject.env)
        assert (subject.visible(), _marker(subject)) == (self.after([1]), Marker.of(attempt.txn))

    def test_an_epoch_after_a_gap_is_refused(self, subject: Subject) -> None:
        first = _epoch(subject, 1, None, [1])
        attempt = _attempt(3, first)
        staged = _staged(subject, attempt, [3])
        for previous in (_txn(2), _txn(1), None):
            gap = SinkAttempt(txn=attempt.txn, ledger_id=attempt.ledger_id, previous=previous)
            with _refused(subject):
                subject.sink().commit(gap, staged, subject.env)
        assert (subject.visible(), _marker(subject)) == (self.after([1]), Marker.of(first))

    def test_a_sink_that_shows_another_epoch_than_the_ledger_says_does_not_promise(self, subject: Subject) -> None:
        first = _epoch(subject, 1, None, [1])
        with _untouched(subject):
            for attempt in (_attempt(2), _attempt(2, _txn(1)), _attempt(3, _txn(2))):
                assert _vote_against(subject, attempt, _claim(subject, attempt, [2]))
        assert (subject.visible(), _marker(subject)) == (self.after([1]), Marker.of(first))

    def test_a_late_commit_after_its_successors_changes_nothing(self, subject: Subject) -> None:
        zombie = _attempt(1)
        staged = _staged(subject, zombie, [1, 2])
        second = self._gone_on(subject, zombie, staged)
        for _ in range(2):
            with _refused(subject):
                subject.sink().commit(zombie, staged, subject.env)
            subject.sink().discard(zombie, staged.place, subject.env, published=True)
        assert (sorted(subject.visible()), _marker(subject)) == (self.after([1, 2], [2, 3]), Marker.of(second))

    def test_a_commit_that_is_overtaken_by_another_try_of_itself_changes_nothing(self, subject: Subject) -> None:
        """A task's second try runs beside its first one, which pauses before it writes."""
        attempt = _attempt(1)
        staged = _staged(subject, attempt, [1, 2])

        def second_try() -> tuple[Receipt, object]:
            return _rebuilt(subject).commit(attempt, staged, subject.env), _seen(subject)

        late, (receipt, seen) = self._overtaken(subject, attempt, staged, second_try)
        assert late in (None, receipt)
        assert _seen(subject) == seen
        assert (sorted(subject.visible()), _marker(subject)) == (self.after([1, 2]), Marker.of(attempt.txn))

    def test_a_commit_that_is_overtaken_by_its_successors_changes_nothing(self, subject: Subject) -> None:
        """A zombie pauses before it writes. Its successor commits the same epoch, and then the next one."""
        zombie = _attempt(1)
        staged = _staged(subject, zombie, [1, 2])

        def successors() -> tuple[TransactionId, object]:
            return self._gone_on(subject, zombie, staged), _seen(subject)

        late, (second, seen) = self._overtaken(subject, zombie, staged, successors)
        assert late is None or late.txn_id == zombie.txn
        assert _seen(subject) == seen
        assert (sorted(subject.visible()), _marker(subject)) == (self.after([1, 2], [2, 3]), Marker.of(second))

    def test_a_commit_that_is_overtaken_by_another_transaction_of_its_epoch_is_refused(self, subject: Subject) -> None:
        """Two ledgers have the same epoch. The one that commits first is shown; the other one is refused for ever."""
        one, two = ((each, _staged(subject, each, [n])) for n, each in enumerate((_attempt(1), _attempt(1)), 1))
        late, receipt = self._overtaken(subject, *one, lambda: _if_committed(subject, *two))
        assert (late is None) != (receipt is None), "one of them must be shown, and the other one refused"
        (shown, _), refused, ids = (two, one, [2]) if receipt else (one, two, [1])
        with _refused(subject):
            _rebuilt(subject).commit(*refused, subject.env)
        assert (subject.visible(), _marker(subject)) == (self.after(ids), Marker.of(shown.txn))

    def test_a_commit_that_is_overtaken_by_a_fence_has_landed_before_or_never_lands(self, subject: Subject) -> None:
        """An operator has waived its epoch. The sink need not be one that can be fenced."""
        first = _epoch(subject, 1, None, [1])
        zombie = _attempt(2, first)
        staged, by = _staged(subject, zombie, [2, 3]), zombie.txn.fence
        _, fenced = self._overtaken(subject, zombie, staged, lambda: _fenced(subject, first, by))
        if fenced is None:
            return
        with _untouched(subject):
            _if_committed(subject, zombie, staged)
            assert _fenced(subject, first, by) == fenced
        seen = self.after([1]) if fenced else self.after([1], [2, 3])
        shown = by if fenced else zombie.txn
        assert (sorted(subject.visible()), _marker(subject)) == (seen, Marker.of(shown))
        third = _attempt(3, shown)
        staged = _staged(subject, third, [4])
        assert _fenced(subject, shown, third.txn.fence) is True, "nobody else commits now"
        with _refused(subject):
            _rebuilt(subject).commit(third, staged, subject.env)
        _epoch(subject, 4, third.txn.fence, [5])
        assert sorted(subject.visible()) == (self.after([1], [5]) if fenced else self.after([1], [2, 3], [5]))

    def _overtaken(
        self, subject: Subject, attempt: SinkAttempt, staged: Staged, other: Callable[[], T]
    ) -> tuple[Receipt | None, T]:
        """Commit, pause once the commit has looked, and let the other one go on meanwhile.

        Returns the commit's receipt, None if it raised an error, and what the other one returned.
        """
        with ThreadPoolExecutor(1) as others:
            held = HeldUp(subject.env, lambda: others.submit(other), self.overtaken_within_s)
            late = _if_committed(subject, attempt, staged, held)
            result = (held.by or others.submit(other)).result()
        assert (held.by is not None) == self.names_moments
        return late, result

    def _gone_on(self, subject: Subject, attempt: SinkAttempt, staged: Staged) -> TransactionId:
        """Commit epoch 1 of this attempt, and then epoch 2. Returns the transaction of epoch 2."""
        _rebuilt(subject).commit(attempt, staged, subject.env)
        return _epoch(subject, 2, attempt.txn, [2, 3])

    def test_rows_of_another_transaction_are_not_promised(self, subject: Subject) -> None:
        claim = _claim(subject, _attempt(1), [1])
        assert _vote_against(subject, _attempt(1), claim)

    def test_a_place_where_nothing_was_staged_is_not_promised(self, subject: Subject) -> None:
        attempt = _attempt(1)
        place = subject.sink().place(attempt, uuid.uuid4().hex, subject.env)
        assert _vote_against(subject, attempt, StagedClaim(place=place))

    # -- aborts and clean-up -----------------------------------------------------------------------------------------

    def test_an_aborted_attempt_leaves_nothing_and_the_next_one_is_shown(self, subject: Subject) -> None:
        first = _epoch(subject, 1, None, [1])
        aborted = _attempt(2, first)
        with _untouched(subject):
            staged = _staged(subject, aborted, [2, 3])
            for _ in range(2):
                subject.sink().discard(aborted, staged.place, subject.env, published=False)
        assert _vote_against(subject, aborted, StagedClaim(place=staged.place))
        _epoch(subject, 2, first, [2, 3], number=2)
        assert sorted(subject.visible()) == self.after([1], [2, 3])

    def test_a_place_that_was_never_filled_is_cleared_away_without_complaint(self, subject: Subject) -> None:
        attempt = _attempt(1)
        place = subject.sink().place(attempt, uuid.uuid4().hex, subject.env)
        for published in (False, True):
            subject.sink().discard(attempt, place, subject.env, published=published)

    def test_clearing_one_try_away_leaves_the_others(self, subject: Subject) -> None:
        attempt = _attempt(1)
        lost, kept = (_staged(subject, attempt, [1]) for _ in range(2))
        subject.sink().discard(attempt, lost.place, subject.env, published=False)
        subject.sink().commit(attempt, kept, subject.env)
        assert subject.visible() == self.after([1])

    def test_promised_rows_that_are_gone_are_told_of_and_can_be_staged_again(self, subject: Subject) -> None:
        attempt = _attempt(1)
        lost = _staged(subject, attempt, [1, 2])
        subject.sink().discard(attempt, lost.place, subject.env, published=False)
        with pytest.raises(RowsGone):
            subject.sink().commit(attempt, lost, subject.env)
        again = _staged(subject, attempt, [1, 2])
        subject.sink().commit(attempt, again, subject.env)
        assert sorted(subject.visible()) == self.after([1, 2])

    # -- the description ---------------------------------------------------------------------------------------------

    def test_the_specification_survives_the_ledger(self, subject: Subject) -> None:
        sink = subject.sink()
        again = _rebuilt(subject)
        assert type(again) is type(sink)
        assert (again.spec(), again.name) == (sink.spec(), sink.name)
        assert again.destination() == sink.destination() is not None
        assert again.asset_uri(PIPELINE) == sink.asset_uri(PIPELINE)
        assert _secret_names(sink.spec()) == [], "the ledger keeps the specification: name a connection instead"

    def test_a_sink_that_replaces_rows_tells_by_which_columns(self, subject: Subject) -> None:
        """Without these columns, a backfill would write the rows of several epochs in no order. See ``Replacing``."""
        sink = subject.sink()
        if sorted(self.shows([1], [1, 2])) != [1, 1, 2]:
            assert isinstance(sink, Replacing), "later rows replace earlier ones, and the sink has no replaces_by()"
            assert sink.replaces_by() != (), "later rows replace earlier ones, and replaces_by() says that all stay"


# -- what the coordinator does ---------------------------------------------------------------------------------------


def _txn(epoch: int, number: int = 1) -> TransactionId:
    return TransactionId(PIPELINE, epoch, number, uuid.uuid4().hex)


def _attempt(epoch: int, previous: TransactionId | None = None, number: int = 1) -> SinkAttempt:
    return SinkAttempt(txn=_txn(epoch, number), ledger_id="5eed", previous=previous, ends=_ends(epoch))


def _ends(epoch: int) -> Ends:
    return {"t": {"0": 7 * epoch, "1": 0}}


def _rebuilt(subject: Subject) -> Sink:
    """The sink as commit and roll-forward get it: rebuilt from the ledger's specification."""
    sink = subject.sink()
    return from_spec(json.loads(json.dumps(sink.spec())), [sink])


def _claim(subject: Subject, attempt: SinkAttempt, ids: Sequence[int]) -> StagedClaim:
    return subject.stage(subject.sink().plan_stage(attempt, uuid.uuid4().hex, subject.env), ids)


def _relabelled(subject: Relabelling, attempt: SinkAttempt, rows: Sequence[tuple[int, str]]) -> StagedClaim:
    return subject.stage_labelled(subject.sink().plan_stage(attempt, uuid.uuid4().hex, subject.env), rows)


def _staged(subject: Subject, attempt: SinkAttempt, ids: Sequence[int]) -> Staged:
    vote = subject.sink().vote(attempt, _claim(subject, attempt, ids), subject.env)
    assert vote.staged is not None, vote.reason
    assert vote.staged.rows == len(ids)
    return vote.staged


def _vote_against(subject: Subject, attempt: SinkAttempt, claim: StagedClaim) -> bool:
    """Whether the sink refuses the promise: by VOTE_ABORT, or by an error, which is not a vote."""
    try:
        vote: Vote = subject.sink().vote(attempt, claim, subject.env)
    except (NotApplied, Corrupt):
        return True
    return vote.vote is VoteKind.VOTE_ABORT


def _epoch(
    subject: Subject, epoch: int, previous: TransactionId | None, ids: Sequence[int], number: int = 1
) -> TransactionId:
    attempt = _attempt(epoch, previous, number)
    staged = _staged(subject, attempt, ids)
    receipt = _rebuilt(subject).commit(attempt, staged, subject.env)
    assert receipt.rows == len(ids)
    return attempt.txn


def _commit(subject: Subject, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
    return _rebuilt(subject).commit(attempt, staged, env)


def _vote(subject: Subject, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
    return subject.sink().vote(attempt, claim, env)


def _if_committed(
    subject: Subject, attempt: SinkAttempt, staged: Staged, env: Environment | None = None
) -> Receipt | None:
    """The receipt of a commit; None if it raised an error."""
    try:
        return _rebuilt(subject).commit(attempt, staged, env or subject.env)
    except EpochError:
        return None


def _marker(subject: Subject) -> Marker | None:
    return subject.sink().last_committed(PIPELINE, subject.env)


def _require_position(subject: Subject, txn: TransactionId | None) -> None:
    """Check that a sink with ``last_epoch`` tells the whole transaction, and where the epoch ends."""
    sink = subject.sink()
    if not isinstance(sink, Positioned):
        return
    last = sink.last_epoch(PIPELINE, subject.env)
    told = last and (last.marker, last.txn, last.ends)
    assert told == (txn and (Marker.of(txn), txn, _ends(txn.epoch))), "a lost ledger would be rebuilt wrongly"


def _fenced(subject: Subject, over: TransactionId, by: TransactionId) -> bool | None:
    """As ``Fencing.fence``; None for a sink that cannot be fenced."""
    sink = _rebuilt(subject)
    return sink.fence(PIPELINE, [over], by, subject.env) if isinstance(sink, Fencing) else None


def _secret_names(value: object) -> list[str]:
    """The names of fields that seem to hold a secret, at any depth."""
    if isinstance(value, Mapping):
        return [
            str(name)
            for name, below in value.items()
            if (isinstance(below, str) and below and _SECRET_NAME.fullmatch(str(name))) or _secret_names(below)
        ]
    return [name for each in value for name in _secret_names(each)] if isinstance(value, (list, tuple)) else []


# -- what the suite looks at -----------------------------------------------------------------------------------------


def _seen(subject: Subject) -> tuple[object, list[int], Marker | None]:
    return subject.fingerprint(), sorted(subject.visible()), _marker(subject)


@contextmanager
def _untouched(subject: Subject) -> Iterator[None]:
    """Check that the block writes nothing, not even equal rows."""
    before = _seen(subject)
    yield
    assert _seen(subject) == before


@contextmanager
def _refused(subject: Subject) -> Iterator[None]:
    """Check that the commit raises an error that calls for a human, and writes nothing."""
    with _untouched(subject), pytest.raises((Corrupt, Fenced)) as stopped:
        yield
    assert not isinstance(stopped.value, RowsGone), "that would have the rows staged again"
