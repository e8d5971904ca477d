"""The list of all pipelines in a real browser, with its longest texts. Airflow's API server answers in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import browser
from tests.support.page_files import alone
from tests.support.page_lab import Browser, connected

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    # What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
SPACE = "\N{NARROW NO-BREAK SPACE}"
LONG = ["59 min ago", f"1{SPACE}234{SPACE}567{SPACE}890", f"123{SPACE}456", "12 min 30 s", "1,234,567 records, 12 min"]
FILL = f"for (const r of document.querySelector('tbody').rows) {LONG}.forEach((t, n) => r.cells[4 + n].textContent = t)"
WIDTHS = "[document.documentElement, document.querySelector('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
LINES_OF_LEDGERS = """Math.max(...[...document.querySelectorAll('tbody tr')].map(row => {
    const text = document.createRange();
    text.selectNodeContents(row.lastElementChild);
    return text.getClientRects().length;
}))"""


def test_no_column_of_the_list_of_pipelines_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = connected(tmp_path / "ledger", monkeypatch)
    ledgers.epoch("orders_of_the_whole_company")
    ledgers.epoch("n" * 63)
    ledgers.epoch("users", against="column amount is a STRING, and the table has a DECIMAL(12,2), as it always had")
    ledgers.unfinished(decided=True, pipeline="payments_of_all_countries")
    reader, file = Browser("VIEWER"), tmp_path / "pipelines.html"
    with reader.client, browser("file://") as page:
        html = reader.page("/epochs/")
        for theme in ("light", "dark"):
            file.write_text(alone(html, theme))
            for width in (1280, 1400):
                page.resize(width, 700)
                page.open(str(file))
                page.driver.execute_script(FILL)
                page.picture(f"pipelines-{theme}-{width}")
                assert page.script(WIDTHS) == [0, 0], (theme, width)
                assert page.script(LINES_OF_LEDGERS) == 1, (theme, width)
                assert len({cell.location["y"] for cell in page.driver.find_elements("css selector", "th")}) == 1
