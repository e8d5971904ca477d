"""``airflow epochs check`` finds what a run would find, and changes nothing: a DAG file, Delta tables on a disk."""

from __future__ import annotations

import errno
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import DeltaSink, DeltaSource, SparkConnect, StateTable, codes
from airflow_epochs.commands import check
from airflow_epochs.contracts import Sink, SparkJob
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection.checking import CheckedPipeline, looks_at
from airflow_epochs.coordinator.looks import Checked, CheckResult, made
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver import failures, readiness, transform
from airflow_epochs.spark.driver.plans import TransformFile
from airflow_epochs.spark.driver.readiness import CheckOutcome, ReadOutcome, ReportedError
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support import airflow_home, remedies
from tests.support.airflow_harness import initialised
from tests.support.faults_world import DiskWorld, start
from tests.support.table_lab import TableLab
from tests.support.table_staging import WithoutSpark

DAG = """
    from airflow.sdk import DAG
    from airflow_epochs import DeltaSink, DeltaSource, EpochPipeline, SparkConnect

    def pipeline(name, transform="{folder}/app.py:kept", table=None, sink=None, **options):
        usual = dict(mode="upsert", keys=["id"], storage_conn_id="lake")
        EpochPipeline(
            name,
            source=DeltaSource("{folder}/input"),
            transform=transform,
            sinks=[sink or DeltaSink("out", table or "{folder}/" + name, **(usual | options))],
            spark=SparkConnect("spark"),
        )

    with DAG("orders_dag", schedule=None, max_active_runs=1):
        pipeline("orders"){more}

    with DAG("empty_dag", schedule=None):
        pass
"""
REAL_RUNNER = SparkConnect.runner
MISMATCH = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.12, PySpark"


@dataclass
class AnsweringSpark:
    """A Spark that has everything, loads transforms, and reads a record; ``flaws`` are what it lacks."""

    conn_id: str
    flaws: dict[str, ReportedError] = field(default_factory=dict)

    def new_session(self) -> JsonDict:
        return {"kind": "spark_connect", "conn_id": self.conn_id}

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if job.kind == readiness.ReadPlan.JOB:
            return as_json(ReadOutcome(records=1))
        flaws = dict(self.flaws)
        if told := job.args["transform"]:
            try:
                with transform.loaded(from_json(TransformFile, told)):
                    pass
            except Refused as error:
                flaws[readiness.TRANSFORM] = ReportedError(**failures.error_as_json(error))
        workers = None if readiness.WORKERS in flaws else "3.12.1"
        return as_json(CheckOutcome(spark="4.0.1", pyspark="4.0.1", python="3.12.1", workers=workers, flaws=flaws))


@dataclass
class World:
    """A DAG file, its input, and what its command says."""

    folder: Path
    patch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    flaws: dict[str, ReportedError] = field(default_factory=dict)

    def connect(self, conn_id: str, conn_type: str, **fields: Any) -> None:
        self.patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": conn_type, **fields}))

    def ledger_at(self, folder: str, **extra: Any) -> None:
        extra = {"ledger_root": str(self.folder / folder), **extra}
        self.connect("epochs_default", "epochs", password="k" * 32, extra=extra)

    def dag(self, more: str = "", file: str = "orders_dag") -> None:
        text = dedent(DAG).format(folder=self.folder, more=f"\n    {more}" if more else "")
        Path(airflow_home.DAGS, f"{file}.py").write_text(text)

    def app(self, text: str) -> None:
        (self.folder / "app.py").write_text(text)

    def said(self, output: str = "json", dag_id: str = "orders_dag") -> tuple[int, str]:
        """Exit code, and what the command has printed, errors included."""
        try:
            check.show_checks(Namespace(dag_id=dag_id, output=output, verbose=False))
            code = 0
        except SystemExit as ended:
            code = int(str(ended.code))
        out, err = self.capsys.readouterr()
        return code, out or err

    def rows(self, pipeline: str = "orders") -> dict[str, dict[str, Any]]:
        return {
            f"{row['of']}, {row['check']}": row for row in json.loads(self.said()[1]) if row["pipeline"] == pipeline
        }

    def failed(self) -> dict[str, Any]:
        """The one check that failed; the exit code says so."""
        code, told = self.said()
        [row] = [row for row in json.loads(told) if row["result"] == "failed"]
        assert code == 1
        return dict(row)

    def not_checked(self) -> set[str]:
        return {name for name, row in self.rows().items() if row["result"] == "not checked"}

    def require_green(self) -> None:
        code, told = self.said()
        assert (code, {row["result"] for row in json.loads(told)}) == (0, {"ok"}), told

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in self.folder.rglob("*")}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    """A pipeline that lacks nothing."""
    initialised()
    monkeypatch.setenv("COLUMNS", "300")
    # DAG files of the same name, size and second would pass for each other
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    world = World(tmp_path, monkeypatch, capsys)
    monkeypatch.setattr(SparkConnect, "runner", lambda spark, env: AnsweringSpark(spark.conn_id, world.flaws))
    (tmp_path / "ledger").mkdir()
    world.ledger_at("ledger")
    world.connect("spark", "spark_connect", host="localhost")
    world.connect("lake", "generic")
    world.app("def kept(batch, epoch):\n    return batch\n")
    for table in ("input", "orders"):
        write_deltalake(str(tmp_path / table), pa.table({"id": [1]}))
    world.dag()
    yield world
    for file in airflow_home.DAGS.glob("*.py"):
        file.unlink()


