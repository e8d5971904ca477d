"""README, docs and all other pages: every link, option, command, number and name in them is one that there is."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.cli.cli_config import GroupCommand

import airflow_epochs
from airflow_epochs import DeltaSink, DeltaSource, KafkaSink, KafkaSource, SparkConnect, SqlSink, cli, codes
from airflow_epochs import config as definition
from airflow_epochs.kafka import connection as kafka_connection
from airflow_epochs.ledger import keys
from airflow_epochs.ledger.pruning import PRUNED_MAX
from airflow_epochs.operators import epoch as operators
from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.sinks.delta import due as delta_due
from airflow_epochs.sinks.delta import foreign_changes as delta_foreign
from airflow_epochs.sinks.kafka import checks as kafka_checks
from airflow_epochs.sinks.kafka import marker_topic as kafka_marker_topic
from airflow_epochs.sinks.kafka import producer as kafka_producer
from airflow_epochs.sinks.kafka import rows as kafka_rows
from airflow_epochs.sinks.kafka.repair import MarkerRepair
from airflow_epochs.sinks.sql import postgres as sql_postgres
from airflow_epochs.sinks.sql import sqlite as sql_sqlite
from airflow_epochs.sources.kafka import history as kafka_history
from airflow_epochs.sources.kafka import loss as kafka_loss
from airflow_epochs.sources.kafka import reader as kafka_reader
from airflow_epochs.spark import connect
from airflow_epochs.spark.driver.delta import jobs as delta_jobs
from airflow_epochs.spark.driver.delta import layout as delta_layout
from airflow_epochs.spark.driver.delta import session as delta_session
from airflow_epochs.staged import parquet_batches
from airflow_epochs.transforms import exact_json
from stack.whole import TOPIC
from tests.support.pyproject import PYPROJECT, ROOT

PROVIDER = ROOT / "provider" / "airflow_epochs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: str) -> str:
    """The page in one line, so that it does not matter where its lines end."""
    return " ".join((ROOT / page).read_text().split())


def blocks(page: Path, language: str) -> list[str]:
    return [inspect.cleandoc(f"\n{text}") for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def inline(page: Path) -> list[str]:
    """What stands in backquotes."""
    return [" ".join(code.split()) for code in re.findall(r"`+([^`]+)`+", BLOCK.sub("", page.read_text()))]


# -- links ---------------------------------------------------------------------------------------------------------


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings; and those that are spelled out."""
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings(page))
    made = {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}
    return made | set(re.findall(r'<a id="([^"]+)"', page.read_text()))


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Every file of the project that a page links to, and the anchor there."""
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            yield (page.parent / path).resolve() if path else page, anchor


@of_each_page
def test_every_link_leads_to_a_file_and_an_anchor_that_there_are(page: Path) -> None:
    for there, anchor in links(page):
        assert there.exists(), there
        assert not anchor or anchor in anchors(there), f"{there}#{anchor}"


def test_the_readme_links_to_the_index_and_the_index_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    assert index in {there for there, _ in links(ROOT / "README.md")}
    assert {*PAGES} - {there for there, _ in links(index)} == {index, ROOT / "AGENTS.md"}


@pytest.mark.proof
def test_every_section_that_an_error_names_is_there() -> None:
    told = texts_of_the_source()
    by_anchor = set(re.findall(r"docs/([a-z-]+\.md)#([a-z0-9-]+)", told))
    by_heading = set(re.findall(r"docs/([a-z-]+\.md),? (?:shows in |)'([^']+)'", told))
    assert len(by_anchor) >= 6 and len(by_heading) >= 12
    for page, anchor in by_anchor:
        assert anchor in anchors(ROOT / "docs" / page), f"{page}#{anchor}"
    for page, heading in by_heading:
        assert heading in headings(ROOT / "docs" / page), f"{page}, {heading}"


@cache
def texts_of_the_source() -> str:
    """Every text in the provider's modules, a line each, without what f-strings fill in."""
    trees = [ast.parse(path.read_text()) for path in PROVIDER.rglob("*.py")]
    return "\n".join(said for tree in trees for node in ast.walk(tree) if (said := plain(node)))


def plain(node: ast.AST) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str))


# -- code ----------------------------------------------------------------------------------------------------------

CLASSES: dict[str, Any] = {name: getattr(airflow_epochs, name) for name in airflow_epochs.__all__}
CLASSES["MarkerRepair"] = MarkerRepair


