"""Schemas of state tables as a DAG may write them, with the names of their columns."""

from __future__ import annotations

SCHEMAS: dict[str, list[str]] = {
    "a string, b decimal(10, 2), c struct<x: int, y: string>": ["a", "b", "c"],
    "a: string, b: map<string, array<array<int>>>, c: int": ["a", "b", "c"],
    "a string NOT NULL COMMENT 'a > b, c < d (', n bigint, m bigint": ["a", "n", "m"],
    r"a string COMMENT 'it''s, and it\'s, a \\', n bigint": ["a", "n"],
    r"""a string COMMENT "say ""hi"", or \"ho\", > 'x, y", n bigint""": ["a", "n"],
    r"a string COMMENT r'c:\', n bigint COMMENT R" + '"d:\\", m int': ["a", "n", "m"],
    "a string COMMENT 'one' 'two, three', n bigint": ["a", "n"],
    "`odd, > name` string COMMENT '`', `a``b` bigint, `x.y` int": ["odd, > name", "a`b", "x.y"],
    "a array<struct<x: int COMMENT 'p>, q', `y,>z`: map<string, decimal(10, 2)>>> COMMENT 'r', b int": ["a", "b"],
    "a int -- the first, of two\n, /* not c, but */ b int": ["a", "b"],
    "\ta\nint\n,\n2nd int,r string COMMENT ''": ["a", "2nd", "r"],
}
"""Spark reads them all."""
