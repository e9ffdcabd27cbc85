"""Layers of the pipeline stages of measured runs."""

import re
from itertools import pairwise

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.run_cells import Cells
from pipette_opt.read.run_software import software_of
from pipette_opt.specs import ModelSpec

FIRST_PARAMETERS_COLUMN = "local_params_rank0"
"""Optional column: number of parameters of rank 0, to at least three digits, as nanotron reports it."""

MAX_STAGES = 100_000
"""Largest number of pipeline stages that is read, so that a damaged cell does not fill the memory. Chosen."""


def layers_in_column(row: Cells) -> tuple[int, ...] | None:
    """Return the layers of each stage in column ``layers_per_stage``; ``None`` if it is empty."""
    text = row.text("layers_per_stage")
    if not text:
        return None
    parts = re.split(r"[\s,;]+", text.strip("[]() "))
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise InputError(row.where, f"layers_per_stage must be whole numbers such as 10,12,12,10, got {shown(text)}.")
    return tuple(int(part) for part in parts)


def stage_layers(row: Cells, model: ModelSpec, tp: int, pp: int, chunks: int) -> tuple[int, ...]:
    """
    Return the layers of each stage of a run: as recorded, from AMP's boundaries of pseudo-layers, or spread evenly.

    If the number does not divide, the first stages have one layer more. With interleaving, embedding and output head
    count as layers if the chunks are then equal, as Megatron-Core requires (``parallel/chunks.py``).

    Parameters
    ----------
    chunks
        Model chunks of each stage.
    """
    given, num_layers = layers_in_column(row), model.num_layers
    if pp > MAX_STAGES:
        raise InputError(row.where, f"pp must be at most {MAX_STAGES:,}, got {pp:,}.")
    if given is not None:
        if len(given) != pp or sum(given) != num_layers:
            problem = f"layers_per_stage={given} must be {pp} numbers with the sum {num_layers}."
            raise InputError(row.where, problem)
        return given
    found = re.search(r"stage boundaries \[([0-9,\s]+)\]", row.text("notes"))
    if found:
        bounds = [int(part) for part in found.group(1).split(",")]
        # Two pseudo-layers come before the transformer layers: look-up and a reshape (AMP, src/known_cost).
        inside = [min(max(bound - 2, 0), num_layers) for bound in bounds]
        if len(bounds) == pp + 1 and bounds[-1] >= num_layers + 2:
            return tuple(b - a for a, b in pairwise(inside))
    if software_of(row.cells).splits_by_parameters:
        return balanced_layers(model, tp, pp, row.number(FIRST_PARAMETERS_COLUMN, above_zero=True))
    base, extra = divmod(num_layers, pp)
    if chunks > 1 < pp and num_layers % (pp * chunks) and (num_layers + 2) % (pp * chunks) == 0:
        whole = (num_layers + 2) // pp
        return (whole - 1, *(whole,) * (pp - 2), whole - 1)
    return tuple(base + (stage < extra) for stage in range(pp))


def balanced_layers(model: ModelSpec, tp: int, pp: int, first_parameters: float | None = None) -> tuple[int, ...]:
    """
    Return the layers of each stage as Nanotron divides them, by parameters.

    A stage takes layers until all layers so far reach its share of the total cost; the output head counts as a layer.
    The cost of a layer is the parameters of its matrices (``get_block_compute_costs`` in Nanotron's models); embeddings
    cost nothing. The layer that reaches the share still belongs to the stage: the parameter counts that rank 0 printed
    in public runs confirm this. If a layer meets the share exactly, the result depends on Nanotron's version; the
    parameters of rank 0 then decide, if they are known.
    """
    h, heads = model.hidden_size, model.num_attention_heads
    layer = h * (2 * h + 2 * h * model.num_query_groups // heads) + 3 * h * model.ffn_hidden_size
    head = h * model.vocab_size
    splits = [_fill_stages(model.num_layers, pp, layer, head, meets=meets) for meets in (True, False)]
    if first_parameters is None:
        return splits[0]
    layers_reported = (first_parameters * tp - head) / layer
    return min(splits, key=lambda split: abs(split[0] - layers_reported))


def _fill_stages(num_layers: int, pp: int, layer: int, head: int, *, meets: bool) -> tuple[int, ...]:
    """
    Return the layers of each stage, filled in order by cost.

    ``meets``: whether a stage is full when the cost so far equals its share exactly.
    """
    share = (num_layers * layer + head) / pp
    layers, stage = [0] * pp, 0
    for index in range(num_layers):
        layers[stage] += 1
        filled, wanted = (index + 1) * layer, (stage + 1) * share
        if filled > wanted or (meets and filled == wanted):
            stage = min(stage + 1, pp - 1)
    return tuple(layers)
