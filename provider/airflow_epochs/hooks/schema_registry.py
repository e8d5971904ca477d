"""The ``schema_registry`` connection, and its button Test."""

from __future__ import annotations

from airflow.sdk import BaseHook

from airflow_epochs.hooks.epochs import connection


class SchemaRegistryHook(BaseHook):
    """Asks a Confluent-compatible schema registry through a connection of type ``schema_registry``.

    The host is the registry's URL; login and password are for basic authentication. The extra may have more
    settings of Confluent's client, such as ``ssl.ca.location``.
    """

    conn_name_attr = "registry_conn_id"
    default_conn_name = "schema_registry_default"
    conn_type = "schema_registry"
    hook_name = "Schema registry"

    def __init__(self, registry_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.registry_conn_id = registry_conn_id

    def get_conn(self) -> list[str]:
        """The names of the registry's subjects."""
        from airflow_epochs.kafka.schema_registry import subjects_of

        return subjects_of(connection(self.registry_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the subjects."""
        try:
            return True, f"The schema registry answers. It has {len(self.get_conn())} subjects."
        except Exception as error:
            return False, str(error)
