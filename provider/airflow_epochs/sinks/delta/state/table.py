"""``StateTable``: keyed state from epoch to epoch, as one more sink of the same decision.

It is a Delta table that anybody can query: a log of changes, with a *fold* now and then, which stages the whole state
anew. ``spark.driver.delta.state`` says how it is read and staged, ``table_log`` what its commit takes away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.names import call_of, is_template, normalised, settings
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state.columns import columns_of
from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.transforms.changes import DELETED

if TYPE_CHECKING:
    from airflow_epochs.contracts import Environment, Row, SinkAttempt, StagedSample
    from airflow_epochs.delta.shape import TableShape
    from airflow_epochs.model import JsonDict, Receipt, StatePin, Watermarks
    from airflow_epochs.spark.driver.delta.plans import DeltaStaging


class StateTable(DeltaSink):
    """Keyed state: the transform reads it as of the epoch before, and returns the rows that change it.

    The transform gets it as ``state[name]``, a DataFrame with one row per key. Under the same name it returns the
    changed rows, with the boolean column ``__deleted``: a row that is not deleted takes the place of its key's row.

    Args:
        name: The state's name in the pipeline. It must differ from the names of all sinks and other states.
        table: An absolute path or a URL. The first epoch creates the table.
        schema: The columns as SQL: ``"page string, window_start timestamp, n bigint"``.
        keys: The columns that identify a row. They must not be NULL.
        expires: A TIMESTAMP column: once the watermark has reached it, the row is no longer state. It must never fall
            for a key. A row that has NULL there never expires.
        fold_at: The epoch stages the whole state when the changes since the last fold have this part of its bytes.
        initial: A Delta table (path or URL) with the columns of ``schema``: the state begins with its rows.
        storage_conn_id, properties, checkpoint_every: See ``DeltaSink``.

    Raises:
        BadArgument: An argument is not valid.
    """

    template_fields: Sequence[str] = ("table", "initial", "storage_conn_id", "properties")

    def __init__(
        self,
        name: str,
        table: str,
        *,
        schema: str,
        keys: Sequence[str],
        expires: str | None = None,
        fold_at: float = 0.25,
        initial: str | None = None,
        storage_conn_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        checkpoint_every: int = 10,
    ) -> None:
        super().__init__(
            name,
            table,
            commit="deltalake",
            compact_every=0,
            storage_conn_id=storage_conn_id,
            properties=properties,
            checkpoint_every=checkpoint_every,
        )
        self.schema = schema
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        self.expires = expires
        self.fold_at = fold_at
        self.initial = initial
        try:
            _require_columns(schema, keys, expires)
            _require_path("table", table)
            _require_path("initial", initial or "/")
            if isinstance(fold_at, bool) or not isinstance(fold_at, (int, float)) or not fold_at > 0:
                raise _bad(f"`fold_at` is {fold_at!r}. It must be a number above 0.")
        except BadArgument as error:
            raise _bad(f"State {name!r}: {error.what}") from None

    def __repr__(self) -> str:
        return call_of("StateTable", self.name, self.table, keys=self.keys, storage_conn_id=self.storage_conn_id)

    def spec(self) -> JsonDict:
        """The options, as the ledger records them."""
        return {
            "kind": "state",
            "name": self.name,
            "table": self.target,
            "schema": self.schema,
            "keys": list(self.keys),
            "expires": self.expires,
            "fold_at": self.fold_at,
            "initial": self.initial,
            "storage_conn_id": self.storage_conn_id,
            "properties": settings(self.properties),
            "checkpoint_every": self.checkpoint_every,
        }

    def pin(self, receipt: Receipt | None, pipeline: str, env: Environment) -> StatePin:
        """The newest version, if its rows are the rows of the last complete epoch."""
        from airflow_epochs.sinks.delta.state import pinning

        return pinning.pin(self._participant(env), self, receipt, pipeline)

    def plan_read(self, pin: StatePin, watermarks: Watermarks, env: Environment) -> JsonDict:
        """The pinned version, less rows that no operator of the epoch needs any more."""
        from airflow_epochs.sinks.delta.state import pinning
        from airflow_epochs.spark.driver.wire import as_json

        return as_json(pinning.readable(self._participant(env), self, pin, watermarks))

    def staging(self, append: DeltaStaging, attempt: SinkAttempt) -> DeltaStaging:
        """Spark's plan: the changes, or the whole state."""
        from airflow_epochs.sinks.delta.state import pinning

        return pinning.staging(append, attempt)

    def replaces_by(self) -> None:
        """None: an epoch's state rests on the state of the epoch before, so no epoch can be left out."""

    def adds_columns_to(self, shape: TableShape | None) -> bool:
        """Whether ``schema`` has columns that the table lacks."""
        known = {field["name"] for field in shape.schema["fields"]} if shape else set()
        return bool(known) and not known.issuperset(columns_of(self.schema))

    def user_metadata(self, attempt: SinkAttempt) -> JsonDict:
        """What the commit must know of the state: ``table_log.StateFacts``."""
        from airflow_epochs.sinks.delta.state import pinning

        return {"state": pinning.facts(self, attempt), **super().user_metadata(attempt)}

    def rows_staged(self, attempt: SinkAttempt, place: str, env: Environment) -> Iterator[Row]:
        """The staged changes. Raises Refused if a key changes twice."""
        from airflow_epochs.sinks.delta.state import vote

        vote.require_one_change_per_key(self._participant(env), self, attempt, place)
        yield from super().rows_staged(attempt, place, env)

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """The staged changes, as Spark wrote them; with the keys that change twice."""
        from airflow_epochs.sinks.delta.state import vote

        seen = super().sample(attempt, place, most, env)
        try:
            vote.require_one_change_per_key(self._participant(env), self, attempt, place)
        except Refused as no:
            return replace(seen, problem=no.reason)
        return seen

    def foreign_changes(self, since: Receipt, pipeline: str, told: Collection[str], env: Environment) -> list[str]:
        """None: ``pin`` stops at every change by others."""
        return []


def _require_columns(schema: str, keys: Sequence[str], expires: str | None) -> None:
    names = columns_of(schema)
    if isinstance(keys, str) or not keys or len(set(keys)) < len(keys):
        raise _bad(f"`keys` is {keys!r}. It must be a list of one or more different columns.")
    if ours := sorted(set(names) & {EPOCH, DELETED}):
        raise _bad(f"`schema` has the column {ours[0]}, which the state table adds itself. Leave it out.")
    missing = [name for name in (*keys, *([expires] if expires else [])) if name not in names]
    if missing:
        raise _bad(f"`schema` has no column {', '.join(missing)}. Its columns are {', '.join(names) or 'none'}.")
    if expires in keys:
        raise _bad(f"`expires` is {expires!r}, which is also a key. Give the state a column of its own for it.")


def _require_path(option: str, value: str) -> None:
    path = normalised(value.strip())
    if not is_template(value) and not path.startswith("/") and "://" not in path:
        raise _bad(f"`{option}` is {value!r}. It must be an absolute path or a URL such as s3://bucket/folder.")


def _bad(what: str) -> BadArgument:
    return BadArgument(what, code=codes.STATE_TABLE_ARGUMENT)
