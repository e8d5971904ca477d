"""A real browser, headless: Debian's Chromium with its driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

DEADLINE_S = 30
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1400,900")


@contextmanager
def _of_the_page_before() -> Iterator[None]:
    """Elements of a page that has just been left are not found. Chrome has two errors for them."""
    try:
        yield
    except StaleElementReferenceException:
        return
    except WebDriverException as error:
        if "does not belong to the document" not in str(error):
            raise


class Browser:
    """Airflow's UI at ``url``, as a person sees it."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def log_in(self, user: str, password: str) -> None:
        self.driver.get(self.url)
        self.find("input[name=username]").send_keys(user)
        self.find("input[name=password]").send_keys(password)
        self.find("button[type=submit]").click()
        self.find("button", "Browse")

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def enter_frame(self) -> None:
        """Look into the page of the plugin, within Airflow's page."""
        self.driver.switch_to.default_content()
        self.driver.switch_to.frame(self.find("iframe"))

    def leave_frame(self) -> None:
        self.driver.switch_to.default_content()

    def find(self, css: str, text: str | None = None) -> WebElement:
        """The first element that is shown, with this text if one is given; waits for it."""

        def found(_: Any) -> WebElement | None:
            with _of_the_page_before():
                for each in self.driver.find_elements(By.CSS_SELECTOR, css):
                    if each.is_displayed() and (text is None or each.text.strip() == text):
                        return each
            return None

        shown = WebDriverWait(self.driver, DEADLINE_S).until(found, f"{css} {text or ''}")
        assert isinstance(shown, WebElement)
        return shown

    def has_text(self, text: str) -> bool:
        """Waits until the page has the text."""
        WebDriverWait(self.driver, DEADLINE_S).until(
            lambda driver: text in driver.find_element(By.TAG_NAME, "body").text, f"the text {text!r}"
        )
        return True

    def script(self, text: str) -> Any:
        return self.driver.execute_script(f"return {text}")

    def wait(self, javascript: str) -> None:
        """Wait until the expression holds."""
        WebDriverWait(self.driver, DEADLINE_S).until(lambda _: self.script(javascript), javascript)

    def resize(self, width: int, height: int) -> None:
        self.driver.set_window_size(width, height)

    def picture(self, name: str) -> None:
        """Keep a screenshot for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def troubles(self) -> list[str]:
        """What the browser complained of in our own pages since the last call."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE" and "/epochs/" in entry["message"]]


@contextmanager
def browser(url: str) -> Iterator[Browser]:
    """A new browser without a history."""
    options = webdriver.ChromeOptions()
    options.binary_location = _program("chromium", "google-chrome")
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_program("chromedriver")))
    try:
        yield Browser(driver, url)
    finally:
        driver.quit()


def _program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, f"{names[0]} is not installed: make browser installs it on Debian"
    return found
