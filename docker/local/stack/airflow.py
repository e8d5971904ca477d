"""Airflow: API server, scheduler with LocalExecutor, DAG processor, triggerer; SQLite; one user, who is admin."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stack import private, proxy
from stack.airflow_api import AirflowApi
from stack.ports import free_port
from stack.processes import Server

PARALLELISM = 4
USER = "admin"
PASSWORDS = "passwords.json"
"""Airflow's file of users and passwords. Airflow looks into it at every login."""
PLUGINS = Path(__file__).parents[1] / "plugins"


class AirflowStack(Server):
    """Airflow at ``url``. Ready when its own health report says so of all parts.

    Its keys and the password of ``USER`` are drawn once and kept in ``folder``.

    Args:
        folder: AIRFLOW_HOME.
        dags: The folder of the DAG files.
        connections: By id; see ``connection``.
        env: More environment variables for all parts, and so for the tasks.
    """

    def __init__(
        self, folder: Path, dags: Path, *, connections: Mapping[str, str], env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder)
        self.dags, self.port = dags, free_port()
        ids = {f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections.items()}
        self.env = {**self._settings(), **ids, **(env or {})}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def api(self) -> AirflowApi:
        """Its REST API, as its user."""
        return AirflowApi(self.url, USER, password_in(self.folder))

    def start(self) -> None:
        """Start migrating the database. The rest needs it, and starts in ``wait_ready``."""
        self._spawn("migrate", "db", "migrate")

    def wait_ready(self) -> None:
        self.processes[-1].wait_success()
        self.restart_dead()

    def restart_dead(self) -> None:
        """Start the parts that are not running, and wait until all are well."""
        running = {process.name for process in self.processes if process.running}
        parts = {
            "scheduler": ["scheduler", "--skip-serve-logs"],
            "dag-processor": ["dag-processor"],
            "triggerer": ["triggerer", "--skip-serve-logs"],
            "api-server": ["api-server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
        }
        for process in [self._spawn(name, *args) for name, args in parts.items() if name not in running]:
            process.wait_ready(self._healthy)

    def _healthy(self) -> bool:
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        with contextlib.suppress(OSError, json.JSONDecodeError):
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:
                report = json.load(answer)
            return all(report[part]["status"] == "healthy" for part in parts)
        return False

    def _spawn(self, name: str, *args: str) -> Any:
        return self.spawn(name, [str(Path(sys.executable).with_name("airflow")), *args], env=self.env)

    def _settings(self) -> dict[str, str]:
        passwords = self.folder / PASSWORDS
        private.kept(passwords, lambda: json.dumps({USER: private.new_secret()}))
        keys: dict[str, str] = json.loads(private.kept(self.folder / "keys.json", _new_keys))
        options = {
            "core": {
                "dags_folder": str(self.dags),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": str(PARALLELISM),
                "dags_are_paused_at_creation": "False",
                "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
                "simple_auth_manager_users": f"{USER}:ADMIN",
                "simple_auth_manager_passwords_file": str(passwords),
                "plugins_folder": str(PLUGINS),
                "execution_api_server_url": f"{self.url}/execution/",
                "fernet_key": keys["fernet_key"],
                "test_connection": "Enabled",
            },
            "api": {"base_url": self.url, "secret_key": keys["secret_key"]},
            "api_auth": {"jwt_secret": keys["jwt_secret"]},
            # The API server can wait for itself so long: it writes its log of actions where its other requests end.
            # A task gives up on it after half a minute.
            "database": {"sql_alchemy_conn": f"sqlite:///{self.folder}/airflow.db?timeout=25"},
            # the gap between two tasks is this long; the default of 1 s would be most of a small epoch
            "scheduler": {"scheduler_idle_sleep_time": "0.1"},
            # a task that failed, or skipped itself, may be heard of so late; the default is 5 s
            "workers": {"min_heartbeat_interval": "1"},
            "dag_processor": {"refresh_interval": "5", "min_file_process_interval": "30"},
            "logging": {
                "base_log_folder": str(self.folder / "logs"),
                # Airflow sets them itself, whatever the umask is
                "file_task_handler_new_folder_permissions": "0o700",
                "file_task_handler_new_file_permissions": "0o600",
            },
            "usage_data_collection": {"enabled": "False"},
        }
        return {
            "AIRFLOW_HOME": str(self.folder),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            **proxy.bypass(),
            **{
                f"AIRFLOW__{section.upper()}__{key.upper()}": value
                for section, values in options.items()
                for key, value in values.items()
            },
        }


def password_in(folder: Path) -> str:
    """The password of ``USER``, if ``folder`` is AIRFLOW_HOME."""
    return str(json.loads((folder / PASSWORDS).read_text())[USER])


def _new_keys() -> str:
    fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return json.dumps({"fernet_key": fernet, "secret_key": secrets.token_hex(32), "jwt_secret": secrets.token_hex(64)})


def connection(conn_type: str, *, host: str = "", extra: Mapping[str, Any] | None = None, **more: Any) -> str:
    """A connection as the value of an ``AIRFLOW_CONN_…`` variable; ``more`` is for example port and password."""
    return json.dumps({"conn_type": conn_type, "host": host, "extra": dict(extra or {}), **more})
