"""Ports for servers: who is given one has it, also before its server binds it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stack import ports
from stack.processes import StackError

RANGE = range(9_900, 9_940)  # not among those that servers get
ALL_OTHERS = f"""
import json
from stack import ports
ports.PORTS = {RANGE!r}
found = []
try:
    while True:
        found.append(ports.free_port())
except Exception as error:
    print(json.dumps([found, str(error)]))
"""


def given_to_another_process() -> tuple[set[int], str]:
    stack = Path(ports.__file__).parents[1]
    told = subprocess.run([sys.executable, "-c", ALL_OTHERS], cwd=stack, capture_output=True, check=True, timeout=60)
    found, error = json.loads(told.stdout)
    return set(found), error


def test_a_port_is_given_to_one_process_even_while_nothing_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", RANGE)
    ours = {ports.free_port() for _ in range(10)}
    assert len(ours) == 10
    others, error = given_to_another_process()
    assert others and not others & ours
    assert error == "No free port on 127.0.0.1."
    assert len({ports.free_port() for _ in others}) == len(others), "it has ended, so its ports are free again"
    with pytest.raises(StackError, match="No free port"):
        ports.free_port()
