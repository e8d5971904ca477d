"""Finding the newest epoch, which must not grow with the ledger; and how often an epoch asks the ledger's store."""

from __future__ import annotations

import tempfile
from pathlib import Path

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import LocalStore
from tests.perf.figures import Figure, figure, ratios, timed
from tests.support.ledger_calls import CountedEpochs, total

OPENS = 21


def figures() -> list[Figure]:
    keys = {"unsigned": NO_KEYS, "signed": Keys(("a key of the benchmark",))}
    newest = [_newest(epochs) for epochs in (10, 10_000)]
    return [*newest, *_opening(100, 100_000), *(_calls(kind, keys[kind]) for kind in keys)]


def _opening(few: int, many: int) -> list[Figure]:
    """``open`` in a long ledger ÷ in a short one, in turn, each in a process of its own as far as the ledger knows."""
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as long:
        ours = CountedEpochs.of_a_ledger_with(few, root=Path(short))
        theirs = CountedEpochs.of_a_ledger_with(many, root=Path(long))
        opens = [(ours.run()["open"], theirs.run()["open"]) for _ in range(OPENS + 1)][1:]
    after_few, after_many = ([each[which] for each in opens] for which in (0, 1))
    calls = f"{len(after_few[-1].calls)} and {len(after_many[-1].calls)} calls of the store"
    ratio = ratios([each.seconds for each in after_few], [each.seconds for each in after_many])
    name = f"open after {many:,} epochs"
    milliseconds = [1e3 * each.seconds for each in after_many]
    return [
        figure(name, "ms", milliseconds, most=20),
        figure(f"{name} ÷ after {few}", "ratio", ratio, most=1.5, note=calls),
    ]


def _calls(kind: str, keys: Keys) -> Figure:
    """A count, so one run is enough; five would say the same."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = CountedEpochs(Path(folder), keys, in_dag=frozenset({"orders"})).run()
    each = ", ".join(f"{task} {len(store.calls)}" for task, store in tasks.items())
    return figure(f"ledger calls of an epoch, {kind}", "calls", [total(tasks)], most=60, note=f"2 sinks: {each}")


def _newest(epochs: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, epochs + 1):
            key = Path(folder, f"bench/epochs/{number:020d}/complete.json")
            key.parent.mkdir(parents=True)
            key.touch()  # only its existence is asked for
        store = LocalStore(Path(folder))
        assert _found(store) == epochs
        samples = [1e3 * seconds for seconds in timed(lambda: _found(store), runs=21)]
    return figure(f"newest epoch of {epochs:,}", "ms", samples, most=2)


def _found(store: LocalStore) -> int:
    """As a new task finds it, which remembers nothing."""
    return Ledger(store, "bench").newest_complete()
