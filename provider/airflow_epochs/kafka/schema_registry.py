"""Asks a Confluent-compatible schema registry, through Confluent's own client.

The connection is one of type ``schema_registry``: the host is the registry's URL, or several with commas between them;
login and password serve for basic authentication; the extra has more settings of the client.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from airflow_epochs import codes
from airflow_epochs.contracts import Connection, typed, used_as
from airflow_epochs.contracts.connection_types import AnyError
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.ledger.store import VALUE_BYTES_MAX
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.transforms.avro_schemas import SchemaFlaw, resolved

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import (
        RegisteredSchema,
        Schema,
        SchemaReference,
        SchemaRegistryClient,
        SchemaRegistryError,
    )

TYPE = "schema_registry"
TIMEOUT_S = 10.0
SHOWN_MAX = 10
SAID_MAX = 300
"""How many characters an error quotes of an answer that is no registry's: it may be a page of a proxy."""
AVRO, PROTOBUF = "AVRO", "PROTOBUF"
_CONTEXT = re.compile(r":\.[^:]*:")
"""The context at the beginning of a subject's name."""
_NO_ENTRY, _MISSING, _CONFLICT, _INVALID = (401, 403), 404, 409, 422
_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's codes, X509_V_ERR_…: a self-signed certificate, or no known issuer. An expired one may be renewed soon."""
_DISTRUST = (
    "Put the certificates of the authority that signed it into a PEM file on Airflow's workers, and name the file in "
    "the connection's extra as `ssl.ca.location`. Then clear the failed task."
)
_OTHER_ADDRESS = (
    "Correct the host of the connection: the URL of the registry's Confluent-compatible interface with its path, such "
    "as https://registry:8081 or https://apicurio:8443/apis/ccompat/v7. Then clear the failed task."
)
_NO_TOKEN = (
    "Correct `bearer.auth.issuer.endpoint.url`, `bearer.auth.client.id` and `bearer.auth.client.secret` in the "
    "connection's extra; if they are right, let Airflow retry. If the server of tokens has a certificate of an own "
    "authority, set `SSL_CERT_FILE` in the environment of Airflow's workers. Then clear the failed task."
)


def schemas_of(connection: Connection, subjects: Iterable[str]) -> dict[str, WriterSchema]:
    """The schemas of all versions of these subjects, by their ids; also of versions that were deleted.

    Records of a deleted version may still be in the topic.

    Raises:
        Refused: There is no such subject, or the registry does not let us in, or the connection is not valid or leads
            to something else, or the subjects have different schemas with one id, or the schemas are too large for a
            record of the ledger.
        NotApplied: The registry does not answer.
    """
    found: dict[str, WriterSchema] = {}
    sizes: dict[str, int] = {}
    with client_of(connection) as client:
        for subject in subjects:
            its = _versions_of(connection, client, subject)
            if twice := [number for number in its if found.get(number, its[number]) != its[number]]:
                raise _id_twice(connection, subject, twice[0])
            sizes[subject] = len(msgspec.json.encode({n: its[n] for n in its.keys() - found.keys()})) - len("{}")
            found |= its
    _require_room(connection, sizes)
    return found


def _versions_of(connection: Connection, client: SchemaRegistryClient, subject: str) -> dict[str, WriterSchema]:
    with asking(connection, f"the versions of subject {subject!r}"):
        numbers = msgspec.convert(client.get_versions(subject, deleted=True), list[int])
        versions = [_whole(client.get_version(subject, number, deleted=True)) for number in numbers]
    return {str(each.schema_id): _complete(connection, client, subject, each.schema) for each in versions}


def _whole(told: RegisteredSchema) -> RegisteredSchema:
    """The answer, if it has an id and a schema. Raises TypeError otherwise: then no registry has answered."""
    if told.schema_id is None or told.schema.schema_str is None:
        raise TypeError("a version without an id and a schema")
    return told


