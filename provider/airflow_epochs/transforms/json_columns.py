"""Decodes records of JSON by columns, where Spark's ``from_json`` would get the same values.

Records that are written alike need no parser (``json_alike``). pyarrow's reader decodes others. It is strict where
``from_json`` is lenient. So the rule is: what pyarrow takes, and what no check below doubts, is what ``from_json``
makes of it; all else is left to ``from_json`` itself, record by record. The checks stand for known differences, and
each says which. ``tests/properties/test_json_engines.py`` looks for unknown ones.

These functions run in Spark's Python workers, which do not have this package: both modules travel by value
(``parse_json`` says so to pyspark). They must use nothing but the standard library, numpy and pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms import json_alike
from airflow_epochs.transforms.json_alike import DECIMAL, SparkType

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BYTES_MAX = 16 << 20
"""So much text is decoded at once."""
PATIENCE, GAP = 4, 200
"""After so many refused records in one batch, pyarrow is asked on only if it takes so many between two of them. So a
batch that is full of records that it refuses costs little more than without it."""
WORTH = 200
"""pyarrow is asked if more than one of so many records is not written as others are. The call takes as long as
``from_json`` takes for some hundred records."""
LENGTH_MAX = 50_000
"""Longer records are left to ``from_json``: Jackson limits the length of names, and pyarrow does not."""
PARTS, FEW = 8, 256
"""What pyarrow refuses is cut into so many parts, to find the value that it means. So few records are decoded as text
one by one, if one of them is not UTF-8: Python is faster at that than pyarrow at refusing."""
NUMBER_MAX, STEP = 900, 100
"""So are records that may have a longer number: Jackson limits it to 1,000 characters. One of every so many is looked
at first: a long number has ``NUMBER_MAX // STEP`` of these, one after the other."""
_INF = r"(?:Inf|-NaN)\s*[,\]}]"
"""Numbers for pyarrow, and not for Jackson, which takes ``Infinity``, ``INF`` and ``NaN``."""
_ZONE = r"(Z|[+-](0\d|1[0-7]):[0-5]\d)"
_DATE = r"[1-9]\d{3}-\d\d-\d\d"
_TIME = _DATE + r"[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_TEXTS = {"date": f"^{_DATE}$", "timestamp": f"^{_TIME}{_ZONE}$", "timestamp_ntz": f"^{_TIME}$"}
"""Which texts of dates and times are decoded here; in years that all calendars agree on."""
_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PLAIN = {"string", "boolean", "double", *_INTEGERS, *_TEXTS}
_IN_ROW = re.compile(r"in row (\d+)")
_PREFIXES: dict[int, pa.Array] = {}
"""Powers of two, and the beginnings of so many lines. A cache of functools would not travel by value."""


class _Undecided(Exception):
    """pyarrow refuses a record. ``row``: its place among those that were asked about, or near it, if it is known."""

    def __init__(self, row: int | None = None) -> None:
        self.row = row


def supported(schema: SparkType | str) -> bool:
    """Whether all of the type can be decoded here. Maps, binary values and floats of 32 bits cannot."""
    if isinstance(schema, str):
        return schema in _PLAIN or bool(DECIMAL.fullmatch(schema))
    if schema["type"] == "struct":
        names = [field["name"] for field in schema["fields"]]
        return len(set(names)) == len(names) and all(supported(field["type"]) for field in schema["fields"])
    return schema["type"] == "array" and supported(schema["elementType"])


def decoded(records: pa.Array, schema: SparkType) -> pa.StructArray:
    """Decode a batch of records.

    Args:
        records: Binary or text; NULL is no record.
        schema: A struct that is ``supported``.

    Returns:
        A struct per record. NULL where the record is left to ``from_json``.
    """
    import numpy as np
    import pyarrow as pa

    texts = _texts(records)
    left = np.ones(len(records), bool)
    pieces = []
    for found, piece in _pieces(texts, schema):
        doubtful = np.zeros(len(piece), bool)
        values = _converted(piece, schema, np.arange(len(piece)), doubtful)
        left[found[~doubtful]] = False
        pieces.append((found, values))
    if not pieces:
        return pa.nulls(len(records), arrow_type(schema))
    if len(pieces) == 1 and not left.any():
        return pieces[0][1]
    values = pa.concat_arrays([piece for _, piece in pieces])
    index = np.zeros(len(records), np.int64)
    index[np.concatenate([found for found, _ in pieces])] = np.arange(len(values))
    return values.take(pa.array(index, mask=left))


