"""The ways to run Spark, as a user writes them into the DAG. Plain values; this module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import BadArgument
from airflow_epochs.names import call_of, settings

if TYPE_CHECKING:
    from airflow_epochs.contracts import Environment
    from airflow_epochs.model import JsonDict
    from airflow_epochs.spark.connect import ConnectRunner
    from airflow_epochs.spark.submit import SubmitRunner

log = secrecy.logger(__name__)


class SparkConnect:
    """Run Spark on a Spark Connect server: the task needs no Java, and a warm server stages in about a second.

    Args:
        conn_id: Airflow connection of type ``spark_connect``.
        session_conf: Runtime settings for the epoch's Spark session, such as ``spark.sql.shuffle.partitions``.
        connect_timeout_s: How long the server may take for its first answer.
    """

    template_fields: Sequence[str] = ("conn_id", "session_conf")

    def __init__(
        self,
        conn_id: str = "spark_connect_default",
        *,
        session_conf: Mapping[str, Any] | None = None,
        connect_timeout_s: float = 60.0,
    ) -> None:
        self.conn_id = conn_id
        self.session_conf = settings(session_conf)
        self.connect_timeout_s = connect_timeout_s

    def __repr__(self) -> str:
        """The runner's text, without the values of ``session_conf``, which may be secret."""
        return call_of("SparkConnect", self.conn_id, session_conf=sorted(self.session_conf))

    def runner(self, env: Environment) -> ConnectRunner:
        """Make the runner for one task process. Secrets among the settings are blotted out of texts from then on."""
        from airflow_epochs.spark.connect import ConnectRunner

        conf = settings(self.session_conf)  # a template may have become another type
        secrecy.keep(secrecy.secrets_in(conf))
        return ConnectRunner(self.conn_id, env, session_conf=conf, connect_timeout_s=self.connect_timeout_s)


class SparkSubmit:
    """Run Spark by spark-submit: one application per job, on any master that the Spark provider knows.

    Args:
        conn_id: Airflow connection of type ``spark``: master, deploy mode, queue, Kerberos.
        conf: Spark settings of the application.
        jars, packages, py_files: As for spark-submit. Delta's and Kafka's jars must be among them or on the cluster.
        properties_file: A file that spark-submit reads in place of its ``spark-defaults.conf``.
        deploy_mode: ``client`` or ``cluster``; None: the mode that the connection or ``conf`` names, or ``client``.
        name: The application's name in Spark's UI.
        work_url: A folder that the driver and the task can both write and read. Cluster mode needs it.
        work_conn_id: The connection with the credentials of ``work_url``, if it is on an object store.
        secrets_conf: Prefix of settings *on the cluster* that hold Kafka's credentials; for cluster mode. It begins
            with ``spark.``.
    """

    template_fields: Sequence[str] = (
        "conn_id",
        "conf",
        "jars",
        "packages",
        "py_files",
        "properties_file",
        "name",
        "work_url",
        "work_conn_id",
    )

    def __init__(
        self,
        conn_id: str = "spark_default",
        *,
        conf: Mapping[str, Any] | None = None,
        jars: str | None = None,
        packages: str | None = None,
        py_files: str | None = None,
        properties_file: str | None = None,
        deploy_mode: str | None = None,
        name: str = "airflow-epochs",
        work_url: str | None = None,
        work_conn_id: str | None = None,
        secrets_conf: str | None = None,
    ) -> None:
        if deploy_mode not in (None, "client", "cluster"):
            raise BadArgument(
                f"`deploy_mode` of SparkSubmit is {deploy_mode!r}. It must be 'client' or 'cluster', or be left out.",
                code=codes.SPARK_SUBMIT_ARGUMENT,
            )
        _require_setting_of_spark(secrets_conf)
        self.conn_id = conn_id
        self.conf = settings(conf)
        self.jars = jars
        self.packages = packages
        self.py_files = py_files
        self.properties_file = properties_file
        self.deploy_mode = deploy_mode
        self.name = name
        self.work_url = work_url
        self.work_conn_id = work_conn_id
        self.secrets_conf = secrets_conf

    def __repr__(self) -> str:
        """The runner's text, without the values of ``conf`` and a login in ``work_url``, which may be secret."""
        return call_of(
            "SparkSubmit",
            self.conn_id,
            deploy_mode=self.deploy_mode,
            conf=sorted(self.conf),
            work_url=secrecy.shown(self.work_url or ""),
        )

    def runner(self, env: Environment) -> SubmitRunner:
        """Make the runner for one task process. Secrets among the settings are blotted out of texts from then on."""
        from airflow_epochs.spark.submit import SubmitRunner

        self.conf = settings(self.conf)  # a template may have become another type
        secrecy.keep(secrecy.secrets_in(self.conf))
        return SubmitRunner(self, env)


def stop_session(session: JsonDict, env: Environment) -> None:
    """End a recorded session of either kind. The DAG may have changed from one kind to the other since then."""
    if session["kind"] == "spark_connect":
        SparkConnect(session["conn_id"]).runner(env).stop(session)
    elif session["kind"] == "spark_submit":
        SparkSubmit(session["conn_id"]).runner(env).stop(session)
    else:
        log.warning("a Spark session is not stopped, because its kind %r is not known", session["kind"])


def _require_setting_of_spark(secrets_conf: str | None) -> None:
    if secrets_conf and not secrets_conf.startswith("spark."):
        raise BadArgument(
            f"`secrets_conf` of SparkSubmit is {secrets_conf!r}. It must begin with 'spark.': spark-submit ignores "
            "all other settings.",
            code=codes.SPARK_SUBMIT_ARGUMENT,
        )