@of_each_page
def test_every_sample_of_python_and_json_can_be_read(page: Path) -> None:
    for sample in blocks(page, "python"):
        ast.parse(sample)
    for sample in blocks(page, "json"):
        json.loads(sample)


def calls(page: Path) -> Iterator[ast.Call]:
    """Of our classes, in samples and in the text."""
    calls = (code.replace("…", "...") for code in inline(page) if re.match(rf"({'|'.join(CLASSES)})\(.*\)$", code))
    for sample in (*blocks(page, "python"), *calls):
        for node in ast.walk(ast.parse(re.sub(r"\((\.\.\.), ", r"(*\1, ", sample))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                yield node


@of_each_page
def test_every_option_in_a_call_is_one_that_the_class_has(page: Path) -> None:
    for call in calls(page):
        assert isinstance(call.func, ast.Name)
        parameters = inspect.signature(CLASSES[call.func.id]).parameters
        assert {option.arg for option in call.keywords} <= parameters.keys(), ast.unparse(call)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("kafka.md", KafkaSource),
        ("delta-source.md", DeltaSource),
        ("delta.md", DeltaSink),
        ("kafka-sink.md", KafkaSink),
        ("sql.md", SqlSink),
    ],
)
def test_every_option_of_source_and_sinks_is_described(page: str, kind: type) -> None:
    path = ROOT / "docs" / page
    described = {word for code in (*inline(path), *blocks(path, "python")) for word in re.findall(r"\w+", code)}
    assert inspect.signature(kind).parameters.keys() - {"name"} <= described


@pytest.mark.parametrize("page", ["delta.md", "delta-source.md", "kafka-sink.md", "kafka.md", "sql.md", "spark.md"])
def test_the_sample_at_the_beginning_of_a_page_makes_what_it_shows(page: str) -> None:
    sample = blocks(ROOT / "docs" / page, "python")[0]
    exec(sample, dict(CLASSES))


def test_the_dag_in_the_readme_has_the_tasks_of_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "/lake")
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "README.md", "python")[0].replace("catchup=False):", "catchup=False) as dag:"), names)
    tasks = ["abort", "commit.orders", "commit.rejected", "complete", "open", "stage", "vote"]
    assert sorted(names["dag"].task_ids) == [f"my_orders.{task}" for task in tasks]


def test_the_dag_in_the_readme_can_be_typed_into_this_checkout_beside_those_that_are_there() -> None:
    """It overwrites no file, takes no DAG's name and no table, and reads a topic that the local stack makes."""
    text = (ROOT / "README.md").read_text()
    dag, transform = blocks(ROOT / "README.md", "python")[:2]
    for file in re.findall(r"^A (?:DAG|transform), say `([\w/]+\.py)`", text, re.MULTILINE):
        assert not (ROOT / file).exists(), file
    shipped = "".join(path.read_text() for path in (ROOT / "dags").glob("*.py"))
    [name] = re.findall(r'DAG\("(\w+)"', dag)
    [path, function] = re.findall(r'transform="(.*):(\w+)"', dag)[0]
    assert f'"{name}"' not in shipped and f"A transform, say `{path}`" in text
    assert f"def {function}(" in transform
    tables = re.findall(r'f"(\{LAKE\}/[\w/]+)"', dag)
    assert len(tables) == 2 and not [table for table in tables if table in shipped]
    assert f'topics=["{TOPIC}"]' in dag
    assert "order_id string" in transform and "order_id string" in (ROOT / "spark_apps" / "orders.py").read_text()


