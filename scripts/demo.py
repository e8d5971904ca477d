"""``make demo``: exactly once, shown on a real broker, a real Spark, real Delta tables and a real Airflow scheduler.

Produces orders while the DAG ``orders`` runs, kills a stage task and a Spark server in the middle of epochs, waits
until everything is consumed, and has DuckDB look for every produced record. Exit code 0 only if each is in exactly
one row. ``DEMO_KEEP=1`` leaves everything running.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import OffsetRange
from airflow_epochs.names import PAGE
from orders_demo.feed import Feed
from orders_demo.lines import Lines
from orders_demo.sabotage import Hit, Missed, kill_spark_server, kill_stage_task
from orders_demo.verify import Verdict, verify
from orders_demo.watch import PIPELINE, Watch
from stack import control, private, proxy, shell
from stack.airflow import USER, password_in
from stack.jars import fetch
from stack.processes import StackError
from stack.whole import AIRFLOW, PROJECT, State

ORDERS = 300_000
AT_ONCE = 60_000
PER_S = 12_000
EPOCH_RECORDS_MAX = 60_000
STILL_S = 240.0
"""The demo fails if no epoch gets on for so long. A slow machine may take longer for all of them."""
STEPS = ("open", "stage", "vote", "commit", "complete")

console = Console(width=max(130, Console().width), highlight=False)


def main() -> int:
    folder = PROJECT / ".stack"
    os.umask(private.UMASK)
    os.environ.update(proxy.bypass())
    control.leave_on_signals()  # so that everything is stopped
    keep, own = os.environ.get("DEMO_KEEP") == "1", is_own(folder)
    try:
        state = start(folder)
        verdict = run(state, folder)
    except (StackError, Missed, RuntimeError) as problem:
        console.print(f"[red]The demo failed:[/red] {problem}")
        if own:
            console.print(after_failure(folder, keep=keep))
        return 1
    finally:
        if not keep and own:
            with timed("stopping everything"):
                control.down(folder)
    console.print(f"\n[bold {'green' if verdict.exactly_once else 'red'}]{verdict}[/]")
    if keep:
        console.print(f"Airflow is at {state.airflow}, its user and password above. `make stack-down` ends it all.")
        console.print(f"The pipeline's page: {state.airflow}{PAGE}/pipelines/epochs_default/{PIPELINE}")
        console.print(f"In a shell: {shell.hint(folder)}   # then, for example: airflow epochs list orders")
    return 0 if verdict.exactly_once else 1


def start(folder: Path) -> State:
    """Start from nothing: what an earlier demo left is ended and removed.

    Raises:
        StackError: The folder is not a demo's, and stays; or something did not start.
    """
    if not is_own(folder):
        end = "type `make stack-down`; then " if control.running(folder) else ""
        raise StackError(f"{folder} has the data of `make stack-up`. What to do: {end}move or delete the folder.")
    with timed("fetching jars (once per machine)"):
        fetch("spark", "broker")
    if folder.exists():
        control.down(folder)
        shutil.rmtree(folder)
    private.write(private.make_folder(folder) / control.OF_THE_DEMO, "make demo deletes this folder\n")
    os.environ["ORDERS_MAX_RECORDS"] = str(EPOCH_RECORDS_MAX)
    with timed("starting Kafka, Spark Connect and Airflow"):
        state = control.up(folder)
    password = password_in(folder / AIRFLOW)
    console.print(f"Airflow is at {state.airflow}, user {USER}, password {password}; logs and data are in {folder}")
    return state


def is_own(folder: Path) -> bool:
    """Whether the folder may be deleted: there is none, or only demos have used it."""
    return not folder.exists() or (folder / control.OF_THE_DEMO).exists()


def run(state: State, folder: Path) -> Verdict:
    """Produce, kill, wait, look."""
    watch = Watch(state.api(folder), state.bootstrap, state.ledger)
    feed = Feed(state.bootstrap, total=ORDERS, at_once=AT_ONCE, per_s=PER_S)
    lines = Lines(console, watch.another().lines)
    with timed(f"{ORDERS:,} orders produced and consumed, through two crashes"), lines.running():
        feed.start()
        first = told(kill_stage_task(watch), lines)
        told(kill_spark_server(watch, lambda: current(folder).pids["connect"], after_epoch=first.epoch), lines)
        feed.finish()
        wait_consumed(watch)
    feed.write_places(folder / "produced.csv")
    console.print(epochs_table(watch))
    with timed("DuckDB looks for every record"):
        verdict = verify(Path(state.lake), folder / "produced.csv")
    console.print(
        f"  {feed.malformed:,} orders were malformed on purpose; {verdict.rejected:,} are in the table of rejects"
    )
    return verdict


def after_failure(folder: Path, *, keep: bool) -> str:
    """What a user can do now."""
    if keep and (state := control.running(folder)):
        return (
            f"The stack still runs: Airflow is at {state.airflow}. In a shell: {shell.hint(folder)}   # then, for "
            f"example: airflow epochs in-doubt {PIPELINE}. `make stack-down` ends it all."
        )
    return f"The logs stay in {folder} until the next demo. To look at what runs, type `DEMO_KEEP=1 make demo`."


def told(hit: Hit, lines: Lines) -> Hit:
    """What was killed, said at once and on the line of its epoch."""
    console.print(f"  {hit}")
    lines.killed(hit.epoch, hit.what)
    return hit


def current(folder: Path) -> State:
    state = control.running(folder)
    if state is None:
        raise StackError(f"The stack has ended by itself; see {folder / 'supervisor.log'}.")
    return state


def wait_consumed(watch: Watch) -> None:
    """Wait for as long as it takes, while something goes on."""
    seen, since = watch.progress(), time.monotonic()
    while not watch.consumed():
        now = watch.progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() > since + STILL_S:
            raise RuntimeError(
                f"Nothing went on for {STILL_S:.0f} s, and not everything was consumed. What to do: look at the DAG "
                f"{PIPELINE} in Airflow, and at the logs in {PROJECT / '.stack'}. On a busy machine Spark may only "
                f"need longer: if the stack still runs, `airflow epochs list {PIPELINE}` shows whether it goes on."
            )
        time.sleep(0.2)


def epochs_table(watch: Watch) -> Table:
    table = Table(title="epochs, and seconds per phase", header_style="bold", box=SIMPLE)
    for column in ("epoch", "offset ranges", "attempt", "tries", "decision", "sink@version", "rows"):
        table.add_column(column, no_wrap=True)
    for step in STEPS:
        table.add_column(step, justify="right", no_wrap=True)
    for view in watch.epochs():
        table.add_row(*epoch_row(watch, view))
    return table


def epoch_row(watch: Watch, view: EpochView) -> list[str]:
    record = view.complete or view.open
    assert record is not None
    ranges = [r for per_topic in record.ranges.values() for r in per_topic]
    decision = watch.ledger.decision_record(view.number, record.txn_id.attempt)
    receipts = sorted((view.complete.receipts if view.complete else view.receipts).items())
    seconds = watch.seconds(view.complete) if view.complete else {}
    return [
        str(view.number),
        "\n".join(map(text_of, ranges)),
        str(record.txn_id.attempt),
        str(len(watch.ledger.tries(view.number))),
        decision.decision.value if decision else "none yet",
        "\n".join(f"{sink}@{receipt.version}" for sink, receipt in receipts),
        "\n".join(str(receipt.rows) for _, receipt in receipts),
        *(
            "\n".join(f"{value:.2f}" for name, value in sorted(seconds.items()) if name.startswith(step))
            for step in STEPS
        ),
    ]


def text_of(offsets: OffsetRange) -> str:
    return f"{offsets.partition}: {offsets.start}..{offsets.end}"


@contextmanager
def timed(what: str) -> Iterator[None]:
    console.print(f"[dim]{what} …[/dim]")
    began = time.monotonic()
    yield
    console.print(f"[dim]{what}: {time.monotonic() - began:.0f} s[/dim]")


if __name__ == "__main__":
    sys.exit(main())