def _id_twice(connection: Connection, subject: str, number: str) -> Refused:
    return Refused(
        f"The schema registry of connection {connection.conn_id!r} has another schema with the id {number} in subject "
        f"{subject!r} than in a subject before it. Ids are unique only within one context of the registry.",
        code=codes.SOURCE_MISCONFIGURED,
        remedy="Name subjects of one context in the KafkaSource, or its topics in pipelines of their own. The host of "
        "the connection can name a context: https://registry:8081/contexts/:.east: (then without it in `subjects`). "
        "Then clear the failed task.",
    )


def _require_room(connection: Connection, sizes: Mapping[str, int]) -> None:
    """Raise Refused if the schemas alone fill a record. ``sizes``: the bytes that each subject takes there."""
    if sum(sizes.values()) <= VALUE_BYTES_MAX:
        return
    largest = sorted(sizes, key=lambda subject: -sizes[subject])[:SHOWN_MAX]
    shown = ", ".join(f"{subject!r} ({sizes[subject]} bytes)" for subject in largest)
    raise Refused(
        f"The schema registry of connection {connection.conn_id!r} has {sum(sizes.values())} bytes of schemas in all "
        f"versions of the pipeline's subjects, and a record of the ledger has at most {VALUE_BYTES_MAX}. The largest: "
        f"{shown}.",
        code=codes.LEDGER_RECORD_TOO_LARGE,
        remedy="Remove versions from the registry for good (`?permanent=true`), but only versions that no record in "
        "the topics uses any more: a record without its version would be corrupt. Or name fewer `subjects`, or fewer "
        "topics, in this KafkaSource. Then clear the failed task.",
    )


def subjects_of(connection: Connection) -> list[str]:
    """The names of the registry's subjects. Raises as ``schemas_of``."""
    with client_of(connection) as client, asking(connection, "its subjects"):
        return msgspec.convert(client.get_subjects(), list[str])


def id_of(connection: Connection, subject: str, schema: WriterSchema, *, register: bool, deleted: bool = False) -> int:
    """The id of a schema in a subject. Idempotent.

    Args:
        connection: The registry.
        subject: The name of the subject.
        schema: The schema.
        register: Put it there if the subject does not have it.
        deleted: Without ``register``, take it also if it was deleted.

    Raises:
        Refused: The subject does not have it, or its rules of compatibility do not let it in.
        NotApplied: The registry does not answer.
    """
    with client_of(connection) as client:
        from confluent_kafka.schema_registry import Schema

        told, what = Schema(schema.text, schema.kind), f"this schema in subject {subject!r}: {schema.text}"
        with asking(connection, what, missing=_no_schema), _taken(connection, what):
            if register:
                return msgspec.convert(client.register_schema(subject, told), int)
            return msgspec.convert(client.lookup_schema(subject, told, deleted=deleted).schema_id, int)


def known_id_of(connection: Connection, subject: str, schema: WriterSchema) -> int:
    """The id of a schema in a subject; 0 if the subject does not have it, or there is no such subject."""
    try:
        return id_of(connection, subject, schema, register=False)
    except Refused as unknown:
        if unknown.code is not codes.REGISTRY_SCHEMA_UNKNOWN:
            raise
        return 0


def require_answer(connection: Connection, subject: str) -> None:
    """Ask for a subject, which need not be there. Raises as ``schemas_of`` if no registry answers, or it refuses us."""
    with suppress(_NoSubject), client_of(connection) as client, asking(connection, f"subject {subject!r}", _NoSubject):
        msgspec.convert(client.get_versions(subject), list[int])


