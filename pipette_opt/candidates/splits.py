"""Partitions of the layers among pipeline stages."""

from collections.abc import Sequence

from pipette_opt.base.units import ceil_div
from pipette_opt.parallel.layout import layout_of

LayerSplit = tuple[int, ...]
"""Layers of each pipeline stage."""


def is_megatron_split(num_layers: int, split: Sequence[int]) -> bool:
    """Return whether Megatron's first- and last-stage options can express a partition of ``num_layers`` layers."""
    return sum(split) == num_layers and min(split) >= 1 and len(set(split[1:-1])) <= 1


def pipeline_split_options(layers_per_stage: Sequence[int]) -> tuple[int | None, int | None]:
    """
    Values of ``--decoder-first-pipeline-num-layers`` and ``--decoder-last-pipeline-num-layers``.

    Returns
    -------
    tuple
        ``(None, None)`` for an even split, where neither option is given. Otherwise only stages that differ from the
        middle ones are given, and of two stages only the first.
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
    Partitions worth considering, the even one first; every stage's layers are a multiple of ``num_chunks``.

    With chunks and no even partition, the next ones are even with the embedding, the head or both counted as a layer:
    the first stage, the last, or both have one layer less than the others (see ``parallel/chunks.py``).

    Further partitions have middle stages of one chunk-layer above the average; the rest is

    - divided between the first and the last stage (room for the embedding and the head), or
    - all missing from the last stage (the head takes time), or
    - all missing from the first stage (it holds the most activations).

    The latter two count only if the light stage keeps half of a middle stage. If neither the even partition nor the
    first of these is possible (small stages), the middle stages shrink until the ends have a layer.

    Parameters
    ----------
    num_chunks
        Model chunks per stage, 1 without interleaving.
    uneven
        ``False``: only the even partition.
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
    Layout of chunks with a lighter last chunk, where the head alone is not worth a layer; ``None`` for equal chunks.

    All chunks are as large as necessary, and the last one has the rest: NVIDIA's recipes of DeepSeek-V3 have 61 layers
    as ``Et*4|(t*4|)*14tmL``. If no layers are left for it, chunks are as equal as possible.
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
    """Return the partitions that are even with the embedding, the head or both counted as layers."""
    splits = []
    for first, last in ((1, 1), (0, 1), (1, 0)):
        layers, rest = divmod(num_layers + first + last, num_stages)
        if num_stages > 1 and rest == 0 and layers % num_chunks == 0:
            splits.append((layers - first, *(layers,) * (num_stages - 2), layers - last))
    return splits


def _uneven_splits(units: int, num_stages: int, required: bool) -> list[LayerSplit]:
    """Return partitions with lighter ends; with ``required`` at least one, if necessary with heavier ends."""
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
    """Return ways to divide ``left`` layers between the first and the last stage, neither above ``middle``."""
    if not 2 <= left <= 2 * middle:
        return []
    ends = [(ceil_div(left, 2), left // 2)]
    light = left - middle
    if 2 * light >= middle:
        ends += [(middle, light), (light, middle)]
    return ends
