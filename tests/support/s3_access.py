"""The connection to the session's S3."""

from __future__ import annotations

from airflow_epochs.contracts import Connection
from stack.spark import S3Access


def connection(s3: S3Access, endpoint: str | None = None) -> Connection:
    """As a user has it; ``endpoint``: through a proxy."""
    extra = {"region_name": s3.region, "endpoint_url": endpoint or s3.endpoint}
    return Connection(conn_id="s3", conn_type="aws", login=s3.key, password=s3.secret, extra=extra)
