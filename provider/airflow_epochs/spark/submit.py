"""Runs jobs by spark-submit through the Airflow Spark provider's hook: local, standalone, YARN and Kubernetes masters.

In client mode, the plan, the report and the credentials are files in a folder that only this user can read. In cluster
mode (YARN, Kubernetes), the plan travels with ``--files``, the driver writes its report below ``work_url``, and the
credentials must already be settings of the cluster. On YARN, a later try goes on with the stage job of an earlier one:
see ``on_yarn``.

A session is a token among the arguments of every process of a submit. By this token, a later try on the same host finds
the processes of a killed try and ends them. On another host, or in cluster mode, they go on and do no harm: they write
only to the places of their own try.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, Environment, Following, SparkJob
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.names import CLEAR_RULE, flaw_of_file, unclear_as_spelt
from airflow_epochs.spark import on_yarn, processes, reports, site_settings, submit_failures, yarn
from airflow_epochs.spark.driver import failures, kafka_read, main, user_files
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.driver.plans import StagePlan
from airflow_epochs.spark.runners import stop_session
from airflow_epochs.spark.work_folder import work_folder
from airflow_epochs.spark.yarn import ResourceManager

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_epochs.spark.runners import SparkSubmit

log = secrecy.logger(__name__)

KIND = "spark_submit"
SESSION_CONF = processes.SETTING
CLIENT, CLUSTER = "client", "cluster"
MODE_CONF = "spark.submit.deployMode"
NAMES_CONF = "spark.redaction.regex"
_SECRET_TO_SPARK = "(?i)secret|password|token|access[.]?key"
"""Spark's default for the names of settings whose values it does not show."""
_PACKAGE = Path(__file__).parents[1]
_DRIVER_FILES = (
    "__init__.py",
    "codes.py",
    "errors.py",
    "expectations.py",
    "schemas.py",
    "secrecy.py",
    "storage/__init__.py",
    "storage/fsync.py",
    "spark/__init__.py",
    "spark/driver/**/*.py",
    "transforms/*.py",
)
_NOT_INHERITED = ("AIRFLOW_", "_AIRFLOW_", "SPARK_CONNECT_MODE")
_DEFAULT_CONF = {
    kafka_read.REDACTION_CONF: kafka_read.REDACTION,
    # The driver's report quotes the cause of a failure. pyspark shows the cause only with the JVM's trace.
    "spark.sql.pyspark.jvmStacktrace.enabled": "true",
    **kafka_read.SESSION_CONF,
    **{f"spark.hadoop.{key}": value for key, value in delta_jobs.WRITER_CONF.items()},
}


