"""Vocabulary sizes of known tokenizers, from ``data/tokenizers.yaml``, for launches that do not give the size."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.files import read_yaml

NAMES = ("tokenizer_model", "vocab_file")
"""Options of Megatron-LM that name a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTokenizer:
    """
    Tokenizer of known vocabulary size.

    Parameters
    ----------
    pattern
        Regular expression that matches a part of the tokenizer's name in lower case.
    vocab_size
        Number of entries, including added tokens.
    """

    pattern: str
    vocab_size: int
    source: str


def tokenizer_of(given: Mapping[str, Any]) -> KnownTokenizer | None:
    """Return the known tokenizer that Megatron-LM options name, or ``None``; a path's last part is tried first."""
    for name in NAMES:
        path = str(given.get(name, "")).lower().replace("_", "-")
        for part in reversed([part for part in path.split("/") if part]):
            for tokenizer in known_tokenizers():
                if re.search(tokenizer.pattern, part):
                    return tokenizer
    return None


@cache
def known_tokenizers() -> tuple[KnownTokenizer, ...]:
    """Return all known tokenizers."""
    rows: Any = read_yaml(shipped_path("data", "tokenizers.yaml"))
    return tuple(KnownTokenizer(**row) for row in rows)
