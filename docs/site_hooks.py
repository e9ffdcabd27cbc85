"""
What the documentation site is made of: the repository's own pages, at their own paths, and a page for each command.

MkDocs calls ``on_config`` and ``on_files``. Relative links between pages are those of the repository, so they hold in
both; a link to a file that is no page leads to a copy of that file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

ROOT = Path(__file__).resolve().parents[1]

PAGES = ("*.md", "docs/*.md", "docs/how-to/*.md", "data/README.md", "models/*.md", "benchmarks/results/*.md")
"""Pages of the site."""

OTHER_FILES = (
    "LICENSE",
    "data/**/*",
    "benchmarks/**/*",
    "docs/**/*",
    "pipette_opt/**/*.py",
    "tests/**/*.py",
    "examples/**/*",
)
"""Files that a page may link to; only those that are linked get into the site."""

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
"""Target of a relative link in Markdown."""

MARKUP = re.compile(r"\[/?(?:bold|red|dim|italic)(?: [a-z]+)?\]|\[/\]")
"""What gives words of a command's help their colour in a terminal."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that are found, not listed: each command's, and each page of results."""
    for section in config.nav or []:
        for pages in section.values():
            if isinstance(pages, list) and "Commands" in section:
                pages += [{name: _command_page(name)} for name, _ in commands()]
            if isinstance(pages, list) and "Results" in section:
                results = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/results/*.md")}
                pages += sorted(results, key=lambda name: (not name.endswith("README.md"), name))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The site's files: pages of the repository, files that they link to, pages of commands, and those of the theme."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    others = {path for pattern in OTHER_FILES for path in ROOT.glob(pattern) if path.is_file()}
    for path in (*pages, *sorted(_linked(pages) & others - set(pages))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, page in commands():
        files.append(File.generated(config, _command_page(name), content=page))
    return files


def commands() -> list[tuple[str, str]]:
    """Each command's name, of one word or two, and its page in Markdown, in the order of ``--help``."""
    from pipette_opt.cli.app import app

    def below(words: str, group: Any) -> Iterator[tuple[str, str]]:
        for name, command in getattr(group, "commands", {}).items():
            path = f"{words} {name}".strip()
            if getattr(command, "commands", None):
                yield from below(path, command)
            else:
                page = get_docs_for_click(obj=command, ctx=typer.Context(command), name=f"pipette-opt {path}")
                yield path, MARKUP.sub("", page)

    return list(below("", typer.main.get_command(app)))


def _linked(pages: list[Path]) -> set[Path]:
    """Files that relative links of pages name."""
    return {(page.parent / name).resolve() for page in pages for name in LINK.findall(page.read_text("utf-8"))}


def _command_page(name: str) -> str:
    return f"docs/commands/{name.replace(' ', '-')}.md"
