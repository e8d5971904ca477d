"""docs/failures.md has every error that the source can make, with what to do about it."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

import failure_guide
from airflow_epochs import errors
from failure_guide import CHAPTERS, IMPORT_ERRORS, MARKER, PAGE, PROVIDER, WITHIN, failures, main, tables, updated
from failure_texts import PLAIN, Failure, Unreadable, read_failures

TREE = """
class EpochError(Exception): ...
class Refused(EpochError): ...
class RowsGone(Refused): ...
"""


@cache
def of_the_source() -> tuple[Failure, ...]:
    return tuple(read_failures(PROVIDER, failure_guide.RELAYS))


@pytest.fixture(autouse=True)
def source_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the whole package takes a second, and it stays as it is while the tests run."""

    def read(provider: Path, relays: set[tuple[str, str]]) -> list[Failure]:
        return list(of_the_source()) if provider == PROVIDER else read_failures(provider, relays)

    monkeypatch.setattr(failure_guide, "read_failures", read)


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    (tmp_path / "errors.py").write_text(TREE)
    (tmp_path / "ledger").mkdir()
    (tmp_path / "storage").mkdir()
    return tmp_path


def planted(provider: Path, source: str, module: str = "ledger/ledger.py") -> list[Failure]:
    (provider / module).write_text(source)
    return failures(provider)


def told(provider: Path, source: str) -> list[tuple[str, str, str]]:
    return [(failure.kind, failure.what, failure.remedy) for failure in planted(provider, source)]


# -- the page ----------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_source_says_today() -> None:
    assert main(["--check"]) == 0, "run python scripts/failure_guide.py"


def test_every_error_says_what_to_do_in_a_sentence() -> None:
    for failure in failures():
        if failure.kind not in PLAIN:
            assert re.search(r"[A-Za-z]{2,}", failure.remedy), failure.where
            assert failure.remedy.endswith((".", "?", ".]")), f"{failure.where}: {failure.remedy}"


def test_no_construction_of_an_error_is_left_out() -> None:
    """Counted by text alone: whatever looks like one, outside the tests' helpers and the sites that pass errors on."""
    kinds = "|".join(kind.__name__ for kind in vars(errors).values() if isinstance(kind, type))
    found = {failure.where for failure in failures()}
    for path in PROVIDER.rglob("*.py"):
        module = path.relative_to(PROVIDER).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not module.startswith("testing/") and re.search(rf"(raise|return) ({kinds})\(", line):
                assert f"{module}:{number}" in found


def test_every_chapter_names_modules_that_there_are() -> None:
    for module in {*chain(*CHAPTERS.values()), *IMPORT_ERRORS, *WITHIN}:
        assert (PROVIDER / module).is_file(), module


def test_every_kind_of_error_is_explained_in_the_head() -> None:
    head, _, _ = PAGE.read_text().partition(MARKER)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EpochError)]
    assert [kind.__name__ for kind in kinds if f"| `{kind.__name__}` |" not in head] == ["EpochError"]
    assert len(head.splitlines()) <= 150


def test_a_page_without_the_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="no line <!-- Below"):
        updated("# nothing here")


def test_a_stale_page_is_noticed_and_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "failures.md"
    page.write_text(f"# head\n{MARKER}\nold")
    monkeypatch.setattr(failure_guide, "PAGE", page)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert page.read_text().startswith(f"# head\n{MARKER}\n## Connections")


def test_what_would_break_a_table_is_escaped_but_code_stays() -> None:
    failure = Failure("Refused", "a | b < c[0]:\n{traceback}", "set `x[0] = <y>`.", "ledger/ledger.py", 1)
    assert r"| Refused | a \| b \< c\[0\]: {traceback} | Set `x[0] = <y>`. |" in tables([failure])


# -- errors planted in a sample source ---------------------------------------------------------------------------


def test_a_planted_error_is_found_with_its_text_its_remedy_and_its_place(provider: Path) -> None:
    source = 'raise Refused(f"No disk at {self.path!r}: {str(error).splitlines()[0]}.", remedy="buy one.")'
    assert planted(provider, source) == [
        Failure("Refused", "No disk at {path}: {error}.", "buy one.", "ledger/ledger.py", 1)
    ]


