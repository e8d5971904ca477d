"""What is signed cannot be forged, and what is not is told apart from what was written before there was a key."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.runs import series
from airflow_epochs.errors import Corrupt, EpochError, Refused
from airflow_epochs.ledger import trust
from airflow_epochs.ledger.codec import decode, encode
from airflow_epochs.ledger.keys import PIPELINE_KEY, attempt_key, complete_key, key_of, run_key, signing_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.run_ids import nth
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.model import DecisionKind, DryRunRecord, PipelineRecord, Run, RunIndex, SigningRecord, TryRecord
from airflow_epochs.names import DRY_RUN
from airflow_epochs.protocol import State
from airflow_epochs.testing import DictStore, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from tests.support.faults_golden import resealed
from tests.support.records import RUN, complete, decision, open_record, receipt, whole_epoch

KEY, NEWER, NEWEST = "the key of this ledger's owner", "a newer key of the same owner", "the owner's newest key"
OPEN, DECISION = attempt_key(1, 1, "open"), attempt_key(1, 1, "decision")


def keyed(store: DictStore, password: str = KEY, **more: bool) -> Ledger:
    return Ledger(store, "p", Keys.parse(password), **more)


def claimed(store: DictStore, password: str = KEY, ledger_id: str = "l") -> Ledger:
    """A ledger whose id is known, so that other records can name it."""
    ledger = keyed(store, password)
    ledger.register("dag", at="now", writer="w")
    value = decode(store.values[f"p/{PIPELINE_KEY}"], PipelineRecord)
    del store.values[f"p/{PIPELINE_KEY}"]
    keyed(store, password)._records.put(replace(value, ledger_id=ledger_id))
    return keyed(store, password)


def killed_dry_run() -> DryRunRecord:
    """What a dry run of epoch 1 has put."""
    opened = replace(open_record(), ledger_id=f"{DRY_RUN}1")
    tried = TryRecord(txn_id=opened.txn_id, try_id="1" * 32, places={}, session={}, started_at="now")
    return DryRunRecord(pipeline="p", opened=opened, tried=tried, writer="w")


@pytest.fixture
def store() -> DictStore:
    """A ledger, signed from its first record on, whose first epoch waits for its sink."""
    store = DictStore()
    ledger = claimed(store)
    ledger.put(open_record())
    ledger.put_run(RUN, 1)
    ledger.put(decision(DecisionKind.GLOBAL_COMMIT))
    return store


@pytest.fixture
def old() -> DictStore:
    """A ledger without signatures: an epoch that is complete, and one that waits for its sink."""
    store = DictStore()
    ledger = claimed(store, "")
    whole_epoch(ledger)
    ledger.put(complete())
    ledger.put(open_record(2))
    ledger.put_run(RUN, 2)
    ledger.put(decision(DecisionKind.GLOBAL_COMMIT, 2))
    return store


def begun(store: DictStore, password: str = KEY) -> Ledger:
    """After the first ``open`` with a key."""
    ledger = keyed(store, password)
    ledger.register("dag", at="then", writer="the first with a key")
    return keyed(store, password)


def test_the_password_is_a_list_of_keys_of_which_the_first_is_the_newest() -> None:
    assert Keys.parse(" new , old ").secrets == ("new", "old")
    assert not Keys.parse(None) and not Keys.parse("") and not Keys.parse(" , ")
    assert Keys.parse(f"{KEY},short").is_weak and not Keys.parse(KEY).is_weak


def test_no_key_is_shown_by_a_repr() -> None:
    assert KEY not in repr(Keys.parse(KEY))


def test_a_signature_is_the_hmac_of_ledger_place_and_record(store: DictStore) -> None:
    """By Python's own library, from what the documentation says."""
    value = json.loads(store.values[f"p/{OPEN}"])
    signature = value.pop("hmac")
    del value["sha256"]
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    signed = f"airflow-epochs ledger record\nl\np/{OPEN}\n{body}".encode()
    assert signature == hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
    assert value["format"] == 2


def test_every_record_of_a_new_ledger_is_signed(store: DictStore) -> None:
    ledger = keyed(store)
    ledger.put(receipt())
    ledger.put(complete())
    ledger.take_over("other", who="me", why="x", at="now", writer="w")
    assert len(store.values) == 7
    assert all(value[28:37] == b',"hmac":"' for value in store.values.values())
    assert ledger.view(1).complete and ledger.owner(ledger.register("other", at="now", writer="w")) == "other"
    assert not any("signing" in key for key in store.values)


