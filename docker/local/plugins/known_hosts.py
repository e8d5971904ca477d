"""An Airflow plugin: the web server answers only requests for a name that it has.

A page of another site can point a name of its own at 127.0.0.1 and have the browser ask there (DNS rebinding).
Airflow has no setting against it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

URLS = (("api", "base_url"), ("core", "execution_api_server_url"))


def known_hosts_only(app: Any) -> Any:
    """``app`` behind the check. 400 is the answer to any other Host."""
    from starlette.middleware.trustedhost import TrustedHostMiddleware  # not needed by tasks, which load plugins too

    names = {urlsplit(conf.get(section, key, fallback="")).hostname for section, key in URLS}
    return TrustedHostMiddleware(app, allowed_hosts=["localhost", "127.0.0.1", *filter(None, names)])


class KnownHosts(AirflowPlugin):
    """Registers it."""

    name = "known_hosts"
    fastapi_root_middlewares = [{"name": name, "middleware": known_hosts_only}]
