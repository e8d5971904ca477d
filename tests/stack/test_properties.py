"""Files of properties say to Java what was meant, whatever letters a folder has."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack.broker import Broker
from stack.jars import Jars
from stack.spark import DEFAULTS_FILE, write_defaults


def read(file: Path, encoding: str) -> str:
    """As java.util.Properties reads it: escapes of UTF-16 units, and a backslash is itself only if it is doubled."""
    unit = re.compile(r"\\u([0-9a-f]{4})|\\(.)")
    text = unit.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], file.read_text(encoding))
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("name", ["a b", "ü", "日本", "😀", "back\\slash"])
def test_the_broker_is_told_its_folder_also_if_that_is_not_of_ascii(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broker, "spawn", lambda *_: SimpleNamespace(wait_success=lambda: None))
    broker = Broker(tmp_path / name, Jars(tmp_path))
    broker.start()
    lines = read(broker.folder / "server.properties", "latin-1").splitlines()
    assert f"log.dirs={tmp_path / name / 'log'}" in lines


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_spark_is_told_a_setting_as_it_is(encoding: str, tmp_path: Path) -> None:
    said = r"(?s)kafka\.(sasl|ssl)\..* /lake/a b/ü/😀"
    write_defaults(tmp_path, {"spark.a": said})
    assert read(tmp_path / DEFAULTS_FILE, encoding) == f"spark.a {said}\n"
