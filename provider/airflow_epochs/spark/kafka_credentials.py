"""Kafka's credentials by reference: a file on Spark's machines has them, a plan has its path and the names in it.

Kafka's Java clients resolve such references themselves (KIP-297, ``FileConfigProvider``): every JVM reads the file when
it makes a client. So what Spark logs, shows and records of a plan cannot hold a secret, whatever its settings are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.errors import EpochError, Refused

FILE_FIELD = "kafka_credentials_file"
_PROVIDER = "epochs"
_PROVIDERS = "kafka.config.providers"
_CLASS = "org.apache.kafka.common.config.provider.FileConfigProvider"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}
_OF_THE_FILE = re.compile(
    r"Could not read properties from file|automatic\.config\.providers|JAAS|Jaas|LoginModule|SaslAuthentication"
    r"|InvalidConfigurationException|Invalid PEM"
)


@dataclass(frozen=True)
class Sent:
    """What stands in a job's plan of its secret options: themselves, or references to ``file``."""

    options: dict[str, str] = field(repr=False)
    file: str | None = None
    conn_id: str = ""
    properties: tuple[str, ...] = ()

    @property
    def readable(self) -> dict[str, str]:
        """The secrets that the plan holds."""
        return {} if self.file else self.options

    def explained(self, error: EpochError) -> EpochError:
        """``error`` with the file as its place, where Kafka's client could not use what the file says."""
        if not self.file or not _OF_THE_FILE.search(error.what):
            return error
        return Refused(
            f"Spark cannot log in to Kafka by its file {self.file}: {error.what}",
            remedy="See that the file lies on the Spark server and on all its executors, that their user can read it, "
            f"and that it has {', '.join(self.properties)} as connection {self.conn_id} has them today: `airflow "
            f"epochs kafka-credentials {self.conn_id} --file …` writes it. docs/spark.md says more.",
        )


def sent(job: SparkJob, connection: Connection) -> Sent:
    """How a job's secrets travel to the server of a ``spark_connect`` connection.

    Raises:
        Refused: The connection names a file that cannot be referred to.
    """
    file = connection.extra.get(FILE_FIELD)
    if not file or not job.secrets or not job.secrets_of:
        return Sent(job.secrets)
    _require_plain_path(str(file), connection.conn_id)
    names = {option: property_name(job.secrets_of, option) for option in job.secrets}
    return Sent(_references(job, str(file), names), str(file), job.secrets_of, tuple(names.values()))


def _references(job: SparkJob, file: str, names: Mapping[str, str]) -> dict[str, str]:
    others = job.args["read"].get(_PROVIDERS)
    return {
        _PROVIDERS: f"{others},{_PROVIDER}" if others else _PROVIDER,
        f"{_PROVIDERS}.{_PROVIDER}.class": _CLASS,
        **{option: f"${{{_PROVIDER}:{file}:{name}}}" for option, name in names.items()},
    }


def _require_plain_path(file: str, conn_id: str) -> None:
    if not PurePosixPath(file).is_absolute() or re.search("[:}]", file):
        raise Refused(
            f"{FILE_FIELD} of connection {conn_id} is {file!r}, to which Kafka's client cannot be referred.",
            remedy="Give the absolute path of a file on the Spark server and its executors, without ':' and '}'.",
        )


def property_name(conn_id: str, option: str) -> str:
    """The name in the file: one file may serve several Kafka connections."""
    return f"{conn_id}.{option.removeprefix('kafka.')}"


def properties(conn_id: str, secrets: Mapping[str, str]) -> str:
    """The lines of the file for one Kafka connection, as ``java.util.Properties`` reads them. All of it is secret."""
    return "".join(f"{_escaped(property_name(conn_id, name))}={_escaped(value)}\n" for name, value in secrets.items())


def _escaped(text: str) -> str:
    return re.sub("^ ", r"\\ ", "".join(_escapes(text)))


def _escapes(text: str) -> Iterator[str]:
    for letter in text:
        if letter in _ESCAPES:
            yield _ESCAPES[letter]
        elif " " <= letter <= "~":
            yield letter
        else:
            units = letter.encode("utf-16-be", "surrogatepass")
            yield from (f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
