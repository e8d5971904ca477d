"""Which of a test's cases ``make test`` runs; ``make test-long`` runs the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def long_but(short: Iterable[object], values: Iterable[object]) -> list[Any]:
    """The values, for ``parametrize``: all but ``short`` are long tests. For cases of which some matter more."""
    kept = list(short)
    return [each if each in kept else pytest.param(each, marks=pytest.mark.long) for each in values]


def spread(cases: Sequence[Case], number: int) -> list[Case]:
    """So many of the cases, at equal distances, the first and (if there are two) the last among them."""
    if number >= len(cases):
        return list(cases)
    last = len(cases) - 1
    return [cases[round(index * last / max(number - 1, 1))] for index in range(number)]


def mark_all_but_few(items: Iterable[pytest.Item], *, first_cases: bool = False) -> None:
    """Mark as long all cases of a test that has the marker ``few``, but for so many as it says.

    ``first_cases``: all cases of every test but the first that is not long.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if (first_cases or item.get_closest_marker("few")) and not item.get_closest_marker("long"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_a_test in cases.values():
        marker = of_a_test[0].get_closest_marker("few")
        kept = of_a_test[:1] if first_cases or not marker else spread(of_a_test, *marker.args)
        for item in of_a_test:
            if item not in kept:
                item.add_marker("long")
