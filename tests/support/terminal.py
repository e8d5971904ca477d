"""A terminal with somebody at it."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import patch


class Screen:
    """What the terminal showed, once its program has ended."""

    text = ""


@contextmanager
def terminal(typed: str) -> Iterator[Screen]:
    """A pseudo-terminal in place of this process's standard input and output; ``typed`` was typed ahead."""
    screen = Screen()
    person, program = pty.openpty()
    _as_printed(program)
    os.write(person, typed.encode())
    with ThreadPoolExecutor(1) as eyes, open(person, "rb", buffering=0):
        seen = eyes.submit(_all_of, person)
        with ExitStack() as program_runs:
            reads = program_runs.enter_context(open(program))
            writes = program_runs.enter_context(open(os.dup(program), "w"))
            program_runs.enter_context(patch("sys.stdin", reads))
            program_runs.enter_context(patch("sys.stdout", writes))
            yield screen
        screen.text = seen.result().decode()


def _as_printed(terminal: int) -> None:
    """No echo of what is typed, and lines end as the program ends them."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _all_of(person: int) -> bytes:
    text = b""
    with suppress(OSError):  # how Linux says that the program has closed its end
        while more := os.read(person, 65536):
            text += more
    return text