def forged_open(store: DictStore) -> None:
    alter(store, OPEN, b'"transform":"t"', b'"transform":"x"')


def alter(store: DictStore, key: str, old: bytes, new: bytes) -> None:
    value = store.values[f"p/{key}"]
    assert old in value
    store.values[f"p/{key}"] = resealed(value.replace(old, new))


def unsigned(store: DictStore) -> None:
    store.values[f"p/{OPEN}"] = encode(open_record())


def said_to_be_signed(store: DictStore) -> None:
    store.values[f"p/{OPEN}"] = encode(replace(open_record(), format=2))


def with_another_key(store: DictStore) -> None:
    other = DictStore()
    claimed(other, "somebody else's key").put(open_record())
    store.values[f"p/{OPEN}"] = other.values[f"p/{OPEN}"]


def of_another_ledger(store: DictStore) -> None:
    """Of the same owner, with the same key, for the same pipeline: only the ledger is another one."""
    other = DictStore()
    ledger = claimed(other, ledger_id="another")
    ledger.put(replace(open_record(), ledger_id="another"))
    value = resealed(other.values[f"p/{OPEN}"].replace(b'"ledger_id":"another"', b'"ledger_id":"l"'))
    store.values[f"p/{OPEN}"] = value


def with_a_signature_cut_short(store: DictStore) -> None:
    value = store.values[f"p/{OPEN}"]
    start = value.index(b'"hmac":"') + len(b'"hmac":"')
    store.values[f"p/{OPEN}"] = resealed(value[:start] + value[start + 1 :])


@pytest.mark.parametrize(
    "forge",
    [forged_open, unsigned, said_to_be_signed, with_another_key, of_another_ledger, with_a_signature_cut_short],
)
def test_a_forged_record_is_corrupt_and_named(store: DictStore, forge: Callable[[DictStore], None]) -> None:
    keyed(store).view(1)
    forge(store)
    with pytest.raises(
        Corrupt, match=r"does not trust the ledger record .*: it.* (is not signed|does not match|has no signature)"
    ) as corrupt:
        keyed(store).view(1)
    assert f"p/{OPEN}" in corrupt.value.what and "airflow epochs sign p" in corrupt.value.remedy


def test_a_record_at_the_place_of_another_one_is_corrupt(store: DictStore) -> None:
    """The record of a run says nothing of where it lies that a checksum could find."""
    store.values[f"p/{run_key(RUN)}"] = store.values[f"p/{OPEN}"]
    with pytest.raises(Corrupt):
        keyed(store).epoch_of(RUN)


