"""The demo deletes what an earlier demo left, and nothing else."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import demo
from stack import control, proxy
from stack.processes import StackError

SCRIPTS = Path(demo.__file__).parent
MAIN = """
import sys
from pathlib import Path
import demo
demo.PROJECT, demo.fetch = Path(sys.argv[1]), lambda *_: None
demo.control.down = demo.control.up = lambda folder: sys.exit("the demo has touched the stack")
sys.exit(demo.main())
"""


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the servers."""
    monkeypatch.setattr(demo, "fetch", lambda *_: None)
    places = dict.fromkeys(("airflow", "bootstrap", "connect", "lake", "ledger"), "http://127.0.0.1:1")
    monkeypatch.setattr(control, "up", lambda folder: SimpleNamespace(**places))
    monkeypatch.setattr(demo, "password_in", lambda _folder: "secret")
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    for name in ("ORDERS_MAX_RECORDS", *proxy.NAMES):
        monkeypatch.setenv(name, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".stack" / "lake").mkdir(parents=True)
    return tmp_path / ".stack"


def stack_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "airflow").mkdir(exist_ok=True)
    (folder / "airflow" / "passwords.json").touch()
    monkeypatch.setattr(sys, "argv", ["docker/local", "up", "--folder", str(folder)])
    monkeypatch.setattr(control, "leave_on_signals", lambda: None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS.parent / "docker" / "local" / "__main__.py"), run_name="__main__")
    assert ended.value.code == 0


@pytest.mark.usefixtures("up")
def test_the_data_of_a_demo_are_those_of_stack_up_once_it_has_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo.start(folder := tmp_path / ".stack")
    stack_up(folder, monkeypatch)
    with pytest.raises(StackError, match="has the data of `make stack-up`"):
        demo.start(folder)


@pytest.mark.usefixtures("up")
def test_a_demo_ends_the_stack_that_it_started_whatever_stack_up_does_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Path] = []
    monkeypatch.setattr(control, "down", ended.append)
    monkeypatch.setattr(control, "leave_on_signals", lambda: None)
    monkeypatch.setattr(demo, "PROJECT", tmp_path)

    def broken(_state: object, folder: Path) -> None:
        stack_up(folder, monkeypatch)
        raise RuntimeError("Not everything was consumed")

    monkeypatch.setattr(demo, "run", broken)
    assert demo.main() == 1
    assert ended == [tmp_path / ".stack"]


@pytest.mark.usefixtures("up")
def test_the_demo_keeps_its_hands_off_the_data_of_stack_up_and_names_stack_down_only_while_it_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StackError, match=r"has the data of `make stack-up`\. What to do: move or delete the folder"):
        demo.start(folder)
    monkeypatch.setattr(control, "running", lambda _folder: SimpleNamespace())
    with pytest.raises(StackError, match=r"What to do: type `make stack-down`; then move or delete the folder"):
        demo.start(folder)
    assert (folder / "lake").is_dir()


@pytest.mark.usefixtures("up")
def test_stack_up_says_that_it_keeps_the_data_of_a_demo_and_says_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.start(folder := tmp_path / ".stack")
    capsys.readouterr()
    told = []
    for _ in range(2):
        stack_up(folder, monkeypatch)
        told.append("`make demo` no longer deletes this folder" in capsys.readouterr().out)
    assert told == [True, False]


def test_a_demo_that_is_refused_does_not_end_the_stack_that_runs(folder: Path) -> None:
    argv = [sys.executable, "-c", MAIN, str(folder.parent)]
    done = subprocess.run(argv, cwd=SCRIPTS, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "The demo failed" in done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.usefixtures("up")
def test_the_demo_starts_from_nothing_after_an_earlier_demo(tmp_path: Path) -> None:
    folder = tmp_path / ".stack"
    demo.start(folder)
    (folder / "lake").mkdir()
    demo.start(folder)
    assert not (folder / "lake").exists()


class Watched:
    """A pipeline that has consumed so much at each look, and all at the last; time passes between looks."""

    def __init__(self, counts: list[int], per_look_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts, self.now = counts, 0.0
        self.looks = 0
        self.per_look_s = per_look_s
        monkeypatch.setattr("demo.time.monotonic", lambda: self.now)
        monkeypatch.setattr("demo.time.sleep", lambda _s: None)

    def consumed(self) -> bool:
        self.now += self.per_look_s
        self.looks += 1
        return self.looks >= len(self.counts)

    def progress(self) -> object:
        return self.counts[min(self.looks, len(self.counts)) - 1]


def test_a_demo_on_a_slow_machine_waits_for_as_long_as_something_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watched(list(range(10)), demo.STILL_S * 0.9, monkeypatch)
    demo.wait_consumed(watch)  # type: ignore[arg-type]
    assert watch.now > 5 * demo.STILL_S


def test_a_demo_that_stands_still_fails_and_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watched([1, 2, *[3] * 1000], 1.0, monkeypatch)
    with pytest.raises(RuntimeError, match=r"Nothing went on for 240 s.*What to do: look at the DAG orders in Airflow"):
        demo.wait_consumed(watch)  # type: ignore[arg-type]
    assert demo.STILL_S <= watch.now <= demo.STILL_S + 5


@pytest.mark.usefixtures("up")
@pytest.mark.parametrize("keep", ["1", "0"])
def test_a_demo_that_failed_says_whether_its_stack_still_runs_and_how_to_look_or_end_it(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEMO_KEEP", keep)
    monkeypatch.setattr(control, "down", lambda _folder: True)
    monkeypatch.setattr(control, "leave_on_signals", lambda: None)
    monkeypatch.setattr(demo, "PROJECT", tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("Nothing went on")

    monkeypatch.setattr(demo, "run", broken)
    state = SimpleNamespace(airflow="http://127.0.0.1:1")
    monkeypatch.setattr(control, "running", lambda _folder: state)
    with demo.console.capture() as told:
        assert demo.main() == 1
    text = " ".join(told.get().split())
    assert "The demo failed: Nothing went on" in text
    assert ("The stack still runs: Airflow is at http://127.0.0.1:1" in text) == (keep == "1")
    assert ("`make stack-down` ends it all." in text) == (keep == "1")
    assert ("DEMO_KEEP=1 make demo" in text) == (keep == "0")
