"""How a pipeline runs Spark: what a user writes into the DAG. Plain values; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_epochs.environment import Environment
    from airflow_epochs.model import JsonDict
    from airflow_epochs.spark.connect import ConnectRunner


class SparkConnect:
    """Run Spark through a Spark Connect server: no Java in the task, and a warm server stages in about a second.

    Args:
        conn_id: Airflow connection of type ``spark_connect``.
        session_conf: Runtime settings for the epoch's Spark session, such as ``spark.sql.shuffle.partitions``.
        connect_timeout_s: How long the server may take for its first answer.
    """

    template_fields: Sequence[str] = ("conn_id", "session_conf")

    def __init__(
        self,
        conn_id: str = "spark_connect_default",
        *,
        session_conf: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 60.0,
    ) -> None:
        self.conn_id = conn_id
        self.session_conf = _strings(session_conf)
        self.connect_timeout_s = connect_timeout_s

    def runner(self, env: Environment) -> ConnectRunner:
        """What runs jobs in one task process."""
        from airflow_epochs.spark.connect import ConnectRunner

        return ConnectRunner(
            self.conn_id, env, session_conf=self.session_conf, connect_timeout_s=self.connect_timeout_s
        )

    def spec(self) -> JsonDict:
        """This configuration as JSON; no secrets."""
        return {"kind": "spark_connect", **vars(self)}


def _strings(conf: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings as Spark spells them: ``true``, not ``True``."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in (conf or {}).items()
    }
