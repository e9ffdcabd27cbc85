"""Layer splits: layers of each pipeline stage."""

from collections.abc import Sequence

from pipette_opt.base.units import ceil_div
from pipette_opt.parallel.layout import layout_of

LayerSplit = tuple[int, ...]
"""Number of layers of each pipeline stage."""


def is_megatron_split(num_layers: int, split: Sequence[int]) -> bool:
    """Return whether Megatron's options for the first and last stage can express a split of ``num_layers`` layers."""
    return sum(split) == num_layers and min(split) >= 1 and len(set(split[1:-1])) <= 1


def pipeline_split_options(layers_per_stage: Sequence[int]) -> tuple[int | None, int | None]:
    """
    Return values of ``--decoder-first-pipeline-num-layers`` and ``--decoder-last-pipeline-num-layers``.

    ``(None, None)`` for an even split, which needs neither option. Otherwise only a stage that differs from the middle
    stages has a value; of two stages only the first has.
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
    Return the layer splits worth considering, the even split first; layers of a stage are a multiple of ``num_chunks``.

    With chunks and no even split, the next splits are even with embedding, output head or both counted as a layer:
    first stage, last stage, or both have one layer less than the others (see ``parallel/chunks.py``).

    Further splits have middle stages with one layer per chunk above the average; the remaining layers are

    - divided between the first and the last stage (room for embedding and head), or
    - missing from the last stage only (the head takes time), or
    - missing from the first stage only (it holds the most activations).

    The latter two are used only if the light stage keeps half of a middle stage. If neither the even split nor the
    first of these is possible (small stages), the middle stages shrink until both ends have a layer.

    Parameters
    ----------
    num_chunks
        Model chunks per stage, 1 without interleaving.
    uneven
        ``False``: only the even split.
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
    Return a layout with a lighter last chunk, for a head that alone costs less than a layer; ``None`` for equal chunks.

    All other chunks have the same size, and the last has the rest: NVIDIA's recipes of DeepSeek-V3 have 61 layers as
    ``Et*4|(t*4|)*14tmL``. If no layers are left for the last chunk, chunks are as equal as possible.
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
    """Return the splits that are even with embedding, output head or both counted as a layer."""
    splits = []
    for first, last in ((1, 1), (0, 1), (1, 0)):
        layers, rest = divmod(num_layers + first + last, num_stages)
        if num_stages > 1 and rest == 0 and layers % num_chunks == 0:
            splits.append((layers - first, *(layers,) * (num_stages - 2), layers - last))
    return splits


def _uneven_splits(units: int, num_stages: int, required: bool) -> list[LayerSplit]:
    """
    Return splits with lighter ends; with ``required`` at least one split, if necessary with heavier ends.

    All numbers are layers per chunk.
    """
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
