"""The documentation site builds strictly: no broken link between pages, a page for every command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.client("mkdocs", "material", "mkdocstrings")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site's folder; a warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_command_has_a_page_with_its_options(site: Path) -> None:
    """Commands of one word and of two, with help from the code."""
    solve = (site / "docs" / "commands" / "solve.html").read_text()
    assert "--global-batch-size" in solve
    assert "[bold]" not in solve
    assert (site / "docs" / "commands" / "profile-links.html").exists()


def test_links_of_all_pages_lead_to_files(site: Path) -> None:
    """Relative links of the built pages, those to files that are no pages among them."""
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 30
    for page in pages:
        for target in re.findall(r'href="([^":#?]+)["#]', page.read_text()):
            if target.startswith("/"):
                continue
            assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"
