"""What a browser would find on the page of a plan: elements, texts, figures."""

import base64
import gzip
import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import numpy as np


class Page(HTMLParser):
    """Elements of a page, and texts by the element that they are in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.text = text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Remember it, with its element."""
        self.texts.append((self.elements[-1][0] if self.elements else "", data))

    @property
    def ids(self) -> set[str | None]:
        """Identifiers of sections."""
        return {named.get("id") for tag, named in self.elements if tag == "section"}

    def figures(self) -> dict[str, Any]:
        """Figures, unpacked."""
        packed = re.search(r'<script id="figures"[^>]*>([^<]+)<', self.text)
        assert packed is not None
        return json.loads(gzip.decompress(base64.b64decode(packed[1])))  # type: ignore[no-any-return]


def plain(text: str) -> str:
    """The text of a part of a page, without markup and scripts."""
    text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text)))


def section(text: str, name: str) -> str:
    """The text of a section."""
    found = re.search(rf'<section [^>]*id="{name}"[^>]*>(.*?)</section>', text, re.DOTALL)
    assert found is not None, name
    return plain(found[1])


def values(array: Any) -> np.ndarray:
    """Numbers of a trace, which plotly may write in base 64."""
    if isinstance(array, dict):
        found = np.frombuffer(base64.b64decode(array["bdata"]), dtype=array["dtype"])
        return found.reshape([int(one) for one in array["shape"].split(",")]) if "shape" in array else found
    return np.array(array, dtype=float)
