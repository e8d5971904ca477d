"""Refuses what an operator cannot work with, before Spark runs anything.

The error says which operator, which argument or column, and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms import fit
from airflow_epochs.transforms.conditions import quoted
from airflow_epochs.transforms.event_time import micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_THEN = "Then clear the failed task."
_ANEW = "which needs another table if it has rows (docs/state.md, 'Keep the rows of a state')"
_COLLATION = re.compile(r" collate (?!UTF8_BINARY\b)\w+")
"""A collation in a text's type, by which Spark compares it. ``UTF8_BINARY`` is the same as no collation."""
_LONGEST = timedelta(days=2_556_750)
"""The longest duration: 7000 years. Longer ones lead to times after the year 9999, which most readers do not know."""


@dataclass(frozen=True)
class Checks:
    """The checks of one operator, which its errors name."""

    operator: str

    def names(self, argument: str, given: Sequence[str], *, some: bool = True) -> list[str]:
        """The names of columns. Text is refused: it would be taken for a list of letters."""
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise self.argument(argument, given, f"a list of columns' names, like {argument}=['page']")
        if some and not given:
            raise self.argument(argument, given, "a list of at least one column's name")
        return list(given)

    def duration(self, argument: str, given: timedelta, *, zero: bool = False) -> int:
        """A duration in microseconds."""
        if not isinstance(given, timedelta):
            raise self.argument(argument, given, "a datetime.timedelta")
        if given < timedelta(0) or (given == timedelta(0) and not zero):
            raise self.argument(argument, given, "a timedelta that is not negative" if zero else "a positive timedelta")
        if given > _LONGEST:
            raise self.argument(argument, given, f"a timedelta of at most 7000 years, timedelta(days={_LONGEST.days})")
        return micros(given)

    def argument(
        self, argument: str, given: object, wanted: str, why: str | None = None, remedy: str | None = None
    ) -> Refused:
        """The error about an argument.

        Args:
            argument: The argument's name.
            given: Its value.
            wanted: What the value must be.
            why: A clause that says what is wrong with the value, if that is not plain.
            remedy: What to do, if it is something else than to set the argument to ``wanted``.
        """
        flaw = f"; {why}" if why else ""
        return Refused(
            f"{self.operator}({argument}={given!r}): {argument} must be {wanted}{flaw}. Nothing was written.",
            code=codes.OPERATOR_ARGUMENT,
            remedy=f"{remedy or f'Set {argument} of {self.operator}() to {wanted}'}. {_THEN}",
        )

    def has(
        self,
        what: str,
        frame: DataFrame,
        columns: Iterable[str],
        remedy: str = "Add it to {}, or name a column that is there, in the same upper and lower case",
    ) -> None:
        """Refuse a DataFrame without one of the columns."""
        if missing := [name for name in columns if name not in frame.columns]:
            raise Refused(
                f"{self.operator}: {_listed(missing)} is missing among the columns of {what}: "
                f"{_listed(frame.columns)}. Nothing was written.",
                code=codes.OPERATOR_COLUMNS,
                remedy=f"{remedy.format(what)}. {_THEN}",
            )

    def has_keys(self, what: str, frame: DataFrame, keys: Iterable[str]) -> None:
        """Refuse a DataFrame without one of the keys, or with one whose texts are compared by a collation.

        The state's texts have no collation: texts that are equal in an epoch's rows would be two keys of the state.
        """
        self.has(what, frame, keys)
        for name in keys:
            kind = frame.schema[name].dataType.simpleString()
            if _COLLATION.search(kind):
                raise self._collated(what, name, kind)

    def _collated(self, what: str, name: str, kind: str) -> Refused:
        plain = _COLLATION.sub("", kind)
        alike = ", or F.lower() of that if upper and lower case are the same" if plain == "string" else ""
        return Refused(
            f"{self.operator}: key {name!r} of {what} is of type {kind}. A state compares texts byte by byte: where an "
            "epoch ends would decide which keys are equal. Nothing was written.",
            code=codes.OPERATOR_COLUMNS,
            remedy=f"Take the collation off the key, by F.col({name!r}).cast({plain!r}){alike}. {_THEN}",
        )

    def has_not(
        self,
        what: str,
        frame: DataFrame,
        columns: Iterable[str],
        why: str = "the operator makes it",
        remedy: str = "Give it another name before, by withColumnRenamed({!r}, …), or drop it",
    ) -> None:
        """Refuse a DataFrame with a column that the result has from elsewhere. Spark ignores the case of names."""
        own = {name.lower() for name in columns}
        if taken := [name for name in frame.columns if name.lower() in own]:
            raise Refused(
                f"{self.operator}: {_listed(taken)} must not be among the columns of {what}: {why}. "
                "Nothing was written.",
                code=codes.OPERATOR_COLUMNS,
                remedy=f"{remedy.format(taken[0])}. {_THEN}",
            )

    def is_time(self, what: str, frame: DataFrame, *columns: str) -> None:
        """Refuse a column that is missing or that does not say which instant it means."""
        from pyspark.sql.types import TimestampType

        self.has(what, frame, columns)
        for name in columns:
            kind = frame.schema[name].dataType
            if not isinstance(kind, TimestampType):
                raise Refused(
                    f"{self.operator}: column {name!r} of {what} is of type {kind.simpleString()}, not timestamp. "
                    "Nothing was written.",
                    code=codes.OPERATOR_COLUMNS,
                    remedy=f"Make an instant of it: of the state, declare it as '{name} timestamp' in the schema; of "
                    f"rows, F.timestamp_millis() makes one of a number, and F.col({name!r}).cast('timestamp') one of "
                    f"timestamp_ntz, text or a date, in the session's time zone. {_THEN}",
                )

    def shaped(self, frame: DataFrame, state: DataFrame, keys: Collection[str]) -> DataFrame:
        """The rows with the columns of the state, in its order and its types. No value becomes another one.

        Types drift otherwise: a sum of sums is wider than the sum. Only a floating-point number may become the nearest
        one, but not in a column of ``keys``: two keys would become one, which no row of the next epoch has.
        """
        from pyspark.sql import functions as F

        self.has("the state", state, frame.columns)
        self.has("what is kept", frame, state.columns)
        parts = [fit.Part(field.name, frame.schema[field.name].dataType, field.dataType) for field in state.schema]
        found = (fit.misfit(part, is_key=part.name in keys) for part in parts)
        if misfit := next(filter(None, found), None):
            raise self._unfit(misfit)
        made = {part.name: fit.fitted(F.col(quoted(part.name)), part, self.operator) for part in parts}
        return frame.select(*(made[field.name].cast(field.dataType).alias(field.name) for field in state.schema))

    def keyed(self, frame: DataFrame, state: DataFrame, keys: Collection[str]) -> DataFrame:
        """The rows with their keys in the state's types. Spark puts keys of two types apart when it groups by them."""
        parts = [fit.Part(name, frame.schema[name].dataType, state.schema[name].dataType) for name in keys]
        if misfit := next(filter(None, (fit.misfit(part, is_key=True) for part in parts)), None):
            raise self._unfit(misfit)
        return self._fitted(frame, parts)

    def in_order_of(self, like: DataFrame, frame: DataFrame) -> DataFrame:
        """``frame`` with the fields of its structs in the order that they have in ``like``.

        Spark takes the first field first where it compares structs. It takes fields by their places where it asks
        whether structs are equal, and where it unites maps of structs.
        """
        kinds, fields = {field.name: field.dataType for field in like.schema}, frame.schema.fields
        both = [(field.name, field.dataType) for field in fields if field.name in kinds]
        return self._fitted(frame, [fit.Part(name, kind, fit.reordered(kind, kinds[name])) for name, kind in both])

    def _fitted(self, frame: DataFrame, parts: Iterable[fit.Part]) -> DataFrame:
        """The rows with these parts in the types of the state. No part may be a misfit."""
        from pyspark.sql import functions as F

        columns = {
            part.name: fit.fitted(F.col(quoted(part.name)), part, self.operator) for part in parts if part.changes
        }
        return frame.withColumns(columns) if columns else frame  # Spark Connect takes no empty dict

    def _unfit(self, part: fit.Part) -> Refused:
        """The error for a part whose values would change in the state."""
        if part.kind is None or part.wanted is None:
            has, lacks = ("the state", "what is kept") if part.kind is None else ("what is kept", "the state")
            return Refused(
                f"{self.operator}: field {part.name!r} is in a struct of {has}, and missing from the struct of "
                f"{lacks}. Nothing was written.",
                code=codes.OPERATOR_COLUMNS,
                remedy=f"Give the structs of both the same fields: in the transform, by F.struct(F.….alias(…), …); in "
                f"the schema of the state table, {_ANEW}. {_THEN}",
            )
        given, declared = part.kind.simpleString(), part.wanted.simpleString()
        return Refused(
            f"{self.operator}: column {part.name!r} of what is kept is of type {given}, and the state declares "
            f"{declared}. Values would change. Nothing was written.",
            code=codes.OPERATOR_COLUMNS,
            remedy=f"Give it the type {given} in the schema of the state table, {_ANEW}; or make it {declared} in the "
            f"transform, by .cast({declared!r}), if its values may change. {_THEN}",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
