"""Keeps Kafka's credentials out of Spark's plans: a plan only refers to a file on Spark's machines.

Kafka's Java clients resolve such references themselves (KIP-297, ``FileConfigProvider``): every JVM reads the file when
it makes a client. So Spark's logs, UI and event log cannot show a secret, whatever its settings are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from airflow_epochs import codes
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
    """A job's secret options as its plan holds them: the secrets themselves, or references to ``file``."""

    options: dict[str, str] = field(repr=False)
    file: str | None = None
    conn_id: str = ""
    properties: tuple[str, ...] = ()

    @property
    def readable(self) -> dict[str, str]:
        """The secrets that the plan itself holds: empty if it refers to a ``file``."""
        return {} if self.file else self.options

    def explained(self, error: EpochError) -> EpochError:
        """Return an error that names the file if Kafka's client could not use the file; otherwise ``error`` itself."""
        if not self.file or not _OF_THE_FILE.search(error.what):
            return error
        return Refused(
            f"Spark cannot log in to Kafka with the credentials file {self.file}: {error.what}",
            code=codes.SPARK_CREDENTIALS_FILE,
            remedy="Check that the file is on the Spark server and on all its executors, that their user can read it, "
            f"and that it has {', '.join(self.properties)} as connection {self.conn_id} has them today: `airflow "
            f"epochs kafka-credentials {self.conn_id} --file …` writes it. See docs/spark.md. Then clear the failed "
            "task.",
        )


def sent(job: SparkJob, connection: Connection) -> Sent:
    """Decide how a job's secrets travel to the server of a ``spark_connect`` connection.

    They travel by reference if the connection names a file, otherwise by value.

    Raises:
        Refused: No reference can name the connection's file. Its path must be absolute, without ``:`` and ``}``.
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
            f"{FILE_FIELD} of connection {conn_id} is {file!r}. Kafka's client cannot use this path.",
            code=codes.SPARK_CREDENTIALS_FILE,
            remedy="Set it to the absolute path of a file on the Spark server and its executors, without ':' and '}'. "
            "Then clear the failed task.",
        )


def property_name(conn_id: str, option: str) -> str:
    """The option's name in the file. It begins with ``conn_id``, because one file may serve several connections."""
    return f"{conn_id}.{option.removeprefix('kafka.')}"


def properties(conn_id: str, secrets: Mapping[str, str]) -> str:
    """The file's lines for one Kafka connection, as ``java.util.Properties`` reads them. They hold the secrets."""
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
