"""Jars that are not the recorded ones are not used."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path

import pytest

from stack import digests, jars
from stack.processes import StackError

BROKER = "kafka-clients-4.3.1.jar"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fetched jars in a cache, and their record."""
    monkeypatch.setenv("EPOCHS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "RECORDED", tmp_path / "jars.sha256")
    root = tmp_path / "cache" / "jars" / jars._key()
    lone = {"spark": "delta.jar", "s3": "s3.jar", "yarn": "yarn.jar", "registry": "registry-app-3.0.9.tar.gz"}
    for conf, name in (("broker", BROKER), ("broker", "lz4-java-1.10.2.jar"), *lone.items()):
        (root / conf).mkdir(parents=True, exist_ok=True)
        (root / conf / name).write_bytes(name.encode())
    digests.record(root, jars.CONFS)
    return root


def test_the_recorded_jars_are_used(cache: Path) -> None:
    assert [jar.name for jar in jars.fetch().paths("broker")] == [BROKER, "lz4-java-1.10.2.jar"]


def test_the_record_is_one_that_sha256sum_checks(cache: Path) -> None:
    program = shutil.which("sha256sum") or shutil.which("shasum")
    assert program
    checked = subprocess.run([program, "-c", str(digests.RECORDED)], cwd=cache, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count(": OK") == 6


def changed(broker: Path) -> None:
    with (broker / BROKER).open("ab") as jar:
        jar.write(b"\0")


def added(broker: Path) -> None:
    (broker / "another.jar").write_bytes(b"")


def removed(broker: Path) -> None:
    (broker / BROKER).unlink()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (changed, rf"broker/{BROKER} has the SHA-256 \w{{64}}, recorded is \w{{64}}\."),
        (added, r"broker/another.jar is not in the record\."),
        (removed, rf"broker/{BROKER} is missing\."),
    ],
    ids=["changed", "added", "removed"],
)
def test_jars_that_are_not_the_recorded_ones_are_refused_with_cause_place_and_remedy(
    change: Callable[[Path], None], cause: str, cache: Path
) -> None:
    change(cache / "broker")
    with pytest.raises(StackError) as refused:
        jars.fetch()
    what, where, remedy = str(refused.value).splitlines()
    assert re.search(cause, what)
    assert str(cache) in where and "jars.sha256" in where
    assert remedy.startswith("What to do: delete that folder and fetch again.")


def test_a_configuration_is_not_stopped_by_the_jars_of_another_one(cache: Path) -> None:
    changed(cache / "broker")
    assert [jar.name for jar in jars.fetch("spark").paths("spark")] == ["delta.jar"]


@pytest.mark.parametrize(
    "wanted",
    [each for file in (jars.IVY_XML, jars.REGISTRY_XML) for each in xml.parse(file).getroot().iter("dependency")],
    ids=lambda it: it.get("name"),
)
def test_the_record_of_the_project_has_what_ivy_is_asked_for(wanted: xml.Element) -> None:
    """In that version, or in a later one if another jar asks for that."""
    conf, name = wanted.attrib["conf"].split("->")[0], wanted.attrib["name"]
    names = "\n".join(digests._recorded())
    versions = re.findall(rf"^{conf}/{re.escape(name)}-(\d[\d.]*)\.(?:jar|tar\.gz)$", names, re.MULTILINE)
    assert [parts(version) >= parts(wanted.attrib["rev"]) for version in versions] == [True]


def parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