def parser() -> argparse.ArgumentParser:
    """Of what follows ``airflow epochs``."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    [group] = cli.get_cli_commands()
    assert isinstance(group, GroupCommand)
    for command in group.subcommands:
        one = commands.add_parser(command.name)
        for argument in command.args:
            argument.add_to_parser(one)
    return parser


@of_each_page
def test_every_command_of_airflow_epochs_is_one_that_it_takes(page: Path) -> None:
    shown = (code for code in inline(page) if code.startswith("airflow epochs ") and len(code.split()) > 3)
    for command in shown:
        words = shlex.split(re.sub(r"\bEPOCH\b|\{[^}]*\}", "7", command).replace("…", "x"))
        assert parser().parse_args(words[2:]), command


@of_each_page
def test_every_target_of_make_is_one_that_there_is(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = "\n".join((*inline(page), *blocks(page, "sh")))
    for target in re.findall(r"^(?:[A-Z_]+=\d+ )?make ([a-z-]+)", shown, re.MULTILINE):
        assert target in targets


def test_every_record_of_the_ledger_that_a_page_names_is_one_that_there_is() -> None:
    assert keys.__doc__
    for page in PAGES:
        for name in re.findall(r"`((?:<\w+>\.)+\w+(?:\.<n>)?\.json|runs/<\w+>\.json)`", page.read_text()):
            spelled = name.replace("<n>", "<n, 10 digits>").replace("runs/<hash>", "runs/<hash of dag_id + run_id>")
            assert re.sub(r"^<attempt>\.", "", spelled) in keys.__doc__, f"{page.name}: {name}"


def quoted_errors() -> list[str]:
    """What stands beside the codes in docs/kafka.md."""
    return re.findall(r'"([^"]+)"', "\n".join(errors_in_the_table("docs/kafka.md")))


@pytest.mark.proof
def test_the_pages_quote_errors_as_the_source_has_them() -> None:
    """But for the dots, and for what the source fills in."""
    known, quotes = texts_of_the_source(), quoted_errors()
    assert len(quotes) >= 6
    for quote in quotes:
        for part in re.split(r"…|\bX\b|\d|[()]", quote):
            assert part.strip(" .,") in known, quote


def errors_in_the_table(page: str) -> list[str]:
    """The first column of the page's table of errors."""
    table = (ROOT / page).read_text().partition("\n| error | what happened")[2].partition("\n\n")[0]
    return [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(
    ("page", "rows", "chapter"),
    [
        ("docs/kafka.md", 15, codes.SOURCE),
        ("docs/delta-source.md", 8, codes.DELTA_SOURCE),
        ("docs/kafka-sink.md", 11, codes.KAFKA_SINK),
    ],
)
def test_a_table_of_errors_names_codes_that_are_declared_and_all_of_its_chapter(
    page: str, rows: int, chapter: codes.Chapter
) -> None:
    named = [re.findall(r"`(EPOCHS-[A-Z-]+)`", row) for row in errors_in_the_table(page)]
    assert len(named) == rows and all(named)
    wanted = {code.name for code in chapter.codes} - {codes.GROUP_OFFSETS_REFUSED.name}  # which stops nothing
    assert wanted <= {code for row in named for code in row} <= codes.BY_NAME.keys()


def cited_sections(page: str, folder: str) -> Iterator[tuple[str, str]]:
    """Code, and section of the page, of each error below the folder whose remedy cites the page."""
    for path in (PROVIDER / folder).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            given = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
            if isinstance(code := given.get("code"), ast.Attribute) and "remedy" in given:
                remedy = "".join(
                    str(part.value) for part in ast.walk(given["remedy"]) if isinstance(part, ast.Constant)
                )
                for section in re.findall(rf"{page}, '([^']+)'", remedy):
                    yield code.attr, section


def section(page: str, title: str) -> str:
    """The section's text; empty if the page has none of this title."""
    return (ROOT / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.proof
def test_a_section_that_an_error_of_a_database_cites_names_the_code_of_the_error() -> None:
    cited = set(cited_sections("docs/sql.md", "sinks/sql"))
    assert len(cited) >= 9
    for constant, title in sorted(cited):
        assert f"`{getattr(codes, constant).name}`" in section("docs/sql.md", title), (constant, title)


def test_the_codes_on_the_page_of_databases_are_those_of_its_errors_and_link_to_their_sections() -> None:
    linked = re.findall(r"\[`(EPOCHS-[A-Z-]+)`\]\(failures\.md#([a-z-]+)\)", text_of("docs/sql.md"))
    assert len(linked) >= 11
    assert [(name, anchor) for name, anchor in linked if name.lower() != anchor] == []
    folders = [*(PROVIDER / "sinks" / "sql").rglob("*.py"), PROVIDER / "sinks" / "row_flaws.py"]
    raised = {name for path in folders for name in re.findall(r"code=codes\.(\w+)", path.read_text())}
    assert sorted({name for name, _ in linked} - {getattr(codes, name).name for name in raised}) == []
    assert not re.findall(r'\*"[^"]+"\*', text_of("docs/sql.md")), "a quote goes stale; the code does not"


# -- rooms, modules, tests -----------------------------------------------------------------------------------------


def first_column(page: str, below: str) -> list[list[str]]:
    """What stands in backquotes in the first column of the first table below a text: a list for each line."""
    table = (ROOT / page).read_text().partition(below)[2].partition("|---")[2].partition("\n\n")[0]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines()[1:] if line.startswith("| ")]


def test_the_rooms_are_listed_as_make_lint_checks_them() -> None:
    contract = PYPROJECT["tool"]["importlinter"]["contracts"][0]
    assert contract["exhaustive"] and not contract.get("ignore_imports")
    assert first_column("docs/architecture.md", "<!-- rooms -->") == [
        layer.split(" | ") for layer in contract["layers"]
    ]


@pytest.mark.parametrize(("page", "below"), [("CONTRIBUTING.md", "## The map"), ("AGENTS.md", "## Rooms")])
def test_every_room_has_a_place_on_the_short_maps(page: str, below: str) -> None:
    shown = {name.rstrip("/").removesuffix(".py").split("/")[0] for line in first_column(page, below) for name in line}
    rooms = {path.stem for path in PROVIDER.glob("[!_]*") if path.is_dir() or path.suffix == ".py"}
    assert rooms - shown == {"get_provider_info"} and shown < rooms


@pytest.mark.proof
def test_what_is_shipped_to_spark_needs_nothing_but_pyspark() -> None:
    nodes = [
        node for path in (PROVIDER / "spark" / "driver").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    named |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in named} - {*sys.stdlib_module_names} == {"airflow_epochs", "pyspark"}


def test_every_folder_of_tests_is_explained() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {name for line in first_column("CONTRIBUTING.md", "## Tests") for name in line} == folders


@of_each_page
def test_every_module_that_a_page_names_is_one_that_there_is(page: Path) -> None:
    """The changelog also names those that have moved: in the first column of a table."""
    text = "\n".join((*inline(page), *blocks(page, "python")))
    moved = "".join(re.findall(r"^  \| (`[^|]+)\|", page.read_text(), re.MULTILINE))
    no_modules = {*re.findall(r"[\w.]+", moved), "airflow_epochs.ends"}  # a key in Delta's log
    for name in {*re.findall(r"\bairflow_epochs(?:\.[a-z]\w*)+", text)} - no_modules:
        assert resolve_name(name)


# -- numbers and lists ---------------------------------------------------------------------------------------------


def default(kind: Callable[..., Any], option: str) -> Any:
    return inspect.signature(kind).parameters[option].default


def retries(operator: type[operators.EpochOperator]) -> int:
    return int(operator.retry_defaults["retries"])


def seconds(operator: type[operators.EpochOperator], what: str) -> int:
    pause: timedelta = operator.retry_defaults[what]
    return int(pause.total_seconds())


MB = 2**20
OPEN, STAGE, COMMIT = operators.OpenEpochOperator, operators.StageEpochOperator, operators.CommitSinkOperator
SERVER, CLIENT = sql_postgres.SERVER, sql_postgres.CLIENT
NUMBERS = {
    "docs/protocol.md": [f"seconds ago ({definition.WAIT_FOR_OTHERS_S:.0f}; for an epoch"],
    "docs/operations.md": [
        f"after `keep_epochs` epochs ({default(airflow_epochs.EpochPipeline, 'keep_epochs'):,} by default)",
        f"makes up for it, up to {PRUNED_MAX} epochs at a time",
        f"| `wait_for_others` of `EpochPipeline` | {definition.WAIT_FOR_OTHERS_S:.0f} s |",
        f"`open`, `vote`, `abort` {retries(OPEN)}, `stage` {retries(STAGE)}, each after "
        f"{seconds(OPEN, 'retry_delay')} s; `commit.<sink>` and `complete` {retries(COMMIT)}, after "
        f"{seconds(COMMIT, 'retry_delay')} s up to {seconds(COMMIT, 'max_retry_delay') // 60} min",
    ],
    "docs/failures.md": [
        f"`open`, `vote` and `abort` retry {retries(OPEN)} times after {seconds(OPEN, 'retry_delay')} s, `stage` twice",
        f"`commit.<sink>` and `complete` {retries(COMMIT)} times, after {seconds(COMMIT, 'retry_delay')} s and then",
        f"ever longer, up to {seconds(COMMIT, 'max_retry_delay') // 60} minutes",
    ],
    "docs/kafka.md": [
        f"`kafka.max.poll.records` is {kafka_reader.CONSUMER_DEFAULTS['kafka.max.poll.records']} and "
        f"`kafka.fetch.max.wait.ms` {kafka_reader.CONSUMER_DEFAULTS['kafka.fetch.max.wait.ms']} unless set",
        f"(default {kafka_connection.DEFAULT_TIMEOUT_MS})",
        f"in batches larger than {kafka_history.BATCH_BYTES_MAX[-1] // MB} MB, or beyond "
        f"{kafka_history.ANSWER_BYTES_MAX // MB} MB of them per broker",
    ],
    "docs/spark.md": [
        f"`connect_timeout_s` ({default(SparkConnect, 'connect_timeout_s'):.0f})",
        f"at once or after {connect.TCP_TIMEOUT_S:.0f} s",
    ],
    "docs/delta-source.md": [
        *(f'"{option}": "{value}",' for option, value in exact_json.OPTIONS.items()),
        f"max_versions={default(DeltaSource, 'max_versions')}, max_wait={default(DeltaSource, 'max_wait'):.0f}, )",
    ],
    "docs/delta.md": [
        f"sooner when {delta_due.FILES_DUE:,} of them have come",
        f"at most {delta_compaction.WORK_BYTES_MAX // 2**30} GiB and {delta_compaction.FILES_MAX:,} files at a time",
        f"the newest {delta_compaction.ENTRIES_MAX} log entries",
        f"No more than {delta_foreign.ENTRIES_MAX:,} entries are read",
        f"its tasks read at most {delta_jobs.FEW_RECORDS:,} offsets each",
        f"{delta_layout.SHUFFLED['zstd']:.0f} bytes for each byte of a zstd or gzip file, and "
        f"{delta_layout.SHUFFLED_BY_OTHERS} for the other codecs",
        f"of at most {delta_session.ROWS_IN_GROUP:,} rows, or 128 MB before",
        f'target_file_size="{default(DeltaSink, "target_file_size")}", '
        f'compression="{default(DeltaSink, "compression")}", )',
        f"compact_every={default(DeltaSink, 'compact_every')}, "
        f"checkpoint_every={default(DeltaSink, 'checkpoint_every')},",
    ],
    "docs/kafka-sink.md": [
        f'marker_topic="{default(KafkaSink, "marker_topic")}", '
        f"transaction_timeout={default(KafkaSink, 'transaction_timeout')},",
        f"The topic is created with {kafka_marker_topic.PARTITIONS} partitions",
        f"not larger than {kafka_producer.RECORD_BYTES_MAX // MB} MB",
        f"at most {kafka_producer.QUEUE_KBYTES // 1024} MB and {kafka_producer.QUEUE_MESSAGES:,} rows",
        f"at most {parquet_batches.ROWS_MAX:,} and about {parquet_batches.BATCH_BYTES // MB} MB",
        f"header **`{kafka_rows.HEADER}`**",
    ],
    "docs/sql.md": [
        f"at most {parquet_batches.ROWS_MAX:,} rows and about {parquet_batches.BATCH_BYTES // MB} MB",
        f"wait for a lock | {SERVER['lock_timeout'].replace('s', ' s')} |",
        f"not its waiting for the client) | {SERVER['statement_timeout'].replace('h', ' h')} |",
        f"idle in the transaction | {SERVER['idle_in_transaction_session_timeout'].replace('min', ' min')} |",
        f"the answer to COMMIT | {sql_postgres.COMMIT_S / 60:.0f} min |",
        f"connecting; client's keepalives | {CLIENT['connect_timeout']} s;",
        f"waits {sql_sqlite.WAIT_S:.0f} s for one of them",
    ],
}


@pytest.mark.parametrize(("page", "said"), [(page, said) for page, all_said in NUMBERS.items() for said in all_said])
def test_a_number_is_the_one_that_the_code_has(page: str, said: str) -> None:
    assert said in text_of(page)


def test_numbers_in_words_are_those_of_the_code() -> None:
    assert kafka_checks.PATIENT_MS == 10_000 and "records that are ten seconds old" in text_of("docs/kafka-sink.md")
    assert kafka_loss.SHOWN_MAX == 20 and "first twenty, and how many more" in text_of("docs/kafka.md")


def test_the_defaults_of_a_server_that_a_new_table_gets_are_all_listed() -> None:
    listed = re.findall(
        r"`([\w.*]+)`", text_of("docs/delta.md").split("properties that are for every reader: ")[1].split(";")[0]
    )
    got = {re.sub(r"^autoOptimize\.\w+$", "autoOptimize.*", name) for name in delta_session.FOR_EVERY_READER}
    assert set(listed) == got
