"""When to compact a table: every so many epochs, and sooner if an epoch brings many small files."""

from __future__ import annotations

from itertools import islice

from airflow_epochs.delta.log import actions_of
from airflow_epochs.delta.table import App
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.compaction import newest_entries, small_bytes
from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.storage.files import Files

FILES_DUE = 1_000
"""Compaction is due whenever the number of small files passes a multiple of this."""
ENTRIES_MAX = 200


def is_due(files: Files, version: int, app: App, epoch: int, every: int, layout: FileLayout) -> bool:
    """Whether compaction is due after ``epoch``, which is ``app``'s newest one in the table at ``version``.

    It is due every ``every`` epochs, and whenever this epoch makes the number of small files pass a multiple of
    ``FILES_DUE``. The count starts at the last regular epoch or the last compaction. ``every=0``: never.
    """
    if not every:
        return False
    if epoch % every == 0:
        return True
    since = epoch - epoch % every
    new, before = _small_files(files, version, app, epoch, since, small_bytes(layout))
    return (new + before) // FILES_DUE > before // FILES_DUE


def _small_files(files: Files, version: int, app: App, epoch: int, since: int, limit: int) -> tuple[int, int]:
    """How many small files came after epoch ``epoch - 1``; how many before it, back to ``since`` or a compaction."""
    counts, is_new = [0, 0], True
    for entry in islice(newest_entries(files, version), ENTRIES_MAX):
        actions = list(actions_of(entry))
        signed = next((a["txn"]["version"] for a in actions if a.get("txn", {}).get("appId") == app.epoch), None)
        is_new = is_new and (signed is None or signed >= epoch)
        if _compacts(actions) or (signed is not None and signed <= since):
            break
        counts[0 if is_new else 1] += sum(a["add"]["size"] < limit for a in actions if "add" in a)
    return counts[0], counts[1]


def _compacts(actions: list[JsonDict]) -> bool:
    return any(action.get("commitInfo", {}).get("operation") == "OPTIMIZE" for action in actions)
