"""Asks YARN's ResourceManager about applications, and ends them, through its REST interface.

Its answers are only a hint when to look: the report of Spark's driver and the sinks decide whether rows are staged.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import NotApplied, Refused

log = secrecy.logger(__name__)

ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""The field of the connection's extra. Airflow's own Spark operator reads the same one."""
TAG_PREFIX = "airflow-epochs-"
REQUEST_S = 10.0
LOOK_S = 20.0
"""How many seconds ``look`` goes on asking if no ResourceManager answers."""
UNREACHABLE_S = 600.0
"""How many seconds ``wait`` goes on while no ResourceManager answers."""
_SITE_FOLDERS = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")  # in the order in which spark-submit reads them
_ENDED = ("FINISHED", "FAILED", "KILLED")
_SECURE = "HTTPS_ONLY"


@dataclass(frozen=True)
class Application:
    """An application, as a ResourceManager describes it."""

    id: str
    state: str
    final_status: str
    diagnostics: str
    tracking_url: str
    started_ms: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Application:
        """The application out of its JSON. Fields that a ResourceManager may leave out are empty."""
        return cls(
            id=str(told["id"]),
            state=str(told["state"]),
            final_status=str(told.get("finalStatus", "")),
            diagnostics=str(told.get("diagnostics") or "").strip(),
            tracking_url=secrecy.shown(str(told.get("trackingUrl") or "")),
            started_ms=int(told.get("startedTime") or 0),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the application has ended for good."""
        return self.state in _ENDED

    @property
    def has_succeeded(self) -> bool:
        """Whether its driver ended without an error."""
        return self.state == "FINISHED" and self.final_status == "SUCCEEDED"

    @property
    def place(self) -> str:
        """The application's id, and where to read about it."""
        return f"{self.id} ({self.tracking_url})" if self.tracking_url else self.id

    @property
    def end(self) -> str:
        """How it ended, in YARN's words."""
        return f"{self.state}, {self.final_status}. {self.diagnostics}"


def tag_of(session_id: str) -> str:
    """The tag of a submit's application. The try's record has the id before spark-submit begins."""
    return f"{TAG_PREFIX}{session_id}"


class ResourceManager:
    """The ResourceManager of a cluster. With several addresses, the one that is active answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)

    def with_tag(self, tag: str) -> Application | None:
        """The application with this tag; None if YARN does not know it, or not any more.

        If there are several, the one that runs or has succeeded.

        Raises:
            Refused: The ResourceManager does not let this host read.
            NotApplied: No address answers.
        """
        found = _applications(self._ask(f"/ws/v1/cluster/apps?applicationTags={quote(tag, safe='')}"))
        return max(found, key=lambda app: (not app.has_ended, app.has_succeeded, app.started_ms), default=None)

    def look(self, tag: str) -> Application | None:
        """The application with this tag, as in ``with_tag``. If no address answers, asks again for some seconds."""
        end = time.monotonic() + LOOK_S
        for pause in pauses():
            try:
                return self.with_tag(tag)
            except NotApplied as error:
                if isinstance(error, Refused) or time.monotonic() + pause > end:
                    raise
                log.warning("the look for the application on YARN is repeated: %s", error)
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def wait(self, tag: str) -> Application | None:
        """Wait until the application with this tag has ended, and return it as ``with_tag`` does."""
        patience = Patience()
        for pause in pauses():
            try:
                app = self.with_tag(tag)
                patience = Patience()
            except NotApplied as error:
                patience.bear(error)
            else:
                if app is None or app.has_ended:
                    return app
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def end_with_tag(self, tag: str) -> None:
        """Ask for the end of the application with this tag, if it runs. A failure is logged: it does no harm."""
        try:
            app = self.with_tag(tag)
            if app and not app.has_ended:
                self._ask(f"/ws/v1/cluster/apps/{quote(app.id, safe='')}/state{_as_user()}", {"state": "KILLED"})
                log.info("asked YARN to end application %s", app.place)
        except NotApplied as error:
            log.warning("the application with the tag %s is not ended: %s", tag, error)

    def _ask(self, path: str, put: Mapping[str, str] | None = None) -> dict[str, Any]:
        failures = []
        for address in self.addresses:
            try:
                return _answer(address + path, put)
            except (OSError, ValueError, HTTPException) as error:
                _refuse_if_forbidden(address, error)
                failures.append(f"{address}: {error}")
        raise NotApplied(f"YARN's ResourceManager does not answer: {'; '.join(failures)}.", code=codes.YARN_UNREACHABLE)


class Patience:
    """Bears failures until they have lasted for ``UNREACHABLE_S``."""

    def __init__(self) -> None:
        self._end: float | None = None

    def bear(self, error: NotApplied) -> None:
        """Log the failure. Raises it if there were only failures for too long, or if waiting cannot help."""
        self._end = self._end or time.monotonic() + UNREACHABLE_S
        if isinstance(error, Refused) or time.monotonic() > self._end:
            raise error
        log.warning("a request to YARN's ResourceManager failed; it is repeated: %s", error)


def pauses() -> Iterator[float]:
    """Seconds between two looks: a twentieth of the time that has passed, from 0.5 to 10."""
    began = time.monotonic()
    while True:
        yield min(max((time.monotonic() - began) / 20, 0.5), 10.0)


def _applications(told: Mapping[str, Any]) -> list[Application]:
    try:
        return [Application.of(each) for each in (told.get("apps") or {}).get("app") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotApplied(
            f"The server at YARN's web address is not a ResourceManager: {secrecy.scrubbed(str(told))[:500]}",
            code=codes.YARN_UNREACHABLE,
        ) from error


def addresses(connection: Connection) -> tuple[str, ...]:
    """The ResourceManagers' addresses, from the connection's extra or from yarn-site.xml. Empty: neither has one.

    Raises:
        Refused: An address holds a login, or yarn-site.xml cannot be read.
    """
    given = str(connection.extra.get(ADDRESS_EXTRA) or "")
    named = [each.strip() for each in given.split(",") if each.strip()] or _of_site()
    found = tuple((each if "://" in each else f"http://{each}").rstrip("/") for each in named)
    for address in found:
        if secrecy.has_login(address):
            raise Refused(
                f"The field `{ADDRESS_EXTRA}` of connection {connection.conn_id} contains a login. Others can read it.",
                code=codes.LOGIN_IN_URL,
                remedy="Take the login out of the address. Then clear the failed task.",
            )
    return found


def no_address(connection: Connection) -> Refused:
    """The error for a task that must ask a ResourceManager, and knows no address."""
    return Refused(
        f"Connection {connection.conn_id} leads to YARN, and nothing says where the ResourceManager's web address is. "
        "Without it, a deferred task cannot see the end of its application. Nothing was submitted.",
        code=codes.SPARK_CONNECTION,
        remedy=f"Add the field `{ADDRESS_EXTRA}` to the extra of connection {connection.conn_id}, for example "
        "http://host:8088, or let HADOOP_CONF_DIR name a folder with yarn-site.xml on every worker. Then clear the "
        "failed task.",
    )


def _of_site() -> list[str]:
    for folder in filter(None, map(os.environ.get, _SITE_FOLDERS)):
        if (site := Path(folder) / "yarn-site.xml").is_file():
            return _of_properties(_properties(site))
    return []


def _properties(site: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(site).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise Refused(
            f"{site} cannot be read as XML: {error}. It would say where YARN's ResourceManager answers.",
            code=codes.SPARK_CONNECTION,
            remedy=f"Correct the file, or add the field `{ADDRESS_EXTRA}` to the extra of the Spark connection, for "
            "example http://host:8088. Then clear the failed task.",
        ) from error
    return {each.findtext("name", "").strip(): each.findtext("value", "").strip() for each in root.iter("property")}


def _of_properties(site: Mapping[str, str]) -> list[str]:
    """The addresses, as Hadoop itself finds them."""
    secure = site.get("yarn.http.policy") == _SECURE
    key, port = ("webapp.https.address", 8090) if secure else ("webapp.address", 8088)
    ids = [each.strip() for each in site.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if each.strip()]
    scheme = "https" if secure else "http"
    found = []
    for suffix in [f".{each}" for each in ids] or [""]:
        host = site.get(f"yarn.resourcemanager.hostname{suffix}")
        address = site.get(f"yarn.resourcemanager.{key}{suffix}") or (f"{host}:{port}" if host else None)
        if address:
            found.append(f"{scheme}://{address.replace('${yarn.resourcemanager.hostname}', host or '')}")
    return found


def _answer(url: str, put: Mapping[str, str] | None) -> dict[str, Any]:
    request = urllib.request.Request(
        url,
        data=json.dumps(put).encode() if put else None,
        headers={"Accept": "application/json", "Content-Type": "application/json"},
        method="PUT" if put else "GET",
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    if not isinstance(told, dict):
        raise ValueError("the answer does not come from a ResourceManager")
    return told


def _as_user() -> str:
    """The query that names the user. Without Kerberos, YARN believes it, and lets only this user end an application."""
    import getpass

    return f"?user.name={quote(os.environ.get('HADOOP_USER_NAME') or getpass.getuser(), safe='')}"


def _refuse_if_forbidden(address: str, error: Exception) -> None:
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        raise Refused(
            f"YARN's ResourceManager at {address} does not let this host read or end applications: {error}.",
            code=codes.SPARK_CONNECTION,
            remedy="Put an address that answers without Kerberos, such as a gateway's, into the field "
            f"`{ADDRESS_EXTRA}` of the Spark connection's extra. Or leave `deferrable` out: then the task waits in its "
            "worker slot. Then clear the failed task.",
        ) from error
