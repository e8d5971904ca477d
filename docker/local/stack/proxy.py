"""On a machine behind a proxy: requests to the stack do not go there, and Java's downloads do."""

from __future__ import annotations

import os
from urllib.parse import urlsplit
from urllib.request import getproxies

NAMES = ("no_proxy", "NO_PROXY")
"""Some programs read the one, some the other. Python believes the first if both are there."""
LOCAL = ["127.0.0.1", "localhost"]


def bypass() -> dict[str, str]:
    """Environment variables with which no client of the stack asks a proxy; the user's exceptions stay."""
    return dict.fromkeys(NAMES, ",".join(_exceptions()))


def java_options() -> list[str]:
    """For a Java that downloads: it does not read ``https_proxy``. A proxy in ``JAVA_TOOL_OPTIONS`` goes first."""
    said = getproxies().get("https", "")
    proxy = urlsplit(said if "://" in said else f"//{said}")
    if not proxy.hostname or "proxyHost" in os.environ.get("JAVA_TOOL_OPTIONS", ""):
        return []
    direct = [host for name in _exceptions() for host in (name.lstrip("."), f"*.{name.lstrip('.')}")]
    where = [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]
    return [*where, f"-Dhttp.nonProxyHosts={'|'.join(direct)}"]


def _exceptions() -> list[str]:
    said = [name.strip() for variable in NAMES for name in os.environ.get(variable, "").split(",")]
    return list(dict.fromkeys([*filter(None, said), *LOCAL]))
