"""What Java reads from a file of properties: Kafka's servers as Latin-1, Spark as UTF-8."""

from __future__ import annotations


def escaped(text: str) -> str:
    """``text`` in ASCII, which is the same in both encodings, so that Java reads ``text`` again."""
    return "".join(char if char.isascii() else _units(char) for char in text.replace("\\", "\\\\"))


def _units(char: str) -> str:
    """The escapes of a character, one for each of its units in UTF-16."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
