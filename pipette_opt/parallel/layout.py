"""
Megatron-Core's notation for the contents of model chunks, ``pipeline_model_parallel_layout``.

A layout is a list of parts between bars: part ``c * pp + s`` is chunk ``c`` of stage ``s``. In a part ``E`` is the
embedding, ``t`` a transformer layer, ``m`` a multi-token-prediction layer, ``L`` the output head and loss. ``t*3`` and
``(tt|)*4`` repeat; parentheses are expanded first, and neither can be nested. Commas are ignored
(``megatron/core/transformer/pipeline_parallel_layer_layout.py``, 0.16).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

LETTERS = "EtmL"
"""Letters that a part of a layout may have."""

MAX_LETTERS = 100_000
"""Most letters and bars of an expanded layout; a longer layout is a typing error. Chosen."""


def layout_parts(layout: str) -> tuple[str, ...]:
    """
    Return the parts of a layout, with repeats expanded.

    Raises ``ValueError`` for letters that Megatron-Core does not know; the order of letters is not checked.
    """
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        if sum(len(found[1]) * int(found[2]) for found in re.finditer(pattern, text)) > MAX_LETTERS:
            raise ValueError(f"has more than {MAX_LETTERS:,} letters, the maximum.")
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    wrong = sorted(set(text) - set(LETTERS) - {"|"})
    if wrong:
        raise ValueError(f"must consist of E, t, m, L and |, got {' '.join(map(repr, wrong))}.")
    return tuple(text.split("|"))


@lru_cache(maxsize=1 << 12)
def layout_layers(layout: str, num_stages: int) -> tuple[tuple[int, ...], ...]:
    """
    Return the transformer layers of each chunk of each stage, shape ``(num_chunks, num_stages)``.

    Multi-token-prediction layers are not counted; :func:`num_mtp_layers_of` gives their number.

    Raises
    ------
    ValueError
        If Megatron-Core would refuse the layout, or if ``m`` is not in the last part.
    """
    parts = layout_parts(layout)
    if len(parts) % num_stages:
        raise ValueError(f"has {len(parts)} parts, which must be a multiple of the {num_stages} pipeline stages.")
    text = "".join(parts)
    if not text.startswith("E") or not text.endswith("L") or text.count("E") + text.count("L") != 2:
        raise ValueError("must have a single E, at the beginning, and a single L, at the end.")
    depths = num_mtp_layers_of(layout)
    if not text.endswith("m" * depths + "L") or "m" in "".join(parts[:-1]):
        raise ValueError("must have all multi-token prediction layers (m) directly before L, in the same part.")
    held = [part.count("t") for part in parts]
    return tuple(tuple(held[start : start + num_stages]) for start in range(0, len(held), num_stages))


def num_mtp_layers_of(layout: str) -> int:
    """Return the number of multi-token-prediction layers in a layout."""
    return "".join(layout_parts(layout)).count("m")


def layout_of(layers_per_chunk: Sequence[Sequence[int]], depths: int = 0) -> str:
    """
    Return the shortest layout text for these layers per chunk, such as ``Et*4|(t*3|)*6t*2L``.

    Three or more equal parts become a repeat. ``depths``: multi-token-prediction layers in the last part.
    """
    held = [f"t*{layers}" if layers > 1 else "t" * layers for chunk in layers_per_chunk for layers in chunk]
    held[0] = f"E{held[0]}"
    held[-1] += ("m" * depths if depths < 2 else f"m*{depths}") + "L"
    text = ""
    for part, run in groupby(held[:-1]):
        count = len(list(run))
        text += f"({part}|)*{count}" if count > 2 else f"{part}|" * count
    return text + held[-1]
