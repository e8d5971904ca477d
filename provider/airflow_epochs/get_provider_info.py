"""Provider metadata, read by Airflow without importing anything else of this package."""

from __future__ import annotations

from typing import Any

_FIELDS = {
    "ledger_root": {
        "label": "Ledger root",
        "description": "Absolute path or URL of the folder that holds the ledgers, "
        "e.g. /srv/epochs or s3://bucket/epochs. Every Airflow worker must reach it. Outside all tables.",
        "schema": {"type": "string"},
    },
    "storage_conn_id": {
        "label": "Storage connection id",
        "description": "The connection with the object store's credentials (aws, wasb, adls, "
        "google_cloud_platform). Not needed for a path.",
        "schema": {"type": ["string", "null"]},
    },
    "storage_options": {
        "label": "Storage options",
        "description": "More object_store options, as a JSON object.",
        "schema": {"type": ["object", "null"]},
    },
    "require_signed": {
        "label": "Require signatures",
        "description": "Refuse a ledger that was never signed. Set it once every pipeline has run with a signing key.",
        "schema": {"type": ["boolean", "null"]},
    },
    "create": {
        "label": "Create the folder",
        "description": "Let the button Test create the folder of the ledger root, if it is missing. Runs always do.",
        "schema": {"type": ["boolean", "null"]},
    },
}
"""The form's own fields for a connection of type ``epochs``."""
_CONNECTION = {
    "connection-type": "epochs",
    "hook-class-name": "airflow_epochs.hooks.epochs.EpochsHook",
    "hook-name": "Epochs ledger",
    "conn-fields": _FIELDS,
    "ui-field-behaviour": {
        "hidden-fields": ["host", "schema", "login", "port"],
        "relabeling": {"password": "Signing key"},
        "placeholders": {
            "ledger_root": "s3://bucket/epochs",
            "password": "random, 32 characters or more; after a change: new,old",
        },
    },
}
_REGISTRY = {
    "connection-type": "schema_registry",
    "hook-class-name": "airflow_epochs.hooks.schema_registry.SchemaRegistryHook",
    "hook-name": "Schema registry",
    "ui-field-behaviour": {
        "hidden-fields": ["schema"],
        "relabeling": {"host": "URL"},
        "placeholders": {"host": "https://registry:8081", "extra": '{"ssl.ca.location": "/etc/ssl/registry.pem"}'},
    },
}


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-provider-epochs",
        "name": "Epochs",
        "description": "Batch-epoch exactly-once pipelines: Kafka or Delta to Spark to Delta, Kafka and SQL, by "
        "two-phase commit.",
        "integrations": [
            {
                "integration-name": "Epochs",
                "external-doc-url": "https://github.com/airflow-provider-epochs/airflow-provider-epochs",
                "tags": ["service"],
            }
        ],
        "operators": [{"integration-name": "Epochs", "python-modules": ["airflow_epochs.operators.epoch"]}],
        "hooks": [
            {
                "integration-name": "Epochs",
                "python-modules": ["airflow_epochs.hooks.epochs", "airflow_epochs.hooks.schema_registry"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Epochs",
                "python-modules": ["airflow_epochs.triggers.records", "airflow_epochs.triggers.asset"],
            }
        ],
        "extra-links": [
            "airflow_epochs.operators.links.EpochLink",
            "airflow_epochs.operators.links.RecordsLink",
            "airflow_epochs.operators.links.SinksLink",
        ],
        "notifications": ["airflow_epochs.notifiers.InDoubtNotifier", "airflow_epochs.notifiers.LagNotifier"],
        "connection-types": [_CONNECTION, _REGISTRY],
        "cli": ["airflow_epochs.cli.get_cli_commands"],
    }
