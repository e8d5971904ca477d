"""Which cases of a test are long."""

from __future__ import annotations

import pytest

from tests.support.lanes import spread

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("number", "kept"), [(1, "a"), (2, "ae"), (3, "ace"), (4, "abde"), (5, "abcde"), (9, "abcde")])
def test_few_cases_are_spread_from_the_first_to_the_last(number: int, kept: str) -> None:
    assert "".join(spread("abcde", number)) == kept


def _lanes(pytester: pytest.Pytester, **how: bool) -> None:
    pytester.makeconftest(
        "import pytest\nfrom tests.support.lanes import mark_all_but_few\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        f"def pytest_collection_modifyitems(items):\n    mark_all_but_few(items, **{how})\n"
    )


@pytest.mark.proof
def test_of_every_test_that_is_not_long_only_the_first_case_is_quick(pytester: pytest.Pytester) -> None:
    _lanes(pytester, first_cases=True)
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.parametrize('number', [pytest.param(0, marks=pytest.mark.long), 1, 2])\n"
        "def test_three(number): pass\n"
        "@pytest.mark.few(2)\n"
        "@pytest.mark.parametrize('number', range(5))\n"
        "def test_few(number): pass\n"
        "def test_one(): pass\n"
    )
    chosen = pytester.runpytest("-m", "not long", "-v", "-p", "no:cacheprovider")
    chosen.assert_outcomes(passed=3, deselected=6)
    chosen.stdout.fnmatch_lines(["*test_three[[]1[]] PASSED*", "*test_few[[]0[]] PASSED*", "*test_one PASSED*"])


@pytest.mark.proof
def test_all_but_few_cases_of_a_test_are_long(pytester: pytest.Pytester) -> None:
    _lanes(pytester)
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.few(2)\n"
        "@pytest.mark.parametrize('number', range(5))\n"
        "def test_five(number): pass\n"
        "@pytest.mark.parametrize('number', range(5))\n"
        "def test_all(number): pass\n"
    )
    chosen = pytester.runpytest("-m", "not long", "-v", "-p", "no:cacheprovider")
    chosen.assert_outcomes(passed=7, deselected=3)
    chosen.stdout.fnmatch_lines(["*test_five[[]0[]] PASSED*", "*test_five[[]4[]] PASSED*"])
    pytester.runpytest("-m", "long", "-p", "no:cacheprovider").assert_outcomes(passed=3, deselected=7)
