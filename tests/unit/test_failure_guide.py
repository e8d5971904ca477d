"""Every error of the provider has a code, and docs/failures.md has a section for each code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import failure_guide
from airflow_epochs import codes, errors
from airflow_epochs.errors import BadArgument, Code, EpochError
from failure_guide import MARKER, PAGE, main, updated
from tests.support.pyproject import ROOT

pytestmark = pytest.mark.proof

PROVIDER = ROOT / "provider" / "airflow_epochs"
DECLARED = {name: value for name, value in vars(codes).items() if isinstance(value, Code)}


@dataclass(frozen=True)
class Raised:
    """A place in the source that makes an error."""

    where: str
    kind: type[Exception]
    code: str | None
    """The constant in ``codes``; None: there is none."""
    remedy: str
    """How the remedy begins, as far as the source says it; empty if it is the code's, or comes from elsewhere."""


@cache
def raised() -> tuple[Raised, ...]:
    """Every construction of an error, but for the tests' helpers that are shipped."""
    modules = [path for path in sorted(PROVIDER.rglob("*.py")) if "testing" not in path.parts]
    return tuple(each for path in modules for each in in_module(path))


def in_module(path: Path) -> Iterator[Raised]:
    module = importlib.import_module(".".join(path.relative_to(PROVIDER.parent).with_suffix("").parts))
    for call in ast.walk(ast.parse(path.read_text())):
        kind = (
            getattr(module, call.func.id, None)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            else None
        )
        if isinstance(call, ast.Call) and isinstance(kind, type) and issubclass(kind, (EpochError, BadArgument)):
            given = {word.arg: word.value for word in call.keywords}
            code = given.get("code")
            name = code.attr if isinstance(code, ast.Attribute) else None
            yield Raised(f"{path.name}:{call.lineno}", kind, name, beginning(given.get("remedy")))


def beginning(text: ast.expr | None) -> str:
    first = text.values[0] if isinstance(text, ast.JoinedStr) else text
    return str(first.value) if isinstance(first, ast.Constant) else ""


@pytest.mark.proof
def test_every_error_that_the_provider_makes_has_a_code_of_its_kind() -> None:
    assert len(raised()) > 200
    assert [each.where for each in raised() if each.code is None] == []
    assert [each.where for each in raised() if not issubclass(each.kind, DECLARED[each.code or ""].kind)] == []


def test_every_code_is_used() -> None:
    assert sorted(DECLARED.keys() - {each.code for each in raised()}) == []


OF_A_DAG = (
    *("config", "pipeline", "operators/", "spark/runners", "kafka/topics", "sinks/*/sink", "sinks/*/modes"),
    *("sources/*/source", "sources/*/config", "sources/*/starting"),
)
"""What the constructors in a DAG file call to check their arguments."""


@pytest.mark.parametrize("place", OF_A_DAG)
def test_no_constructor_of_a_dag_file_raises_an_error_without_a_code(place: str) -> None:
    pattern = f"{place}*.py" if place.endswith("/") else f"{place}.py"
    modules = [ast.parse(path.read_text()) for path in PROVIDER.glob(pattern)]
    assert modules
    bare = [call for module in modules for call in ast.walk(module) if is_call_of(call, "ValueError")]
    assert [ast.unparse(call) for call in bare] == []


def is_call_of(call: ast.AST, name: str) -> bool:
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name


def test_what_stops_the_import_of_a_dag_file_has_a_chapter_of_its_own() -> None:
    kinds = {chapter.title: {code.kind for code in chapter.codes} for chapter in codes.CHAPTERS}
    assert kinds.pop("DAG import errors") == {BadArgument}
    assert not [title for title, found in kinds.items() if BadArgument in found]


def test_a_code_is_named_as_its_constant_and_stands_in_one_chapter() -> None:
    assert {name: code.name for name, code in DECLARED.items()} == {
        name: f"EPOCHS-{name.replace('_', '-')}" for name in DECLARED
    }
    assert sorted(codes.BY_NAME) == sorted(code.name for chapter in codes.CHAPTERS for code in chapter.codes)
    assert len(codes.BY_NAME) == len(DECLARED)


@pytest.mark.parametrize("code", DECLARED.values(), ids=lambda code: code.name)
def test_a_code_says_what_has_happened_and_begins_its_remedy_with_a_verb(code: Code) -> None:
    for text in (code.happened, code.remedy):
        assert re.fullmatch(r"[A-Z`].*[.]", text), text
    assert begins_with_a_verb(code.remedy)


def test_every_remedy_begins_with_a_verb() -> None:
    assert [(each.where, each.remedy) for each in raised() if each.remedy and not begins_with_a_verb(each.remedy)] == []


def begins_with_a_verb(remedy: str) -> bool:
    return remedy.split()[0].strip(",:") in VERBS


VERBS = {
    *("Add", "Change", "Check", "Choose", "Clear", "Correct", "Create", "Do", "Find", "Follow", "Give", "Grant"),
    *("Install", "Leave", "Let", "Look", "Make", "Name", "Point", "Put", "Raise", "Restore", "Return", "Set", "Start"),
    *("Take", "Undo", "Upgrade", "Use", "Write", "Say", "Spell", "Free", "Wait", "Repair", "Send", "Compare", "Remove"),
    *("Type", "Read", "Enter", "Keep", "Pause", "Stop"),
}
"""How a remedy begins."""


# -- the page ------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_codes_say_today() -> None:
    assert main(["--check"]) == 0, "run python scripts/failure_guide.py"


def test_every_code_has_a_section_to_link_to() -> None:
    assert re.findall(r"^### (EPOCHS-\S+)$", PAGE.read_text(), re.M) == list(codes.BY_NAME)


def test_every_code_that_the_documents_or_the_source_name_is_declared() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *PROVIDER.rglob("*.py")]:
        for name in re.findall(r"EPOCHS-[A-Z-]+[A-Z]", path.read_text()):
            assert name in codes.BY_NAME, f"{path.name}: {name}"


def test_every_kind_of_error_is_explained_in_the_head() -> None:
    head, _, _ = PAGE.read_text().partition(MARKER)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
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
