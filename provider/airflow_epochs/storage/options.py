"""Turns an Airflow connection into ``object_store`` options, which both obstore and deltalake take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, names_a_service
from airflow_epochs.errors import Refused
from airflow_epochs.secrecy import shown

log = secrecy.logger(__name__)

_AWS_EXTRA = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}
_AZURE_EXTRA = {
    "tenant_id": "azure_tenant_id",
    "sas_token": "azure_storage_sas_key",
    "account_key": "azure_storage_account_key",
}
_ROLES = ("role_arn", "impersonation_chain")
"""Fields that name another identity than the connection's credentials. The provider cannot take it on."""
_CREDENTIALS = ("profile_name", "key_secret_name", "credential_config_file", "connection_string")
"""Fields that name credentials which the provider cannot read."""
_CREDENTIAL_OPTIONS = {
    "aws_secret_access_key",
    "google_service_account",
    "google_service_account_key",
    "azure_client_secret",
    "azure_storage_account_key",
    "azure_storage_sas_key",
}
_PLACES = ("region_name", "endpoint_url", "tenant_id", "account_name", "service_config")
"""Fields that say where a store is, in a connection of a type that the provider reads."""
_SECRETS = (
    *(field for field in (*_AWS_EXTRA, *_AZURE_EXTRA) if field not in _PLACES),
    *("keyfile_dict", "key_path", "shared_access_key"),
)
"""Fields that are credentials in such a connection."""


def storage_options(connection: Connection | None) -> dict[str, str]:
    """The ``object_store`` options of an Airflow connection; empty without a connection: the environment counts then.

    It understands connections of type ``aws``, ``google_cloud_platform`` and ``wasb``/``adls``, as their official
    providers define them. For every type, the extra field ``storage_options`` (a JSON object of ``object_store``
    options) overrides the other fields.

    Raises:
        Refused: The extra ``storage_options`` is not an object, or the connection, without such options, means an
            identity that the provider cannot take on, or has credentials and another type.
    """
    if connection is None:
        return {}
    by_type = {
        "aws": _aws_options,
        "google_cloud_platform": _google_options,
        "wasb": _azure_options,
        "adls": _azure_options,
        "azure_data_lake": _azure_options,
    }
    options = by_type.get(connection.conn_type, lambda _: {})(connection)
    explicit = _explicit_options(connection)
    if explicit is not None:  # no options at all are an answer, too
        options |= explicit
    elif connection.conn_type in by_type:
        _refuse_another_identity(connection, options)
    else:
        _refuse_unread_fields(connection)
    endpoint = options.get("aws_endpoint", "")
    if endpoint.startswith("http://"):
        options.setdefault("allow_http", "true")
    _warn_of_open_ways(connection.conn_id, options)
    return options


def _refuse_another_identity(connection: Connection, options: Mapping[str, str]) -> None:
    fields = _ROLES if _CREDENTIAL_OPTIONS & options.keys() else _ROLES + _CREDENTIALS
    if found := [field for field in fields if connection.extra.get(field)]:
        raise Refused(
            f"The extra of connection {connection.conn_id!r} has {', '.join(found)}, which the provider cannot use. It "
            "would log in to the object store as somebody else.",
            code=codes.STORE_UNUSABLE,
            remedy="Take the field out of the connection, or use another connection: login and password count then, "
            "or else the credentials of the worker's environment. Or put credentials into `storage_options` in the "
            "extra (docs/delta.md). Then clear the failed task.",
        )


def _refuse_unread_fields(connection: Connection) -> None:
    """Raise Refused if a connection of a type unknown here has credentials. Warn if it says where the store is."""
    if connection.extra.get("ledger_root"):  # the connection of a ledger, whose password signs records
        return
    fields = {**connection.extra, "login": connection.login, "password": connection.password}
    if found := [name for name in ("login", "password", *_SECRETS, *_ROLES, *_CREDENTIALS) if fields.get(name)]:
        raise Refused(
            f"Connection {connection.conn_id!r} has the type {connection.conn_type!r}. From this type, the provider "
            f"reads nothing for an object store, and the connection has {', '.join(found)}. The provider would ignore "
            "that, and use the worker's own credentials.",
            code=codes.STORE_UNUSABLE,
            remedy=_remedy_of_unread(connection),
        )
    if found := [name for name in _PLACES if fields.get(name)]:
        secrecy.warn_once(
            log,
            f"connection {connection.conn_id}: {', '.join(found)} are ignored: of its type, {connection.conn_type!r},"
            " the provider reads nothing for an object store. It goes by the worker's environment",
        )