class SubmitRunner:
    """A ``contracts.SparkRunner`` that submits one Spark application per job."""

    def __init__(self, config: SparkSubmit, env: Environment) -> None:
        self._config, self._env = config, env
        self._running: list[tuple[JsonDict, SparkSubmitHook]] = []
        self._yarn = on_yarn.OnYarn(config, env)

    def new_session(self) -> JsonDict:
        """Draw the token of a submit that does not exist yet. The host is part of the session: see ``stop``."""
        return {
            "kind": KIND,
            "conn_id": self._config.conn_id,
            "session_id": str(uuid.uuid4()),
            "host": socket.gethostname(),
        }

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Submit an application for ``job`` and wait for its end.

        Raises:
            Refused: The job is wrong, or this deploy mode cannot run it.
            NotApplied: The submit or the job failed. A job that commits may still have taken effect.
            RunsOn: The job was submitted, and the task waits for it elsewhere: see ``follow``.
        """
        session = session or self.new_session()
        secrecy.keep_options(job.secrets)
        connection = self._env.connection(self._config.conn_id)
        mode = _deploy_mode(self._config, connection)
        self._refuse_what_cannot_work(job, connection, mode)
        if job.kind == StagePlan.JOB and self.outlives() and (manager := self._yarn.manager(connection)):
            return self._run_on_yarn(manager, connection, job, session)
        with work_folder() as folder:
            submit = _Submit(folder, job, session, self._config, connection)
            failure = self._submit(submit, session)
            return self._outcome(submit, job, failure)

    def _run_on_yarn(
        self, manager: ResourceManager, connection: Connection, job: SparkJob, session: JsonDict
    ) -> JsonDict:
        """Submit, and wait for the application, not for spark-submit."""
        conf = on_yarn.settings(self._config.conf, session["session_id"])
        with self._yarn.followed(manager, session):  # without a gap: a kill there would leave the application running
            with work_folder() as folder:
                submit = _Submit(folder, job, session, self._config, connection, conf)
                if failure := self._submit(submit, session):
                    return self._outcome(submit, job, failure)
            return self._yarn.result(manager, session)

    def follow(self, following: Following) -> None:
        """Say how this task waits for stage jobs on YARN."""
        self._yarn.following = following

    def outlives(self) -> bool:
        """Whether stage jobs run on YARN in cluster mode."""
        connection = self._env.connection(self._config.conn_id)
        cluster = _deploy_mode(self._config, connection) == CLUSTER and bool(self._config.work_url)
        return cluster and _master(connection).startswith("yarn")

    def rejoin(self, session: JsonDict) -> JsonDict | None:
        """The result of the application that was submitted under this session; None: no job is left to wait for.

        A submit of a killed try that is still under way on this host is ended first, so that it comes to nothing.
        """
        manager = self._yarn_of(session)
        if manager is None:
            return None
        if session["host"] == socket.gethostname():
            processes.end_submits_with(session["session_id"])
        return self._yarn.rejoined(manager, session)

    def ran_as(self) -> JsonDict:
        """The application of the last stage job on YARN."""
        app = self._yarn.last
        return {"id": app.id, "url": app.tracking_url} if app else {}

    def release(self, session: JsonDict) -> None:
        """Delete the report of a session."""
        if session["kind"] == KIND:
            self._yarn.release(session)

    def end(self, session: JsonDict) -> None:
        """End the application on YARN that was submitted under this session."""
        manager = self._yarn_of(session)
        if manager:
            manager.end_with_tag(yarn.tag_of(session["session_id"]))

    def _yarn_of(self, session: JsonDict) -> ResourceManager | None:
        """The ResourceManager for a session; None: no address is known, or the session has another connection."""
        if session["kind"] != KIND or session.get("conn_id") != self._config.conn_id:
            return None
        return self._yarn.manager(self._env.connection(self._config.conn_id))

    def stop(self, session: JsonDict) -> None:
        """End the processes of a submit on this host. Idempotent; does nothing about a submit of another host."""
        if session["kind"] != KIND:
            stop_session(session, self._env)
        elif session["host"] == socket.gethostname():
            processes.end_all_with(session["session_id"])

    def cancel(self) -> None:
        """Stop the job that ``run`` runs now, also on YARN. For ``on_kill``."""
        with self._yarn.ended():  # after spark-submit, which submits the application as long as it runs
            for session, hook in list(self._running):
                self._end(session, hook)

    def _end(self, session: JsonDict, hook: Any) -> None:
        try:
            hook.on_kill()
        except Exception as error:
            log.warning("the Spark hook could not end the application: %s", error)
        self.stop(session)

    def _refuse_what_cannot_work(self, job: SparkJob, connection: Connection, mode: str) -> None:
        if self._config.work_url and secrecy.has_login(self._config.work_url):
            raise Refused(
                f"SparkSubmit(work_url=…) {secrecy.shown(self._config.work_url)} contains a login. This URL is an "
                "argument of spark-submit, and everybody on the machine can read such arguments.",
                code=codes.LOGIN_IN_URL,
                remedy="Take the login out of the URL. Put it into the connection that work_conn_id names, and into "
                "Spark's own settings for the store. Then clear the failed task.",
            )
        work_url = self._config.work_url or ""
        file, unclear = flaw_of_file(work_url.strip()), unclear_as_spelt(work_url)
        if file or unclear:
            flaw = f"names {file.flaw}" if file else f"has {unclear!r} in it: Spark and the task read that differently"
            raise Refused(
                f"SparkSubmit(work_url=…) is {work_url}, which {flaw}. Spark's driver would leave its report in "
                "another place.",
                code=codes.SPARK_CONNECTION,
                remedy=f"Give SparkSubmit a `work_url` such as file:///folder, with three slashes and {CLEAR_RULE}. "
                "Then clear the failed task.",
            )
        if mode == CLIENT:
            return
        if _master(connection).startswith("spark://"):
            raise Refused(
                f"Connection {connection.conn_id} leads to a standalone cluster, and the deploy mode is cluster. Spark "
                "has no cluster mode for Python applications on standalone clusters.",
                code=codes.SPARK_CONNECTION,
                remedy="Set deploy_mode of SparkSubmit to client. Then clear the failed task.",
            )
        if not self._config.work_url:
            raise Refused(
                "In cluster mode, the driver writes its report to `work_url`, and SparkSubmit has no `work_url`.",
                code=codes.SPARK_CONNECTION,
                remedy="Give SparkSubmit(work_url=…): a folder on an object store or a disk that driver and task both "
                "reach. Then clear the failed task.",
            )
        reports.require_readable(self._config.work_url, self._storage())
        if job.secrets and not self._config.secrets_conf:
            raise Refused(
                "In cluster mode, the Kafka connection's credentials would travel as settings that others can read, "
                "and SparkSubmit has no `secrets_conf`. They were not sent.",
                code=codes.SPARK_CONNECTION,
                remedy="Put them on the cluster as settings 'spark.secret.kafka.sasl.jaas.config' and so on, and give "
                "SparkSubmit(secrets_conf='spark.secret.'). Then clear the failed task.",
            )

    def _submit(self, submit: _Submit, session: JsonDict) -> Exception | None:
        """Run spark-submit to its end. Returns a failure instead of raising it: the driver's report says more."""
        hook = submit.hook()
        self._running.append((session, hook))
        try:
            hook.submit(str(submit.application), env=_environment())
            return None
        except FileNotFoundError as error:
            raise Refused(
                f"This worker has no {error.filename} on its PATH.",
                code=codes.SPARK_INCOMPLETE,
                remedy="Install pyspark into Airflow's environment, or a Spark distribution, on every worker. Then "
                "clear the failed task.",
            ) from error
        except Exception as error:
            return error
        except BaseException:  # of a timeout of Airflow's, after which ``cancel`` finds nothing to end
            self._end(session, hook)
            _reap(hook)
            raise
        finally:
            self._running.remove((session, hook))
            pipe = getattr(getattr(hook, "_submit_sp", None), "stdout", None)
            if pipe:
                pipe.close()  # the hook does not close it

    def _outcome(self, submit: _Submit, job: SparkJob, failure: Exception | None) -> JsonDict:
        report = reports.take(submit.report, self._storage())
        if report is not None and "error" in report:
            error = failures.error_from_json(report["error"])
            starting = error.what.startswith(main.STARTING)
            raise (submit_failures.of_start(error.what, submit.connection) if starting else None) or error
        if report is None or failure is not None:
            said = submit_failures.told(failure, submit.printed)
            if of_start := submit_failures.of_start(said, submit.connection):
                raise of_start
            raise NotApplied(
                f"The Spark job {job.kind!r} through {self._config.conn_id} failed: {said}",
                code=codes.SPARK_JOB_FAILED,
                remedy="Look at the driver's log above, and correct the cause. Then clear the failed task.",
            )
        return reports.result_of(report, job.kind, self._config.conn_id)

    def _storage(self) -> Connection | None:
        return self._env.connection(self._config.work_conn_id) if self._config.work_conn_id else None


