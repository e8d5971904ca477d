"""The S3 server of the tests keeps S3's promise: of two conditional puts of a key, one wins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.test import Client

from stack.s3_program import ConditionalWritesInTurn

RACERS = 4
KEYS = 25
HOST = "http://127.0.0.1:5000"
SIGNATURE = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20300101/us-east-1/s3/aws4_request"}


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Python switches between threads as often as it can. With moto alone, two puts of a key win then."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_of_conditional_puts_of_a_key_at_the_same_time_one_wins() -> None:
    moto: Any = DomainDispatcherApplication(create_backend_app)
    application = ConditionalWritesInTurn(moto)
    assert Client(application).put("/race", HOST, headers=SIGNATURE).status_code == 200
    start = Barrier(RACERS, timeout=20)

    def statuses(name: int) -> list[int]:
        client, headers = Client(application), {**SIGNATURE, "If-None-Match": "*"}
        found = []
        for key in range(KEYS):
            start.wait()
            found.append(client.put(f"/race/{key}", HOST, headers=headers, data=b"%d" % name).status_code)
        return found

    with ThreadPoolExecutor(RACERS) as pool:
        by_key = zip(*pool.map(statuses, range(RACERS)), strict=True)
    for key, of_key in enumerate(by_key):
        assert sorted(of_key) == [200, 412, 412, 412]
        stands = Client(application).get(f"/race/{key}", HOST, headers=SIGNATURE).data
        assert stands == b"%d" % of_key.index(200), "the winner's value stands"