@pytest.mark.proof
def test_a_good_pipeline_is_in_order_in_every_part_and_nothing_is_changed(world: World) -> None:
    before = world.files()
    rows = world.rows()
    assert {row["result"] for row in rows.values()} == {"ok"}
    assert list(rows) == [
        *("ledger, connection", "ledger, store", "ledger, signatures", "ledger, owner", "ledger, epochs"),
        *("transform, file", "transform, code", "source, input"),
        *("spark, connection spark", "spark, session", "spark, delta jars", "spark, python"),
        *(
            "transform, import",
            "spark, input",
            "sink out, connection lake",
            "sink out, marker",
            "sink out, ready",
            "sink out, write",
        ),
    ]
    assert rows["ledger, signatures"]["details"] == "Records are signed."
    assert rows["spark, session"]["details"] == "Spark 4.0.1; pyspark 4.0.1 with Python 3.12.1 asks it."
    assert world.files() == before, "no file and no folder is new, changed or gone"
    assert DeltaTable(str(world.folder / "orders")).version() == 0
    assert Ledger(LocalStore(world.folder / "ledger"), "orders").identity() is None


def run_before(world: World) -> None:
    """The DAG had a pipeline `before`, which read the same table, and wrote to the table of `orders`."""
    lab = TableLab(world.folder, spark=WithoutSpark())
    source, sink = DeltaSource(str(world.folder / "input"), max_wait=0), DeltaSink("out", str(world.folder / "orders"))
    lab.run(pipeline=replace(lab.pipeline, name="before", dag_id="orders_dag", source=source, sinks=(sink,)))


def test_a_renamed_pipeline_is_told_of_and_is_green_under_its_old_name(world: World) -> None:
    run_before(world)
    failed = world.failed()
    assert (failed["of"], failed["check"], failed["code"]) == ("source", "input", "EPOCHS-PIPELINE-RENAMED")
    assert failed["remedy"].startswith("Give the pipeline its old name 'before' again in the DAG")
    world.app("def kept(batch, epoch):\n    return batch\n")
    world.dag('pipeline("before")')
    assert world.rows()["source, input"]["result"] == "ok", "both are in the DAG"


def test_the_table_ends_with_a_sentence_and_json_has_real_types(world: World) -> None:
    code, told = world.said("table")
    assert code == 0 and told.rstrip().endswith("DAG orders_dag: 18 of 18 checks are in order. Nothing was changed.")
    assert json.loads(world.said("json")[1])[1] | {"details": ""} == {
        "pipeline": "orders",
        "of": "ledger",
        "check": "store",
        "where": "epochs_default",
        "result": "ok",
        "details": "",
        "code": None,
        "cause": None,
        "remedy": None,
    }


