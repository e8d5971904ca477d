"""Writes docs/failures.md's tables: every error of the provider, what it says, and what to do about it.

``python scripts/failure_guide.py`` rewrites what stands below the marker; ``--check`` only says whether it is up to
date. The texts are read from the source (``failure_texts``), so none can be forgotten: an error whose text cannot be
read, or that is made in a module without a chapter here, makes the script fail.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from failure_texts import PLAIN, Failure, Unreadable, read_failures

ROOT = Path(__file__).parents[1]
PROVIDER = ROOT / "provider" / "airflow_epochs"
PAGE = ROOT / "docs" / "failures.md"
MARKER = "<!-- Below: written by scripts/failure_guide.py from the source. Change that, not this. -->\n"

CHAPTERS = {
    "Connections and configuration": [
        "hooks/epochs.py",
        "kafka/connection.py",
        "kafka/sasl.py",
        "kafka/tls.py",
        "sources/kafka/source.py",
        "sinks/__init__.py",
        "sinks/delta/sink.py",
        "sinks/delta/modes.py",
        "sinks/kafka/sink.py",
        "sinks/logins.py",
        "sinks/sql/sink.py",
        "config.py",
    ],
    "Disks and object stores (ledger and tables)": [
        "ledger/store.py",
        "storage/options.py",
        "storage/objects.py",
        "storage/local.py",
    ],
    "The ledger": [
        "ledger/ledger.py",
        "ledger/records.py",
        "ledger/signed.py",
        "ledger/writable.py",
        "coordinator/recorded_sinks.py",
    ],
    "Ledger and sinks do not agree": ["coordinator/agreement.py", "sinks/delta/diagnosis.py"],
    "Kafka": [
        "kafka/client.py",
        "sources/kafka/plan.py",
        "sources/kafka/loss.py",
        "sources/kafka/brokers.py",
        "sources/kafka/group.py",
        "sources/kafka/reader.py",
    ],
    "Running the steps: open, decide, complete, abort": [
        "coordinator/task.py",
        "coordinator/coordinator.py",
        "coordinator/opening.py",
        "coordinator/backfill.py",
        "coordinator/staging.py",
        "operators/epoch.py",
    ],
    "The transform": [
        "operators/transform_file.py",
        "spark/driver/user_files.py",
        "spark/driver/transform.py",
        "spark/driver/stage.py",
    ],
    "Spark": [
        "spark/connect_address.py",
        "spark/connect.py",
        "spark/kafka_credentials.py",
        "spark/submit.py",
        "spark/driver/failures.py",
        "spark/driver/jobs.py",
        "spark/driver/kafka_read.py",
        "spark/driver/main.py",
    ],
    "Delta: before the decision": [
        "sinks/delta/target.py",
        "delta/table.py",
        "sinks/delta/whereabouts.py",
        "sinks/delta/stage.py",
        "sinks/delta/checks.py",
        "sinks/delta/other_pipelines.py",
        "sinks/delta/upkeep.py",
    ],
    "Delta: commit, after the decision": [
        "coordinator/restaging.py",
        "sinks/delta/publish.py",
        "sinks/delta/commit.py",
        "sinks/delta/lost_files.py",
        "sinks/delta/spark_commit.py",
    ],
    "Delta: upkeep, after an epoch is complete": [
        "sinks/delta/compaction.py",
        "sinks/delta/rewrite.py",
        "sinks/delta/references.py",
    ],
    "Sinks of every kind": ["sinks/participant.py"],
    "Staged rows": [
        "staged/staging.py",
        "delta/log.py",
        "staged/checks.py",
        "staged/promised.py",
        "staged/table.py",
        "staged/owner.py",
    ],
    "The Kafka sink": [
        "sinks/kafka/cluster.py",
        "sinks/kafka/checks.py",
        "sinks/kafka/rows.py",
        "sinks/kafka/committed_records.py",
        "sinks/kafka/marker_partitions.py",
        "sinks/kafka/marker.py",
        "sinks/kafka/marker_topic.py",
        "sinks/kafka/diagnosis.py",
        "sinks/kafka/repair.py",
        "sinks/kafka/publish.py",
        "sinks/kafka/participant.py",
    ],
    "SQL databases": [
        "sinks/row_flaws.py",
        "sinks/sql/database.py",
        "sinks/sql/postgres.py",
        "sinks/sql/sqlite.py",
        "sinks/sql/table.py",
        "sinks/sql/values.py",
        "sinks/sql/load.py",
        "sinks/sql/joint.py",
        "sinks/sql/diagnosis.py",
        "sinks/sql/marker.py",
        "sinks/sql/participant.py",
    ],
    "Reading at one epoch": ["read.py"],
    "At the command line": ["cli.py", "coordinator/admin.py"],
}
"""What the reader was doing: the modules whose errors he then sees."""

IMPORT_ERRORS = {
    "names.py": "all names",
    "config.py": "`EpochPipeline`",
    "pipeline.py": "`EpochPipeline`",
    "operators/epoch.py": "`EpochPipeline`",
    "sinks/delta/sink.py": "`DeltaSink`",
    "sinks/delta/modes.py": "`DeltaSink`",
    "sinks/kafka/sink.py": "`KafkaSink`",
    "sinks/sql/sink.py": "`SqlSink`",
    "kafka/topics.py": "`KafkaSource` or `KafkaSink`",
    "sources/kafka/config.py": "`KafkaSource`",
    "sources/kafka/starting.py": "`KafkaSource`",
    "spark/runners.py": "`SparkSubmit`",
}
"""Modules whose ValueErrors reach the author of a DAG: what raises them."""

WITHIN = {
    "ledger/codec.py": "the ledger's 'cannot be trusted'",
    "ledger/records.py": "the ledger's 'cannot be trusted'",
    "model.py": "the ledger's 'cannot be trusted' and 'contradict each other'",
    "sinks/kafka/marker_partitions.py": "'The record … does not say which partition is the sink's'",
    "sinks/kafka/marker.py": "'The newest record … is no epoch marker'",
    "delta/log.py": "'The statistics of the staged file … are missing or not strict JSON'",
    "spark/driver/transform.py": "a plan that the provider itself wrote",
    "spark/driver/wire.py": "a plan or a report that the provider itself wrote",
}
"""Modules whose ValueErrors nobody sees by themselves: the error that tells of them."""

RELAYS = {
    ("spark/driver/main.py", "error_from_json"),
    ("operators/epoch.py", "_executed"),
    ("cli.py", "_refusing"),
}
"""Functions that only pass on an error whose text is read where it was made."""


def failures(provider: Path = PROVIDER) -> list[Failure]:
    """Every error of the provider. Raises Unreadable for one that cannot be told."""
    found = read_failures(provider, RELAYS)
    for failure in found:
        if failure.kind == "ValueError":
            known = failure.module in IMPORT_ERRORS or failure.module in WITHIN
        else:
            known = any(failure.module in modules for modules in CHAPTERS.values())
            if not failure.remedy.strip() and failure.kind not in PLAIN:
                raise Unreadable(f"{failure.where}: it does not say what to do")
        if not known:
            raise Unreadable(f"{failure.where}: its module has no chapter in scripts/failure_guide.py")
    return found


def tables(found: Iterable[Failure]) -> str:
    """All that stands below the marker."""
    found = list(found)
    lines: list[str] = []
    for title, modules in CHAPTERS.items():
        rows = [
            f"| {failure.kind} | {_cell(failure.what)} | {_cell(_sentence(failure.remedy))} |"
            for module in modules
            for failure in found
            if failure.module == module and failure.kind != "ValueError"
        ]
        lines += ["", f"## {title}", "", "| kind | what happened | what to do |", "|---|---|---|", *dict.fromkeys(rows)]
    return "\n".join([*lines, *_import_errors(found)]) + "\n"


def _import_errors(found: list[Failure]) -> Iterator[str]:
    yield from (
        "",
        "## DAG import errors",
        "",
        "`ValueError`s of the constructors. Airflow shows them as the DAG's import error, and the DAG does not run",
        "until the file is corrected; epochs in flight wait. Of templated arguments and of a run's params the same",
        "texts come when the task runs, after *The Kafka source is not configured right*; that of a pipeline without",
        "sinks comes when `open` runs.",
        "",
        "| where | what it says |",
        "|---|---|",
    )
    rows = [
        f"| {owner} | {_cell(failure.what)} |"
        for module, owner in IMPORT_ERRORS.items()
        for failure in found
        if failure.kind == "ValueError" and failure.module == module
    ]
    yield from dict.fromkeys(rows)


def _sentence(remedy: str) -> str:
    """A remedy as it stands in the table; an error that has none says it in its text."""
    return (remedy[:1].upper() + remedy[1:]) or "As it says."


def _cell(text: str) -> str:
    """Text for one cell of a Markdown table; what stands between backticks is code, and stays."""
    plain = " ".join(text.replace("|", "\\|").split())
    parts = plain.split("`")
    return "`".join(part if odd % 2 else re.sub(r"([<*\[\]])", r"\\\1", part) for odd, part in enumerate(parts))


def updated(page: str, provider: Path = PROVIDER) -> str:
    """The page as it should be."""
    head, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER.strip()}")
    return head + marker + tables(failures(provider))


def main(argv: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    try:
        wanted = updated(page)
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 1
    if argv == ["--check"]:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
