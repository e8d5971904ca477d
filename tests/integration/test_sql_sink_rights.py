"""A pipeline whose user lacks rights: each error names a GRANT, and who types them all has a pipeline that runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import EpochError
from stack.postgres import Postgres
from tests.support.sql_pipeline import PARENT, Related
from tests.support.sql_world import PostgresDb, new_postgres

UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["partition", "offset"]}
MARKERS = """
    CREATE TABLE epoch_markers (
        pipeline varchar(63) NOT NULL, sink varchar(63) NOT NULL, epoch bigint NOT NULL, txn_id text NOT NULL,
        row_count bigint NOT NULL, committed_at timestamptz NOT NULL, ends jsonb, target text,
        PRIMARY KEY (pipeline, sink)
    )
"""
_MOST = 5


@dataclass(frozen=True)
class OfUser(PostgresDb):
    """The pipeline's connection has a user of its own, and the test is the administrator."""

    user: str = ""

    def connection(self, **changed: Any) -> Connection:
        return super().connection(login=self.user, password="x", **changed)


@pytest.fixture
def db(postgres: Postgres) -> OfUser:
    schema = new_postgres(postgres).schema
    made = OfUser(postgres, schema, user=f"u{schema}")
    made.run(f"CREATE USER {made.user} PASSWORD 'x'", PARENT)
    return made


def granted(db: OfUser, rights: str) -> None:
    db.run(*(f"GRANT {right} TO {db.user}" for right in rights.format(db.schema).split("; ")))


def runs(world: Related) -> list[tuple[str, list[str]]]:
    """Run it and type what each error says, until it is content: what the errors said, with their statements."""
    assert isinstance(world.db, OfUser)
    world.source.produce(3)
    said: list[tuple[str, list[str]]] = []
    for number in range(1, _MOST):
        error = world.run(number)
        if error is None:
            world.require_all_shown("orders")
            return said
        assert isinstance(error, EpochError)
        grants = re.findall(r"`(GRANT [^`]*)`", str(error))
        assert grants, error
        world.db.run(*(grant.replace("<the user>", world.db.user) for grant in grants))
        assert error.code
        said.append((f"{error.code.name}: {error.what}", grants))
    raise AssertionError(said)


def pipeline(folder: Path, db: OfUser, **options: Any) -> Related:
    return Related(folder, db, names=("orders",), options=options)


@pytest.mark.parametrize(
    "rights",
    ["", "SELECT ON epoch_markers", "INSERT ON epoch_markers", "SELECT (epoch), UPDATE (epoch) ON epoch_markers"],
    ids=["none", "only to read", "only to insert", "on one column"],
)
def test_the_rights_that_a_marker_table_of_another_user_lacks_are_all_named_at_open(
    db: OfUser, tmp_path: Path, rights: str
) -> None:
    db.run(MARKERS)
    granted(db, "USAGE ON SCHEMA {0}; INSERT ON {0}.orders" + (f"; {rights}" if rights else ""))
    ((said, grants),) = runs(pipeline(tmp_path, db))
    assert said.startswith(f"{codes.SQL_MARKER_TABLE.name}: The sink keeps its marker in ")
    assert all("epoch_markers" in grant for grant in grants)


def test_the_right_to_insert_is_named_with_its_grant(db: OfUser, tmp_path: Path) -> None:
    granted(db, "USAGE, CREATE ON SCHEMA {0}")
    ((said, grants),) = runs(pipeline(tmp_path, db))
    assert said.startswith(codes.SQL_TABLE_UNUSABLE.name) and "may not INSERT into it" in said
    assert grants == [f'GRANT INSERT ON "{db.schema}"."orders" TO <the user>']


def test_columns_that_an_append_may_not_insert_are_named_by_the_vote(db: OfUser, tmp_path: Path) -> None:
    granted(db, "USAGE, CREATE ON SCHEMA {0}; INSERT (source, partition) ON {0}.orders")
    ((said, grants),) = runs(pipeline(tmp_path, db))
    assert codes.GLOBAL_ABORT.name in said and codes.SQL_TABLE_UNUSABLE.name in said
    assert grants == [f'GRANT INSERT ("offset", "payload") ON "{db.schema}"."orders" TO <the user>']


def test_key_columns_that_an_upsert_lacks_rights_on_are_named_at_open_and_others_by_the_vote(
    db: OfUser, tmp_path: Path
) -> None:
    granted(
        db,
        "USAGE, CREATE ON SCHEMA {0}; "
        'INSERT (source, partition, "offset"), SELECT (partition), UPDATE (payload) ON {0}.orders',
    )
    (at_open, first), (at_vote, then) = runs(pipeline(tmp_path, db, **UPSERT))
    assert at_open.startswith(codes.SQL_TABLE_UNUSABLE.name) and 'lacks SELECT ("offset").' in at_open
    assert first == [f'GRANT SELECT ("offset") ON "{db.schema}"."orders" TO <the user>']
    assert codes.GLOBAL_ABORT.name in at_vote and codes.SQL_TABLE_UNUSABLE.name in at_vote
    assert then == [
        f'GRANT SELECT ("source", "payload"), INSERT ("payload"), UPDATE ("source") ON "{db.schema}"."orders" TO '
        "<the user>"
    ]


def test_rights_on_sequence_by_are_looked_at_before_spark_works(db: OfUser, tmp_path: Path) -> None:
    granted(db, "USAGE, CREATE ON SCHEMA {0}; SELECT, INSERT, UPDATE (source) ON {0}.orders")
    said = runs(pipeline(tmp_path, db, sequence_by="payload", **UPSERT))
    assert 'lacks UPDATE ("payload").' in said[0][0]
    assert said[0][0].startswith(codes.SQL_TABLE_UNUSABLE.name)


@pytest.mark.parametrize(
    ("kind", "rights"),
    [
        ("schema", "INSERT ON {0}.orders; CREATE ON SCHEMA {0}"),
        ("sequence", "USAGE, CREATE ON SCHEMA {0}; INSERT ON {0}.orders"),
    ],
)
def test_a_right_on_what_is_no_table_is_granted_as_the_error_says(
    db: OfUser, tmp_path: Path, kind: str, rights: str
) -> None:
    db.run("ALTER TABLE orders ADD COLUMN nr bigserial")
    granted(db, rights)
    if kind == "schema":
        db.run(f"GRANT USAGE ON SEQUENCE orders_nr_seq TO {db.user}")
    world = pipeline(tmp_path, db)
    world.source.produce(3)
    error = str(world.run(1))
    assert codes.SQL_ROW_REFUSED.name in error
    (named,) = re.findall(rf"permission denied for {kind} (\w+)", error)
    (grant,) = re.findall(rf"`(GRANT USAGE ON {kind.upper()} [^`]*)`", error)
    db.run(grant.replace("<its name>", named).replace("<the user>", db.user))
    assert world.run(2) is None
    world.require_all_shown("orders")
