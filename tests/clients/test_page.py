"""The page in headless Chromium, as a person uses it: by mouse, by keyboard, on a narrow screen, and as a Space."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from hf_vanilla_transformer.apps.cli.main import main
from tests.clients.conftest import ENVIRONMENT, start, stop
from tests.ecosystem.documentation import FIXTURE, ROOT


CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="Debian's packages chromium and chromium-driver are not installed"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1200,1000"),
)
# A folder to look at the page in.
SCREENSHOTS = os.environ.get("SCREENSHOTS")


class Page:
    """The page in a browser, by what a person sees."""

    def __init__(self, driver, url):
        self.driver = driver
        driver.get(url)
        self.wait(lambda: self.find("textarea"))
        self.source, self.terms, self.target = self.find("textarea")

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def button(self, text, selector="button"):
        """The one element with this text, as soon as the page has drawn it."""
        (element,) = self.wait(lambda: [element for element in self.find(selector) if element.text == text])
        return element

    def wait(self, condition, seconds=60):
        """Wait until a condition is true; elements that are not there, or not any more, make it false."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        absent = (StaleElementReferenceException, IndexError)
        waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.1, ignored_exceptions=absent)
        return waiting.until(lambda driver: condition())

    def choose(self, label, option):
        """Choose an option of a list by the end of its text."""
        self.driver.find_element("xpath", f"//*[text()='{label}']/ancestor::*[.//input][1]//input").click()

        def click():
            elements = [
                element for element in self.find("ul[role=listbox] li") if element.text.strip().endswith(option)
            ]
            for element in elements:
                element.click()
            return elements

        self.wait(click)

    def translation(self):
        return self.target.get_attribute("value")

    def tab(self, name):
        self.button(name, "button[role=tab]").click()

    def save(self, name):
        if SCREENSHOTS:
            time.sleep(1)
            self.driver.save_screenshot(str(Path(SCREENSHOTS) / f"{name}.png"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, url):
    return Page(driver, url)


def test_page_shows_translation_and_its_reasons(page):
    page.source.send_keys("two hundred and twelve")
    page.button("Translate").click()
    page.wait(lambda: page.translation() == "zweihundertzwölf")
    rows = page.wait(lambda: len(elements := page.find(".hypotheses tbody tr")) == 4 and elements)
    first = [cell.text for cell in rows[0].find_elements("css selector", "td")]
    assert first[0] == "zweihundertzwölf"
    assert float(first[1]) < 0
    page.save("beams")
    page.tab("Tokens")
    tokens = page.wait(lambda: page.find(".tokens > span"))
    assert [token.text.split("\n")[0] for token in tokens][-3:] == ["l", "f", "</s>"]
    assert all(token.text.endswith("%") for token in tokens)
    page.save("tokens")
    page.tab("Attention")
    picture = page.wait(lambda: page.find("img"))[0].get_attribute("src")
    page.save("attention")
    page.choose("Head", "2")
    page.wait(lambda: page.find("img")[0].get_attribute("src") != picture)
    page.save("head")


def test_page_uses_terms(page):
    page.source.send_keys("nine")
    page.terms.send_keys("nine = zehn")
    page.button("Translate").click()
    page.wait(lambda: page.translation() == "zehn")
    page.terms.send_keys("\nforty")
    page.button("Translate").click()
    expected = """the glossary, line 2: 'forty'; write a term, a tab or "=", and its translation."""
    page.wait(lambda: any(expected in toast.text for toast in page.find(".toast-body")))


def test_page_shows_sentences_of_text(page):
    page.source.send_keys("seven\n\nnine. six")
    page.button("Translate").click()
    page.wait(lambda: page.translation() == "sieben\n\nneun sechs")
    page.wait(lambda: page.find(".hypotheses tbody td")[0].text == "sieben")
    page.tab("Attention")
    picture = page.wait(lambda: page.find("img"))[0].get_attribute("src")
    page.choose("Sentence", "3. six")
    page.wait(lambda: page.find("img")[0].get_attribute("src") != picture)
    page.tab("Beams")
    page.wait(lambda: page.find(".hypotheses tbody td")[0].text == "sechs")
    # Without the box, the text is one sentence.
    page.find("input[type=checkbox]")[0].click()
    page.source.clear()
    page.source.send_keys("seven\nnine")
    page.button("Translate").click()
    page.wait(lambda: "\n" not in page.translation())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_plots_attention_in_its_color_scheme(driver, url, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        page = Page(driver, url)
        page.source.send_keys("nine")
        page.button("Translate").click()
        page.tab("Attention")
        image = page.wait(lambda: page.find("img"))[0]
        page.wait(lambda: driver.execute_script("return arguments[0].complete", image))
        corner = (
            "const [image] = arguments, canvas = document.createElement('canvas').getContext('2d');"
            "canvas.drawImage(image, 0, 0); return canvas.getImageData(2, 2, 1, 1).data[0];"
        )
        assert (driver.execute_script(corner, image) < 128) == (scheme == "dark")
        page.save(scheme)
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_page_offers_examples_of_card(page):
    page.button("seven", ".gallery-item").click()
    page.wait(lambda: page.source.get_attribute("value") == "seven")


def test_page_by_keyboard(page, driver):
    from selenium.webdriver.common.keys import Keys

    page.wait(lambda: driver.switch_to.active_element == page.source)
    driver.switch_to.active_element.send_keys("nine", Keys.SHIFT, Keys.ENTER)
    page.wait(lambda: page.translation() == "neun")
    driver.switch_to.active_element.send_keys("ty")

    def go_to(name):
        for _ in range(30):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            if driver.switch_to.active_element.text == name:
                return driver.switch_to.active_element
        pytest.fail(f"the key Tab does not lead to {name}")

    go_to("Translate").send_keys(Keys.ENTER)
    page.wait(lambda: page.translation() == "neunzig")
    go_to("Tokens").send_keys(Keys.ENTER)
    page.wait(lambda: any(token.is_displayed() for token in page.find(".tokens > span")))


def test_page_on_narrow_screen(page, driver):
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 780, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        page.source.send_keys("forty-two")
        page.button("Translate").click()
        page.wait(lambda: page.translation() == "zweiundvierzig")
        page.save("narrow")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_page_shows_errors(page):
    page.driver.execute_script("arguments[0].value = 'nine '.repeat(40000)", page.source)
    page.source.send_keys("x")
    page.button("Translate").click()
    page.wait(
        lambda: any("send fewer texts, beams or max_new_tokens" in toast.text for toast in page.find(".toast-body"))
    )
    page.save("error")


def test_page_loads_nothing_from_elsewhere(page, driver):
    messages = [json.loads(message["message"])["message"] for message in driver.get_log("performance")]
    urls = {
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    }
    loaded = {url for url in urls if url.startswith(("http", "ws", "//"))}
    assert loaded
    assert not [url for url in loaded if not url.startswith("http://127.0.0.1:")]


def test_write_space_runs_the_page(driver, tmp_path):
    space = tmp_path / "space"
    main(["serve", "--model_name_or_path", str(FIXTURE), "--write_space", str(space)])
    environment = {**ENVIRONMENT, "GRADIO_SERVER_PORT": "0", "PYTHONPATH": str(ROOT)}
    process, url = start((sys.executable, "app.py"), cwd=space, env=environment)
    try:
        page = Page(driver, url.replace("0.0.0.0", "127.0.0.1"))
        page.source.send_keys("forty-two")
        page.button("Translate").click()
        page.wait(lambda: page.translation() == "zweiundvierzig")
    finally:
        # The page is still open in the browser, and does not keep the server.
        assert stop(process) == 0
