"""The address of a Spark Connect server, and whether others can read along on the way to it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from urllib.parse import ParseResult, quote, urlparse

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, used_as
from airflow_epochs.errors import Refused
from airflow_epochs.secrecy import shown

log = secrecy.logger(__name__)

TYPE, OF_SUBMIT = "spark_connect", "spark"
DEFAULT_PORT = 15002
DEFAULT_USER = "airflow"
OPT_IN = "allow_clear_text"


def connection_url(connection: Connection) -> str:
    """The ``sc://`` URL of a ``spark_connect`` connection, as the Spark provider's SparkConnectHook builds it.

    Unlike the hook, it escapes a ``/`` in a token: pyspark would take the rest for a path. It holds the token: do not
    log it. Raises Refused if the connection is one for spark-submit, or its host is missing or not an address.
    """
    if connection.conn_type == OF_SUBMIT and not (connection.host or "").startswith("sc://"):
        raise Refused(
            f"Connection {connection.conn_id} has the type spark, which is for spark-submit. SparkConnect needs the "
            "address of a Spark Connect server.",
            code=codes.SPARK_CONNECTION,
            remedy="Give SparkConnect a connection of type spark_connect, or use SparkSubmit with this one. Then clear "
            "the failed task.",
        )
    with used_for_connect(connection):
        return _url(connection)


def used_for_connect(connection: Connection) -> AbstractContextManager[None]:
    """Let an error of the block say first that the connection's type is another service's, if it is."""
    return nullcontext() if connection.conn_type == OF_SUBMIT else used_as(connection, TYPE)


def _url(connection: Connection) -> str:
    if not connection.host:
        raise Refused(
            f"Connection {connection.conn_id} has no host.",
            code=codes.SPARK_CONNECTION,
            remedy="Enter the Spark Connect server's host and port into the connection. Then clear the failed task.",
        )
    url = _parsed(connection.host, connection)
    if url.path.strip("/"):
        raise Refused(
            f"Connection {connection.conn_id} has a path in its host: {shown(connection.host)!r}. The address of a "
            "Spark Connect server has no path.",
            code=codes.SPARK_CONNECTION,
            remedy="Enter only the host name into the connection. Then clear the failed task.",
        )
    parameters = {
        "user_id": connection.login or DEFAULT_USER,
        "token": connection.password,
        "use_ssl": connection.extra.get("use_ssl"),
    }
    given = ";".join(f"{key}={quote(str(value), safe='')}" for key, value in parameters.items() if value is not None)
    return f"sc://{url.netloc}/;{given}"


def _parsed(host: str, connection: Connection) -> ParseResult:
    address = host if "://" in host else f"sc://{host}"
    with suppress(ValueError):  # its text may quote a part of a secret, so it is not the error's context either
        url = urlparse(f"{address}:{connection.port}" if connection.port else address)
        _ = url.port  # a second port, as of a host with a port, is an error only here
        return url
    raise Refused(
        f"Connection {connection.conn_id} has the host {shown(host)!r} and the port {connection.port}, which are no "
        "address of a Spark Connect server.",
        code=codes.SPARK_CONNECTION,
        remedy="Enter only the host name as the host, and the port as the port. Then clear the failed task.",
    )


def refuse_to_send_readably(connection: Connection, secrets: Iterable[str]) -> None:
    """Raise Refused if others could read a job's secrets on the way to the server. Warn if they can read its plan.

    With ``allow_clear_text: true`` in the connection's extra, it warns instead of raising.

    Args:
        connection: Of type ``spark_connect``.
        secrets: The names of the secrets that travel with the job.
    """
    url = connection_url(connection)
    if _is_closed(url):
        _warn_of_a_token_that_needs_tls(connection, url)
        return
    names = ", ".join(sorted(secrets))
    if names and str(connection.extra.get(OPT_IN)).lower() != "true":
        with used_for_connect(connection):
            raise _readable(connection, url, names)
    secrecy.warn_once(
        log,
        f"connection {connection.conn_id}: neither TLS (use_ssl) nor a token: plans travel readably"
        + (f", with {names} in them" if names else ""),
    )


def _readable(connection: Connection, url: str, names: str) -> Refused:
    return Refused(
        f"Others on the way to the Spark Connect server {shown(url)} could read {names}: connection "
        f"{connection.conn_id} has neither TLS nor a token, and the server is on another machine. "
        "Nothing was sent.",
        code=codes.SPARK_CLEAR_TEXT,
        remedy="Put TLS in front of the server. Then set use_ssl in the connection's extra, or set a token, which "
        "implies TLS. Or set kafka_credentials_file in the extra, which keeps Kafka's credentials out of plans "
        f"(docs/spark.md). If nobody else can read that network, set {OPT_IN}: true in the extra. Then clear the "
        "failed task.",
    )


def _warn_of_a_token_that_needs_tls(connection: Connection, url: str) -> None:
    """Warn of a loopback address other than ``localhost``: pyspark sends a token there only by TLS."""
    host = urlparse(url).hostname or ""
    if connection.password and secrecy.is_loopback(host) and host != "localhost" and "use_ssl" not in connection.extra:
        secrecy.warn_once(
            log,
            f"connection {connection.conn_id}: pyspark sends a token to {host} by TLS only. If the server there has no "
            "TLS, enter localhost as the host",
        )


def _is_closed(url: str) -> bool:
    """Whether data stays on this machine or travels by TLS. pyspark uses TLS with use_ssl, and for a token."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    return secrecy.is_loopback(urlparse(url).hostname or "") or DefaultChannelBuilder(url).secure
