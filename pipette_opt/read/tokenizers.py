"""Sizes of known tokenizers, for launches that leave the vocabulary to them: the table ``data/tokenizers.yaml``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.files import read_yaml

NAMES = ("tokenizer_model", "vocab_file")
"""Options that name a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTokenizer:
    """
    One tokenizer.

    Parameters
    ----------
    pattern
        Regular expression that the name of such a tokenizer, in lower case, has a match of.
    vocab_size
        Its entries, added tokens among them.
    source
        Where the number is from.
    """

    pattern: str
    vocab_size: int
    source: str


def tokenizer_of(given: Mapping[str, Any]) -> KnownTokenizer | None:
    """The tokenizer that options of Megatron name, if the table has it; the last name in a path counts first."""
    for name in NAMES:
        path = str(given.get(name, "")).lower().replace("_", "-")
        for part in reversed([part for part in path.split("/") if part]):
            for tokenizer in known_tokenizers():
                if re.search(tokenizer.pattern, part):
                    return tokenizer
    return None


@cache
def known_tokenizers() -> tuple[KnownTokenizer, ...]:
    """All rows of the table."""
    rows: Any = read_yaml(shipped_path("data", "tokenizers.yaml"))
    return tuple(KnownTokenizer(**row) for row in rows)
