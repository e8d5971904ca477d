"""What every Spark process of the stack has in common: its environment and its settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack import private
from stack.jars import Jars, pyspark_home
from stack.properties import escaped

# Without it, Kafka passwords stand in clear in Spark's plans, event log and UI. The provider's own pattern; written
# out, because the image of the Spark server has no provider.
REDACTION = r"(?s)kafka\.(sasl|ssl)\..*"

DRIVER_OPTIONS, EXECUTOR_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
DEFAULTS_FILE, LOG4J_FILE = "spark-defaults.conf", "log4j2.properties"
LOG4J = """\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.connect.name=org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level=INFO
# closing the session of a client that died, it logs the operations that ran, with their Kafka credentials
logger.operations.name=org.apache.spark.sql.connect.service.SparkConnectExecutionManager
logger.operations.level=WARN
"""

# Over Spark Connect nobody can choose a pool, so that all jobs are in the one called default; within it they take
# turns. Without this file a job's tasks would wait until those of all earlier jobs have begun, in FAIR mode too.
FAIR_FILE = "fairscheduler.xml"
FAIR = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""

# Half the processor time of a start and of a first job, for 20 % less speed later. With that compiler alone, Java
# would keep 48 MB of compiled code; after some minutes of different jobs it would compile again what it threw away.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:-UsePerfData"
# More than any record of Kafka has. A damaged record that announces a text of 1.5 GB is then one that cannot be
# decoded; without a limit Java asks for that memory, and Spark ends.
AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{what}.maxLength=16777216" for what in ("bytes", "string", "collectionItems")
)
CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def home() -> Path:
    """SPARK_HOME: the installed pyspark without ``python/lib``.

    Python's workers then import pyspark itself. From the ``pyspark.zip`` of that folder they would compile it anew for
    every session: 1.2 s of a processor.
    """
    home = Path(sys.prefix) / "spark-home"
    home.mkdir(exist_ok=True)
    for part in ("bin", "sbin", "jars"):
        with contextlib.suppress(FileExistsError):
            (home / part).symlink_to(pyspark_home() / part)
    return home


def with_class_archive(options: str) -> str:
    """Java's options, with the archive of Spark's classes if ``stack.class_archive`` has made it."""
    if not CLASS_ARCHIVE.exists():
        return options
    # where it does not fit Java or the class path, Java goes on without it, and would say so on standard output
    return f'{options} -XX:SharedArchiveFile="{CLASS_ARCHIVE}" -Xlog:cds*=off'


def archived_class_path() -> dict[str, str]:
    """A setting with which the archive fits a driver that has a ``SPARK_CONF_DIR``.

    Java takes the archive only if the class path begins with the one that it was made with. Spark puts the folder
    first, unless it is told another beginning.
    """
    jars = home() / "jars"
    [logging] = jars.glob("slf4j-api-*.jar")
    return {"spark.driver.extraClassPath": f"{logging}:{jars}/*"}


PRIVATE = {
    # Hadoop sets the rights of files itself, whatever the process's umask is
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Spark's own ports run what they are sent: also in local mode, where Spark draws the secret
    "spark.authenticate": "true",
}
"""Nobody but the owner reads what Spark writes, or gives it work."""


@dataclass(frozen=True)
class S3Access:
    """Where an S3-compatible server is and how to log in."""

    endpoint: str
    bucket: str
    key: str
    secret: str
    region: str = "us-east-1"


def settings(jars: Jars, *, s3: S3Access | None = None) -> dict[str, str]:
    """Spark settings for Delta and Kafka, and for ``s3a://`` if asked for; sized for small machines."""
    paths = jars.paths("spark", *(["s3"] if s3 else []))
    return {
        "spark.jars": ",".join(str(path) for path in paths),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        DRIVER_OPTIONS: AVRO_LIMITS,
        **PRIVATE,
        "spark.redaction.string.regex": REDACTION,
        **(_s3a(s3) if s3 else {}),
    }


def _s3a(s3: S3Access) -> dict[str, str]:
    return {
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": s3.region,
        "spark.hadoop.fs.s3a.access.key": s3.key,
        "spark.hadoop.fs.s3a.secret.key": s3.secret,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        # the analytics stream would pull in the asynchronous client and one more library
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
    }


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of a Spark process that keeps all it writes below ``folder``."""
    return {
        "SPARK_HOME": str(home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
        "SPARK_NO_DAEMONIZE": "1",
        # UDFs run in this Python, which has pyarrow; the first python3 on the PATH need not
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def write_defaults(folder: Path, values: Mapping[str, str]) -> None:
    """Make ``folder`` a SPARK_CONF_DIR with these defaults."""
    lines = [f"{key} {value}\n" for key, value in values.items()]
    private.write(private.make_folder(folder) / DEFAULTS_FILE, escaped("".join(lines)))


def write_conf(folder: Path, values: Mapping[str, str]) -> Path:
    """Make ``folder`` a SPARK_CONF_DIR with these defaults, little logging and fair scheduling, and return it."""
    fair = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": str(folder / FAIR_FILE)}
    write_defaults(folder, {**fair, **values})
    private.write(folder / LOG4J_FILE, LOG4J)
    private.write(folder / FAIR_FILE, FAIR)
    return folder
