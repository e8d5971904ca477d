"""``make bench``: every figure a median of at least five in one run, as a table and as ``bench.json``.

Usage: bench.py [--only NAME …] [--json FILE]. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stack import proxy
from tests.perf.figures import Figure

BENCHMARKS = (
    "ledger_figures",
    "coordinator_figures",
    "delta_figures",
    "kafka_sink_figures",
    "sql_sink_figures",
    "parse_figures",
    "spark_figures",
    "json_figures",
    "format_figures",
    "codec_figures",
    "state_figures",
    "event_time_figures",
    "single_figures",
    "quality_figures",
    "airflow_figures",
    "page_figures",
    "arrival_figures",
    "recovery_figures",
)
FETCHING = ("flink_figures",)
"""Those that fetch a program of others. They run only if they are named."""


def main() -> int:
    options = _options()
    os.environ.update(proxy.bypass())
    figures: list[Figure] = []
    failed: list[str] = []
    for name in options.only or BENCHMARKS:
        Console(stderr=True).print(f"[dim]{name} …[/dim]")
        try:
            figures += import_module(f"tests.perf.{name}").figures()
        except Exception:
            Console(stderr=True).print_exception()
            failed.append(name)
    Console(width=max(120, Console().width)).print(_table(figures))
    Path(options.json).write_text(json.dumps(_report(figures), indent=2) + "\n")
    if failed:
        Console().print(f"[red]not measured: {', '.join(failed)}[/red]")
    return 0 if not failed and all(each.met for each in figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=(*BENCHMARKS, *FETCHING))
    parser.add_argument("--json", default="bench.json")
    return parser.parse_args()


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "median", "min", "max", "unit", "target", "met", "note", title="Medians of one run")
    for each in figures:
        low, high = min(each.samples), max(each.samples)
        numbers = [f"{value:.4g}" for value in (each.median, low, high)]
        table.add_row(each.name, *numbers, each.unit, each.target, "yes" if each.met else "NO", each.note)
    return table


def _report(figures: list[Figure]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "figures": [{**asdict(each), "median": each.median} for each in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
