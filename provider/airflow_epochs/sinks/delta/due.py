"""When a table is to be compacted: after so many epochs, and sooner where an epoch brings many small files."""

from __future__ import annotations

from itertools import islice

from airflow_epochs.delta.log import actions_of
from airflow_epochs.delta.table import App
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.compaction import SMALL_BYTES, newest_entries
from airflow_epochs.storage.files import Files

FILES_DUE = 1_000
"""So many small files since the last look are reason for another."""
ENTRIES_MAX = 200


def is_due(files: Files, version: int, app: App, epoch: int, every: int) -> bool:
    """Whether compaction is due after ``epoch``, the newest one of ``app`` in the table at ``version``.

    That is after every so many epochs, and whenever the epoch brings the number of small files that have come since,
    or since the table was compacted, over another ``FILES_DUE``. ``every=0``: never.
    """
    if not every:
        return False
    if epoch % every == 0:
        return True
    new, before = _small_files(files, version, app, epoch, epoch - epoch % every)
    return (new + before) // FILES_DUE > before // FILES_DUE


def _small_files(files: Files, version: int, app: App, epoch: int, since: int) -> tuple[int, int]:
    """Small files that came since the epoch before ``epoch``, and before that but after epoch ``since``."""
    counts, is_new = [0, 0], True
    for entry in islice(newest_entries(files, version), ENTRIES_MAX):
        actions = list(actions_of(entry))
        signed = next((a["txn"]["version"] for a in actions if a.get("txn", {}).get("appId") == app.epoch), None)
        is_new = is_new and (signed is None or signed >= epoch)
        if _compacts(actions) or (signed is not None and signed <= since):
            break
        counts[0 if is_new else 1] += sum(a["add"]["size"] < SMALL_BYTES for a in actions if "add" in a)
    return counts[0], counts[1]


def _compacts(actions: list[JsonDict]) -> bool:
    return any(action.get("commitInfo", {}).get("operation") == "OPTIMIZE" for action in actions)
