"""Ledgers with some history, and a user who asks Airflow's API server for the Epochs page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.contracts import Limits
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.testing import (
    MemoryEnvironment,
    MemorySpark,
    MemoryWorld,
    memory_coordinator,
    memory_pipeline,
    run_epoch,
)
from tests.support.airflow_harness import initialised

ORDERS = "/epochs/pipelines/epochs_default/orders"
HTML = {"Accept": "text/html"}


class PlacedSpark(MemorySpark):
    """Its sessions are of a connection, and ``application`` is what it says of its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.application: JsonDict = {}

    def new_session(self) -> JsonDict:
        return {**super().new_session(), "conn_id": "my_spark"}

    def ran_as(self) -> JsonDict:
        return self.application


class Ledgers:
    """Pipelines whose ledgers the connection ``epochs_default`` leads to."""

    def __init__(self, root: Path) -> None:
        self.root, self.worlds, self.runs = root, dict[str, MemoryWorld](), 0
        self.spark = PlacedSpark()

    def epoch(
        self, pipeline: str = "orders", *rows: object, against: str | None = None, most: int | None = None
    ) -> Run:
        """One run, of at most so many rows; ``against``: the sink ``audit`` votes so, and the attempt is aborted."""
        world = self.worlds.setdefault(pipeline, MemoryWorld())
        world.produce("orders", 0, list(rows or ("a", "b")))
        self.runs += 1
        run = Run(f"{pipeline}_dag", f"manual__{self.runs}")
        spec = memory_pipeline(world, ("orders", "audit"), name=pipeline, dag_id=run.dag_id)
        if against:
            world.refusals["audit"] = against
        task = memory_coordinator(world, spec, env=MemoryEnvironment(self.spark), store=LocalStore(self.root))
        if against:
            with pytest.raises(Refused):
                run_epoch(task, run)
            world.refusals.clear()
        else:
            run_epoch(task, run, Limits(max_records=most))
        return run

    def ledger(self, pipeline: str = "orders") -> Ledger:
        return Ledger(LocalStore(self.root), pipeline)

    def unfinished(self, *, decided: bool, pipeline: str = "orders") -> Run:
        """A run that opened an epoch, staged it, perhaps had it decided, and vanished."""
        world = self.worlds.setdefault(pipeline, MemoryWorld())
        world.produce("orders", 0, ["c"])
        run = Run(f"{pipeline}_dag", "vanished")
        spec = memory_pipeline(world, ("orders", "audit"), name=pipeline, dag_id=run.dag_id)
        task = memory_coordinator(world, spec, store=LocalStore(self.root))
        task.open(run)
        report = task.stage(run).stage
        if decided:
            task.vote(run, report)
        return run


class Browser:
    """Asks the API server as a user with a role; None: as nobody."""

    def __init__(self, role: str | None) -> None:
        from airflow.api_fastapi.app import cached_app, get_auth_manager
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from fastapi.testclient import TestClient

        self.client = TestClient(cached_app(), base_url="http://testserver", follow_redirects=False)
        if role is not None:
            user = SimpleAuthManagerUser(username="ada", role=role or None)
            self.client.cookies.set("_token", get_auth_manager().generate_jwt(user))

    def status(self, path: str) -> int:
        return int(self.client.get(path, headers=HTML).status_code)

    def page(self, path: str) -> str:
        answer = self.client.get(path, headers=HTML, follow_redirects=True)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def text(self, path: str) -> str:
        """What a person reads: without tags, and with single blanks."""
        return as_text(self.page(path))

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Any:
        """A form that the page's own script-less HTML sends, unless ``headers`` say another."""
        sent = {**HTML, "Sec-Fetch-Site": "same-origin", **headers}
        return self.client.post(path, data=fields, headers=sent)


def as_text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def fields_of(html: str) -> dict[str, str]:
    """The hidden fields of a form, as a browser sends them."""
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', html)}


def connected(root: Path, monkeypatch: pytest.MonkeyPatch) -> Ledgers:
    """Ledgers below ``root``, for an API server in this process."""
    initialised()
    root.mkdir()
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    return Ledgers(root)
