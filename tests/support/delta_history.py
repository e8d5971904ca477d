"""What a Delta table tells the checkers: its epochs in order, its files, its staging places."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from airflow_epochs.delta.table import App
from airflow_epochs.model import Marker
from tests.support.delta_world import log_of


def commits_of(table: Path, app: App) -> list[Marker]:
    """The epochs as the table's log has them, one by one."""
    signed = [{a["txn"]["appId"]: a["txn"]["version"] for a in entry if "txn" in a} for entry in log_of(table)]
    return [Marker(each[app.epoch], each.get(app.token)) for each in signed if app.epoch in each]


def places_of(table: Path) -> set[str]:
    """Logs of staging places, and data files. Without what a compaction that was killed wrote: that is VACUUM's."""
    logs = {str(path) for path in table.glob("epochs/*/*/_delta_log")}
    files = {str(path) for path in table.rglob("*.parquet") if path.parent.name != "_delta_log"}
    staged = {str(path) for path in table.glob("epochs/**/*.parquet")}
    return logs | (files & (staged | referenced_by(table)))


def named_by(table: Path) -> set[Path]:
    """Every file that a version of the table has, or had."""
    return {table / unquote(a["add"]["path"]) for entry in log_of(table) for a in entry if "add" in a}


def referenced_by(table: Path) -> set[str]:
    """Files that the table consists of, and those that it once did and VACUUM has not deleted yet."""
    active = {str(Path(uri)) for uri in DeltaTable(str(table)).file_uris()}
    return active | {str(path) for path in named_by(table) if path.exists()}