@pytest.mark.parametrize("key", [PIPELINE_KEY, OPEN, DECISION, run_key(RUN)])
def test_any_bit_of_a_signed_record_counts(store: DictStore, key: str) -> None:
    sound = store.values[f"p/{key}"]
    for bit in range(29 * 8, len(sound) * 8, 7):
        changed = bytearray(sound)
        changed[bit // 8] ^= 1 << bit % 8
        store.values[f"p/{key}"] = resealed(bytes(changed))
        with pytest.raises((Corrupt, Refused)):
            ledger = keyed(store)
            ledger.identity()
            ledger.view(1)
            ledger.epoch_of(RUN)


def test_without_a_key_a_signed_ledger_is_refused_and_nothing_is_written(store: DictStore) -> None:
    before = dict(store.values)
    ledger = Ledger(store, "p")
    for ask in (
        lambda: ledger.view(1),
        lambda: ledger.register("dag", at="now", writer="w"),
    ):
        with pytest.raises(Refused, match=r"signed records.*no password") as refused:
            ask()
        assert "Set the password" in refused.value.remedy
    assert store.values == before


def test_without_a_key_a_ledger_that_has_begun_to_be_signed_is_refused(old: DictStore) -> None:
    begun(old)
    with pytest.raises(Refused, match=r"signed records.*no password"):
        Ledger(old, "p").register("dag", at="now", writer="w")


def test_readers_without_a_key_may_believe_what_they_read(store: DictStore) -> None:
    assert Ledger(store, "p", checked=False).view(1).open == replace(open_record(), format=2)


# -- keys that change ---------------------------------------------------------------------------------------------


def test_a_new_key_signs_and_the_old_one_is_still_believed(store: DictStore) -> None:
    both = keyed(store, f"{NEWER},{KEY}")
    assert both.view(1).open
    both.put(receipt())
    assert Ledger(store, "p", Keys.parse(f"{KEY},{NEWER}")).view(1).receipts
    with pytest.raises(Corrupt, match="its signature does not match a key"):
        keyed(store, KEY).view(1)


def test_after_one_open_with_both_keys_the_old_one_can_be_dropped(store: DictStore) -> None:
    begun(store, f"{NEWER},{KEY}")
    ledger = begun(store, NEWER)
    assert ledger.view(1).decision and ledger.epoch_of(RUN) == 1
    ledger.put(receipt())
    ledger.put(complete())
    ledger.put(open_record(2))
    assert keyed(store, NEWER).view(2).open
    assert keyed(store, NEWER).complete_record(1)
    assert sorted(key for key in store.values if "signing" in key) == [f"p/{signing_key(1)}"]


def test_what_a_killed_dry_run_left_is_believed_after_a_change_of_keys(store: DictStore) -> None:
    left = keyed(store).put(killed_dry_run())
    begun(store, f"{NEWER},{KEY}")
    assert [each.tried for each in begun(store, NEWER).dry_runs()] == [left.tried]


def test_what_a_killed_preview_left_before_the_first_epoch_is_believed_before_and_after_the_ledger_begins() -> None:
    store = DictStore()
    left = keyed(store).put(killed_dry_run())
    assert [each.tried.try_id for each in keyed(store).dry_runs()] == [left.tried.try_id]
    assert [each.tried.try_id for each in begun(store).dry_runs()] == [left.tried.try_id]
    key = f"p/{key_of(left)}"
    store.values[key] = resealed(store.values[key].replace(b'"writer":"w"', b'"writer":"x"'))
    with pytest.raises(Corrupt, match="its signature does not match a key"):
        keyed(store).dry_runs()


def test_a_record_of_a_dry_run_that_was_signed_for_its_ledger_is_believed(
    store: DictStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(trust, "is_dry_run_key", lambda key: False)
        left = keyed(store).put(killed_dry_run())
    assert [each.tried.try_id for each in keyed(store).dry_runs()] == [left.tried.try_id]


def test_the_records_within_an_unsigned_record_of_a_dry_run_do_not_pass_as_signed(old: DictStore) -> None:
    forged = killed_dry_run()
    forged = replace(forged, opened=replace(forged.opened, format=2), tried=replace(forged.tried, format=2))
    old.values[f"p/{key_of(forged)}"] = encode(forged)
    [found] = keyed(old).dry_runs()
    assert (found.format, found.opened.format, found.tried.format) == (1, 1, 1)


def test_what_a_dry_run_of_a_dropped_key_left_stops_no_epoch_and_is_believed_once_an_operator_says_so(
    store: DictStore,
) -> None:
    begun(store, f"{NEWER},{KEY}")
    left = keyed(store).put(killed_dry_run())
    assert begun(store, f"{NEWEST},{NEWER}").view(1).decision
    ledger = keyed(store, NEWEST)
    with pytest.raises(Corrupt, match="its signature does not match a key"):
        ledger.dry_runs()
    assert ledger.signing.unsigned() == [key_of(left)]
    ledger.signing.sign(why="it was mine", at="now", writer="cli", who="me")
    assert [each.tried for each in keyed(store, NEWEST).dry_runs()] == [left.tried]
    assert keyed(store, NEWEST).signing.unsigned() == []


def test_a_key_that_was_dropped_signs_nothing_any_more(store: DictStore) -> None:
    begun(store, f"{NEWER},{KEY}")
    other = DictStore()
    claimed(other, KEY).put(receipt())
    store.values[f"p/{key_of(receipt())}"] = other.values[f"p/{key_of(receipt())}"]
    with pytest.raises(Corrupt, match="its signature does not match a key"):
        keyed(store, NEWER).view(1)


def test_keys_can_be_changed_again_and_again(store: DictStore) -> None:
    for number in range(1, 6):
        old = f"key number {number - 1} of this ledger" if number > 1 else KEY
        begun(store, f"key number {number} of this ledger,{old}")
    ledger = keyed(store, "key number 5 of this ledger")
    assert ledger.view(1).decision
    assert len([key for key in store.values if "signing" in key]) == 5


def test_a_key_that_changed_without_the_old_one_is_named_and_nothing_is_written(store: DictStore) -> None:
    before = dict(store.values)
    with pytest.raises(Corrupt, match="does not trust") as corrupt:
        begun(store, NEWER)
    assert "set it to the new password, a comma and the old password" in corrupt.value.remedy
    assert store.values == before


# -- ledgers that are older than their key ------------------------------------------------------------------------


def test_a_ledger_without_signatures_is_read_with_a_key(old: DictStore) -> None:
    ledger = keyed(old)
    assert ledger.view(2).decision and ledger.complete_record(1)
    assert not any("signing" in key for key in old.values)


def test_it_is_signed_from_the_next_open_on_and_what_stood_is_still_believed(old: DictStore) -> None:
    ledger = begun(old)
    record = decode(old.values[f"p/{signing_key(1)}"], SigningRecord)
    assert (record.epoch, record.writer) == (1, "the first with a key")
    assert {PIPELINE_KEY, complete_key(1), attempt_key(2, 1, "open"), run_key(RUN)} <= record.trusted.keys()
    assert ledger.view(2).decision and ledger.epoch_of(RUN) == 2
    ledger.put(receipt(2))
    ledger.put(complete(2))
    ledger.put(open_record(3))
    assert all(b'"hmac":"' in old.values[f"p/{key}"] for key in (complete_key(2), attempt_key(3, 1, "open")))
    assert begun(old).view(3).open and begun(old).view(1).complete
    assert [record.format for record in ledger.tries(1)] == [1]


@pytest.mark.parametrize(
    ("key", "changed", "by"),
    [
        (PIPELINE_KEY, b'"dag_id":"dag"', b'"dag_id":"bad"'),
        (complete_key(1), b'"completed_at":"now"', b'"completed_at":"not"'),
        (attempt_key(2, 1, "open"), b'"transform":"t"', b'"transform":"x"'),
        (attempt_key(2, 1, "decision"), b'"place":"x"', b'"place":"y"'),
        (run_key(RUN), b'"epoch":2', b'"epoch":7'),
    ],
)
def test_what_the_next_epoch_rests_on_cannot_be_changed_any_more(
    old: DictStore, key: str, changed: bytes, by: bytes
) -> None:
    begun(old)
    alter(old, key, changed, by)
    with pytest.raises(Corrupt, match="it is not signed") as corrupt:
        ledger = keyed(old)
        ledger.identity()
        ledger.view(2)
        ledger.complete_record(1)
        ledger.epoch_of(RUN)
    assert f"p/{key}" in corrupt.value.what


@pytest.mark.parametrize("key", [key_of(receipt(2)), attempt_key(2, 2, "open"), attempt_key(3, 1, "open")])
def test_nothing_unsigned_can_be_added(old: DictStore, key: str) -> None:
    ledger = begun(old)
    if key == attempt_key(3, 1, "open"):
        ledger.put(receipt(2))
        ledger.put(complete(2))
    added = {
        key_of(receipt(2)): receipt(2),
        attempt_key(2, 2, "open"): open_record(2, 2),
        attempt_key(3, 1, "open"): open_record(3),
    }
    old.values[f"p/{key}"] = encode(added[key])
    with pytest.raises(Corrupt, match="it is not signed") as corrupt:
        keyed(old).view(3 if "00003/" in key else 2)
    assert f"p/{key}" in corrupt.value.what


def test_who_takes_the_signing_record_away_does_not_make_the_ledger_old_again(old: DictStore) -> None:
    begun(old).put(receipt(2))
    del old.values[f"p/{signing_key(1)}"]
    with pytest.raises(
        Corrupt, match=r"it is signed, but p/pipeline.json is not, and p/signing/0000000001.json is missing"
    ):
        keyed(old).view(2)
    with pytest.raises(Corrupt):
        begun(old)


def test_who_puts_an_unsigned_beginning_into_a_signed_ledger_does_not_make_it_old(store: DictStore) -> None:
    identity = decode(store.values[f"p/{PIPELINE_KEY}"], PipelineRecord)
    store.values[f"p/{PIPELINE_KEY}"] = encode(replace(identity, format=1))
    with pytest.raises(Corrupt, match=r"pipeline.json is not"):
        keyed(store).view(1)
    with pytest.raises(Corrupt):
        begun(store)


def test_a_signing_record_of_somebody_else_counts_for_nothing(old: DictStore) -> None:
    begun(old)
    other = DictStore()
    other.values.update(old.values)
    del other.values[f"p/{signing_key(1)}"]
    forged = begun(other, "somebody else's key")
    forged.signing.sign(why="mine", at="now", writer="him")
    old.values[f"p/{signing_key(2)}"] = other.values[f"p/{signing_key(2)}"]
    with pytest.raises(Corrupt, match=r"signing/0000000002.json is not signed with a key of the ledger's connection"):
        keyed(old).view(2)


def test_a_ledger_that_was_never_signed_can_be_refused(old: DictStore, store: DictStore) -> None:
    before = dict(old.values)
    with pytest.raises(Corrupt, match="never signed, but its connection has require_signed"):
        keyed(old, require_signed=True).register("dag", at="now", writer="w")
    assert old.values == before
    assert keyed(store, require_signed=True).view(1).open
    begun(old)
    assert keyed(old, require_signed=True).view(2).open


def test_a_new_ledger_is_made_where_signatures_are_required() -> None:
    store = DictStore()
    keyed(store, require_signed=True).register("dag", at="now", writer="w")
    assert keyed(store, require_signed=True).identity()


# -- the operator's word ------------------------------------------------------------------------------------------


def test_what_a_late_task_wrote_without_the_key_counts_once_an_operator_says_so(old: DictStore) -> None:
    begun(old)
    late = receipt(2)
    old.values[f"p/{key_of(late)}"] = encode(late)
    ledger = keyed(old)
    with pytest.raises(Corrupt):
        ledger.view(2)
    assert ledger.signing.unsigned() == [key_of(late)]
    ledger.signing.sign(why="it was mine", at="now", writer="cli", who="me")
    assert keyed(old).view(2).receipts == {"a": late}
    assert keyed(old).signing.unsigned() == []


def test_a_ledger_whose_key_is_lost_goes_on_with_a_new_one_once_an_operator_says_so(store: DictStore) -> None:
    ledger = keyed(store, NEWER)
    assert set(ledger.signing.unsigned()) == {PIPELINE_KEY, OPEN, DECISION, run_key(RUN)}
    ledger.signing.sign(why="the key is lost", at="now", writer="cli", who="me")
    ledger = begun(store, NEWER)
    assert ledger.view(1).decision and ledger.epoch_of(RUN) == 1
    ledger.put(receipt())
    ledger.put(complete())
    assert begun(store, NEWER).complete_record(1)


def test_without_a_key_nobody_can_sign(old: DictStore) -> None:
    with pytest.raises(Refused, match="no password"):
        Ledger(old, "p").signing.sign(why="x", at="now", writer="w")


def test_of_two_that_sign_at_once_one_is_told(old: DictStore) -> None:
    def other_first(moment: str) -> None:
        if "signing" in moment and moment.startswith("before put"):
            old.observer = lambda _: None
            keyed(old).signing.sign(why="faster", at="now", writer="other")

    old.observer = other_first
    with pytest.raises(Refused, match="at the same moment"):
        keyed(old).signing.sign(why="slower", at="now", writer="me")


def test_a_whole_pipeline_runs_signed_unsigned_and_signed_again_with_another_key() -> None:
    world, store = MemoryWorld(), DictStore()
    for number, password in enumerate(["", KEY, f"{NEWER},{KEY}", NEWER, NEWER], 1):
        world.produce("orders", 0, ["row"])
        coordinator = memory_coordinator(world, memory_pipeline(world), store=store)
        coordinator.task.ledger = Ledger(store, "orders", Keys.parse(password))
        run_epoch(coordinator, Run("dag", f"r{number}"))
    assert coordinator.task.ledger.newest_complete() == 5
    with pytest.raises(EpochError):
        Ledger(store, "orders").view(5)


def test_a_change_of_the_key_can_be_taken_back() -> None:
    world, store = MemoryWorld(), DictStore()
    for number, password in enumerate([KEY, f"{NEWER},{KEY}", NEWER, f"{KEY},{NEWER}", KEY], 1):
        world.produce("orders", 0, ["row"])
        coordinator = memory_coordinator(world, memory_pipeline(world), store=store)
        coordinator.task.ledger = Ledger(store, "orders", Keys.parse(password))
        run_epoch(coordinator, Run("dag", f"r{number}"))
        if password == NEWER:
            coordinator.task.ledger.take_over("dag", who="me", why="x", at="now", writer="w")
    ledger = Ledger(store, "orders", Keys.parse(KEY))
    assert [ledger.view(number).state for number in range(1, 6)] == [State.COMPLETE] * 5
    assert len(ledger.takeovers()) == 1


def test_of_history_nothing_is_decided(old: DictStore) -> None:
    """Somebody takes a completion record away, and leaves an epoch behind that seems to be in doubt, with his run."""
    ledger = begun(old)
    ledger.put(receipt(2))
    ledger.put(complete(2))
    his = Run("dag", "a run of tomorrow")
    old.values[f"p/{run_key(his)}"] = encode(RunIndex(dag_id="dag", run_id=his.run_id, epoch=1))
    assert keyed(old).epoch_of(his) is None
    del old.values[f"p/{complete_key(1)}"]
    with pytest.raises(Corrupt, match=r"has lost the file p/epochs/00000000000000000001/complete.json"):
        keyed(old).view(1)


def test_a_run_of_the_epoch_in_flight_still_has_it_when_signing_begins(old: DictStore) -> None:
    assert begun(old).epoch_of(RUN) == 2


@pytest.mark.parametrize("passwords", [("", KEY), (KEY, f"{NEWER},{KEY}", NEWER)], ids=["first key", "other key"])
def test_a_run_of_several_epochs_finishes_its_last_one_after_a_change_of_the_key(passwords: tuple[str, ...]) -> None:
    world, store, its, later = MemoryWorld(), DictStore(), Run("dag", "its"), Run("dag", "later")
    pipeline = replace(memory_pipeline(world), on_failed_epoch="block")

    def task(password: str) -> Coordinator:
        coordinator = memory_coordinator(world, pipeline, store=store)
        coordinator.task.ledger = Ledger(store, "orders", Keys.parse(password))
        return coordinator

    for number in (1, 2, 3):
        world.produce("orders", 0, [f"row {number}"])
        dying, which = task(passwords[0]), nth(its, number)
        if number < 3:
            run_epoch(dying, which)
    dying.open(which)
    dying.vote(which, dying.stage(which).stage)
    for password in passwords[1:]:
        with pytest.raises(Refused, match="in doubt, and belongs to run its of DAG dag"):
            task(password).open(later)
    cleared = task(passwords[-1])
    assert cleared.task.ledger.epoch_of(its) is None  # it is history by now
    assert run_epoch(cleared, nth(its, series.newest(cleared.task.ledger, its))).epoch == 3
    assert world.table("orders").values() == ["row 1", "row 2", "row 3"]


def test_a_run_that_had_ended_before_the_first_key_may_take_new_data(old: DictStore) -> None:
    ended = Run("dag", "ended")
    series.put_end(Ledger(old, "p"), ended, 1, Ledger(old, "p").put_run(ended, 1).epoch)
    for ledger, has_ended in ((Ledger(old, "p"), True), (begun(old), False)):
        assert series.has_ended(ledger, ended, series.newest(ledger, ended)) == has_ended


def test_an_epoch_that_was_complete_when_the_key_changed_is_not_opened_again_though_what_is_left_is_signed(
    store: DictStore,
) -> None:
    ledger = keyed(store)
    ledger.put(receipt())
    ledger.put(complete())
    begun(store, f"{NEWER},{KEY}")
    keyed(store, f"{NEWER},{KEY}").require_no_gap(2)
    del store.values[f"p/{complete_key(1)}"]
    with pytest.raises(Corrupt, match=r"has lost the file p/epochs/00000000000000000001/complete.json"):
        keyed(store, f"{NEWER},{KEY}").require_no_gap(1)