@contextmanager
def client_of(connection: Connection) -> Iterator[SchemaRegistryClient]:
    """Confluent's client for the registry of a connection, closed at the end of the block.

    Raises:
        Refused: A package is missing, or the connection is not valid.
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as missing:
        raise Refused(
            f"The client of schema registries needs the Python package {missing.name}, which is not installed.",
            code=codes.REGISTRY_PACKAGE_MISSING,
        ) from missing
    with used_as(connection, TYPE):
        client = _client(connection, SchemaRegistryClient)
    with client:
        yield client


def _client(connection: Connection, make: Callable[[dict[str, Any]], SchemaRegistryClient]) -> SchemaRegistryClient:
    try:
        return make(_settings(connection))
    except (ValueError, TypeError, OSError) as error:  # OSError: a file with certificates
        raise Refused(
            f"Connection {connection.conn_id!r} is not one of a schema registry: {error}.",
            code=codes.REGISTRY_CONNECTION,
        ) from error


def _settings(connection: Connection) -> dict[str, Any]:
    urls = [_url(each.strip(), connection.port) for each in (connection.host or "").split(",") if each.strip()]
    settings: dict[str, Any] = {"url": ",".join(urls), "timeout": TIMEOUT_S}
    if connection.login:
        settings["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    return {**settings, **connection.extra}


def _url(told: str, port: int | None) -> str:
    """The URL that the client asks. A port in the URL goes before the connection's port."""
    url = urlsplit(told if "://" in told else f"http://{told}")
    if port and url.port is None:
        url = url._replace(netloc=f"{url.netloc}:{port}")
    return url.geturl().rstrip("/")


class _NoSubject(Exception):
    """The registry lacks the subject. This error never leaves the module."""


def _no_subject(what: str) -> Refused:
    return Refused(what, code=codes.REGISTRY_SUBJECT_MISSING)


def _no_reference(what: str) -> Refused:
    return Refused(
        what,
        code=codes.REGISTRY_SUBJECT_MISSING,
        remedy="Put the schema that is referred to into this subject of the registry. Then clear the failed task.",
    )


def _no_schema(what: str) -> Refused:
    return Refused(what, code=codes.REGISTRY_SCHEMA_UNKNOWN)


@contextmanager
def asking(connection: Connection, what: str, missing: Callable[[str], Exception] = _no_subject) -> Iterator[None]:
    """Turn what the client raises into our errors.

    ``what``: what the registry is asked for. ``missing``: makes the error if it does not have that.
    """
    import httpx2
    from confluent_kafka.schema_registry import SchemaRegistryError
    from confluent_kafka.schema_registry.error import OAuthTokenError

    at = f"The schema registry of connection {connection.conn_id!r}"
    try:
        yield
    except SchemaRegistryError as error:
        if error.http_status_code in _NO_ENTRY:
            raise Refused(f"{at} refuses to tell {what}: {error}.", code=codes.REGISTRY_REFUSED) from error
        if _is_of_registry(error):
            raise missing(f"{at} does not have {what}: {error}.") from error
        if error.http_status_code == _MISSING:
            raise _no_registry(connection, what, error) from error
        raise _unreachable(connection, f"{at} does not tell {what}: {error}.") from error
    except OAuthTokenError as error:
        raise NotApplied(
            f"{at} was not asked, as the server of tokens gives no token: {error}.",
            code=codes.REGISTRY_UNREACHABLE,
            remedy=_NO_TOKEN,
        ) from error
    except (msgspec.ValidationError, TypeError, AttributeError, LookupError) as error:  # JSON, but no registry's
        raise _no_registry(connection, what, error) from error
    except (httpx2.HTTPError, OSError, ValueError) as error:  # ValueError: what answers is no JSON
        if _is_distrust(error):
            raise Refused(
                f"{at} shows a certificate that this host does not trust: {error}.",
                code=codes.REGISTRY_CONNECTION,
                remedy=_DISTRUST,
            ) from error
        raise _unreachable(connection, f"{at} does not answer: {error!r}.") from error


def _is_of_registry(missing: SchemaRegistryError) -> bool:
    """Whether a registry says that it lacks a subject, a version or a schema (40401 and up), and no other server."""
    code = missing.error_code
    return missing.http_status_code == _MISSING and isinstance(code, int) and code // 100 == _MISSING