# -- which records are tried ------------------------------------------------------------------------------------------


def _texts(records: pa.Array) -> pa.Array:
    """The records as text without blanks around it; NULL where it is no UTF-8, which Java mends and pyarrow refuses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = records.view(pa.binary()) if records.type == pa.string() else records.cast(pa.binary())
    texts = _cast(binary, pa.string(), FEW, _text)
    return texts if pc.all(_are_objects(texts)).as_py() else pc.ascii_trim(texts, characters=" \t\r\n")


def _text(value: bytes) -> str | None:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _cast(values: pa.Array, kind: pa.DataType, few: int, single: Callable[[Any], Any]) -> pa.Array:
    """The values in another type. pyarrow refuses all of them for the sake of one, and does not say which.

    So it is asked about parts, until ``few`` values are left; ``single`` makes something of each of these.
    """
    import pyarrow as pa

    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        size = -(-len(values) // PARTS)
    if len(values) <= few:
        return pa.array([None if value is None else single(value) for value in values.to_pylist()], kind)
    parts = [values.slice(begin, size) for begin in range(0, len(values), size)]
    return pa.concat_arrays([_cast(part, kind, few, single) for part in parts])


def _are_usual(texts: pa.Array) -> np.ndarray:
    """Which records look like one JSON object of a usual size."""
    import pyarrow.compute as pc

    good = pc.and_(_are_objects(texts), pc.less_equal(pc.binary_length(texts), LENGTH_MAX))
    found: np.ndarray = pc.fill_null(good, False).to_numpy(zero_copy_only=False)
    return found


def _plausible(texts: pa.Array, schema: SparkType) -> np.ndarray:
    """Which objects pyarrow's reader may be asked about."""
    import numpy as np
    import pyarrow.compute as pc

    good = np.ones(len(texts), bool)
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > json_alike.BRACKETS_MAX:
        good = _are_moderate(texts)
    for doubtful in filter(None, (_quoted_decimals(schema), _INF if _may_have_inf(texts) else "")):
        good &= ~pc.match_substring_regex(texts, doubtful).to_numpy(zero_copy_only=False)
    return good


def _are_objects(texts: pa.Array) -> pa.Array:
    """Which texts begin and end as an object does; NULL for NULL."""
    import pyarrow.compute as pc

    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


def _may_have_inf(texts: pa.Array) -> bool:
    """Whether pyarrow may read a number where Jackson finds no JSON. The pattern would take far longer to tell."""
    data = json_alike.data_of(texts).tobytes()
    return b"Inf" in data or b"-NaN" in data


def _are_moderate(texts: pa.Array) -> np.ndarray:
    """Which texts have neither more than ``json_alike.BRACKETS_MAX`` brackets nor a number that may be too long.

    All texts are looked at as one array of bytes: patterns take several times as long.
    """
    import numpy as np

    offsets = json_alike.offsets_of(texts)
    data, ends = json_alike.data_of(texts), offsets[1:] - offsets[0]
    brackets = np.flatnonzero(data | 0x20 == ord("{"))  # "[" is "{" but for this bit
    moderate: np.ndarray = np.diff(np.searchsorted(brackets, ends), prepend=0) <= json_alike.BRACKETS_MAX
    moderate[_of_long_numbers(data, ends)] = False
    return moderate


