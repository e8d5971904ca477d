"""The ``epochs`` connection: where a pipeline's ledger is. And Airflow's side of ``environment.Environment``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_epochs import secrecy
from airflow_epochs.errors import Refused

if TYPE_CHECKING:
    from airflow_epochs.environment import Connection, SparkRunner
    from airflow_epochs.ledger import Ledger
    from airflow_epochs.spark.runners import SparkConnect, SparkSubmit
    from airflow_epochs.store import Store


def connection(conn_id: str) -> Connection:
    """An Airflow connection as plain values. Raises Refused if there is none of that id."""
    from airflow_epochs.environment import Connection

    try:
        found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as missing:
        raise Refused(
            f"There is no Airflow connection {conn_id!r}.",
            remedy=f"add it under Admin > Connections, or set AIRFLOW_CONN_{conn_id.upper()}.",
        ) from missing
    described = Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host,
        port=found.port,
        login=found.login,
        password=found.password,
        schema=found.schema,
        extra=found.extra_dejson,
    )
    _keep_secret(described)
    return described


def _keep_secret(described: Connection) -> None:
    """Have neither this package nor Airflow show what is secret in a connection."""
    secrecy.tell(_mask)
    fields = {"host": described.host, "schema": described.schema, "password": described.password}
    secrecy.keep(secrecy.secrets_in({**fields, "extra": described.extra}))


def _mask(forms: list[str]) -> None:
    """Tell Airflow's masker, here and in the supervisor, which writes the task's log."""
    mask_secret([*forms])


class EpochsHook(BaseHook):
    """Opens ledgers.

    Extra fields of the connection: ``ledger_root``, a path or URL (``s3://bucket/prefix`` …); ``storage_conn_id``,
    optionally the connection that has the object store's credentials; ``storage_options``, optionally more
    ``object_store`` options as a JSON object.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = "epochs_default"
    conn_type = "epochs"
    hook_name = "Epochs ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    def get_conn(self) -> Store:
        """The byte store at the ledger's root. Raises Refused if the connection does not say where that is."""
        from airflow_epochs.store import open_store

        described = connection(self.ledger_conn_id)
        root = described.extra.get("ledger_root")
        if not root:
            raise Refused(
                f"Connection {self.ledger_conn_id!r} does not say where the ledger is.",
                remedy="set its field `ledger_root` to an absolute path or a URL such as s3://bucket/epochs.",
            )
        return open_store(root, _storage_options(described))

    def ledger(self, pipeline: str) -> Ledger:
        from airflow_epochs.ledger import Ledger

        return Ledger(self.get_conn(), pipeline)

    def test_connection(self) -> tuple[bool, str]:
        """Put, read back and delete a probe: what the first `open` of a pipeline does too."""
        try:
            self.ledger("connection-test").probe()
        except Exception as error:
            return False, str(error)
        return True, "The ledger's store is reachable and honours put-if-absent."


def _storage_options(described: Connection) -> dict[str, str]:
    """Those of the connection with the credentials, and over them the ledger connection's own."""
    from airflow_epochs.storage import storage_options

    conn_id = described.extra.get("storage_conn_id")
    return {**storage_options(connection(conn_id) if conn_id else None), **storage_options(described)}


class AirflowEnvironment:
    """``environment.Environment`` inside an Airflow task."""

    def __init__(self, spark: SparkConnect | SparkSubmit) -> None:
        self._spark = spark

    @cached_property
    def spark(self) -> SparkRunner:
        return self._spark.runner(self)

    def connection(self, conn_id: str) -> Connection:
        return connection(conn_id)

    def reached(self, phase: str) -> None:
        pass
