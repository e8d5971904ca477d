"""The two lists of packages name the same versions, and the one with hashes has nothing that is not checked."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.pyproject import PROJECT, PYPROJECT

ROOT = Path(__file__).parents[2]
LINUX = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}


def lines(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def pins(requirements: list[Requirement]) -> dict[str, str]:
    return {canonicalize_name(each.name): str(each.specifier) for each in requirements}


def test_the_packages_with_hashes_are_those_of_the_constraints() -> None:
    constraints = [Requirement(line) for line in lines("constraints.txt")]
    meant = [each for each in constraints if each.marker is None or each.marker.evaluate(LINUX)]
    hashed = [Requirement(line.partition(" --hash=")[0]) for line in lines("constraints.hashed.txt")]
    assert pins(hashed) == pins(meant)


def test_every_package_has_a_hash_and_no_address() -> None:
    for line in lines("constraints.hashed.txt"):
        assert re.fullmatch(r"[a-z0-9-]+==[^ /@]+ --hash=sha256:[0-9a-f]{64}", line), line
    assert "://" not in (ROOT / "constraints.hashed.txt").read_text()


def asked_for() -> list[Requirement]:
    """All that the package, its extras and the group ``dev`` need; without the extras that name extras."""
    texts = [*PROJECT["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    texts += [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
    return [each for each in map(Requirement, texts) if each.name != PROJECT["name"]]


def test_every_package_that_is_asked_for_has_one_version_and_it_is_one_that_will_do() -> None:
    pinned = pins([Requirement(line) for line in lines("constraints.txt")])
    for each in asked_for():
        assert pinned[canonicalize_name(each.name)].removeprefix("==") in each.specifier, each


def test_pip_is_one_that_installs_a_dependency_group() -> None:
    pinned = pins([Requirement(line) for line in lines("constraints.txt")])["pip"]
    assert Version(pinned.removeprefix("==")) >= Version("25.1")
