"""The page in a real browser, opened as a file: all is drawn, nothing complains, the numbers are the plan's."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clients_here import require_at_collection
from factories import make_plan, small_instance

from pipette_opt.report.page import page_of
from pipette_opt.report.plan_file import plan_to_dict

require_at_collection("playwright")

from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

pytestmark = [pytest.mark.client("playwright", programs=("chromium",)), pytest.mark.filterwarnings("default")]

FLAGS = [
    ("--tensor-model-parallel-size", "2"),
    ("--pipeline-model-parallel-layout", "E" + "|t*2" * 40 + "|L"),
    ("--sequence-parallel",),
]
HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; without its sandbox, which root cannot have."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """The plan's file."""
    return json.loads(json.dumps(plan_to_dict(make_plan())))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, with a host whose name is markup."""
    plan, job = make_plan(), small_instance()
    nodes = (replace(job.cluster.nodes[0], host=HOSTILE), *job.cluster.nodes[1:])
    plan = replace(plan, hosts=(HOSTILE, *plan.hosts[1:]), unused_hosts={})
    path = tmp_path_factory.mktemp("page") / "report.html"
    text = page_of(plan, replace(job, cluster=replace(job.cluster, nodes=nodes)), flags=FLAGS)
    path.write_text(text, encoding="utf-8")
    return path


def opened(browser: Browser, file: Path, width: int) -> tuple[Page, list[str]]:
    """The page with everything drawn, and all that the browser said or asked the network for."""
    page, said = browser.new_page(viewport={"width": width, "height": 800}), []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(asked.url) if asked.url.startswith(("http", "ws")) else None)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-rendered]", state="attached")
    return page, said


Opened = tuple[Page, list[str]]


@pytest.fixture(scope="module")
def laptop(browser: Browser, file: Path) -> Opened:
    """The page on a laptop, drawn once for all tests."""
    return opened(browser, file, 1440)


@pytest.mark.parametrize("width", [1440, 390])
def test_page_is_drawn(browser: Browser, file: Path, laptop: Opened, width: int) -> None:
    """On a laptop and on a phone: every figure has a drawing, nothing is wider than the screen, nothing complains."""
    page, said = laptop if width == 1440 else opened(browser, file, width)
    assert page.locator("html").get_attribute("data-rendered") == "all"
    plots = page.locator(".plot")
    assert plots.count() == page.locator(".plot[data-rendered]").count() == 7
    assert page.locator(".plot .main-svg").count() >= 7
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
    assert said == []


def test_numbers_are_the_plans(laptop: Opened, content: dict[str, Any]) -> None:
    """As the browser reads them, in tables and in the bars that are drawn."""
    page, _ = laptop
    found = page.eval_on_selector_all("data", "all => all.map(one => [one.dataset.field, one.value])")
    assert len(found) > 50
    for field, value in found:
        place: Any = content
        for key in field.split("."):
            place = place[int(key)] if isinstance(place, list) else place[key]
        assert float(value) == pytest.approx(place, rel=1e-12), field
    drawn = page.eval_on_selector(
        "#figure-time", "one => one.calcdata.map(trace => trace[0].s).reduce((a, b) => a + b)"
    )
    assert drawn == pytest.approx(content["estimate"]["iteration_time_s"])


def test_hover_tells_ranks(laptop: Opened) -> None:
    """Over the first cell of the grid: its stage, replica, host, ranks and GPUs."""
    page, _ = laptop
    grid = page.locator("#figure-placement .nsewdrag").first
    grid.hover(position={"x": 20, "y": 20})
    page.wait_for_selector("#figure-placement .hovertext", state="attached")
    said = page.eval_on_selector("#figure-placement .hoverlayer", "one => one.textContent")
    assert said == "stage 0, replica 0n3ranks 0-1GPUs 0-1"


def test_page_is_made_for_keyboard_readers_and_paper(laptop: Opened) -> None:
    """A language, one main heading, landmarks, a name for each figure and region; on paper all tables are open."""
    page, _ = laptop
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == page.locator("main").count() == page.locator("nav[aria-label]").count() == 1
    assert (
        page.locator(
            "[role=group]:not([aria-label]), th:empty, [role=region]:not([aria-label]), section:not([aria-labelledby])"
        ).count()
        == 0
    )
    assert page.locator("table:not(:has(caption))").count() == page.locator("th:not([scope])").count() == 0
    page.mouse.move(0, 0)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.eval_on_selector_all(".plot", "all => Math.max(...all.map(one => one._fullLayout.width))") == 660
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")


def test_flags_are_copied(browser: Browser, file: Path) -> None:
    """By the button and by selecting the block: options that a shell reads as they are, on one line."""
    page, said = opened(browser, file, 390)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wanted = " ".join(map(shlex.join, FLAGS))
    page.get_by_role("button", name="Copy the flags").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == wanted
    page.locator("pre.flags").click()
    assert page.evaluate("getSelection().toString()").strip() == wanted
    assert said == []


@pytest.mark.parametrize("width", [1440, 390])
def test_no_text_is_wider_than_the_screen(browser: Browser, file: Path, width: int) -> None:
    """With all details open: paragraphs, captions and flags end inside of it; only tables scroll by themselves."""
    page, _ = opened(browser, file, width)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    ends = page.eval_on_selector_all(
        "p, li, pre, pre span, h1, h2, caption, nav a, dd", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert len(ends) > 50
    assert max(ends) <= width


@pytest.mark.parametrize("width", [1440, 390])
def test_toolbar_covers_no_legend_and_no_bar(browser: Browser, file: Path, laptop: Opened, width: int) -> None:
    """Each legend begins below its axes and ends in its figure; the toolbar ends above the axes."""
    page, _ = laptop if width == 1440 else opened(browser, file, width)
    rows = page.eval_on_selector_all(
        ".plot",
        """all => all.map(one => {
          const box = (name) => one.querySelector(name)?.getBoundingClientRect();
          const axes = box(".nsewdrag"), legend = box(".legend .bg"), bar = box(".modebar-group");
          return [axes.top, axes.bottom, legend?.top, legend?.bottom, bar?.bottom, box(".main-svg").bottom];
        })""",
    )
    assert sum(row[2] is not None for row in rows) >= 5
    assert all(row[4] is not None for row in rows)
    for top, bottom, legend_top, legend_bottom, bar_bottom, end in rows:
        assert bar_bottom is None or bar_bottom <= top + 1
        assert legend_top is None or bottom <= legend_top < legend_bottom <= end + 1


def test_paper_has_sections_on_new_pages_and_no_cut_tables(browser: Browser, file: Path) -> None:
    """By the styles that the browser prints with; four short sections stand below what comes before."""
    page, _ = opened(browser, file, 1440)
    page.emulate_media(media="print")
    breaks = page.eval_on_selector_all(
        "section", "all => Object.fromEntries(all.map(one => [one.id, getComputedStyle(one).breakBefore]))"
    )
    assert {name for name, before in breaks.items() if before == "auto"} == {
        "plan",
        "links",
        "sensitivity",
        "assumptions",
    }
    inside = page.eval_on_selector_all(
        "section:not(#inputs) .scroll, figure, pre", "all => all.map(one => getComputedStyle(one).breakInside)"
    )
    assert set(inside) == {"avoid"}


def test_names_that_touch_on_paper_are_on_the_screen_only(browser: Browser, tmp_path: Path) -> None:
    """Host names of 30 characters in four replicas: 864 pixels, which a wide screen has and paper lacks."""
    plan = make_plan()
    plan = replace(plan, hosts=tuple(f"{host:x<30}" for host in plan.hosts), unused_hosts={})
    (tmp_path / "long.html").write_text(page_of(plan), encoding="utf-8")
    page, _ = opened(browser, tmp_path / "long.html", 1440)
    cells = page.locator("#figure-placement text", has_text="xx")
    drawn = [cells.count()]
    for event in ("beforeprint", "afterprint"):
        page.evaluate(f"dispatchEvent(new Event('{event}'))")
        drawn.append(cells.count())
    assert drawn == [8, 0, 8]
