"""Fetches the jars that ``ivy.xml`` names, with the Ivy that pyspark ships, into a cache outside the project.

The schema registry of ``ivy-registry.xml`` is one more set: an archive with all its jars. The cache folder is
``$EPOCHS_CACHE``, by default ``~/.cache/airflow-epochs``. A set of jars is keyed by a hash of both files and of
pyspark's version. It appears there by one rename: a killed download leaves nothing behind that looks like a set, and
two callers at once fetch it once. Every file is compared with ``jars.sha256`` before it is used, whether it was fetched
now or lay in the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from stack import proxy
from stack.digests import ARCHIVES, files_in, require_recorded
from stack.processes import StackError

IVY_XML = Path(__file__).parents[1] / "ivy.xml"
REGISTRY_XML, REGISTRY_SETTINGS = IVY_XML.with_name("ivy-registry.xml"), IVY_XML.with_name("ivy-registry-settings.xml")
REGISTRY = "registry"
CONFS = ("spark", "broker", "s3", "yarn", REGISTRY)
FETCH_S = 600
ELSEWHERE = (
    "\nWhat to do: look whether this machine reaches Maven Central. Behind a proxy, set https_proxy; for one with a "
    "login, set Java's options in JAVA_TOOL_OPTIONS. For a mirror, "
    "name a file of Ivy's settings in EPOCHS_IVY_SETTINGS."
)


@dataclass(frozen=True)
class Jars:
    """Folders of jars, one for each of ``CONFS``."""

    root: Path

    def folder(self, conf: str) -> Path:
        return self.root / conf

    def paths(self, *confs: str) -> list[Path]:
        return [jar for conf in confs for jar in sorted(self.folder(conf).glob("*.jar"))]

    def archive(self, conf: str) -> Path:
        """The one archive of a program that comes as a whole."""
        [found] = self.folder(conf).glob(ARCHIVES)
        return found

    def classpath(self, conf: str) -> str:
        return str(self.folder(conf) / "*")


def pyspark_home() -> Path:
    """The folder of the installed pyspark. Found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("pyspark is not installed. What to do: run `make venv`.")
    return Path(spec.origin).parent


def cache_folder() -> Path:
    return Path(os.environ.get("EPOCHS_CACHE") or Path.home() / ".cache" / "airflow-epochs")


def fetch(*confs: str) -> Jars:
    """Return the jars of ``confs`` (default: all), fetching what the cache does not have.

    Raises:
        StackError: They cannot be had, and nothing was added to the cache; or they are not those of ``jars.sha256``.
    """
    jars = fetch_unknown(*confs)
    require_recorded(jars.root, confs or CONFS)
    return jars


def fetch_unknown(*confs: str) -> Jars:
    """The jars as they come, not compared with any record: for writing one."""
    jars = Jars(cache_folder() / "jars" / _key())
    missing = [conf for conf in confs or CONFS if not jars.folder(conf).exists()]
    if missing:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda conf: _fetch_one(jars, conf), missing))
    return jars


def _key() -> str:
    ivy = next((pyspark_home() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise StackError("This pyspark ships no Ivy. What to do: install pyspark (not only pyspark-client).")
    spark_core = next((pyspark_home() / "jars").glob("spark-core_*.jar"))
    return hashlib.sha256(IVY_XML.read_bytes() + REGISTRY_XML.read_bytes() + spark_core.name.encode()).hexdigest()[:16]


def _fetch_one(jars: Jars, conf: str) -> None:
    jars.root.mkdir(parents=True, exist_ok=True)
    with _locked(jars.root / f".{conf}.lock"):
        if jars.folder(conf).exists():
            return
        with tempfile.TemporaryDirectory(prefix=f".{conf}-", dir=jars.root) as temporary:
            found = Path(temporary) / "jars"
            _resolve(conf, Path(temporary), found)
            if conf not in ("broker", REGISTRY):
                _leave_out_what_spark_has(found)
            found.rename(jars.folder(conf))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _resolve(conf: str, work: Path, found: Path) -> None:
    ivy = next((pyspark_home() / "jars").glob("ivy-*.jar"))
    wanted, settings = (REGISTRY_XML, str(REGISTRY_SETTINGS)) if conf == REGISTRY else (IVY_XML, "")
    argv = ["java", *proxy.java_options(), "-jar", str(ivy), "-cache", str(work / "ivy")]
    argv += ["-ivy", str(wanted), "-confs", conf]
    argv += ["-types", "jar", "bundle", "tar.gz", "-retrieve", f"{found}/[artifact]-[revision].[ext]"]
    if settings := os.environ.get("EPOCHS_IVY_SETTINGS") or settings:  # the former: a mirror instead of Maven Central
        argv += ["-settings", settings]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except FileNotFoundError:
        raise StackError("java is not on the PATH. What to do: install Java 17 or newer.") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"The {conf} jars were not fetched within {FETCH_S} s. What to do: try again.") from None
    if done.returncode or not files_in(found):
        problems = [line for line in done.stdout.splitlines() if "::" in line or "ERROR" in line][-25:]
        raise StackError(f"The {conf} jars cannot be resolved:\n" + "\n".join(problems) + done.stderr + ELSEWHERE)


def _leave_out_what_spark_has(found: Path) -> None:
    has = {_artifact(jar.name) for jar in (pyspark_home() / "jars").glob("*.jar")}
    for jar in found.glob("*.jar"):
        if _artifact(jar.name) in has:
            jar.unlink()


def _artifact(jar: str) -> str:
    """``kafka-clients-3.9.2.jar`` → ``kafka-clients``; a classifier after the version is dropped too."""
    return re.sub(r"-\d[^-]*(-.*)?\.jar$", "", jar)
