"""The demo's checker finds what is wrong: it is given tables that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from orders_demo.verify import TABLES, Verdict, verify

GOOD = [(0, 0), (0, 1)]
BAD = [(1, 0)]


def judged(tmp_path: Path, produced: list[tuple[int, int]], **shown: list[tuple[int, int]]) -> Verdict:
    import pyarrow as pa
    from deltalake import write_deltalake

    for sink, path in TABLES.items():
        (tmp_path / path).mkdir(parents=True)
        partitions, offsets = zip(*shown[sink], strict=True)
        write_deltalake(str(tmp_path / path), pa.table({"partition": partitions, "offset": offsets}))
    places = tmp_path / "produced.csv"
    places.write_text("partition,offset\n" + "".join(f"{p},{o}\n" for p, o in produced))
    return verify(tmp_path, places)


def test_each_record_in_one_row_of_one_table_is_exactly_once(tmp_path: Path) -> None:
    verdict = judged(tmp_path, GOOD + BAD, orders=GOOD, rejected=BAD)
    assert verdict.exactly_once
    assert str(verdict) == "exactly once: 3 in, 3 out, 0 missing, 0 duplicated"


@pytest.mark.parametrize(
    ("produced", "orders", "rejected", "wrong"),
    [
        ([*GOOD, *BAD, (1, 1)], GOOD, BAD, "4 in, 3 out, 1 missing, 0 duplicated"),
        ([*GOOD, *BAD], [*GOOD, GOOD[0]], BAD, "3 in, 4 out, 0 missing, 1 duplicated"),
        ([*GOOD, *BAD], [*GOOD, *BAD], BAD, "3 in, 4 out, 0 missing, 1 duplicated"),
        ([*GOOD, *BAD], [GOOD[0], GOOD[0]], BAD, "3 in, 3 out, 1 missing, 1 duplicated"),
        ([*GOOD, *BAD], [*GOOD, (9, 9)], BAD, "3 in, 4 out, 0 missing, 0 duplicated, 1 never produced"),
    ],
    ids=["missing", "twice in one table", "in both tables", "one for another", "never produced"],
)
def test_a_record_that_is_lost_repeated_or_invented_is_found(
    tmp_path: Path,
    produced: list[tuple[int, int]],
    orders: list[tuple[int, int]],
    rejected: list[tuple[int, int]],
    wrong: str,
) -> None:
    verdict = judged(tmp_path, produced, orders=orders, rejected=rejected)
    assert not verdict.exactly_once
    assert str(verdict) == f"NOT exactly once: {wrong}"
