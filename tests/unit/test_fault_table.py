"""docs/faults.md says what the tests saw, and the results are refused if they say what must not be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fault_table
from fault_table import EXPECTED, FAULTS, NOT_APPLICABLE, OUTCOMES, STEPS, Cell, complaints, page, read_cells, stale


def every_fault() -> set[Cell]:
    """One allowed observation of every fault that applies."""
    return {
        Cell(fault, min(rows), min(rows[min(rows)]), f"tests/x.py::test_{fault}")
        for fault, rows in EXPECTED.items()
        if fault not in NOT_APPLICABLE
    }


def test_results_in_which_every_fault_fired_as_expected_are_accepted() -> None:
    assert list(complaints(every_fault())) == []


def test_every_fault_of_the_catalogue_either_has_expectations_or_a_reason_not_to_apply() -> None:
    assert set(EXPECTED) | set(NOT_APPLICABLE) == set(FAULTS) == {f"F{number}" for number in range(1, 23)}
    assert not set(EXPECTED) & set(NOT_APPLICABLE)
    for rows in EXPECTED.values():
        assert set(rows) <= set(STEPS)
        assert set().union(*rows.values()) <= set(OUTCOMES)


def test_a_decided_epoch_may_never_be_aborted_by_any_fault() -> None:
    for rows in EXPECTED.values():
        for row in range(8, 14):
            assert "A" not in rows.get(row, set())


def test_a_fault_that_never_fired_is_named() -> None:
    cells = {cell for cell in every_fault() if cell.fault != "F8"}
    assert list(complaints(cells)) == ["F8 was never observed to fire: a disk is full."]


def test_an_outcome_that_must_not_be_is_named_with_its_test() -> None:
    wrong = Cell("F1", 8, "A", "tests/x.py::test_wrong")
    assert list(complaints(every_fault() | {wrong})) == [
        "F1 at row 8 came to 'A' in tests/x.py::test_wrong; expected = or C."
    ]


@pytest.mark.parametrize("cell", [Cell("F99", 1, "A", "t"), Cell("F1", 99, "A", "t"), Cell("F1", 1, "?", "t")])
def test_a_cell_that_does_not_exist_is_refused(cell: Cell) -> None:
    assert "no such cell" in next(complaints(every_fault() | {cell}))


def test_a_fault_that_is_said_not_to_apply_and_fires_all_the_same_is_named() -> None:
    fault = next(iter(NOT_APPLICABLE))
    found = list(complaints(every_fault() | {Cell(fault, 8, "C", "t")}))
    assert found == [f"{fault} fired, though it is listed as one that does not apply: take it off that list."]


def test_the_page_counts_tests_lists_their_names_and_leaves_drawn_faults_out() -> None:
    cells = [
        Cell("F1", 8, "C", "tests/a.py::test_one[x]"),
        Cell("F1", 8, "C", "tests/a.py::test_one[y]"),
        Cell("F1", 3, "A", "tests/a.py::test_two"),
        Cell("F2", 3, "A", "tests/chaos/test_chaos.py::test_some_minutes"),
    ]
    text = page(cells)
    assert "| 8 GLOBAL_COMMIT, no sink shows the epoch | C:2 |" in text
    assert "- 8, GLOBAL_COMMIT, no sink shows the epoch: `tests/a.py::test_one`" in text
    assert "test_chaos" not in text and "[F2]" not in text
    assert text == page(reversed(cells))


def test_a_page_is_out_of_date_if_more_than_a_count_differs() -> None:
    one, two = Cell("F1", 8, "C", "tests/a.py::test_one[x]"), Cell("F1", 8, "C", "tests/a.py::test_one[y]")
    assert not stale(page([one]), page([one, two]))
    assert stale(page([one]), page([one, Cell("F1", 7, "A", one.test)]))
    assert stale(page([one]), page([Cell("F1", 8, "=", one.test)]))


def test_cells_are_read_from_every_file_and_count_once(tmp_path: Path) -> None:
    line = json.dumps({"fault": "F1", "step": 8, "outcome": "C", "test": "t"})
    (tmp_path / "1.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "2.jsonl").write_text(f"{line}\n")
    assert read_cells(tmp_path) == {Cell("F1", 8, "C", "t")}


def test_without_results_the_check_fails_and_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fault_table, "CELLS", tmp_path)
    monkeypatch.setattr("sys.argv", ["fault_table.py", "--check"])
    assert fault_table.main() == 1
    assert "run the tests first" in capsys.readouterr().err


def test_the_check_is_silent_on_what_was_just_written_and_says_so_once_the_results_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    for name, value in (("ROOT", tmp_path), ("CELLS", cells), ("PAGE", tmp_path / "faults.md")):
        monkeypatch.setattr(fault_table, name, value)
    results = cells / "1.jsonl"
    results.write_text("".join(json.dumps(cell._asdict()) + "\n" for cell in every_fault()))
    monkeypatch.setattr("sys.argv", ["fault_table.py"])
    assert fault_table.main() == 0
    monkeypatch.setattr("sys.argv", ["fault_table.py", "--check"])
    assert fault_table.main() == 0
    assert not capsys.readouterr().err
    with results.open("a") as file:
        file.write(json.dumps(Cell("F1", 12, "C", "tests/x.py::test_new")._asdict()) + "\n")
    assert fault_table.main() == 0
    assert "faults.md is out of date" in capsys.readouterr().err
