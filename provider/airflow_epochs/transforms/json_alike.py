"""Decodes records of JSON that are written alike: the same names in the same order, and the same blanks.

Most records of one program are so. They are a form with gaps: the same text in all of them, and a value in each gap.
Such records need no parser: their quotes tell where the gaps are, and all records of a batch are cut at once, as one
array of bytes. A record is decoded only if each of its bytes is accounted for:

- the text between the gaps is that of the form, byte by byte;
- a gap inside of quotes has no quote, no backslash and no control character, so it is a text as it stands;
- a gap outside of quotes has a number, ``true``, ``false`` or ``null``, by the rules of JSON (RFC 8259).

All other records are left to ``json_columns``. These functions run in Spark's Python workers, as those do. So this
module uses nothing but the standard library, numpy and pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SparkType = dict[str, Any]
"""A type of Spark's, as its own JSON tells it: {"type": "struct", "fields": [...]}."""
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
FORMS = 4
"""So many forms are looked for in a batch."""
SHARE = 0.02
"""No form is looked for in fewer of a batch's records."""
RUNS = 16
"""Up to this many runs of values are copied run by run: a filter takes longer, since it looks at each value."""
BRACKETS_MAX = 200
"""Records with more brackets are left to ``from_json``: Jackson limits the depth, and pyarrow's own stack is the limit
there."""
DIGITS_MAX = 18
"""Numbers of so many digits are integers of 64 bits."""
_QUOTE, _BACKSLASH, _BLANK, _ZERO, _POINT = b'"\\ 0.'
_OUTSIDE = re.compile(r"([ {}\[\],:]*)([^ {}\[\],:]*)([ {}\[\],:]*)")
"""What stands between two texts in quotes, up to a second value. ``fullmatch`` would try each length of each part: for
40,000 blanks before two values, that takes ten seconds."""
_INTEGER = r"-?(0|[1-9]\d{0,17})"
_NUMBER = rf"{_INTEGER}(\.\d{{1,20}})?([eE][+-]?\d{{1,2}})?"
"""Numbers of usual lengths, of which Java and pyarrow make the same."""
_SCALAR = rf"^({_NUMBER}|true|false|null)$"
_TEXTS = ("string", "date", "timestamp", "timestamp_ntz")
_NUMBERS = ("byte", "short", "integer", "long", "double")


class ValueGap(NamedTuple):
    """Where a value is.

    Attributes:
        piece: In which piece of the record, if it is cut at its quotes.
        before, behind: How many bytes of this piece stand around the value.
    """

    piece: int
    before: int = 0
    behind: int = 0


@dataclass(frozen=True)
class Form:
    """What records that are written alike have in common.

    Attributes:
        gaps: Where the values are, from the first to the last.
        texts: What stands before, between and behind the gaps.
        tree: The record, with the numbers of the gaps as its values. Those of gaps inside of quotes are texts.
    """

    gaps: tuple[ValueGap, ...]
    texts: tuple[str, ...]
    tree: dict[str, Any]


@dataclass(frozen=True)
class Cut:
    """Records with the same number of quotes.

    Attributes:
        data: The bytes of all records, one behind the other.
        begins, ends: Where each record begins and ends.
        quotes: Where its quotes are: a row for each record.
    """

    data: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    quotes: np.ndarray

    def of(self, chosen: np.ndarray) -> Cut:
        return Cut(self.data, self.begins[chosen], self.ends[chosen], self.quotes[chosen])

    def gap(self, gap: ValueGap) -> tuple[np.ndarray, np.ndarray]:
        """Where this gap begins and ends, in each record. It does not leave its piece, whatever the record is."""
        import numpy as np

        begin = self.quotes[:, gap.piece - 1] + 1 if gap.piece else self.begins
        end = self.quotes[:, gap.piece] if gap.piece < self.quotes.shape[1] else self.ends
        if gap.before or gap.behind:
            begin = np.minimum(begin + gap.before, end)
            end = np.maximum(end - gap.behind, begin)
        return begin, end

    def spans(self, begins: np.ndarray, ends: np.ndarray, kind: pa.DataType) -> pa.Array:
        """The bytes of each record between two places."""
        import numpy as np
        import pyarrow as pa

        offsets = np.empty(2 * len(begins), np.int32)
        offsets[::2], offsets[1::2] = begins, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        alternate = pa.Array.from_buffers(kind, max(len(offsets) - 1, 0), buffers)
        return alternate.take(pa.array(np.arange(0, len(offsets), 2)))


class _Unlike(Exception):
    """The schema wants a value of another kind than the form has."""


