"""Decodes records of Protobuf by columns: the library parses a record, and each column is made at once of all records.

These functions run in Spark's Python workers, which do not have this package: the module travels by value
(``parse_protobuf`` says so to pyspark). It must use nothing but the standard library, numpy, pyarrow and protobuf.

The library parses by a description that ``protobuf_schemas`` wrote for this: texts are bytes there, enums are numbers,
and maps are lists of entries. So a text that is not UTF-8 and an unknown number of an enum are seen in each syntax of
Protobuf, and a map's entries keep their order in the record. The description names each field by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.registry_frames import HEADER, NO_HEADER, NO_VALUE, NOT_UTF8

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Paths = Mapping[tuple[int, ...], "str | None"]
"""Message indexes of a schema -> why a record with them is corrupt; None if it can be decoded."""
Flaws = dict[int, str]
"""Number of a record -> why it is corrupt."""
ROOT = "m0"
"""The message of a record, in the description by which records are parsed."""
PLAIN = {"integer": "int32", "long": "int64", "float": "float32", "double": "float64", "boolean": "bool_"}
"""Types of Spark that pyarrow makes of Python's numbers -> pyarrow's name."""
UNSIGNED = "decimal(20,0)"
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799
"""The seconds of Protobuf's Timestamp: the years 1 to 9999."""
_FIRST = b"\0"
"""The indexes of the first message of a schema, which most records have."""
_NO_INDEXES = "no message indexes that can be read"
_VARINT_MAX = 5
"""Bytes of a message index, which is a number of 32 bits."""


@dataclass(frozen=True)
class Field:
    """A field of the reader's message.

    Attributes:
        number: Its number in the message.
        name: The name of its column.
        at: Where it is, for messages: ``lines.amount``.
        kind: Spark's type of a value, as its own JSON tells it; or ``struct``, ``enum``.
        label: ``always``: what is absent has the default value; ``optional``: it is NULL; ``required``: the record is
            corrupt; ``repeated``; ``map``.
        fields: Of a struct; or key and value of a map.
        symbols: Numbers of an enum -> their names.
        wrapped: The value is in a message of its own, such as ``google.protobuf.Int32Value``.
    """

    number: int
    name: str
    at: str
    kind: str
    label: str
    fields: tuple[Field, ...] = ()
    symbols: Mapping[int, str] = field(default_factory=dict)
    wrapped: bool = False

    @property
    def slot(self) -> str:
        """The field's name in the description by which records are parsed."""
        return f"f{self.number}"


class _Flaw(Exception):
    """Why a record is corrupt."""


class Decoder:
    """Decodes the records of some schemas into the columns of the reader's message."""

    def __init__(self, description: bytes, fields: Sequence[Field], schemas: Mapping[int, Paths | str]) -> None:
        self.parse, self.failure = _parser(description)
        self.fields = fields
        self.schemas = schemas
        usual = (number for number in schemas if self._problem(number, (0,)) is None)
        self.usual = {b"\0" + number.to_bytes(HEADER - 1, "big") + _FIRST for number in usual}
        """Beginnings of records that are decoded at once."""

    def decoded(self, records: pa.Array) -> pa.StructArray:
        """For each record, ``error`` and ``value``: why it is corrupt, and a struct of the columns."""
        import numpy as np
        import pyarrow as pa

        values = records.to_pylist()
        errors, messages = self._parsed(values)
        good = np.flatnonzero([message is not None for message in messages])
        flaws: Flaws = {}
        rows = _struct(self.fields, [messages[row] for row in good], good, flaws)
        for row, why in flaws.items():
            errors[row] = why
        present = np.zeros(len(values), bool)
        present[good] = True
        told = pa.array(errors, pa.string())
        return pa.StructArray.from_arrays([told, _spread(rows, present)], ["error", "value"])

    def _parsed(self, records: Sequence[bytes | None]) -> tuple[list[str | None], list[Any]]:
        errors: list[str | None] = [None] * len(records)
        messages: list[Any] = [None] * len(records)
        for row, record in enumerate(records):
            try:
                messages[row] = self._message(record)
            except _Flaw as flaw:
                errors[row] = str(flaw)
        return errors, messages

    def _message(self, record: bytes | None) -> Any:
        if record is None:
            raise _Flaw(NO_VALUE)
        begin = HEADER + 1 if record[: HEADER + 1] in self.usual else self._begin(record)
        try:
            return self.parse(record[begin:])
        except self.failure:
            raise _Flaw(f"not of its schema, {int.from_bytes(record[1:HEADER], 'big')}") from None

    def _begin(self, record: bytes) -> int:
        number, indexes, begin = framed(record)
        if problem := self._problem(number, indexes):
            raise _Flaw(problem)
        return begin

    def _problem(self, number: int, indexes: tuple[int, ...]) -> str | None:
        paths = self.schemas.get(number)
        if paths is None:
            return f"unknown schema id {number}"
        if isinstance(paths, str):
            return paths
        if indexes not in paths:
            return f"schema {number} has no message with the indexes {list(indexes)}"
        return paths[indexes]