def test_a_missing_ledger_connection_is_told_with_what_rests_on_it_and_green_once_it_is_there(world: World) -> None:
    world.patch.delenv("AIRFLOW_CONN_EPOCHS_DEFAULT")
    failed = world.failed()
    assert (failed["of"], failed["check"], failed["code"]) == ("ledger", "connection", "EPOCHS-CONNECTION-MISSING")
    assert "AIRFLOW_CONN_EPOCHS_DEFAULT" in failed["remedy"] and failed["remedy"].endswith(
        "Then run the command again."
    )
    rows = world.rows()
    assert rows["sink out, marker"]["details"] == (
        "It rests on another check, which did not succeed: ledger, connection."
    )
    assert rows["transform, import"]["result"] == rows["spark, delta jars"]["result"] == "ok"
    world.ledger_at("ledger")
    world.require_green()


@pytest.mark.proof
def test_a_ledger_folder_that_is_missing_is_created_only_as_the_remedy_says(world: World) -> None:
    world.ledger_at("ledgre")
    failed = world.failed()
    assert failed["code"] == "EPOCHS-LEDGER-FOLDER-MISSING" and "set `create` to true" in failed["remedy"]
    assert not (world.folder / "ledgre").exists()
    world.ledger_at("ledgre", create=True)
    world.require_green()


def test_a_ledger_that_cannot_be_written_is_found(world: World) -> None:
    def read_only(self: LocalStore, key: str, value: bytes) -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    with world.patch.context() as context:
        context.setattr(LocalStore, "put_if_absent", read_only)
        failed = world.failed()
    assert (failed["check"], failed["code"]) == ("store", "EPOCHS-LEDGER-NOT-WRITTEN")
    assert "make the disk writable again" in failed["remedy"]
    world.require_green()


@pytest.mark.proof
def test_a_pipeline_of_another_dag_is_handed_over_by_the_command_that_the_check_names(world: World) -> None:
    world.patch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", "")
    world.connect("epochs_default", "epochs", extra={"ledger_root": str(world.folder / "ledger")})
    ledger = Ledger(LocalStore(world.folder / "ledger"), "orders")
    ledger.register("other_dag", at="now", writer="w")
    failed = world.failed()
    assert failed["code"] == "EPOCHS-PIPELINE-OF-OTHER-DAG"
    handed, _, renamed = failed["remedy"].partition("Only if this is another pipeline")
    assert "`airflow epochs takeover orders --dag-id orders_dag --why …`" in handed and "another name" not in handed
    assert "another name, and sinks of its own: it begins at `starting`" in renamed
    remedies.ordered(
        world.folder / "ledger", "epochs", "takeover", "orders", "--dag-id", "orders_dag", "--why", "it moves"
    )
    world.require_green()


@pytest.mark.parametrize(
    ("text", "check_of", "code", "cause"),
    [
        (
            "def keep(batch, epoch): ...",
            "import",
            codes.TRANSFORM_MISSING,
            "no function 'kept'. Its functions are: keep",
        ),
        ("import not_there\ndef kept(b, e): ...", "import", codes.TRANSFORM_BROKEN, "No module named 'not_there'"),
        (None, "file", codes.TRANSFORM_MISSING, "There is no transform file"),
        ("def kept(", "file", codes.TRANSFORM_BROKEN, "app.py"),
    ],
    ids=["function", "module", "file", "syntax"],
)
def test_a_transform_that_cannot_be_used_is_found_and_all_else_is_checked(
    world: World, text: str | None, check_of: str, code: Any, cause: str
) -> None:
    (world.folder / "app.py").unlink()
    if text:
        world.app(text)
    failed = world.failed()
    assert (failed["of"], failed["check"], failed["code"]) == ("transform", check_of, code.name)
    assert cause in failed["cause"]
    left = {"transform, code", "transform, import"} if check_of == "file" else set()
    assert world.not_checked() == left
    world.app("def kept(batch, epoch): ...")
    world.require_green()


def test_a_key_that_the_table_lacks_is_found_and_green_once_the_table_has_it(world: World) -> None:
    write_deltalake(str(world.folder / "orders"), pa.table({"nr": [1]}), mode="overwrite", schema_mode="overwrite")
    failed = world.failed()
    assert (failed["of"], failed["check"], failed["code"]) == ("sink out", "ready", "EPOCHS-DELTA-ROWS-UNFIT")
    assert failed["remedy"].startswith("Correct `keys` of the sink, or add the column to the table.")
    write_deltalake(str(world.folder / "orders"), pa.table({"id": [1]}), mode="append", schema_mode="merge")
    world.require_green()


