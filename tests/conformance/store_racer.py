"""A process that races others for keys: ``store_racer.py <url> <options as JSON> <name> <keys>``.

Prints ``ready``, waits for a line on stdin, tries to put every key, and prints the keys it won as JSON.
"""

from __future__ import annotations

import json
import sys

from airflow_epochs.ledger.store import open_store


def main(url: str, options: str, name: str, keys: str) -> None:
    store = open_store(url, json.loads(options))
    store.exists("warm-up")
    print("ready", flush=True)
    sys.stdin.readline()
    won = [n for n in range(int(keys)) if store.put_if_absent(f"race/{n:04d}", f"{name} {n}".encode())]
    print(json.dumps(won))


if __name__ == "__main__":
    main(*sys.argv[1:])
