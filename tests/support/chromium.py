"""Debian's Chromium without a window, for tests that look at a page."""

import base64
import io
import shutil
from contextlib import contextmanager

import numpy as np
import pytest


BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
PLAY_AT_ONCE = "--autoplay-policy=no-user-gesture-required"
needs_chromium = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver: apt-get install chromium chromium-driver"
)


@contextmanager
def started(*flags):
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver, page, size):
    """Open a file at the size of a phone or of a desk; a headless window itself is never narrower than 500 pixels."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(page.as_uri())
    return width


def requested(driver):
    return driver.execute_script(
        "return performance.getEntriesByType('resource').map(({name}) => name).filter((n) => !n.startsWith('data:'))"
    )


def measure_widths(driver):
    """Return the width of the window and that of the page with all its details open."""
    for element in driver.find_elements("css selector", "details"):
        driver.execute_script("arguments[0].open = true", element)
    return [driver.execute_script(f"return {name}") for name in ("innerWidth", "document.documentElement.scrollWidth")]


def measure_contrasts(pixels):
    """Return how much the shades vary in each quarter of a page: not at all where there are no words or figures."""
    return [part.std() for part in np.array_split(pixels, 4)]


def take_screenshot(driver, width):
    """Return the page's pixels, grey, from its top to 4,000 pixels at most."""
    from PIL import Image

    height = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 4000), "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("L"))