def test_a_missing_connection_of_a_sink_is_told_of_that_sink_alone(world: World) -> None:
    world.patch.delenv("AIRFLOW_CONN_LAKE")
    assert world.failed()["check"] == "connection lake"
    assert world.not_checked() == {"sink out, marker", "sink out, ready", "sink out, write"}


@pytest.mark.proof
def test_an_input_that_is_not_there_is_found(world: World) -> None:
    (world.folder / "input").rename(world.folder / "elsewhere")
    failed = world.failed()
    assert (failed["of"], failed["check"]) == ("source", "input") and "input" in failed["cause"]
    assert world.not_checked() == {"spark, input"}
    (world.folder / "elsewhere").rename(world.folder / "input")
    world.require_green()


def test_a_spark_server_that_does_not_answer_is_found_and_all_else_is_checked(world: World) -> None:
    world.patch.setattr(SparkConnect, "runner", REAL_RUNNER)
    world.connect("spark", "spark_connect", host="localhost", port=1)
    failed = world.failed()
    assert (failed["check"], failed["code"], failed["where"]) == ("session", "EPOCHS-SPARK-UNREACHABLE", "spark")
    resting = {"spark, delta jars", "spark, python", "spark, input", "transform, import"}
    assert world.not_checked() == resting


def test_other_pythons_in_sparks_workers_matter_only_to_a_transform_that_needs_them(world: World) -> None:
    mixed = failures.of_spark(ValueError(MISMATCH), "The look at 'python'")
    world.flaws[readiness.WORKERS] = ReportedError(**failures.error_as_json(mixed))
    assert "could not run one: EPOCHS-SPARK-PYTHON-MIXED" in world.rows()["spark, python"]["details"]
    world.require_green()
    (world.folder / "helper.py").write_text("from pyspark.sql.functions import udf\n")
    world.app("import helper\ndef kept(batch, epoch): ...")
    failed = world.failed()
    assert (failed["check"], failed["code"]) == ("python", "EPOCHS-SPARK-PYTHON-MIXED")


@pytest.mark.proof
def test_all_pipelines_of_a_dag_are_checked_whatever_is_wrong_with_one_of_them(world: World) -> None:
    world.dag("pipeline('more', transform='nowhere.py:f'); pipeline('asked', storage_conn_id='{{ params.lake }}')")
    code, told = world.said()
    failed = [(row["pipeline"], row["of"], row["code"]) for row in json.loads(told) if row["result"] == "failed"]
    assert code == 1
    assert failed == [
        ("more", "transform", "EPOCHS-TRANSFORM-MISSING"),
        ("asked", "definition", "EPOCHS-TEMPLATE-NEEDS-RUN"),
    ]
    assert {row["result"] for row in world.rows("orders").values()} == {"ok"}
    _, table = world.said("table")
    assert "transform, file: EPOCHS-TRANSFORM-MISSING: There is no transform file 'nowhere.py'" in table
    assert "Where: pipeline more\nWhat to do: Give `transform=` an absolute path" in table
    assert "checks failed. Not checked: " in table


@pytest.mark.parametrize(
    ("dag_id", "sentence"),
    [
        ("nowhere_dag", "This installation has no DAG 'nowhere_dag'; these DAGs have a pipeline: orders_dag."),
        ("empty_dag", "DAG 'empty_dag' has no epoch pipeline; these DAGs have a pipeline: orders_dag."),
    ],
)
def test_an_unknown_dag_or_one_without_a_pipeline_ends_with_what_to_do_and_exit_code_2(
    world: World, dag_id: str, sentence: str
) -> None:
    told = f"EPOCHS-DAG-UNKNOWN: {sentence}\nWhat to do: {codes.DAG_UNKNOWN.remedy}\n"
    assert world.said(dag_id=dag_id) == (2, told)