def _parser(description: bytes) -> tuple[Callable[[bytes], Any], type[Exception]]:
    """The class that parses messages, and the error that it raises. It has a pool of its own for its description."""
    try:
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass
    except ImportError as error:
        raise ImportError(
            f"parse_protobuf: the Python of Spark's workers has no library that decodes Protobuf ({error}). Run "
            "`pip install protobuf` for it, in version 4.22 or later."
        ) from error
    pool = DescriptorPool()
    pool.AddSerializedFile(description)
    return GetMessageClass(pool.FindMessageTypeByName(ROOT)).FromString, DecodeError


# -- the frame ---------------------------------------------------------------------------------------------------------


def framed(record: bytes) -> tuple[int, tuple[int, ...], int]:
    """The id of a record's schema, the indexes of its message, and where the message begins. Raises _Flaw."""
    if len(record) < HEADER or record[0]:
        raise _Flaw(NO_HEADER)
    number = int.from_bytes(record[1:HEADER], "big")
    count, at = _varint(record, HEADER)
    if not 0 <= count <= len(record):
        raise _Flaw(_NO_INDEXES)
    indexes = [] if count else [0]
    for _ in range(count):
        index, at = _varint(record, at)
        indexes.append(index)
    return number, tuple(indexes), at


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag code, and where it ends."""
    found = shift = 0
    for end, byte in enumerate(record[at : at + _VARINT_MAX], at + 1):
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), end
        shift += 7
    raise _Flaw(_NO_INDEXES)


# -- columns -----------------------------------------------------------------------------------------------------------


def _struct(fields: Iterable[Field], messages: Sequence[Any], rows: np.ndarray, flaws: Flaws) -> pa.StructArray:
    """A struct per message. ``rows``: the number of the record of each one."""
    import pyarrow as pa

    columns = {each.name: _column(each, messages, rows, flaws) for each in fields}
    return pa.StructArray.from_arrays([*columns.values()], [*columns])


def _column(of: Field, messages: Sequence[Any], rows: np.ndarray, flaws: Flaws) -> pa.Array:
    import numpy as np

    get = attrgetter(of.slot)
    if of.label == "repeated":
        return _lists(of, [*map(get, messages)], rows, flaws)
    if of.label == "map":
        return _maps(of, [_entries(each) for each in map(get, messages)], rows, flaws)
    if of.label == "always":
        return _values(of, [*map(get, messages)], rows, flaws)
    slot = of.slot
    present = np.fromiter((each.HasField(slot) for each in messages), bool, len(messages))
    if of.label == "required":
        _mark(flaws, rows[~present], f"no value for the required field {of.at}")
    return _spread(_values(of, [*map(get, compress(messages, present))], rows[present], flaws), present)


def _spread(values: pa.Array, present: np.ndarray) -> pa.Array:
    """The values at the places that are ``present``; NULL at the others."""
    import numpy as np
    import pyarrow as pa

    if present.all():
        return values
    index = np.where(present, np.cumsum(present) - 1, 0)
    return values.take(pa.array(index, mask=~present))


def _lists(of: Field, lists: Sequence[Any], rows: np.ndarray, flaws: Flaws) -> pa.ListArray:
    import pyarrow as pa

    offsets, rows = _offsets(lists, rows)
    return pa.ListArray.from_arrays(offsets, _values(of, [*chain.from_iterable(lists)], rows, flaws))


def _maps(of: Field, maps: Sequence[Any], rows: np.ndarray, flaws: Flaws) -> pa.MapArray:
    import pyarrow as pa

    offsets, rows = _offsets(maps, rows)
    entries = [*chain.from_iterable(maps)]
    return pa.MapArray.from_arrays(offsets, *(_column(each, entries, rows, flaws) for each in of.fields))


def _entries(found: Any) -> Any:
    """The entries of a map. If two have one key, the later one counts."""
    last = {entry.f1: entry for entry in found}
    return found if len(last) == len(found) else last.values()


def _offsets(lists: Sequence[Any], rows: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Where each list begins and ends, and the number of the record of each of their elements."""
    import numpy as np
    import pyarrow as pa

    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32()), np.repeat(rows, lengths)


