"""How many layers each pipeline stage holds."""

from collections.abc import Sequence

from pipette_opt.base.units import ceil_div
from pipette_opt.parallel.layout import layout_of

LayerSplit = tuple[int, ...]
"""Layers of each pipeline stage."""


def is_megatron_split(num_layers: int, split: Sequence[int]) -> bool:
    """Whether ``split`` has the layers and the form that Megatron's first- and last-stage options can express."""
    return sum(split) == num_layers and min(split) >= 1 and len(set(split[1:-1])) <= 1


def pipeline_split_options(layers_per_stage: Sequence[int]) -> tuple[int | None, int | None]:
    """
    Values of ``--decoder-first-pipeline-num-layers`` and ``--decoder-last-pipeline-num-layers``.

    Returns
    -------
    tuple
        ``(None, None)`` for an even split, where neither option is given; otherwise only what differs from the
        middle stages is given, and of two stages only the first.
    """
    first, *_, last = layers_per_stage if len(layers_per_stage) > 1 else (*layers_per_stage, *layers_per_stage)
    if len(set(layers_per_stage)) == 1:
        return None, None
    if len(layers_per_stage) == 2:
        return first, None
    middle = layers_per_stage[1]
    return (first if first != middle else None), (last if last != middle else None)


def layer_splits(num_layers: int, num_stages: int, num_chunks: int = 1, uneven: bool = True) -> list[LayerSplit]:
    """
    Splits worth considering, the even one first; every stage's layers are a multiple of ``num_chunks``.

    If there are chunks and no even split, the next ones are even with the embedding, the head or both counted as a
    layer: the first stage, the last, or both have one layer less than the others (see ``parallel/chunks.py``).

    Besides the even split: middle stages one chunk-layer above the average and what is left

    - shared by the first and the last stage (room for the embedding and the head), or
    - all taken from the last stage (the head takes time), or
    - all taken from the first stage (it holds the most activations),

    the latter two only if the light stage keeps half of a middle stage. If the even split is not possible and the
    first of these is not either (small stages), the middle stages are made smaller until the ends have a layer.

    Parameters
    ----------
    num_chunks
        Model chunks per stage, 1 without interleaving.
    uneven
        If False, only the even split.
    """
    splits: list[LayerSplit] = []
    if num_layers % (num_stages * num_chunks) == 0:
        splits.append((num_layers // num_stages,) * num_stages)
    elif uneven and num_chunks > 1:
        splits += counted_splits(num_layers, num_stages, num_chunks)
    units, rest = divmod(num_layers, num_chunks)
    if uneven and rest == 0 and 2 <= num_stages <= units:
        of_units = _uneven_splits(units, num_stages, required=not splits)
        splits += [tuple(num_chunks * part for part in split) for split in of_units]
    return list(dict.fromkeys(splits))


def light_layout(num_layers: int, num_stages: int, num_chunks: int) -> str | None:
    """
    A layout of chunks that leaves room for what the last one has besides, where a head alone is not worth a layer.

    All chunks are as large as they have to be, and the last has what is left: NVIDIA's recipes of DeepSeek-V3 have 61
    layers as ``Et*4|(t*4|)*14tmL``. Where nothing is left, chunks are as equal as can be; ``None`` for equal ones.
    """
    parts = num_stages * num_chunks
    most = ceil_div(num_layers, parts)
    held = [most] * (parts - 1) + [num_layers - most * (parts - 1)]
    if min(held) < 0:
        held = [(num_layers + part) // parts for part in range(parts)[::-1]]
    if len(set(held)) == 1:
        return None
    return layout_of([held[start : start + num_stages] for start in range(0, parts, num_stages)])


def counted_splits(num_layers: int, num_stages: int, num_chunks: int) -> list[LayerSplit]:
    """Splits that are even with the embedding, the head or both counted as layers."""
    splits = []
    for first, last in ((1, 1), (0, 1), (1, 0)):
        layers, rest = divmod(num_layers + first + last, num_stages)
        if num_stages > 1 and rest == 0 and layers % num_chunks == 0:
            splits.append((layers - first, *(layers,) * (num_stages - 2), layers - last))
    return splits


def _uneven_splits(units: int, num_stages: int, required: bool) -> list[LayerSplit]:
    """Splits with lighter ends; with ``required`` at least one, if need be with heavier ends."""
    middle = units // num_stages + 1
    splits = [
        (first, *(middle,) * (num_stages - 2), last) for first, last in _ends(units - middle * (num_stages - 2), middle)
    ]
    if splits or not required:
        return splits
    middle = (units - 2) // (num_stages - 2)
    left = units - middle * (num_stages - 2)
    return [(ceil_div(left, 2), *(middle,) * (num_stages - 2), left // 2)]


def _ends(left: int, middle: int) -> list[tuple[int, int]]:
    """Ways to give ``left`` layers to the first and the last stage, neither above ``middle``."""
    if not 2 <= left <= 2 * middle:
        return []
    ends = [(ceil_div(left, 2), left // 2)]
    light = left - middle
    if 2 * light >= middle:
        ends += [(middle, light), (light, middle)]
    return ends
