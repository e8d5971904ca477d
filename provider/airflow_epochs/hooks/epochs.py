"""The ``epochs`` connection, which says where a pipeline's ledger is, and ``contracts.Environment`` for Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown, Refused, with_remedy
from airflow_epochs.ledger.signing import KEY_LENGTH_MIN, RANDOM_KEY, Keys
from airflow_epochs.storage.local import in_the_way

if TYPE_CHECKING:
    from airflow.sdk import Connection as AirflowConnection

    from airflow_epochs.contracts import Connection, SparkRunner
    from airflow_epochs.ledger.ledger import Ledger
    from airflow_epochs.ledger.store import Store
    from airflow_epochs.spark.runners import SparkConnect, SparkSubmit


log = secrecy.logger(__name__)

PROBED = "connection-test"
"""The pipeline whose ledger the button Test writes a probe to."""
REMEDY_OF_NOTHING = (
    "Start the first run of a pipeline: it begins the ledger there. But if there was a ledger, start no run: correct "
    "`ledger_root`, mount its disk, or restore the ledger from a backup."
)
"""What to do if nothing is stored (``EpochsHook.nothing_stored``)."""
_SET_KEY = f"Set the connection's password to a random key (`{RANDOM_KEY}`), the same for all workers."


def connection(conn_id: str) -> Connection:
    """The Airflow connection with this id, as plain values.

    Raises:
        NotApplied: As ``_found``.
        Refused: Its extra is not a JSON object.
    """
    from airflow_epochs.contracts import Connection

    found = _found(conn_id)
    described = Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host,
        port=found.port,
        login=found.login,
        password=found.password,
        schema=found.schema,
        extra=_extra(found),
    )
    _keep_secret(described)
    return described


def type_of(conn_id: str) -> str:
    """The type of the Airflow connection with this id, also if its extra cannot be read. Raises as ``_found``."""
    return _found(conn_id).conn_type or ""


def _found(conn_id: str) -> AirflowConnection:
    """Airflow's own description of the connection.

    Raises:
        NotApplied: No connection has this id, or no backend that could tell has answered. Airflow gives both the same
            error: it swallows the errors of its secrets backends and of its API server. So Airflow retries the task.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as missing:
        raise NotApplied(
            f"Airflow has no connection {conn_id!r}, or its secrets backend or API server did not answer.",
            code=codes.CONNECTION_MISSING,
            remedy="Add the connection if it is missing: under Admin > Connections, or as the variable "
            f"AIRFLOW_CONN_{conn_id.upper()}. If it is there, look at Airflow's secrets backend and API server. Then "
            "let Airflow retry, or clear the failed task.",
        ) from missing


def _extra(found: AirflowConnection) -> dict[str, Any]:
    """The fields of the extra. Airflow itself takes one that is not JSON for empty, and only logs a traceback.

    The error does not quote it: it may have secrets.
    """
    text = found.extra or ""
    if not text.strip():
        return {}
    try:
        if isinstance(json.loads(text), dict):
            return found.extra_dejson  # which Airflow's logs mask
        lacks = "a JSON object"
    except ValueError:
        lacks = "JSON"
    raise Refused(
        f"The extra of connection {found.conn_id!r} is not {lacks}.",
        code=codes.STORAGE_OPTIONS_UNREADABLE,
        remedy='Write it as a JSON object, like {"name": "value"}. Then clear the failed task.',
    )


def _keep_secret(described: Connection) -> None:
    """Make this package and Airflow hide the connection's secrets in everything they print."""
    secrecy.tell(_mask)
    fields = {"host": described.host, "schema": described.schema, "password": described.password}
    if described.conn_type == EpochsHook.conn_type:
        secrecy.keep(Keys.parse(described.password).secrets)
    secrecy.keep(secrecy.secrets_in({**fields, "extra": described.extra}))


def _mask(forms: list[str]) -> None:
    """Tell Airflow's masker, in this process and in the supervisor, which writes the task's log."""
    mask_secret([*forms])