def _mark(flaws: Flaws, rows: Iterable[int], why: str) -> None:
    for row in rows:
        flaws.setdefault(int(row), why)


# -- values ------------------------------------------------------------------------------------------------------------


def _values(of: Field, found: list[Any], rows: np.ndarray, flaws: Flaws) -> pa.Array:
    import pyarrow as pa

    if of.wrapped:
        found = [each.f1 for each in found]
    match of.kind:
        case "struct":
            return _struct(of.fields, found, rows, flaws)
        case "string":
            return _texts(found, rows, flaws)
        case "enum":
            return _symbols(of, found, rows, flaws)
        case "timestamp":
            return _times(of, found, rows, flaws)
        case "binary":
            return pa.array(found, pa.binary())
        case kind if kind == UNSIGNED:
            return pa.array(found, pa.uint64()).cast(pa.decimal128(20, 0))
        case kind:
            return pa.array(found, getattr(pa, PLAIN[kind])())


def _texts(found: Sequence[bytes], rows: np.ndarray, flaws: Flaws) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(found, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        bad = [number for number, text in enumerate(found) if not _is_utf8(text)]
        _mark(flaws, rows[bad], NOT_UTF8)
    dropped = {*bad}  # not NULL: it may be the key of a map
    return pa.array([b"" if at in dropped else text for at, text in enumerate(found)], pa.binary()).cast(pa.string())


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _symbols(of: Field, found: Sequence[int], rows: np.ndarray, flaws: Flaws) -> pa.Array:
    import pyarrow as pa

    names = [*map(of.symbols.get, found)]
    for at in _absent(names):
        _mark(flaws, [rows[at]], f"field {of.at} has the number {found[at]}, which its enum does not have")
    return pa.array(names, pa.string())


def _absent(names: list[str | None]) -> Iterator[int]:
    return (at for at, name in enumerate(names) if name is None) if None in names else iter(())


def _times(of: Field, found: Sequence[Any], rows: np.ndarray, flaws: Flaws) -> pa.Array:
    """Instants in microseconds; nanoseconds are cut off, towards the past."""
    import numpy as np
    import pyarrow as pa

    seconds = np.fromiter((each.f1 for each in found), np.int64, len(found))
    nanos = np.fromiter((each.f2 for each in found), np.int64, len(found))
    good = (seconds >= _SECONDS_MIN) & (seconds <= _SECONDS_MAX) & (nanos >= 0) & (nanos < 10**9)
    _mark(flaws, rows[~good], f"field {of.at} is no time in the years 1 to 9999")
    micros = np.where(good, seconds, 0) * 1_000_000 + nanos // 1000
    return pa.array(micros, pa.timestamp("us", "UTC"))
