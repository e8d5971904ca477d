"""How an epoch's rows change a Delta table: they are appended, merged by key, or replace other rows.

Spark commits everything but a plain append, in one transaction (``spark.driver.delta.merge``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.delta.append_only import APPEND_ONLY, is_append_only
from airflow_epochs.errors import BadArgument

if TYPE_CHECKING:
    from airflow_epochs.model import JsonDict
    from airflow_epochs.spark.driver.delta.plans import How

APPEND, UPSERT, MERGE = "append", "upsert", "merge"
OVERWRITE, OVERWRITE_PARTITIONS = "overwrite", "overwrite_partitions"
MODES = (APPEND, UPSERT, MERGE, OVERWRITE, OVERWRITE_PARTITIONS)
ADD_COLUMNS = "add_columns"
KEEP, TRUNCATE = "keep", "truncate"

_OF_MODES = {
    "keys": (UPSERT, MERGE),
    "sequence_by": (UPSERT,),
    "delete_when": (UPSERT,),
    "merge": (MERGE,),
    "on": (MERGE,),
    "empty": (OVERWRITE,),
    "replaces_others": (OVERWRITE, OVERWRITE_PARTITIONS),
}
"""Option -> the modes that accept it. With any other mode it is an error."""
_CLAUSES = re.compile(r"\s*WHEN\s", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A sink's mode with its options. ``DeltaSink`` documents them."""

    mode: str = APPEND
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_when: str | None = None
    merge: str | None = None
    on: str | None = None
    schema_evolution: str | None = None
    empty: str = KEEP
    replaces_others: bool = False

    @classmethod
    def of(cls, *, keys: Sequence[str] = (), **options: Any) -> Mode:
        """The mode with these options, checked.

        Raises:
            BadArgument: An option is unknown, does not fit the mode, or is missing.
        """
        if isinstance(keys, str):
            raise _bad(f"`keys` is the text {keys!r}. It must be a list of columns, like [{keys!r}].")
        mode = cls(keys=tuple(keys), **options)
        mode._check()
        return mode

    def _check(self) -> None:
        if self.mode not in MODES:
            raise _bad(f"`mode` is {self.mode!r}. It must be {_any_of(MODES)}.")
        for option, modes in _OF_MODES.items():
            if getattr(self, option) != getattr(Mode, option) and self.mode not in modes:
                raise _bad(
                    f"`{option}` is {getattr(self, option)!r}, and `mode` is {self.mode!r}. `{option}` is valid only "
                    f"with mode {_any_of(modes)}."
                )
        if self.schema_evolution not in (None, ADD_COLUMNS):
            raise _bad(f"`schema_evolution` is {self.schema_evolution!r}. It must be {ADD_COLUMNS!r} or None.")
        if self.empty not in (KEEP, TRUNCATE):
            raise _bad(f"`empty` is {self.empty!r}. It must be {_any_of((KEEP, TRUNCATE))}.")
        self._check_keys()
        self._check_sql()

    def _check_keys(self) -> None:
        if self.mode in (UPSERT, MERGE) and not self.keys:
            raise _bad(
                f"`mode` is {self.mode!r}, and `keys` is empty. This mode needs the columns that identify a row."
            )
        if len({key.lower() for key in self.keys}) < len(self.keys):
            raise _bad(f"`keys` is {list(self.keys)}. It must name each column only once.")
        if self.sequence_by is not None and self.sequence_by.lower() in {key.lower() for key in self.keys}:
            raise _bad(
                f"`sequence_by` is {self.sequence_by!r}, which is one of the keys. It must be another column: rows "
                "with the same key have the same value in a key column."
            )

    def _check_sql(self) -> None:
        for option in ("sequence_by", "delete_when", "on"):
            value = getattr(self, option)
            if value is not None and not value.strip():
                raise _bad(f"`{option}` is {value!r}. It must not be empty; leave it out instead.")
        if self.mode == MERGE and not _CLAUSES.match(self.merge or ""):
            raise _bad(
                f"`mode` is 'merge', and `merge` is {self.merge!r}. It must have the clauses of MERGE, like 'WHEN "
                "MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT *'."
            )

    @property
    def is_plain_append(self) -> bool:
        """Whether rows are only added, unchanged. Only such a commit needs no more than metadata."""
        return self == Mode()

    def replaces_by(self) -> tuple[str, ...] | None:
        """``Replacing.replaces_by``."""
        if self.mode == UPSERT:  # of two rows that are equally new, the row of the later epoch wins
            return (*self.keys, self.sequence_by) if self.sequence_by else self.keys
        return () if self.mode == APPEND else None

    @property
    def notes_deletions(self) -> bool:
        """Whether the sink notes deleted keys beside the table, so that older rows cannot bring them back."""
        return self.delete_when is not None and self.sequence_by is not None

    @property
    def reads_notes(self) -> bool:
        """Whether the sink reads notes of deletions, also from other sinks, and drops rows that are older."""
        return self.sequence_by is not None

    def spares_others(self, rows: int) -> bool:
        """Whether an epoch with ``rows`` rows replaces rows, but must not replace rows of other pipelines."""
        if self.mode not in (OVERWRITE, OVERWRITE_PARTITIONS) or self.replaces_others:
            return False
        return rows > 0 or (self.mode, self.empty) == (OVERWRITE, TRUNCATE)

    def require_committer(self, commit: str | None, properties: Mapping[str, str]) -> str | None:
        """The committer that the user chose, or ``spark`` if only Spark can commit this mode.

        Raises:
            BadArgument: The user chose another committer, or made an append-only table for a mode that changes rows.
        """
        if self.is_plain_append:
            return commit
        if self.mode == APPEND and commit != "spark":
            raise _bad(
                f"`schema_evolution` is {self.schema_evolution!r}, and `commit` is {commit!r}. With mode 'append', "
                "`schema_evolution` needs commit='spark'."
            )
        if commit not in (None, "spark"):
            raise _bad(f"`commit` is {commit!r}. Spark commits mode {self.mode!r}: leave `commit` out.")
        if self.mode != APPEND and is_append_only(properties):
            raise _bad(
                f"`mode` is {self.mode!r}, which changes rows, and `properties` sets {APPEND_ONLY}=true, which forbids "
                "it. Choose mode 'append', or leave the property out."
            )
        return "spark"

    def spec(self) -> JsonDict:
        """The options that differ from their defaults, as JSON, and always ``mode``."""
        options = {key: value for key, value in asdict(self).items() if value != getattr(Mode, key)}
        return options | {"mode": self.mode} | ({"keys": list(self.keys)} if self.keys else {})

    def plan(self) -> How:
        """The options that ``spark.driver.delta.merge`` needs. The vote alone uses ``replaces_others``."""
        from airflow_epochs.spark.driver.delta.plans import How

        options = asdict(self)
        del options["replaces_others"]
        return How(**options)


def _bad(what: str) -> BadArgument:
    return BadArgument(what, code=codes.DELTA_SINK_ARGUMENT)


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(repr(name) for name in names)
