"""The program that spark-submit runs: it reads a job's plan from a file, and writes a report to a file or folder.

    main.py --plan PLAN --digest SHA256 --report WHERE --session TOKEN
        [--secrets FILE | --secrets-conf PREFIX [--secrets-needed]]

The digest proves that the plan is the one that the task wrote. Credentials come from a file, which only its owner can
read and which this program deletes after the read, or from settings on the cluster. They never come as arguments or as
settings of the submit, because Spark shows those in its UI and event log.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.spark.driver import failures, jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JsonDict = dict[str, Any]

log = secrecy.logger("airflow_epochs.spark.driver")

STARTING = "The start of Spark"
"""How the error begins if Spark did not start."""
_TIDYING_S = 10.0
"""Seconds that handlers of the process's end may take, among them handlers of the user's libraries."""


def main(argv: Sequence[str]) -> int:
    """Run the job; return the exit code. 0: the report holds the job's result; 1: it holds the error."""
    given = _parser().parse_args(argv)
    from pyspark.sql import SparkSession

    failures.quiet_pyspark()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("airflow_epochs").setLevel(logging.INFO)
    try:
        spark = SparkSession.builder.getOrCreate()
    except Exception as failure:
        _leave_without_spark(given.report, failures.of_spark(failure, STARTING))
        raise
    try:
        report = _report(spark, given)
        _leave(spark, given.report, report)
    finally:
        spark.stop()
    if error := report.get("error"):
        print(f"{error['type']}: {error['what']}", file=sys.stderr)
    return 1 if "error" in report else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name in ("plan", "digest", "report", "session"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--secrets")
    parser.add_argument("--secrets-conf")
    parser.add_argument("--secrets-needed", action="store_true")
    return parser


def _report(spark: SparkSession, given: argparse.Namespace) -> JsonDict:
    secrets: dict[str, str] = {}
    doing = "The Spark job"
    args: JsonDict = {}
    try:
        secrets = _secrets(spark, given)
        secrecy.keep_options(secrets)
        plan = _plan(given.plan, given.digest)
        doing, args = f"The Spark job {plan['kind']!r}", plan["args"]
        return {"result": jobs.run(spark, plan["kind"], args, secrets)}
    except Exception as error:
        return {"error": failures.error_as_json(failures.of_spark(error, doing, args))}


def _plan(where: str, digest: str) -> JsonDict:
    from pyspark import SparkFiles

    # In cluster mode the plan travels with --files. YARN puts it into the working folder, others where SparkFiles says.
    name = Path(where).name
    found = [path for path in (Path(where), Path(name), Path(SparkFiles.get(name))) if path.is_file()]
    content = found[0].read_bytes() if found else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotApplied(
            f"Spark's driver did not get the plan {where} that the task wrote: the file is missing or changed.",
            code=codes.SPARK_JOB_FAILED,
            remedy="Clear the failed task: it writes a new plan.",
        )
    plan: JsonDict = json.loads(content)
    return plan


def _secrets(spark: SparkSession, given: argparse.Namespace) -> dict[str, str]:
    if given.secrets:
        path = Path(given.secrets)
        secrets: dict[str, str] = json.loads(path.read_bytes())
        path.unlink()
        return secrets
    if not given.secrets_conf:
        return {}
    found = _settings_below(spark, given.secrets_conf)
    if not found and given.secrets_needed:
        raise Refused(
            f"No setting of the Spark application begins with {given.secrets_conf!r}, the `secrets_conf` of "
            "SparkSubmit.",
            code=codes.SPARK_CONNECTION,
            remedy=f"Put Kafka's credentials on the cluster as settings '{given.secrets_conf}kafka.sasl.jaas.config' "
            "and so on, or correct `secrets_conf`. Then clear the failed task.",
        )
    return found


def _settings_below(spark: SparkSession, prefix: str) -> dict[str, str]:
    conf = dict(spark.sparkContext.getConf().getAll())
    return {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)}


def _leave_without_spark(where: str, error: EpochError) -> None:
    """Write the report of a Spark that did not start. At a URL only Spark could write it."""
    if "://" not in where:
        _write(where, json.dumps({"error": failures.error_as_json(error)}))


def _leave(spark: SparkSession, where: str, report: JsonDict) -> None:
    """Write the report into a local file, or as text into a folder at a URL that the whole cluster reaches."""
    text = json.dumps(report)
    if "://" not in where:
        _write(where, text)
        return
    spark.createDataFrame([(text,)], "report string").coalesce(1).write.mode("overwrite").text(where)


def _write(where: str, text: str) -> None:
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    Path(where).write_text(text, encoding="utf-8")


def to_the_end(argv: Sequence[str]) -> NoReturn:
    """Run the job, and end this process, whatever the user's code left running: the task waits for the process."""
    code = 1
    try:
        code = main(argv)
    except BaseException:  # a wrong argument, or a report that cannot be written
        with suppress(ValueError):  # the user may have closed standard error
            traceback.print_exc()
    with suppress(ValueError):
        _tell_of_threads()
    _end(code)


def _tell_of_threads() -> None:
    running = [each.name for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if running:
        log.warning("The job is done. Threads that still run end with it, unfinished: %s", ", ".join(running))


def _end(code: int) -> NoReturn:
    """End this process as Python does, but wait for no thread, and for no child process longer than ``_TIDYING_S``."""
    deadline = threading.Timer(_TIDYING_S, os._exit, [code])
    deadline.daemon = True
    deadline.start()
    _flush()
    atexit._run_exitfuncs()  # temporary files, profiles, and what libraries still have to send
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the user may have closed it
            stream.flush()


if __name__ == "__main__":
    to_the_end(sys.argv[1:])
