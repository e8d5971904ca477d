"""DataFrames of which several sinks get a part, and that Spark should compute once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX = "epochs_shared_"


@dataclass
class Shared:
    """What operators have shared while a transform ran: the DataFrames by their names in Spark's plans."""

    frames: dict[str, DataFrame] = field(default_factory=dict)

    def uses(self, plans: dict[str, str]) -> dict[str, int]:
        """How often the sinks' plans use each of them; those that are used more than once."""
        found = {name: sum(text.count(f"SubqueryAlias {name}\n") for text in plans.values()) for name in self.frames}
        return {name: count for name, count in found.items() if count > 1}

    @contextmanager
    def cached(self, names: dict[str, int]) -> Iterator[None]:
        """Cache some of them until the block ends, each by an action of its own: see ``stage._read_once``."""
        from pyspark.sql import functions as F

        with ExitStack() as until_the_end:
            for name in names:
                self.frames[name].persist()
                until_the_end.callback(self.frames[name].unpersist)
                self.frames[name].agg(F.count(F.lit(1))).collect()
            yield


_COLLECTED: ContextVar[Shared | None] = ContextVar("epochs_shared", default=None)


@contextmanager
def collected() -> Iterator[Shared]:
    """What ``shared`` is called with in the block."""
    shared = Shared()
    token = _COLLECTED.set(shared)
    try:
        yield shared
    finally:
        _COLLECTED.reset(token)


def shared(frame: DataFrame) -> DataFrame:
    """The same rows, under a name by which the stage job knows them. Elsewhere, it is just the name."""
    known = _COLLECTED.get()
    if known is None:
        return frame
    name = f"{_PREFIX}{len(known.frames)}"
    known.frames[name] = frame.alias(name)
    return known.frames[name]