def decoded(
    texts: pa.StringArray, places: np.ndarray, schema: SparkType, kind: pa.StructType
) -> Iterator[tuple[np.ndarray, pa.StructArray]]:
    """Decode those records that are written alike.

    Args:
        texts: The records.
        places: The numbers of those that begin and end as an object does.
        schema: Their columns.
        kind: The same, in the types of the result: dates and times are texts, integers have 64 bits.

    Returns:
        For each form, the places of records, and what they have.
    """
    import numpy as np

    data, offsets = data_of(texts), offsets_of(texts) - offsets_of(texts)[0]
    quotes = np.flatnonzero(data == _QUOTE).astype(np.int32)
    firsts = np.searchsorted(quotes, offsets)
    counts = np.diff(firsts)
    rest = _simple(data, offsets, places)
    for _ in range(FORMS):
        if len(rest) <= SHARE * len(places):
            return
        count = np.bincount(counts[rest]).argmax()
        among = rest[counts[rest] == count]
        examples = among[examples_of(len(among))]
        forms = [form for place in examples if (form := form_of(texts[place].as_py()))]
        if not forms:
            rest = without(rest, examples)
            continue
        form = max(forms, key=forms.count)
        cut = Cut(data, offsets[among], offsets[among + 1], quotes[firsts[among, None] + np.arange(count)])
        fits = _are_of(cut, form)
        if not fits.all():
            among, cut = among[fits], cut.of(fits)
        yield from _of_form(among, cut, form, schema, kind)
        rest = without(rest, among)