def _unreachable(connection: Connection, what: str) -> NotApplied:
    return _typed(NotApplied(what, code=codes.REGISTRY_UNREACHABLE), connection)


def _no_registry(connection: Connection, what: str, said: Exception) -> Refused:
    refused = Refused(
        f"The schema registry of connection {connection.conn_id!r} is not at {_addresses(connection)}. What answers "
        f"there is no registry: asked for {what}, it said: {str(said)[:SAID_MAX]}.",
        code=codes.REGISTRY_CONNECTION,
        remedy=_OTHER_ADDRESS,
    )
    return _typed(refused, connection)


def _typed(error: AnyError, connection: Connection) -> AnyError:
    """``error``, which then says so if the connection may belong to another service."""
    return typed(error, connection.conn_id, connection.conn_type, TYPE)


def _addresses(connection: Connection) -> str:
    """The URLs that the client asks, without the users and passwords that they may have."""
    urls = [urlsplit(url) for url in _settings(connection)["url"].split(",")]
    return ", ".join(f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" for url in urls)


def _is_distrust(error: BaseException | None) -> bool:
    """Whether nobody vouches for the server's certificate, however often the client has wrapped that reason."""
    while error and not isinstance(error, SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return isinstance(error, SSLCertVerificationError) and error.verify_code in _UNKNOWN_ISSUER


@contextmanager
def _taken(connection: Connection, what: str) -> Iterator[None]:
    """Turn the registry's refusal of a schema into our error."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        yield
    except SchemaRegistryError as error:
        if error.http_status_code not in (_CONFLICT, _INVALID):
            raise
        raise Refused(
            f"The schema registry of connection {connection.conn_id!r} does not take {what}: {error}.",
            code=codes.REGISTRY_SCHEMA_REFUSED,
        ) from error


# -- schemas, complete in themselves ---------------------------------------------------------------------------------


def _complete(connection: Connection, client: SchemaRegistryClient, subject: str, schema: Schema) -> WriterSchema:
    """A schema with what it refers to. One with a flaw makes its records corrupt, and no others."""
    kind, text = schema.schema_type or AVRO, schema.schema_str or ""
    if kind not in (AVRO, PROTOBUF):
        return WriterSchema(kind=kind, text=text)
    others = _referred(connection, client, subject, schema)
    try:
        whole = resolved(text, others).text if kind == AVRO else _compiled(text, tuple(others.items()))
        return WriterSchema(kind=kind, text=whole)
    except SchemaFlaw as flaw:
        return WriterSchema(kind=kind, text="", flaw=str(flaw))


@lru_cache(maxsize=256)
def _compiled(text: str, others: tuple[tuple[str, str], ...]) -> str:
    """Compile a schema, and keep the result: a task may ask for it for many epochs, and protoc takes some 0.1 s."""
    return b64encode(compiled(text, dict(others))).decode()


def _referred(connection: Connection, client: SchemaRegistryClient, subject: str, schema: Schema) -> dict[str, str]:
    """Each schema that a schema refers to, directly or through another: name in the reference -> text."""
    found: dict[str, str] = {}
    waiting = _references(subject, schema)
    while waiting:
        parent, reference = waiting.pop()
        if reference.name not in found:
            at = _in_context_of(parent, reference.subject or "")
            what = (
                f"{reference.name!r} (subject {at!r}, version {reference.version}), to which subject {parent!r} refers"
            )
            with asking(connection, what, _no_reference):
                other = _whole(client.get_version(at, reference.version, deleted=True)).schema
            found[reference.name] = other.schema_str or ""
            waiting += _references(at, other)
    return found


def _references(subject: str, schema: Schema) -> list[tuple[str, SchemaReference]]:
    return [(subject, each) for each in schema.references or []]


def _in_context_of(parent: str, subject: str) -> str:
    """The subject of a reference. Without a context of its own, it is in its parent's context."""
    context = _CONTEXT.match(parent)
    return f"{context[0]}{subject}" if context and not _CONTEXT.match(subject) else subject
