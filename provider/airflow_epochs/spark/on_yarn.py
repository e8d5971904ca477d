"""Follows stage jobs that YARN runs in cluster mode: such a job outlives the task that submitted it.

The try's record has the id of the submit before the submit begins, and YARN's application has this id as its tag. So
every later process finds the application again. YARN only says when to look: what was staged is in the driver's
report, which stays below ``work_url`` until the attempt is staged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Connection, Environment, Following, RunsOn
from airflow_epochs.errors import NotApplied, tolerated
from airflow_epochs.model import JsonDict
from airflow_epochs.spark import reports, yarn
from airflow_epochs.spark.driver import failures
from airflow_epochs.spark.driver.plans import StagePlan
from airflow_epochs.spark.yarn import Application, ResourceManager

if TYPE_CHECKING:
    from airflow_epochs.spark.runners import SparkSubmit

log = secrecy.logger(__name__)

SUBMIT_CONF = {
    "spark.yarn.submit.waitAppCompletion": "false",
    # A second driver would write to the places of the first one. Airflow tries again, in fresh places.
    "spark.yarn.maxAppAttempts": "1",
}
TAGS_CONF = "spark.yarn.tags"


def settings(conf: dict[str, str], session_id: str) -> dict[str, str]:
    """The settings of a submit that does not wait, with the tag added to the user's tags."""
    tags = [each for each in (conf.get(TAGS_CONF), yarn.tag_of(session_id)) if each]
    return {**SUBMIT_CONF, TAGS_CONF: ",".join(tags)}


class OnYarn:
    """The stage jobs of one task on YARN. ``following``: how the task waits for their ends. ``last``: the last one."""

    def __init__(self, config: SparkSubmit, env: Environment) -> None:
        self._config, self._env = config, env
        self._running: list[tuple[ResourceManager, str]] = []
        self.following = Following()
        self.last: Application | None = None

    def manager(self, connection: Connection) -> ResourceManager | None:
        """The ResourceManager to ask about stage jobs; None: spark-submit waits for their ends, as for other jobs.

        Raises:
            Refused, NotApplied: The task must wait elsewhere, and there is no ResourceManager to ask.
        """
        if not (addresses := yarn.addresses(connection)):
            if self.following.elsewhere:
                raise yarn.no_address(connection)
            return None
        manager = ResourceManager(addresses)
        try:
            manager.look(yarn.TAG_PREFIX)  # no application has this tag: does it answer?
        except NotApplied as error:
            if self.following.elsewhere:
                raise
            log.warning("spark-submit waits for the application's end, and no later try can go on with it: %s", error)
            return None
        return manager

    def rejoined(self, manager: ResourceManager, session: JsonDict) -> JsonDict | None:
        """The result of a job that was submitted before; None: no job is left to wait for.

        An application that failed is reported to the task that waited for it. Any other one submits anew.

        Raises:
            RunsOn, NotApplied, Refused: As ``result``.
        """
        tag = yarn.tag_of(session["session_id"])
        app = manager.look(tag)
        if tag != self.following.awaited and not self._is_worth_it(app, session):
            return None
        log.info(
            "the task goes on with the application that was submitted before: %s",
            app.place if app else "YARN has forgotten it",
        )
        return self.result(manager, session)

    def result(self, manager: ResourceManager, session: JsonDict) -> JsonDict:
        """Wait for the job's end, here or elsewhere, and return its result.

        Raises:
            RunsOn: The application has not ended, and the task waits elsewhere.
            NotApplied, Refused: The application failed or is not known, or no ResourceManager answers.
        """
        tag = yarn.tag_of(session["session_id"])
        with self._followed(manager, tag):
            app = manager.look(tag) if self.following.elsewhere else manager.wait(tag)
        if app and not app.has_ended:
            raise RunsOn(f"application {app.place}", tag, manager.addresses)
        self.last = app
        return self._result_of(app, manager, session)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """At the end of the block, ask YARN to end the applications that this task had waited for before it."""
        waited_for = list(self._running)
        try:
            yield
        finally:
            for manager, tag in waited_for:
                manager.end_with_tag(tag)

    def release(self, session: JsonDict) -> None:
        """Delete the report of a job whose result is no longer needed."""
        with tolerated("deleting a report of Spark's driver"):
            reports.delete(self._where(session), self._storage())

    @contextmanager
    def followed(self, manager: ResourceManager, session: JsonDict) -> Iterator[None]:
        """Let ``ended`` end the application of a job that is submitted and waited for in the block."""
        with self._followed(manager, yarn.tag_of(session["session_id"])):
            yield

    @contextmanager
    def _followed(self, manager: ResourceManager, tag: str) -> Iterator[None]:
        self._running.append((manager, tag))
        try:
            yield
        except Exception:
            raise
        except BaseException:  # of a timeout of Airflow's, after which ``ended`` finds nothing to end
            manager.end_with_tag(tag)
            raise
        finally:
            self._running.remove((manager, tag))

    def _is_worth_it(self, app: Application | None, session: JsonDict) -> bool:
        """Whether the application runs, or has left a result."""
        if app and not app.has_ended:
            return True
        if app and not app.has_succeeded:
            log.warning("the application %s of an earlier try has failed: %s", app.place, app.end)
            return False
        return "result" in (self._report(session) or {})

    def _result_of(self, app: Application | None, manager: ResourceManager, session: JsonDict) -> JsonDict:
        report = self._report(session)
        if report and "error" in report:
            error = failures.error_from_json(report["error"])
            error.what = secrecy.scrubbed(f"{error.what}{_where(app)}")
            raise error
        if app and not app.has_succeeded:
            raise _ended_badly(app)
        if report is None:
            raise _without_report(app, manager, session)
        return reports.result_of(report, StagePlan.JOB, self._config.conn_id)

    def _report(self, session: JsonDict) -> JsonDict | None:
        return reports.read(self._where(session), self._storage())

    def _where(self, session: JsonDict) -> str:
        return reports.place_of(self._config.work_url or "", session["session_id"])

    def _storage(self) -> Connection | None:
        return self._env.connection(self._config.work_conn_id) if self._config.work_conn_id else None


def _where(app: Application | None) -> str:
    return f" This was application {app.place} on YARN." if app else ""


def _ended_badly(app: Application) -> NotApplied:
    return NotApplied(
        f"The Spark job {StagePlan.JOB!r} failed. Application {app.place} ended on YARN: {app.end[-4000:]}",
        code=codes.SPARK_JOB_FAILED,
        remedy=f"Read the driver's log: `yarn logs -applicationId {app.id}`. Correct the cause, or find out who ended "
        "the application. Then clear the failed task: it submits a new application.",
    )


def _without_report(app: Application | None, manager: ResourceManager, session: JsonDict) -> NotApplied:
    if app:
        return NotApplied(
            f"The Spark job {StagePlan.JOB!r} left no complete report, although application {app.place} has succeeded.",
            code=codes.SPARK_JOB_FAILED,
            remedy="Check that the driver and this task reach the same folder by `work_url` of SparkSubmit. Then clear "
            "the failed task: it submits a new application.",
        )
    return NotApplied(
        f"The ResourceManager at {', '.join(manager.addresses)} knows no application with the tag "
        f"{yarn.tag_of(session['session_id'])}, and the Spark job {StagePlan.JOB!r} has left no report. Either the "
        "ResourceManager has forgotten the application, or spark-submit submits to another cluster.",
        code=codes.SPARK_JOB_FAILED,
        remedy=f"Check that `{yarn.ADDRESS_EXTRA}` in the connection's extra names the cluster of yarn-site.xml. Then "
        "clear the failed task: it submits a new application.",
    )