def test_the_import_error_of_the_dags_file_is_told_with_exit_code_2(world: World) -> None:
    world.dag("print('printed'); raise RuntimeError('the moon is full')")
    code, told = world.said()
    assert code == 2
    assert "EPOCHS-DAG-NOT-IMPORTED: DAG 'orders_dag' is in a file that cannot be imported." in told
    assert "RuntimeError: the moon is full" in told and f"{airflow_home.DAGS}/orders_dag.py" in told
    assert "no DAG 'nowhere_dag'" in world.said(dag_id="nowhere_dag")[1], "that file does not name it"


# -- what the ledger says -------------------------------------------------------------------------------------------


def found(disk: DiskWorld, *more: Sink) -> dict[str, Checked]:
    """The checks of a pipeline whose Spark does not answer."""
    task = disk.coordinator().task
    task.pipeline = replace(task.pipeline, sinks=(*task.pipeline.sinks, *more))
    subject = CheckedPipeline(
        pipeline=task.pipeline,
        env=task.env,
        ledger_conn_id="ledger",
        ledger=lambda: disk.ledger,
        probe=lambda: "",
        keys=lambda: "",
        transform=lambda: task.pipeline.transform,
    )
    return {f"{each.about}, {each.check}": each for each in made(disk.name, looks_at(subject))}


def results(disk: DiskWorld) -> set[tuple[str, CheckResult]]:
    """All that is not in order, apart from Spark."""
    return {
        (name, each.result)
        for name, each in found(disk).items()
        if each.result is not CheckResult.OK and not name.startswith("spark") and name != "transform, import"
    }


@pytest.mark.parametrize(
    "phase", ["open.landed", "stage.done", "decision.landed", "committed.audit", "committed.orders"]
)
def test_an_unfinished_epoch_is_information_and_no_fault(tmp_path: Path, phase: str) -> None:
    disk = start(DiskWorld(tmp_path))
    disk.crash_at(phase)
    before = disk.snapshot()
    told = found(disk)["ledger, epochs"]
    assert told.result is CheckResult.OK
    assert "Epoch 2 is" in told.details and "opened by" in told.details
    assert results(disk) == set()
    assert disk.snapshot() == before


def test_a_sink_that_does_not_show_what_the_ledger_says_is_found_with_the_error_of_open(tmp_path: Path) -> None:
    disk = start(DiskWorld(tmp_path))
    disk.table("audit").rename(tmp_path / "elsewhere")
    told = found(disk)
    assert results(disk) == {("sink audit, marker", CheckResult.FAILED)}
    opened = disk.run(2)
    error = told["sink audit, marker"].error
    assert error and opened and str(error).split("\n")[0] == str(opened).split("\n")[0]


@pytest.mark.parametrize(
    ("schema", "told"),
    [("page string, n int", "n is bigint there and int"), ("page string, N bigint", "the column 'N', which is 'n'")],
)
def test_a_state_whose_column_has_another_type_or_name_is_found_with_the_error_of_open(
    tmp_path: Path, schema: str, told: str
) -> None:
    disk, old = DiskWorld(tmp_path), str(tmp_path / "old")
    disk.produce(4)
    write_deltalake(old, pa.table({"page": ["a"], "n": [1]}))
    right, wrong = (
        StateTable("seen", str(tmp_path / "seen"), schema=each, keys=["page"], initial=old)
        for each in ("page string, n bigint", schema)
    )
    assert found(disk, right)["state, versions"].result is CheckResult.OK
    error = found(disk, wrong)["state, versions"].error
    assert isinstance(error, Refused) and error.code is codes.STATE_SCHEMA and told in error.what
    task = disk.coordinator().task
    task.pipeline = replace(task.pipeline, sinks=(*task.pipeline.sinks, wrong))
    with pytest.raises(Refused) as refused:
        Coordinator(task).open(disk.run_of(1))
    assert refused.value.what == error.what and disk.ledger.open_record(1, 1) is None


def test_input_that_is_gone_is_found_with_the_error_of_open(tmp_path: Path) -> None:
    disk = start(DiskWorld(tmp_path))
    for file in Path(disk.source.folder).iterdir():
        file.write_text("")
    assert results(disk) == {("source, input", CheckResult.FAILED)}
    assert found(disk)["source, input"].error


