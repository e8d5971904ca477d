"""The named steps of a run, in order, and the row of the matrix of faults and steps that each belongs to."""

from __future__ import annotations

STEPS = {
    "open.put": 1,
    "open.landed": 2,
    "stage.start": 3,
    "staging.audit": 3,
    "staged.audit": 4,
    "stage.done": 5,
    "decision.put": 6,
    "decision.landed": 7,
    "commit.orders": 8,
    "delta.commit.before#1": 8,
    "delta.commit.after#1": 9,
    "committed.orders": 9,
    "commit.audit": 11,
    "delta.commit.before#2": 11,
    "delta.commit.after#2": 11,
    "committed.audit": 11,
    "complete.put": 12,
    "complete.landed": 13,
}
"""Of a run of the pipeline of ``DiskWorld``, its two sinks one after the other."""

DECIDED = tuple(list(STEPS)[list(STEPS).index("decision.landed") :])
"""From here on the only way is forward."""