def test_errors_come_by_every_class_of_the_tree_and_by_modules(provider: Path) -> None:
    source = 'raise RowsGone("All gone.", remedy="weep.")\nraise errors.Refused("Not now.", remedy="wait.")'
    assert [kind for kind, _, _ in told(provider, source)] == ["RowsGone", "Refused"]


def test_constants_local_texts_and_what_is_said_only_sometimes_are_filled_in(provider: Path) -> None:
    source = """
_AGAIN = "try again."
def check(a):
    where = f"the disk of {a.host}"
    more = " It is old." if a.old else ""
    raise Refused(f"Nothing on {where}.{more}", remedy=_AGAIN)
"""
    assert told(provider, source) == [("Refused", "Nothing on the disk of {host}.[ It is old.]", "try again.")]


def test_two_texts_of_one_error_are_two_errors(provider: Path) -> None:
    source = 'raise Refused("Too big." if big else f"Only {n} bytes.", remedy="resize it.")'
    assert [what for _, what, _ in told(provider, source)] == ["Too big.", "Only {n} bytes."]


def test_a_helper_that_is_given_its_texts_counts_once_for_each_call(provider: Path) -> None:
    (provider / "storage/files.py").write_text('def read(refuse):\n    refuse(f"{x} is empty", "Fill it.")\n')
    source = """
class Reader:
    def refuse(self, what, remedy):
        raise Refused(f"Connection {self.conn_id!r}: {what}.", remedy=remedy)
    def read(self):
        self.refuse("it has no host", remedy="Name one.")
"""
    assert set(told(provider, source)) == {
        ("Refused", "Connection {connection}: it has no host.", "Name one."),
        ("Refused", "Connection {connection}: {x} is empty.", "Fill it."),
    }


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('raise Refused(text, remedy="wait.")', "cannot be read: text"),
        ('def f(text):\n    raise Refused(text, remedy="wait.")', "nobody calls f"),
        ('def f(text):\n    raise Refused(text, remedy="wait.")\nf(load())', r"cannot be read: load\(\)"),
        ('raise Refused(f"{a}: {b}", remedy="wait.")', "says nothing by itself"),
        ('raise Refused("No.", remedy=told["remedy"])', "cannot be read"),
        ('raise Refused("No disk.")', "without a text or a remedy"),
        ('raise Refused("No disk.", remedy=" ")', "does not say what to do"),
        ('kind = Refused if lasting else RowsGone\nraise kind("No disk.", remedy="wait.")', "hides its text"),
        ("make(Refused)", "hides its text"),
        ("from airflow_epochs.errors import Refused as No", "under another name"),
    ],
)
def test_an_error_that_cannot_be_told_makes_the_script_fail(provider: Path, source: str, why: str) -> None:
    with pytest.raises(Unreadable, match=rf"^ledger/ledger\.py:\d+: .*{why}"):
        planted(provider, source)


def test_mentions_that_make_no_error_are_let_be(provider: Path) -> None:
    source = """
def f(a: Refused | None, b: type[RowsGone]) -> Refused:
    try:
        return isinstance(a, (Refused, RowsGone))
    except (Refused, RowsGone):
        raise
"""
    assert planted(provider, source) == []


@pytest.mark.parametrize("text", ['raise Refused("No disk.", remedy="wait.")', 'raise ValueError("no such disk")'])
def test_an_error_in_a_module_without_a_chapter_makes_the_script_fail(provider: Path, text: str) -> None:
    with pytest.raises(Unreadable, match=r"new\.py:1: its module has no chapter"):
        planted(provider, text, "new.py")


def test_a_relay_may_pass_on_what_it_is_told_but_a_text_of_its_own_is_found(provider: Path) -> None:
    (provider / "ledger/ledger.py").write_text("""
def pass_on(e):
    if e:
        raise Refused(e.what, remedy=e.remedy)
    raise Refused("No e.", remedy="wait.")
""")
    assert [failure.what for failure in read_failures(provider, {("ledger/ledger.py", "pass_on")})] == ["No e."]


def test_the_script_prints_what_it_cannot_read_and_fails(
    provider: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (provider / "ledger/ledger.py").write_text('raise Refused(text, remedy="wait.")')
    monkeypatch.setattr(updated, "__defaults__", (provider,))
    assert main(["--check"]) == 1
    assert "ledger/ledger.py:1: the text of Refused cannot be read" in capsys.readouterr().err
