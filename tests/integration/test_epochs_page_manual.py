"""The documentation below the Epochs page: it comes with the package, so it needs no network."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest

from airflow_epochs.page.manual import rendered
from tests.support.page_lab import Browser
from tests.support.pyproject import PROJECT, ROOT

pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
DOCS = ROOT / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))


def links(html: str) -> set[str]:
    return set(re.findall(r'<a href="([^"]*)"', html.partition("<article")[2].partition("</article>")[0]))


def test_every_page_is_shown_and_every_link_leads_to_a_page_and_an_anchor_that_there_are(reader: Browser) -> None:
    shown = {f"/epochs/docs/{name}": reader.page(f"/epochs/docs/{name}") for name in PAGES}
    shown["/epochs/docs/"] = reader.page("/epochs/docs/")
    followed = 0
    for here, html in shown.items():
        for link in links(html):
            there = urlsplit(urljoin(here, link))
            if there.netloc:
                continue
            followed += 1
            target = shown.get(there.path) or reader.page(there.path)
            assert not there.fragment or f'id="{there.fragment}"' in target, f"{here} -> {link}"
    assert len(PAGES) > 25 and followed > 250


def test_from_the_index_every_other_page_is_one_click_away(reader: Browser) -> None:
    told = {urljoin("/epochs/docs/", link).partition("#")[0] for link in links(reader.page("/epochs/docs/"))}
    assert {f"/epochs/docs/{name}" for name in PAGES} - told == {"/epochs/docs/index"}


def test_every_page_of_the_provider_leads_to_the_documentation(reader: Browser) -> None:
    assert '<a href="/epochs/docs/">Documentation</a>' in reader.page("/epochs/")


def test_markdown_becomes_html_but_html_of_a_page_stays_text() -> None:
    html = rendered("# The `title`, and more\n\n<!-- a\nremark -->\n| a | b |\n|---|---|\n| 1 | <b>2</b> |\n").html
    assert '<h1 id="the-title-and-more">' in html and "<td>1</td>" in html
    assert "&lt;b&gt;2&lt;/b&gt;" in html and "remark" not in html
    assert "href" not in rendered("[a](javascript:alert(1))").html


def test_a_link_into_the_repository_is_text_and_the_link_after_it_still_is_one() -> None:
    html = rendered("See [the code](../provider/x.py), [that](delta.md#a-b) and [here](#c), [all](index.md).").html
    assert html == (
        '<p>See the code, <a href="delta#a-b">that</a> and <a href="#c">here</a>, <a href="./">all</a>.</p>\n'
    )


@pytest.mark.parametrize("name", ["nothing", "../pyproject.toml", "%2e%2e/%2e%2e/app.py", "/etc/passwd", "monitoring/"])
def test_nothing_but_the_documentation_is_served(reader: Browser, name: str) -> None:
    assert reader.status(f"/epochs/docs/{name}") == 404


def test_a_file_beside_the_pages_comes_as_it_is_and_nobody_reads_without_a_login(reader: Browser) -> None:
    answer = reader.client.get("/epochs/docs/monitoring/grafana.json")
    assert answer.text == (DOCS / "monitoring" / "grafana.json").read_text()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    picture = reader.client.get("/epochs/docs/pictures/epoch.png")
    assert (picture.content, picture.headers["content-type"]) == (
        (DOCS / "pictures/epoch.png").read_bytes(),
        "image/png",
    )
    with Browser(None).client as client:
        assert client.get("/epochs/docs/operations").status_code == 401


def test_airflows_page_of_providers_links_to_the_documentation_and_the_image_has_it() -> None:
    assert PROJECT["urls"] == {"Documentation": "epochs/docs/"}
    assert "docs /project/docs" in (ROOT / "docker" / "airflow.Dockerfile").read_text()
    assert (ROOT / "provider" / "airflow_epochs" / "page" / "docs").resolve() == DOCS