class EpochsHook(BaseHook):
    """Opens ledgers through a connection of type ``epochs``.

    The password is the key that signs records: at least 32 random characters. To change keys, give several, separated
    by commas, the newest first. The extra fields are:

    - ``ledger_root``: a path or a URL (``s3://bucket/prefix`` …) outside all tables;
    - ``storage_conn_id`` (optional): the connection with the object store's credentials;
    - ``storage_options`` (optional): more ``object_store`` options, as a JSON object;
    - ``require_signed`` (optional): if true, refuse a ledger that was never signed;
    - ``create`` (optional): if true, the button Test creates the folder of ``ledger_root`` if it is missing.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = "epochs_default"
    conn_type = "epochs"
    hook_name = "Epochs ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    @cached_property
    def _described(self) -> Connection:
        return connection(self.ledger_conn_id)

    def get_conn(self) -> Store:
        """The byte store at the ledger's root. Raises Refused if ``ledger_root`` is missing, or can be no folder."""
        from airflow_epochs.ledger.store import open_store, without_blanks

        described = self._described
        root = described.extra.get("ledger_root")
        if not root:
            raise self._no_root(described)
        store = open_store(without_blanks(str(root)), _storage_options(described), _holder(described))
        self._require_folder(store)
        return store

    def _no_root(self, described: Connection) -> Refused:
        from airflow_epochs.contracts import typed

        refused = Refused(
            f"The field `ledger_root` of connection {self.ledger_conn_id!r} is empty. It says where the ledger is.",
            code=codes.LEDGER_ROOT_MISSING,
        )
        return typed(refused, self.ledger_conn_id, described.conn_type, self.conn_type, named="as `ledger_conn_id`")

    def _require_folder(self, store: Store) -> None:
        """Raise Refused if a file is where the ledger's folder has to be."""
        folder = _local_folder(store)
        # Behind a link may be a mount that is away for a moment: the store says so, and Airflow retries.
        if folder and (found := in_the_way(folder)) and not found.is_symlink():
            raise Refused(
                f"The field `ledger_root` of connection {self.ledger_conn_id!r} is {str(folder)!r}, and {found} is not "
                "a folder. The ledger is a folder.",
                code=codes.LEDGER_ROOT_UNUSABLE,
                remedy=f"Set `ledger_root` of connection {self.ledger_conn_id!r} to the folder that has the ledger, or "
                "that a new ledger shall have. Then clear the failed task.",
            )

    def ledger(self, pipeline: str) -> Ledger:
        """The pipeline's ledger. Raises Refused if the connection requires signatures but has no key."""
        from airflow_epochs.ledger.ledger import Ledger

        store, keys = self.get_conn(), self._keys
        required = self._flag("require_signed")
        if required and not keys:
            raise Refused(
                f"Connection {self.ledger_conn_id!r} has `require_signed`, but it has no password. The password is the "
                "key that signs the ledger's records.",
                code=codes.SIGNING_PASSWORD_MISSING,
                remedy=f"{_SET_KEY} If the ledger has signed records, use the key that signed them. Then clear the "
                "failed task.",
                pipeline=pipeline,
            )
        if flaw := self._flaw_of_keys():
            secrecy.warn_once(log, flaw)
        return Ledger(store, pipeline, keys, require_signed=required)

    def pipelines(self) -> list[str]:
        """The names of the pipelines that have a ledger below the root, sorted."""
        from airflow_epochs.ledger.overview import pipelines_in

        return self._listed(pipelines_in)

    def nothing_stored(self) -> str:
        """A sentence that says: nothing is stored at the root. Empty if something is.

        Nothing is stored if no run has begun yet, or if the ledger is lost.
        """
        if self._listed(lambda store: store.folders()):
            return ""
        store = self.get_conn()
        names = f"The field `ledger_root` of connection {self.ledger_conn_id!r} names"
        folder = _local_folder(store)
        if folder and not folder.is_dir():
            return f"{names} the folder {folder}, which does not exist on this machine."
        return f"{names} {getattr(store, 'root', '') or 'a store'}, and nothing is stored there."

    def _listed(self, listing: Callable[[Store], list[str]]) -> list[str]:
        """What ``listing`` finds in the store. Raises OutcomeUnknown if the store does not answer."""
        from airflow_epochs.ledger.writable import remedy_of_store
        from airflow_epochs.storage.answers import told

        store = self.get_conn()
        try:
            return listing(store)
        except EpochError:
            raise
        except Exception as error:  # of a disk or of an object store
            raise OutcomeUnknown(
                f"The provider cannot list the ledgers of connection {self.ledger_conn_id!r}: {told(error)}.",
                code=codes.LEDGER_UNREADABLE,
                remedy=remedy_of_store(error, store),
            ) from error

    def _flag(self, name: str) -> bool:
        """A field that is true or false; false if it is empty."""
        given = self._described.extra.get(name)
        truth = {"true": True, "false": False, "none": False, "": False}.get(str(given).strip().lower())
        if truth is None:
            raise Refused(
                f"The field `{name}` of connection {self.ledger_conn_id!r} is {given!r}. It must be true or false.",
                code=codes.REQUIRE_SIGNED_UNCLEAR,
            )
        return truth

    @property
    def _keys(self) -> Keys:
        return Keys.parse(self._described.password)

    def _flaw_of_keys(self) -> str | None:
        """What is weak about the signing keys, for people who rely on them; None if nothing is."""
        if not self._keys:
            return with_remedy(
                f"THE LEDGER IS NOT SIGNED: connection {self.ledger_conn_id!r} has no password. Anybody who can write "
                "to the ledger's store can forge records, and so add, drop or double rows.",
                f"{_SET_KEY} See SECURITY.md.",
            )
        if self._keys.is_weak:
            return with_remedy(
                f"A key of the ledger is easy to guess: the password of connection {self.ledger_conn_id!r} has a key "
                f"of less than {KEY_LENGTH_MIN} characters.",
                "Put a longer key and a comma in front of it.",
            )
        return None

    def test_connection(self) -> tuple[bool, str]:
        """Test the ledger's store with a probe record, as the first ``open`` of a pipeline does."""
        try:
            return True, f"{self.probe()} {self.told_of_keys()}"
        except Exception as error:
            return False, str(error)

    def probe(self) -> str:
        """Write a probe record, and remove it. Returns what that has shown.

        Raises:
            Refused: The folder does not exist, or the store cannot hold a ledger.
            NotApplied: The store cannot be written.
        """
        folder = _local_folder(self.get_conn())
        if folder and not folder.is_dir() and not self._flag("create"):
            raise self._no_folder(folder)
        try:
            ledger = self.ledger(PROBED)
            ledger.identity()  # is not there: a store may deny to say so
            ledger.probe()
        except EpochError as error:
            error.pipeline = None  # the user has no pipeline of this name
            raise
        finally:
            if folder:
                _remove_empty(folder / PROBED)
        fine = "The ledger's store honours put-if-absent: a probe was written, read back and removed."
        return f"{fine} Every worker must see the same folder at {folder}." if folder else fine

    def told_of_keys(self) -> str:
        """Whether records are signed, and what is weak about that."""
        return self._flaw_of_keys() or "Records are signed."

    def _no_folder(self, folder: Path) -> Refused:
        return Refused(
            f"The folder {folder} does not exist on this machine. The field `ledger_root` of connection "
            f"{self.ledger_conn_id!r} names it. Nothing was created.",
            code=codes.LEDGER_FOLDER_MISSING,
        )