def _remedy_of_unread(connection: Connection) -> str:
    """What to do about credentials that are not read. Another service's connection must not lose its own."""
    own = (
        "Take these fields out to go on with the worker's own credentials, as so far; or give a connection of type "
        "aws, google_cloud_platform, wasb or adls a login and password, or keys (no role); or put the credentials into "
        "`storage_options` in the extra (docs/delta.md). Then clear the failed task."
    )
    if not names_a_service(connection):
        return own
    return (
        "Name a connection of type aws, google_cloud_platform, wasb or adls in place of this one, or none, to go on "
        f"with the worker's own credentials, unless this one is right. {own}"
    )


def _warn_of_open_ways(conn_id: str, options: Mapping[str, str]) -> None:
    if options.get("allow_invalid_certificates") == "true":
        secrecy.warn_once(
            log,
            f"connection {conn_id}: the object store's certificate is not verified: anybody on the network can read "
            "and change everything",
        )
    for endpoint in (shown(value) for name, value in options.items() if _is_open_endpoint(name, value)):
        secrecy.warn_once(log, f"connection {conn_id}: {endpoint} is not https: rows and records are sent unencrypted")


def _is_open_endpoint(option: str, value: str) -> bool:
    """Whether an option, of any store, is an address without TLS on another machine."""
    remote = value.startswith("http://") and not secrecy.is_loopback(urlsplit(shown(value)).hostname or "")
    return remote and option != "proxy_url"


def _explicit_options(connection: Connection) -> dict[str, str] | None:
    given = connection.extra.get("storage_options")
    if given in (None, ""):  # as Airflow's form leaves an empty field
        return None
    try:
        decoded = json.loads(given) if isinstance(given, str) else given
        return {str(key).lower(): _as_option(value) for key, value in decoded.items()}
    except (ValueError, AttributeError) as error:
        raise Refused(
            f"The extra field storage_options of connection {connection.conn_id!r} is not a JSON object.",
            code=codes.STORAGE_OPTIONS_UNREADABLE,
        ) from error


def _as_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _aws_options(connection: Connection) -> dict[str, str]:
    extra = connection.extra
    s3 = extra.get("service_config", {}).get("s3", {}) if isinstance(extra.get("service_config"), dict) else {}
    options = {
        "aws_access_key_id": connection.login,
        "aws_secret_access_key": connection.password,
        **{option: extra.get(key) for key, option in _AWS_EXTRA.items() if extra.get(key)},
        "aws_endpoint": s3.get("endpoint_url") or extra.get("endpoint_url"),
        "allow_invalid_certificates": "true" if extra.get("verify") is False else None,
    }
    return {option: str(value) for option, value in options.items() if value}


def _google_options(connection: Connection) -> dict[str, str]:
    key = connection.extra.get("keyfile_dict")
    options = {
        "google_service_account": connection.extra.get("key_path"),
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
    }
    return {option: str(value) for option, value in options.items() if value}


def _azure_options(connection: Connection) -> dict[str, str]:
    tenant = connection.extra.get("tenant_id")
    secret = "azure_client_secret" if tenant else "azure_storage_account_key"
    key = None if tenant else connection.extra.get("shared_access_key")
    options = {
        "azure_client_id" if tenant else "azure_storage_account_name": connection.login,
        secret: key or connection.password,
        **{option: connection.extra[key] for key, option in _AZURE_EXTRA.items() if connection.extra.get(key)},
        "azure_storage_account_name": connection.extra.get("account_name") or (None if tenant else connection.login),
    }
    return {option: str(value) for option, value in options.items() if value}