def _of_long_numbers(data: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which texts have so many characters of numbers in a row. ``ends``: where each text ends in the data."""
    import numpy as np

    of_numbers = np.zeros(256, bool)
    of_numbers[list(b"0123456789+-.eE")] = True
    in_a_row = NUMBER_MAX // STEP
    seen = np.convolve(of_numbers[data[::STEP]], np.ones(in_a_row, int), "valid") == in_a_row
    first = np.flatnonzero(seen) * STEP
    steps = np.arange(in_a_row - 1) * STEP
    for between in np.split(np.arange(1, STEP), 11):  # several at once: a call takes longer than a look
        if not len(first):
            break
        looked_at = (steps[:, None] + between).ravel()
        first = first[of_numbers[data[first[:, None] + looked_at]].all(axis=1)]
    begin, end = (np.searchsorted(ends, each, side="right") for each in (first, first + in_a_row * STEP - STEP))
    found: np.ndarray = begin[begin == end]
    return found


def _quoted_decimals(schema: SparkType) -> str:
    """A pattern of records that may have a decimal as text: Java reads "1,5" or "1e2" there by rules of its own."""
    names = sorted(set(_names_of_decimals(schema)))
    if not names:
        return ""
    escaped = r"\\u00[2-7]" if all(map(str.isascii, names)) else r"\\u"  # a name may be written in this way, too
    return "(?:" + "|".join(f'"{re.escape(name)}"' for name in names) + rf')\s*:\s*[\["]|{escaped}'


def _names_of_decimals(schema: SparkType | str, name: str = "") -> Iterator[str]:
    if isinstance(schema, str):
        if DECIMAL.fullmatch(schema):
            yield name
    elif schema["type"] == "array":
        yield from _names_of_decimals(schema["elementType"], name)
    else:
        for field in schema["fields"]:
            yield from _names_of_decimals(field["type"], field["name"])


# -- pyarrow's reader --------------------------------------------------------------------------------------------------


def _pieces(texts: pa.Array, schema: SparkType) -> Iterator[tuple[np.ndarray, pa.StructArray]]:
    """Places of records, and what they have; some places are left out."""
    for begin, end in _cut(json_alike.offsets_of(texts)):
        for found, values in _in_part(texts.slice(begin, end - begin), schema):
            yield found + begin, values


def _in_part(texts: pa.Array, schema: SparkType) -> Iterator[tuple[np.ndarray, pa.StructArray]]:
    import numpy as np
    import pyarrow as pa

    rest = np.flatnonzero(_are_usual(texts))
    if not len(rest):
        return
    for found, values in json_alike.decoded(texts, rest, schema, arrow_type(schema, read=True)):
        yield found, values
        rest = json_alike.without(rest, found)
    if len(rest) > len(texts) // WORTH:
        chosen = texts if len(rest) == len(texts) else texts.take(pa.array(rest))
        rest = rest[_plausible(chosen, schema)]
        yield from _by_pyarrow(texts, rest, schema) if len(rest) else ()


def _by_pyarrow(texts: pa.Array, places: np.ndarray, schema: SparkType) -> Iterator[tuple[np.ndarray, pa.StructArray]]:
    """Places of records, and what pyarrow makes of them, in order; some places are left out.

    Each record is put into an object with its number. So a record that is two values, or half of one, is refused, and
    cannot be taken for its neighbour: the numbers that come back must be those that were given.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = texts if len(places) == len(texts) else texts.take(pa.array(places))
    lines = pc.binary_join_element_wise(_prefixes(len(places)), chosen, "}\n", "")
    todo, refusals = [(0, len(lines))], 0
    while todo:
        begin, end = todo.pop()
        try:
            read = _read(lines, begin, end, schema)
        except _Undecided as refused:
            found = refused.row is not None or end - begin == 1
            refusals += found
            if found and refusals > PATIENCE and begin < refusals * GAP:
                return
            if end - begin > 1:
                todo += _around(begin, end, refused.row)
        else:
            yield places[begin:end], read


def _cut(offsets: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of texts with at most ``BYTES_MAX`` bytes, if a text has not more."""
    import numpy as np

    cuts = np.searchsorted(offsets - offsets[0], np.arange(BYTES_MAX, offsets[-1] - offsets[0], BYTES_MAX)).tolist()
    ranges = zip([0, *cuts], [*cuts, len(offsets) - 1], strict=True)
    return [(begin, end) for begin, end in ranges if begin < end]


def _around(begin: int, end: int, row: int | None) -> list[tuple[int, int]]:
    """What to ask about next, the last one first: all but the row that was refused; halves if it is not known."""
    if row is None:
        middle = (begin + end) // 2
        return [(middle, end), (begin, middle)]
    at = begin + row
    return [(first, last) for first, last in ((at + 1, end), (begin, at)) if first < last]


def _read(lines: pa.Array, begin: int, end: int, schema: SparkType) -> pa.StructArray:
    """The values of some lines, as pyarrow reads them. Raises _Undecided."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import json

    offsets = json_alike.offsets_of(lines)
    data = lines.buffers()[2].slice(int(offsets[begin]), int(offsets[end] - offsets[begin]))
    wanted = pa.schema([("n", pa.int64()), ("r", arrow_type(schema, read=True))])
    try:
        table = json.read_json(
            pa.BufferReader(data),
            json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise _Undecided(_row(str(error), end - begin)) from error
    numbers, values = table["n"].combine_chunks(), table["r"].combine_chunks()
    if numbers.null_count or not np.array_equal(numbers.to_numpy(), np.arange(begin, end)):
        raise _Undecided
    return values


def _row(message: str, count: int) -> int | None:
    """Which of so many lines pyarrow means. It counts values, so a line with two of them makes it mean a later one."""
    told = _IN_ROW.search(message)
    row = int(told.group(1)) if told else count
    return row if row < count else None


def _prefixes(count: int) -> pa.Array:
    """The beginnings of so many lines."""
    import pyarrow as pa

    size = 1 << (count - 1).bit_length()
    if size not in _PREFIXES:
        _PREFIXES[size] = pa.array([f'{{"n":{number},"r":' for number in range(size)], pa.string())
    return _PREFIXES[size].slice(0, count)


def arrow_type(schema: SparkType | str, *, read: bool = False) -> pa.DataType:
    """The type of pyarrow for one of Spark's. ``read``: the one that its reader of JSON is asked for."""
    import pyarrow as pa

    if not isinstance(schema, str):
        if schema["type"] == "array":
            return pa.list_(arrow_type(schema["elementType"], read=read))
        return pa.struct([(field["name"], arrow_type(field["type"], read=read)) for field in schema["fields"]])
    if decimal := DECIMAL.fullmatch(schema):
        precision, scale = map(int, decimal.groups())
        # The reader takes so many digits, multiplies them by 10**scale, and does not see when that overflows.
        wide = read and precision + scale > 38
        return (pa.decimal256 if wide else pa.decimal128)(precision, scale)
    if schema in _INTEGERS:
        return pa.int64() if read else getattr(pa, f"int{_INTEGERS[schema]}")()
    if schema in _TEXTS and not read:
        return {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC")}.get(schema, pa.timestamp("us"))
    return {"boolean": pa.bool_(), "double": pa.float64()}.get(schema, pa.string())


# -- values as Spark has them ------------------------------------------------------------------------------------------


def _converted(values: pa.Array, schema: SparkType | str, rows: np.ndarray, doubtful: np.ndarray) -> pa.Array:
    """The values in Spark's types. Marks in ``doubtful`` the records, by number, with a value that may differ.

    ``rows``: the number of the record of each value.
    """
    if not isinstance(schema, str):
        return (_lists if schema["type"] == "array" else _structs)(values, schema, rows, doubtful)
    converted, bad = _scalars(values, schema)
    doubtful[rows[bad]] = True
    return converted


def _structs(values: pa.StructArray, schema: SparkType, rows: np.ndarray, doubtful: np.ndarray) -> pa.Array:
    import pyarrow as pa

    columns = [
        _converted(column, field["type"], rows, doubtful)
        for field, column in zip(schema["fields"], values.flatten(), strict=True)
    ]
    kind, absent = arrow_type(schema), values.is_null()
    if not columns:
        return pa.array([None if null else {} for null in absent.to_pylist()], kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=absent)


def _lists(values: pa.ListArray, schema: SparkType, rows: np.ndarray, doubtful: np.ndarray) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    of_elements = rows[pc.list_parent_indices(values).to_numpy()]
    elements = _converted(values.flatten(), schema["elementType"], of_elements, doubtful)
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())


def _scalars(values: pa.Array, kind: str) -> tuple[pa.Array, np.ndarray]:
    """The values, and which of them may differ from Spark's."""
    import numpy as np
    import pyarrow.compute as pc

    if kind in _TEXTS:
        return _times(values, kind)
    if kind == "double":  # Java reads the integer -0 as 0.0, pyarrow as -0.0
        numbers = values.to_numpy(zero_copy_only=False)
        return values, (numbers == 0) & np.signbit(numbers)
    if _INTEGERS.get(kind, 64) < 64:
        bound = 1 << (_INTEGERS[kind] - 1)
        return _where(pc.and_(pc.greater_equal(values, -bound), pc.less(values, bound)), values, arrow_type(kind))
    if DECIMAL.fullmatch(kind):
        return _decimals(values, arrow_type(kind))
    return values, np.zeros(len(values), bool)


def _where(fits: pa.Array, values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """The values that fit a type, in this type; and which do not."""
    import pyarrow.compute as pc

    bad: np.ndarray = ~pc.fill_null(fits, True).to_numpy(zero_copy_only=False)
    return pc.if_else(fits, values, None).cast(kind), bad


def _decimals(values: pa.Array, kind: pa.Decimal128Type) -> tuple[pa.Array, np.ndarray]:
    """The reader counts the digits that are written: for it, 12345678901 is a decimal(12,2), and 1 a decimal(2,2)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    most = pa.scalar(Decimal((0, (9,) * kind.precision, -kind.scale)), values.type)
    return _where(pc.less_equal(pc.abs(values), most), values, kind)


def _times(texts: pa.Array, kind: str) -> tuple[pa.Array, np.ndarray]:
    """Texts in ISO 8601 as dates or times; ``from_json`` takes many more forms."""
    import pyarrow as pa
    import pyarrow.compute as pc

    clear = pc.if_else(pa.array(_are_clear(texts, kind)), texts, None)
    times = _cast(clear, arrow_type(kind), 1, lambda _: None)  # NULL for a day that no month has
    lost = pc.and_(pc.is_valid(texts), pc.is_null(times))
    return times, lost.to_numpy(zero_copy_only=False)


def _are_clear(texts: pa.Array, kind: str) -> np.ndarray:
    """Which texts are times of a usual form. A pattern takes six times as long to tell as a look at the bytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    clear = _are_alike(texts, kind)
    others = np.flatnonzero(~clear)
    if len(others):
        fits = pc.match_substring_regex(texts.take(pa.array(others)), _TEXTS[kind])
        clear[others] = pc.fill_null(fits, False).to_numpy(zero_copy_only=False)
    return clear


def _are_alike(texts: pa.Array, kind: str) -> np.ndarray:
    """Which texts have the most common of the usual forms, but for other digits.

    pyarrow refuses by itself what is no hour, minute or day; but not all zones that Java refuses.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    alike = np.zeros(len(texts), bool)
    form = _form_of_times(texts, kind)
    if not form:
        return alike
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    same = np.flatnonzero(lengths == len(form))
    chosen = texts if len(same) == len(texts) else texts.take(pa.array(same))
    least = np.frombuffer(form.encode(), np.uint8)
    spans = np.where(least == ord("0"), np.uint8(9), np.uint8(0))
    spans[0] = 8  # the first digit of a year is not 0
    other = np.flatnonzero(json_alike.data_of(chosen).reshape(-1, len(form)) - least > spans)
    alike[same] = True
    alike[same[other // len(form)]] = False
    return alike


def _form_of_times(texts: pa.Array, kind: str) -> str:
    """The form that most of some texts have, with the least digits; empty if only a pattern can tell."""
    import pyarrow as pa

    told = texts.take(pa.array(json_alike.examples_of(len(texts)), pa.int64())).to_pylist()
    forms = [re.sub("[0-9]", "0", text) for text in told if text and re.fullmatch(_TEXTS[kind], text, re.ASCII)]
    # From the 20th character on, a time has a fraction of its second, and a zone.
    clear = [form for form in forms if form[19:].strip(".0") in ("", "Z")]
    return "1" + max(clear, key=clear.count)[1:] if clear else ""
