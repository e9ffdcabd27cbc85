"""
Loading time of a report page: ``python -m benchmarks.report_page report.html [--shots FOLDER]``.

Opens the file in headless Chromium at a laptop's and a phone's width and on paper. Prints bytes, milliseconds to first
paint and to the last drawing, and the browser's complaints. ``--shots`` keeps pictures. Needs playwright and Debian's
chromium.
"""

import argparse
import shutil
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

VIEWS = {"wide": (1440, 900), "phone": (390, 844)}


def opened(browser: Browser, file: Path, view: str, shots: Path | None) -> str:
    """Return a line about the loading of the page in a view; save pictures to ``shots`` if given."""
    width, height = VIEWS[view]
    page = browser.new_page(viewport={"width": width, "height": height})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    begun = time.perf_counter()
    page.goto(file.resolve().as_uri())
    page.wait_for_selector("html[data-rendered]", state="attached")
    drawn_ms = 1000 * (time.perf_counter() - begun)
    first_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    state = page.locator("html").get_attribute("data-rendered")
    if shots is not None:
        page.screenshot(path=shots / f"{file.stem}-{view}.png", full_page=True)
        if view == "wide":
            page.pdf(path=shots / f"{file.stem}.pdf", prefer_css_page_size=True)
    return f"{view}: first paint {first_ms:.0f} ms, {state} drawn after {drawn_ms:.0f} ms, complaints: {complaints}"


def main() -> None:
    """Open the page in each view."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("page", type=Path)
    parser.add_argument("--shots", type=Path)
    given = parser.parse_args()
    print(f"{given.page}: {given.page.stat().st_size:,} bytes")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for view in VIEWS:
            print(opened(browser, given.page, view, given.shots))


if __name__ == "__main__":
    main()
