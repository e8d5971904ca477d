"""Loading the user's transform file, and finding the modules it needs."""

from __future__ import annotations

import io
import sys
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.spark.driver import failures, transform, user_files
from airflow_epochs.spark.driver.plans import StagePlan, TransformFile

PLAN = StagePlan(
    epoch=3,
    attempt=2,
    pipeline="p",
    now="2026-01-02T03:04:05+00:00",
    seed=77,
    txn_id="p/3/2/x",
    read={},
    transform=TransformFile(path="/app.py", function="f"),
    outputs=(),
    sinks={},
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__slash__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def app(folder: Path, function: str = "f") -> TransformFile:
    return TransformFile(path=str(folder / "app.py"), function=function)


def test_only_imported_siblings_are_shipped_with_what_they_import_in_turn(tmp_path: Path) -> None:
    write(
        tmp_path,
        app="import a, os\ndef f(batch, epoch):\n    from package.inner import x\n",
        a="import b",
        b="import app",
        unused="",
        package__slash____init__="",
        package__slash__inner="import c\nx = 1",
        c="",
    )
    (tmp_path / "package" / "data.json").write_text("{}")
    assert sorted(user_files.siblings_of(str(tmp_path / "app.py"))) == [
        "a.py",
        "b.py",
        "c.py",
        "package/__init__.py",
        "package/data.json",
        "package/inner.py",
    ]


def test_files_named_explicitly_are_shipped_although_nothing_imports_them(tmp_path: Path) -> None:
    write(tmp_path, app="", plugin="import helper", helper="")
    found = user_files.siblings_of(str(tmp_path / "app.py"), [str(tmp_path / "plugin.py")])
    assert sorted(found) == ["helper.py", "plugin.py"]


def test_equal_modules_make_an_equal_archive_and_others_another_name(tmp_path: Path) -> None:
    write(tmp_path, app="import a", a="x = 1")
    first = user_files.archive(user_files.siblings_of(str(tmp_path / "app.py")))
    (tmp_path / "a.py").touch()
    assert user_files.archive(user_files.siblings_of(str(tmp_path / "app.py"))) == first
    write(tmp_path, a="x = 2")
    second = user_files.archive(user_files.siblings_of(str(tmp_path / "app.py")))
    assert user_files.archive_name(first) != user_files.archive_name(second)
    assert zipfile.ZipFile(io.BytesIO(second)).read("a.py") == b"x = 2"


def test_modules_too_large_to_ship_are_refused_with_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, app="import a", a="x = 1")
    monkeypatch.setattr(user_files, "SIZE_MAX", 12)
    (tmp_path / "b.py").write_text("y = 'longer'")
    write(tmp_path, app="import a, b")
    with pytest.raises(Refused, match=r"17 bytes, more than 12; the largest file is b\.py"):
        user_files.siblings_of(str(tmp_path / "app.py"))


PRIVATE = (".env", ".git/config", ".ssh/id", "key.pem", "Client.KEY", "store.jks", "a.p12", "id_rsa", "id_ed25519.pub")


def test_what_is_hidden_or_looks_like_a_key_stays_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, app="import package", package__slash____init__="", package__slash__monkey="")
    for name in (*PRIVATE, "data.json", "keyboard.txt"):
        (tmp_path / "package" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "package" / name).write_text("x")
    names = ["package/__init__.py", "package/data.json", "package/keyboard.txt", "package/monkey.py"]
    assert sorted(user_files.siblings_of(str(tmp_path / "app.py"))) == names


def test_links_that_lead_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    write(dags, app="import package, single", package__slash____init__="", package__slash__real="", single="")
    write(tmp_path, outside="")
    (dags / ".hidden").write_text("x")
    for name, to in (("data", "outside.py"), ("folder", "."), ("hidden", "dags/.hidden"), ("near", "dags/single.py")):
        (dags / "package" / name).symlink_to(tmp_path / to)
    found = user_files.siblings_of(str(dags / "app.py"))
    assert sorted(found) == ["package/__init__.py", "package/near", "package/real.py", "single.py"]


@pytest.mark.parametrize("link", ["single.py", "package", "package/inner.py"])
def test_a_module_that_is_a_link_out_of_the_folder_is_refused_by_its_name(tmp_path: Path, link: str) -> None:
    dags, elsewhere = tmp_path / "dags", tmp_path / "elsewhere"
    write(dags, app="import single, package", single="", package__slash____init__="", package__slash__inner="")
    (elsewhere / link).parent.mkdir(parents=True)
    (dags / link).rename(elsewhere / link)
    (dags / link).symlink_to(elsewhere / link)
    with pytest.raises(Refused, match=rf"The transform imports .*/{link}\. This is a link that leads out"):
        user_files.siblings_of(str(dags / "app.py"))