def _local_folder(store: Store) -> Path | None:
    """The folder of a ledger on this machine's disk; None if it is in an object store."""
    from airflow_epochs.ledger.store import LocalStore

    return Path(store.root) if isinstance(store, LocalStore) else None


def _remove_empty(folder: Path) -> None:
    """Remove the folders that a probe has left, if they are empty."""
    for each in (folder / "probe", folder):
        with suppress(OSError):
            each.rmdir()


def _storage_options(described: Connection) -> dict[str, str]:
    """The options of the connection with the credentials. The ledger connection's own options override them."""
    from airflow_epochs.storage.options import storage_options

    conn_id = _storage_conn_id(described)
    return {**storage_options(connection(conn_id) if conn_id else None), **storage_options(described)}


def _storage_conn_id(described: Connection) -> str:
    return str(described.extra.get("storage_conn_id") or "")


def _holder(described: Connection) -> str | None:
    """The connection that has the credentials of the ledger's store; None: they are in the worker's environment."""
    return _storage_conn_id(described) or (described.conn_id if _storage_options(described) else None)


class AirflowEnvironment:
    """``contracts.Environment`` in an Airflow task.

    Attributes:
        phases: The phases that the task has reached, for its metrics.
    """

    def __init__(self, spark: SparkConnect | SparkSubmit) -> None:
        self._spark = spark
        self.phases: list[str] = []

    @cached_property
    def spark(self) -> SparkRunner:
        """The runner for Spark Connect or spark-submit, made once per task."""
        return self._spark.runner(self)

    def connection(self, conn_id: str) -> Connection:
        """The Airflow connection with this id. Raises as ``connection`` of this module."""
        return connection(conn_id)

    def reached(self, phase: str) -> None:
        """Note the phase."""
        self.phases.append(phase)
