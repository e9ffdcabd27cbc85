"""``--pipeline-model-parallel-layout``: which chunk of which stage holds which layers, as a text."""

import re

from pipette_opt.base.errors import InputError

OPTION = "--pipeline-model-parallel-layout"


def layers_of_layout(layout: str, num_layers: int, num_stages: int, where: str) -> tuple[tuple[int, ...], ...]:
    """
    Transformer layers of each chunk of each stage, shape ``(num_chunks, num_stages)``.

    Parts between bars go round the stages; ``E`` is the embedding, ``t`` a layer, ``L`` the head; ``t*3`` and
    ``(tt|)*4`` repeat, commas mean nothing (``megatron/core/transformer/pipeline_parallel_layer_layout.py``).

    Raises
    ------
    InputError
        If Megatron-Core would refuse the layout, or it holds more than embedding, layers and head.
    """
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    wrong = sorted(set(text) - set("EtL|m"))
    if wrong:
        raise InputError(where, f"{OPTION} {layout} must be made of E, t, L and |, got {' '.join(wrong)}.")
    if "m" in text:
        raise InputError(where, f"{OPTION} {layout}: heads that predict further tokens (m) are not modelled.")
    parts = text.split("|")
    if len(parts) % num_stages:
        problem = f"has {len(parts)} parts, which must be a multiple of the {num_stages} pipeline stages."
        raise InputError(where, f"{OPTION} {layout} {problem}")
    if not text.startswith("E") or not text.endswith("L") or text.count("E") + text.count("L") != 2:
        raise InputError(where, f"{OPTION} {layout} must begin with its only E and end with its only L.")
    held = [part.count("t") for part in parts]
    if sum(held) != num_layers:
        raise InputError(where, f"{OPTION} {layout} holds {sum(held)} layers, but the model has {num_layers}.")
    return tuple(tuple(held[start : start + num_stages]) for start in range(0, len(held), num_stages))
