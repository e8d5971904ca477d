"""Airflow's plugin of this package: the Epochs page in the menu, and as a tab of each DAG and of each run; run notes.

Airflow imports this module in every process, also in tasks. So it imports next to nothing: the page
itself is imported when it is asked for the first time, in the API server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_epochs.names import PAGE
from airflow_epochs.page import run_notes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


class _Page:
    """The ASGI application of the page, imported at the first request."""

    title = "Epochs"  # Airflow's list of plugins shows it

    @cached_property
    def _app(self) -> Any:
        from airflow_epochs.page.app import make_app

        return make_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _view(destination: str, href: str, url_route: str) -> dict[str, Any]:
    return {
        "name": "Epochs",
        "destination": destination,
        "href": f"{PAGE.strip('/')}/{href}",
        "url_route": url_route,
        "icon": f"{PAGE.strip('/')}/static/icon.svg",
        "icon_dark_mode": f"{PAGE.strip('/')}/static/icon-dark.svg",
    }


class EpochsPlugin(AirflowPlugin):
    """Registered by the entry point ``airflow.plugins``."""

    name = "epochs"
    listeners = [run_notes]
    fastapi_apps = [{"app": _Page(), "url_prefix": PAGE, "name": "Epochs"}]
    external_views = [
        {**_view("nav", "", "epochs"), "category": "browse"},
        _view("dag", "dags/{DAG_ID}", "dag_epochs"),
        _view("dag_run", "dags/{DAG_ID}/runs/{RUN_ID}", "run_epochs"),
    ]