@pytest.mark.proof
def test_code_that_must_be_acknowledged_is_found_until_the_command_is_typed(tmp_path: Path) -> None:
    disk = DiskWorld(tmp_path, code="a" * 64, on_code_change="stop")
    start(disk)
    changed = DiskWorld(tmp_path, code="b" * 64, on_code_change="stop")
    told = found(changed)["transform, code"]
    assert told.error and told.error.code is codes.CODE_NOT_ACKNOWLEDGED
    remedies.typed(tmp_path / "ledger", told.error, "acknowledge-code")
    assert results(changed) == set()


# -- places that can never be written ---------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.parametrize(
    ("table", "says"),
    [("afile/lake/orders", "afile is not a folder"), ("/proc/nowhere/x", "/proc takes no new folders")],
    ids=["below a file", "in a file system without folders of users"],
)
def test_a_table_that_can_never_be_written_fails_until_its_path_is_correct(world: World, table: str, says: str) -> None:
    (world.folder / "afile").write_text("precious")
    world.dag(f'pipeline("audit", table="{world.folder / table}")')
    row = world.failed()
    assert (row["pipeline"], row["of"], row["check"]) == ("audit", "sink out", "write")
    assert row["code"] == codes.STORE_PLACE_UNUSABLE.name and says in row["cause"]
    assert row["remedy"].startswith("Correct the path in the DAG") and row["remedy"].endswith(
        "Then run the command again."
    )
    world.dag('pipeline("audit")')
    before = world.files()
    world.require_green()
    assert world.files() == before


@pytest.mark.proof
def test_a_table_below_a_file_is_in_order_as_soon_as_the_file_is_moved_away(world: World) -> None:
    file = world.folder / "afile"
    file.touch()
    world.dag(f'pipeline("audit", table="{file}/orders")')
    assert world.failed()["code"] == codes.STORE_PLACE_UNUSABLE.name
    file.rename(world.folder / "moved")
    world.require_green()
    assert not file.exists()


@pytest.mark.proof
@pytest.mark.parametrize("root", ["afile", "afile/ledger"], ids=["a file", "below a file"])
def test_a_ledger_root_that_is_a_file_fails_as_it_would_in_a_run_until_it_is_a_folder(world: World, root: str) -> None:
    (world.folder / "afile").write_text("precious")
    for extra in ({}, {"create": True}):
        world.ledger_at(root, **extra)
        row = world.failed()
        assert (row["of"], row["check"], row["code"]) == ("ledger", "connection", codes.LEDGER_ROOT_UNUSABLE.name)
        assert f"{world.folder}/afile is not a folder" in row["cause"] and "'epochs_default'" in row["cause"]
        assert "What to do: Set `ledger_root` of connection 'epochs_default'" in world.said("table")[1]
    with pytest.raises(Refused) as refused:
        EpochsHook().ledger("orders")  # as a run begins
    assert refused.value.code and (refused.value.code.name, refused.value.what) == (row["code"], row["cause"])
    world.ledger_at("ledger")
    world.require_green()
    assert (world.folder / "afile").read_text() == "precious"


OWN = """
from airflow_epochs import DeltaSink

class Mine(DeltaSink):
    def spec(self):
        return {**super().spec(), "kind": "KIND"}
"""


@pytest.mark.proof
@pytest.mark.parametrize("file", ["orders_dag", "sinks_of_mine"])
def test_the_class_of_a_sink_is_found_in_the_dag_file_or_beside_it_and_not_by_a_misspelt_kind(
    world: World, file: str
) -> None:
    beside, more = airflow_home.DAGS / "sinks_of_mine.py", 'pipeline("mine", sink=Mine("out", "{folder}/mine"))'
    for kind, result in ((f"{file}:Mine", "ok"), (f"{file}s:Mine", "failed")):
        text = OWN.replace("KIND", kind)
        beside.write_text(text if file == "sinks_of_mine" else "")
        world.dag(more)
        dag = airflow_home.DAGS / "orders_dag.py"
        defined = "from sinks_of_mine import Mine" if file == "sinks_of_mine" else text
        dag.write_text(f"{defined}\n{dag.read_text()}".replace("{folder}", str(world.folder)))
        marker = world.rows("mine")["sink out, marker"]
        assert (marker["result"], kind in json.dumps(marker)) == (result, result == "failed"), marker
        sys.modules.pop("sinks_of_mine", None)
