"""The page of one pipeline in a real browser. Airflow's API server answers in this process."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.browser import browser
from tests.support.page_files import drawn
from tests.support.page_lab import ORDERS, Browser, connected

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    # What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
SPANS_S = "drawn.map(chart => chart.scales.x.max - chart.scales.x.min)"
BUTTONS = "[...document.querySelectorAll('.actions a')].map(a => a.getBoundingClientRect()).map(b => [b.top, b.bottom])"
FRAMED = """[...document.querySelectorAll('figure')].every(figure =>
    figure.querySelector('canvas').getBoundingClientRect().right <= figure.getBoundingClientRect().right - 8)"""
NARROW = 375
"""The width of a phone. A window of Chromium itself is never so narrow."""


def test_the_chart_of_a_pipeline_with_one_epoch_spans_an_hour_and_of_more_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = connected(tmp_path / "ledger", monkeypatch)
    reader, file = Browser("VIEWER"), tmp_path / "orders.html"
    with reader.client, browser("file://") as page:
        for epochs, least, most in ((1, 3600, 3600), (2, 0, 3600)):
            ledgers.epoch("orders")
            file.write_text(drawn(reader.page(ORDERS), "light"))
            page.open(str(file))
            page.wait("document.querySelectorAll('figure canvas').length > 0")
            spans = page.script(SPANS_S)
            assert spans and all(least < span <= most or span == most for span in spans), (epochs, spans)
            page.picture(f"charts-{epochs}")


def test_buttons_do_not_touch_and_charts_keep_within_their_frames_in_the_window_of_a_phone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = connected(tmp_path / "ledger", monkeypatch)
    ledgers.epoch("orders")
    reader, file = Browser("ADMIN"), tmp_path / "orders.html"
    with reader.client, browser("file://") as page:
        file.write_text(drawn(reader.page(ORDERS), "light"))
        size = {"width": NARROW, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.open(str(file))
        page.wait("document.querySelectorAll('figure canvas').length > 0")
        page.picture(f"buttons-{NARROW}")
        rows = sorted({tuple(button) for button in page.script(BUTTONS)})
        assert len(rows) > 2
        assert all(below - above >= 4 for (_, above), (below, _) in pairwise(rows)), rows
        assert page.script(FRAMED)