def examples_of(count: int) -> list[int]:
    """The places of some of so many records, or texts, far from one another: an odd one among them does not count."""
    return sorted({count * number // 4 for number in range(1, 4)}) if count else []


def without(places: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The places that are left. ``places``: in order; ``found``: some of them, or all."""
    import numpy as np

    if len(found) == len(places):
        return places[:0]
    left = np.zeros(places[-1] + 1, bool)
    left[places], left[found] = True, False
    return np.flatnonzero(left)


def offsets_of(texts: pa.Array) -> np.ndarray:
    """Where each text begins in the buffer of the array, and where the last one ends."""
    import numpy as np

    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)


def data_of(texts: pa.Array) -> np.ndarray:
    """The bytes of all texts, one behind the other, without a copy."""
    import numpy as np

    offsets = offsets_of(texts)
    return np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]


def _simple(data: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The places of records without escapes and control characters."""
    import numpy as np

    escapes = data == _BACKSLASH
    if not escapes.any() and data.min(initial=_BLANK) >= _BLANK:
        return places
    odd = np.flatnonzero(escapes | (data < _BLANK))
    simple = np.ones(len(offsets) - 1, bool)
    simple[np.searchsorted(offsets, odd, side="right") - 1] = False
    found: np.ndarray = places[simple[places]]
    return found


# -- forms -------------------------------------------------------------------------------------------------------------


def form_of(record: str) -> Form | None:
    """The form of a record; None if its quotes do not tell where its values are, or if it is no object of JSON."""
    pieces = record.split('"')
    gaps: list[ValueGap] = []
    texts = [""]
    for number in range(len(pieces)):
        parted = _parted(pieces, number)
        if parted is None:
            return None
        before, gap, behind = parted
        texts[-1] += before
        if gap:
            gaps.append(gap)
            texts.append("")
        texts[-1] += behind
    if sum(map("".join(texts).count, "{[")) > BRACKETS_MAX:  # Python's parser, too, has a limit, and raises there
        return None
    numbered = texts[0] + "".join(f"{number}{text}" for number, text in enumerate(texts[1:]))
    try:
        tree = json.loads(numbered, object_pairs_hook=_object)
    except ValueError:
        return None
    return Form(tuple(gaps), tuple(texts), tree) if isinstance(tree, dict) else None


def _parted(pieces: list[str], number: int) -> tuple[str, ValueGap | None, str] | None:
    """The gap in a piece, and the text around it, with the quotes; None if there may be several values.

    Every other piece is inside of quotes: a name, if a colon follows, else a value.
    """
    piece = pieces[number]
    if number % 2:
        is_name = number + 1 < len(pieces) and pieces[number + 1].lstrip(" ").startswith(":")
        return (f'"{piece}"', None, "") if is_name else ('"', ValueGap(number), '"')
    found = _OUTSIDE.match(piece)
    if found is None or found.end() < len(piece):
        return None
    before, value, behind = found.groups()
    return before, ValueGap(number, len(before), len(behind)) if value else None, behind


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses an object with two values of one name: which one counts is for ``from_json`` to say."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def _are_of(cut: Cut, form: Form) -> np.ndarray:
    """Which records have the texts of the form around their gaps."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    good = np.ones(len(cut.begins), bool)
    begin = cut.begins
    for gap, text in zip([*form.gaps, None], form.texts, strict=True):
        end, behind = cut.gap(gap) if gap else (cut.ends, cut.ends)
        good &= pc.equal(cut.spans(begin, end, pa.binary()), text.encode()).to_numpy(zero_copy_only=False)
        begin = behind
    return good


# -- values ------------------------------------------------------------------------------------------------------------


def _of_form(
    places: np.ndarray, cut: Cut, form: Form, schema: SparkType, kind: pa.StructType
) -> Iterator[tuple[np.ndarray, pa.StructArray]]:
    """The places of those records of the form whose values have the kinds of the schema; and their values."""
    reader = _Reader(cut, form)
    try:
        values = reader.struct(form.tree, schema, kind)
    except _Unlike:
        return
    reader.check_others()
    good = reader.good
    yield (places, values) if good.all() else (places[good], _only(values, good))


def _only(values: pa.StructArray, good: np.ndarray) -> pa.StructArray:
    """The good ones of the values."""
    import numpy as np
    import pyarrow as pa

    runs = np.flatnonzero(np.diff(good, prepend=False, append=False)).reshape(-1, 2).tolist()
    if not 0 < len(runs) <= RUNS:
        return values.filter(pa.array(good))
    return pa.concat_arrays([values[begin:end] for begin, end in runs])


class _Reader:
    """Reads the gaps of records of one form. ``good``: which records are decoded; the others may get any values."""

    def __init__(self, cut: Cut, form: Form) -> None:
        import numpy as np

        self._cut, self._form = cut, form
        self.good = np.ones(len(cut.begins), bool)
        self._unread = set(range(len(form.gaps)))

    def struct(self, tree: dict[str, Any], schema: SparkType, kind: pa.StructType) -> pa.StructArray:
        import pyarrow as pa

        names = [field["name"] for field in schema["fields"]]
        kinds = [field["type"] for field in schema["fields"]]
        if not names:  # pyarrow would make an array without values of no columns
            return pa.array([{}] * len(self.good), kind)
        columns = [
            self._column(tree[name], wanted, field.type) if name in tree else pa.nulls(len(self.good), field.type)
            for name, wanted, field in zip(names, kinds, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(kind))

    def check_others(self) -> None:
        """What no column wants must be JSON, too."""
        import pyarrow.compute as pc

        for number in sorted(self._unread):
            if self._is_outside(number):
                self._require(pc.match_substring_regex(self._gap(number), _SCALAR))

    def _column(self, tree: Any, wanted: SparkType | str, kind: pa.DataType) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(tree, dict) and not isinstance(wanted, str) and wanted["type"] == "struct":
            return self.struct(tree, wanted, cast("pa.StructType", kind))
        if isinstance(tree, str) and wanted in _TEXTS:
            return self._gap(int(tree))
        if not isinstance(tree, int):
            raise _Unlike
        values = self._gap(tree)
        absent = pc.equal(values, "null")
        if isinstance(wanted, str) and wanted not in _TEXTS:
            return self._scalars(values, absent, wanted, kind)
        self._require(absent)
        return pa.nulls(len(values), kind)

    def _scalars(self, values: pa.Array, absent: pa.Array, wanted: str, kind: pa.DataType) -> pa.Array:
        import pyarrow.compute as pc

        if wanted in _NUMBERS and _are_plain(values, points=wanted == "double"):
            return values.cast(kind)
        fits = pc.match_substring_regex(values, f"^({_pattern(wanted)})$")
        self._require(pc.or_(fits, absent))
        return pc.if_else(fits, values, None).cast(kind)

    def _gap(self, number: int) -> pa.Array:
        import pyarrow as pa

        self._unread.discard(number)
        return self._cut.spans(*self._cut.gap(self._form.gaps[number]), pa.string())

    def _is_outside(self, number: int) -> bool:
        return self._form.gaps[number].piece % 2 == 0

    def _require(self, condition: pa.Array) -> None:
        self.good &= condition.to_numpy(zero_copy_only=False)


def _are_plain(values: pa.StringArray, *, points: bool) -> bool:
    """Whether all values are digits only; or, if ``points``, all of them digits around one point.

    Such values fit ``_INTEGER``, or with points ``_NUMBER``. Where this is False, a pattern has to tell, which takes
    ten times as long.
    """
    import numpy as np

    data, offsets = data_of(values), offsets_of(values) - offsets_of(values)[0]
    begins, ends = offsets[:-1], offsets[1:]
    sizes = ends - begins
    if sizes.min(initial=DIGITS_MAX) < 1 + 2 * points or sizes.max(initial=0) > DIGITS_MAX + points:
        return False
    from_zero = data[begins] == _ZERO
    others = np.flatnonzero(data - _ZERO > 9)
    if not points:
        return not len(others) and not (from_zero & (sizes > 1)).any()
    return (
        len(others) == len(sizes)
        and bool((data[others] == _POINT).all())
        and bool(((others > begins) & (others < ends - 1)).all())
        and not (from_zero & (others > begins + 1)).any()
    )


def _pattern(kind: str) -> str:
    """Values of a type that are written in a usual way."""
    if decimal := DECIMAL.fullmatch(kind):
        precision, scale = map(int, decimal.groups())
        whole = rf"(0|[1-9]\d{{0,{precision - scale - 1}}})" if precision > scale else "0"
        return rf"-?{whole}(\.\d{{1,{scale}}})?" if scale else f"-?{whole}"
    return {"boolean": "true|false", "double": _NUMBER}.get(kind, _INTEGER)