@pytest.mark.parametrize("inner", ["helpers__slash__rates", "helpers__slash__deeper__slash__rates"])
def test_an_imported_folder_without_init_is_refused_with_the_file_that_it_lacks(tmp_path: Path, inner: str) -> None:
    write(tmp_path, app="from helpers import rates", **{inner: "RATE = 1"})
    with pytest.raises(Refused, match=r"imports the folder .*/helpers, which has no __init__\.py") as refused:
        user_files.siblings_of(str(tmp_path / "app.py"))
    assert refused.value.code is codes.TRANSFORM_NOT_SENT
    write(tmp_path, helpers__slash____init__="")
    assert len(user_files.siblings_of(str(tmp_path / "app.py"))) == 2, "the remedy"


def test_a_folder_without_init_is_no_obstacle_where_python_takes_another_module(tmp_path: Path) -> None:
    write(tmp_path, app="import json, sys, pyspark, helpers, data", helpers="", helpers__slash__unused="")
    write(tmp_path, json__slash__a="", sys__slash__a="", pyspark__slash__a="")
    (tmp_path / "data").mkdir()
    assert list(user_files.siblings_of(str(tmp_path / "app.py"))) == ["helpers.py"]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of transforms with a part of a package, of which another part is installed, as of ``google``."""
    dags, installed = tmp_path / "dags", tmp_path / "installed"
    write(dags, shared_name__slash__ads="")
    write(installed, shared_name__slash__protobuf__slash____init__="", shared_name__slash__cloud__slash__storage="")
    for place in (installed, dags):
        monkeypatch.syspath_prepend(place)
    return dags


@pytest.mark.parametrize(
    "text",
    ["import shared_name.protobuf", "from shared_name import protobuf", "from shared_name.cloud import storage as s"],
)
def test_a_folder_of_the_name_of_an_installed_package_is_no_obstacle_to_the_package(shared: Path, text: str) -> None:
    write(shared, app=text)
    assert user_files.siblings_of(str(shared / "app.py")) == {}


@pytest.mark.parametrize("text", ["import shared_name.ads", "from shared_name import ads"])
def test_a_module_in_a_folder_of_the_name_of_an_installed_package_is_refused(shared: Path, text: str) -> None:
    write(shared, app=f"import shared_name.protobuf\n{text}")
    with pytest.raises(Refused, match=r"imports the folder .*/shared_name, which has no __init__\.py"):
        user_files.siblings_of(str(shared / "app.py"))


def test_a_folder_that_is_reached_by_a_link_is_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path / ".worktrees" / "1", app="import a", a="")
    (tmp_path / "dags").symlink_to(tmp_path / ".worktrees" / "1")
    assert list(user_files.siblings_of(str(tmp_path / "dags" / "app.py"))) == ["a.py"]


def test_a_sibling_that_is_not_python_is_refused_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, app="import a", a="\nx = = 1")
    with pytest.raises(Refused, match=r"a\.py is not valid Python: line 2"):
        user_files.siblings_of(str(tmp_path / "app.py"))


def test_the_file_is_not_left_among_the_modules_so_that_its_udfs_travel_by_value(tmp_path: Path) -> None:
    write(tmp_path, app="def f(batch, epoch): return batch")
    with transform.loaded(app(tmp_path)) as users:
        assert users.function.__module__ not in sys.modules


def test_the_file_may_define_dataclasses_although_it_is_not_left_among_the_modules(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    write(tmp_path, app=text + "@dataclass\nclass A:\n    x: int\ndef f(batch, epoch): return A(1)")
    with transform.loaded(app(tmp_path)) as users:
        assert users.function(None, None).x == 1


def test_siblings_are_importable_meanwhile_and_two_pipelines_may_have_siblings_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, app="import helper\ndef f(batch, epoch): return helper.NAME", helper=f"NAME = {name!r}")
    path = list(sys.path)
    for name in ("one", "two"):
        with transform.loaded(app(tmp_path / name)) as users:
            assert users.function(None, None) == name
    assert "helper" not in sys.modules
    assert sys.path == path


def test_a_folder_without_init_is_forgotten_too(tmp_path: Path) -> None:
    text = "import importlib\ndef f(batch, epoch): return importlib.import_module('one.deeper.rates').NAME"
    for name in ("a", "b"):
        write(tmp_path / name, app=text, one__slash__deeper__slash__rates=f"NAME = {name!r}")
        with transform.loaded(app(tmp_path / name)) as users:
            assert users.function(None, None) == name
    assert not {"one", "one.deeper", "one.deeper.rates"} & set(sys.modules)


def test_a_transform_can_be_loaded_from_its_text_alone_with_its_lines_in_tracebacks(tmp_path: Path) -> None:
    where = replace(app(tmp_path / "gone"), source="def f(batch, epoch):\n    raise OSError('no')\n")
    with transform.loaded(where) as users, pytest.raises(Refused) as refused:
        users(None, transform.EpochContext.of(PLAN), ["one"])
    assert "line 2, in f\n    raise OSError('no')" in refused.value.what


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"), transform.loaded(app(tmp_path)):
        raise AssertionError


def test_a_missing_function_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    write(tmp_path, app="from os.path import join\ndef orders(batch, epoch): ...\ndef _hidden(): ...\n")
    with (
        pytest.raises(Refused, match=r"no function 'f'\. Its functions are: orders\."),
        transform.loaded(app(tmp_path)),
    ):
        raise AssertionError


def test_a_file_that_raises_when_loaded_is_refused_with_the_users_lines_only(tmp_path: Path) -> None:
    write(tmp_path, app="import helper", helper="x = 1 / 0")
    with pytest.raises(Refused) as refused, transform.loaded(app(tmp_path)):
        raise AssertionError
    assert "x = 1 / 0" in refused.value.what
    assert "transform.py" not in refused.value.what


def test_the_context_is_the_same_in_every_attempt_but_for_its_number() -> None:
    first, second = (transform.EpochContext.of(replace(PLAN, attempt=attempt)) for attempt in (1, 2))
    assert (first.number, first.now, first.seed) == (second.number, second.now, second.seed)
    assert first.now.isoformat() == "2026-01-02T03:04:05+00:00"
    assert transform.EpochContext.of(replace(PLAN, now="2026-01-02T03:04:05Z")).now == first.now


def test_a_time_without_zone_is_an_error() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        transform.EpochContext.of(replace(PLAN, now="2026-01-02T03:04:05"))


@dataclass
class Frame:
    """What a transform takes for a DataFrame here."""

    isStreaming: bool = False
    columns: list[str] = field(default_factory=list)


RETURNED = {"orders": Frame(), "later": Frame(isStreaming=True), "audit": None}


@pytest.mark.parametrize(
    ("result", "sinks"),
    [(RETURNED, ["later", "orders", "audit"]), (RETURNED, ["orders", "gone"]), (RETURNED["orders"], ["orders"])],
    ids=["gained", "lost", "alone"],
)
def test_a_sink_staged_again_needs_its_own_frame_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: object, sinks: list[str]
) -> None:
    monkeypatch.setattr(transform, "_is_frame", lambda value: isinstance(value, Frame))
    write(tmp_path, app="def f(batch, epoch): return batch")
    epoch = transform.EpochContext.of(PLAN)
    with transform.loaded(app(tmp_path)) as users:
        assert users(result, epoch, sinks, ["orders"]) == {"orders": Frame()}
        with pytest.raises(Refused, match="no DataFrame for sink 'lost'"):
            users({"orders": Frame()}, epoch, ["orders"], ["lost"])


@pytest.mark.parametrize("sink", ["orders", "letters"])
@pytest.mark.parametrize("alike", [["a", "A"], ["Ä", "ä"], ["a", "a"]])
def test_columns_of_one_name_but_for_upper_and_lower_case_are_refused_for_every_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, alike: list[str]
) -> None:
    monkeypatch.setattr(transform, "_is_frame", lambda value: isinstance(value, Frame))
    write(tmp_path, app="def f(batch, epoch): return batch")
    epoch, frames = transform.EpochContext.of(PLAN), {"orders": Frame(), "letters": Frame()}
    with transform.loaded(app(tmp_path)) as users, pytest.raises(Refused) as refused:
        users({**frames, sink: Frame(columns=["b", *alike, "c"])}, epoch, list(frames), letters="letters")
    assert refused.value.code is codes.TRANSFORM_COLUMNS and refused.value.sink == sink
    assert f" for one: {', '.join(alike)}. Nothing was written." in refused.value.what


@pytest.mark.parametrize("status", ["", "0", "3", "'no rows today'"])
@pytest.mark.parametrize("where", ["app", "helper"])
def test_a_transform_that_exits_is_refused_with_its_line_as_one_that_raises(
    tmp_path: Path, status: str, where: str
) -> None:
    write(tmp_path, app="import helper, sys\ndef f(batch, epoch): helper.give_up()", helper="def give_up(): pass")
    write(tmp_path, **{where: f"import sys\ndef f(*_): sys.exit({status})\ngive_up = f"})
    epoch = transform.EpochContext.of(PLAN)
    with transform.loaded(app(tmp_path)) as users, pytest.raises(Refused) as refused:
        users("rows", epoch, ["orders"])
    assert refused.value.code is codes.TRANSFORM_RAISED
    assert "The transform f raised SystemExit. Nothing was written.\n" in refused.value.what
    assert f"sys.exit({status})" in refused.value.what


GONE = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "refused"\n>'
LOST = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: ExecutorLostFailure (executor 1 exited)"
ANEW = "[INVALID_HANDLE.SESSION_CHANGED] The handle x is invalid. The existing Spark server driver has restarted."
CLOSED = "[NO_ACTIVE_SESSION] No active Spark session found. Please create a new Spark session before running the code."


@pytest.mark.parametrize(
    ("said", "code"), [(GONE, codes.SPARK_UNREACHABLE), *((s, None) for s in (LOST, ANEW, CLOSED))]
)
def test_a_spark_that_is_lost_under_a_transform_is_no_error_of_the_transform_and_retried(
    tmp_path: Path, said: str, code: object
) -> None:
    raising = "def f(*_): raise SparkRuntimeException(said)"
    write(tmp_path, app=f"from pyspark.errors import SparkRuntimeException\n{raising}")
    with transform.loaded(app(tmp_path)) as users, pytest.raises(PySparkException) as raised:
        vars(users.module)["said"] = said
        users("rows", transform.EpochContext.of(PLAN), ["orders"])
    error = failures.of_spark(raised.value, "The Spark job")
    assert isinstance(error, NotApplied) and error.code is (code or codes.SPARK_JOB_FAILED)


def test_so_is_one_that_a_session_of_the_same_process_loses(tmp_path: Path) -> None:
    write(tmp_path, app=f"from py4j.protocol import Py4JError\ndef f(*_): raise Py4JError({LOST!r})")
    with transform.loaded(app(tmp_path)) as users, pytest.raises(Py4JError) as raised:
        users("rows", transform.EpochContext.of(PLAN), ["orders"])
    assert isinstance(failures.of_spark(raised.value, "The Spark job"), NotApplied)


@pytest.mark.parametrize("raised", ["ValueError('StatusCode.UNAVAILABLE')", "SparkRuntimeException('no such table')"])
def test_what_a_transform_raises_for_other_reasons_is_its_own_error(tmp_path: Path, raised: str) -> None:
    write(tmp_path, app=f"from pyspark.errors import SparkRuntimeException\ndef f(*_): raise {raised}")
    with transform.loaded(app(tmp_path)) as users, pytest.raises(Refused) as refused:
        users("rows", transform.EpochContext.of(PLAN), ["orders"])
    assert refused.value.code is codes.TRANSFORM_RAISED


@pytest.mark.parametrize("where", ["app", "exiting"])
def test_a_file_that_exits_while_it_is_loaded_is_refused_with_its_line(tmp_path: Path, where: str) -> None:
    write(tmp_path, app="import exiting\ndef f(batch, epoch): return batch")
    write(tmp_path, **{where: "import sys\nsys.exit(0)"})
    with pytest.raises(Refused) as refused, transform.loaded(app(tmp_path)):
        pass
    assert refused.value.code is codes.TRANSFORM_BROKEN
    assert "sys.exit(0)" in refused.value.what and refused.value.what.endswith("SystemExit: 0")


@pytest.mark.parametrize("body", ["def f(batch, epoch): raise KeyboardInterrupt", "raise KeyboardInterrupt"])
def test_what_ends_the_task_goes_through_the_transform(tmp_path: Path, body: str) -> None:
    write(tmp_path, app=body)
    epoch = transform.EpochContext.of(PLAN)
    with pytest.raises(KeyboardInterrupt), transform.loaded(app(tmp_path)) as users:
        users("rows", epoch, ["orders"])