def _reap(hook: Any) -> None:
    """Wait for a process that was ended: the hook no longer does."""
    process = getattr(hook, "_submit_sp", None)
    if process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


class _Submit:
    """One submit: its files and its hook. ``conf``: settings that the user's do not override."""

    def __init__(
        self,
        folder: Path,
        job: SparkJob,
        session: JsonDict,
        config: SparkSubmit,
        connection: Connection,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._config, self._mode, self._token = config, _deploy_mode(config, connection), session["session_id"]
        self.connection = connection
        self.printed: Sequence[str] = ()
        self._binary = connection.extra.get("spark-binary") or "spark-submit"
        self._conf = dict(conf or {})
        self.application = _write(folder / "airflow_epochs_main.py", (Path(main.__file__)).read_bytes())
        self._packed = self._pack(folder, job)
        plan = json.dumps({"kind": job.kind, "args": _with_source(job)}).encode()
        self._plan = _write(folder / f"plan-{self._token}.json", plan)
        self._digest = hashlib.sha256(plan).hexdigest()
        work_url = config.work_url
        self.report = reports.place_of(work_url, self._token) if work_url else str(folder / "report.json")
        self._needs_secrets = bool(job.secrets)
        self._secrets = None
        if job.secrets and self._mode == CLIENT:
            self._secrets = _write(folder / "secrets.json", json.dumps(job.secrets).encode())

    def hook(self) -> SparkSubmitHook:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        config = self._config
        hook = SparkSubmitHook(
            conn_id=config.conn_id,
            conf={
                **_DEFAULT_CONF,
                **self._hidden(),
                **config.conf,
                **self._conf,
                SESSION_CONF: self._token,
            },
            name=config.name,
            jars=config.jars,
            packages=config.packages,
            py_files=",".join([*map(str, self._packed), *([config.py_files] if config.py_files else [])]),
            files=str(self._plan) if self._mode == CLUSTER else None,
            properties_file=config.properties_file,
            deploy_mode=self._mode,  # always, so that no spark-defaults.conf says otherwise
            application_args=self._arguments(),
        )
        self.printed = submit_failures.kept(hook)
        return hook

    def _arguments(self) -> list[str]:
        arguments = ["--plan", str(self._plan), "--digest", self._digest, "--report", self.report]
        arguments += [processes.ARGUMENT, self._token]
        if self._secrets:
            arguments += ["--secrets", str(self._secrets)]
        elif self._mode == CLUSTER and self._config.secrets_conf:
            arguments += ["--secrets-conf", self._config.secrets_conf]
            arguments += ["--secrets-needed"] if self._needs_secrets else []
        return arguments

    def _hidden(self) -> dict[str, str]:
        """The setting by which Spark hides the credentials and what the site hides; empty if it does so anyway."""
        prefix = self._config.secrets_conf
        if not prefix or self._mode == CLIENT or NAMES_CONF in self._config.conf:
            return {}
        file = site_settings.file_of_site(self._config.properties_file, _environment(), self._binary)
        if file is None:
            _tell_unknown(shutil.which(self._binary, path=_environment()["PATH"]) or self._binary, prefix)
        site = site_settings.value_in(file, NAMES_CONF) if file else None
        if not site and re.search(_SECRET_TO_SPARK, prefix):
            return {}
        return {NAMES_CONF: f"{site or _SECRET_TO_SPARK}|{re.escape(prefix)}"}

    def _pack(self, folder: Path, job: SparkJob) -> list[Path]:
        archives = [driver_code()]
        if job.files and (siblings := user_files.siblings_of(job.files[0], job.files[1:])):
            archives.append(user_files.archive(siblings))
        return [_write(folder / user_files.archive_name(content), content) for content in archives]


@cache  # once in a process: a task submits several jobs
def _tell_unknown(program: str, prefix: str) -> None:
    log.warning(
        "It is not known which Spark %s starts, and so whether its spark-defaults.conf sets %s. If it does, give "
        'SparkSubmit(conf={"%s": …}) a pattern for what it hides and for %s…, or set SPARK_HOME.',
        program,
        NAMES_CONF,
        NAMES_CONF,
        prefix,
    )


def driver_code() -> bytes:
    """A zip of the modules that Spark's driver needs. Besides each other they need the standard library and pyspark."""
    files = (file for pattern in _DRIVER_FILES for file in _PACKAGE.glob(pattern))
    return user_files.archive({str(file.relative_to(_PACKAGE.parent)): file for file in files})


def _with_source(job: SparkJob) -> JsonDict:
    """The job's arguments with the transform's source: in cluster mode the driver does not have the file."""
    if not (transform := job.args.get("transform")):
        return job.args
    return {**job.args, "transform": {**transform, "source": user_files.read_source(transform["path"])}}


def _write(path: Path, content: bytes) -> Path:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path


def _master(connection: Connection) -> str:
    host = connection.host or ""
    return host if "://" in host or not connection.port else f"{connection.conn_type}://{host}"


def _deploy_mode(config: SparkSubmit, connection: Connection) -> str:
    """The deploy mode, as spark-submit finds it: an argument, also the one that the hook makes, overrides a setting."""
    return config.deploy_mode or connection.extra.get("deploy-mode") or config.conf.get(MODE_CONF) or CLIENT


def _environment() -> dict[str, str]:
    """This process's environment without Airflow's variables and the marks of a Connect client.

    Airflow's variables hold connections, keys and the address of its database. Spark shows a driver's environment, and
    the transform runs in it. The folder of this Python comes first in the PATH.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    environment.pop("SPARK_REMOTE", None)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return environment
