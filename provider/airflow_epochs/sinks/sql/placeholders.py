"""Turns statements into psycopg's form, where each ``%`` begins a placeholder, also in a name or in a text.

All statements of the sink are written as a person types them, with ``%s`` for each value. Only here ``%`` is doubled,
so that no statement can forget it.
"""

from __future__ import annotations

import re

_NO_PLACEHOLDER = re.compile(
    r"""
        "(?:[^"]|"")*"    # a name
      | '(?:[^']|'')*'    # a text
      | %(?!s)            # an operator
    """,
    re.VERBOSE,
)


def for_psycopg(statement: str) -> bytes:
    """The statement, with ``%`` doubled wherever it stands for itself."""
    return _NO_PLACEHOLDER.sub(lambda found: found[0].replace("%", "%%"), statement).encode()
