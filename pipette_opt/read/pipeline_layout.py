"""``--pipeline-model-parallel-layout``: which chunk of which stage holds which layers, as a text."""

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.layout import layout_layers

OPTION = "--pipeline-model-parallel-layout"


def layers_of_layout(layout: str, num_layers: int, num_stages: int, where: str) -> tuple[tuple[int, ...], ...]:
    """
    Transformer layers of each chunk of each stage, shape ``(num_chunks, num_stages)``.

    Raises
    ------
    InputError
        If Megatron-Core would refuse the layout (:mod:`~pipette_opt.parallel.layout`), or it holds other layers than
        the model.
    """
    try:
        held = layout_layers(layout, num_stages)
    except ValueError as error:
        raise InputError(where, f"{OPTION} {layout} {error}") from None
    total = sum(map(sum, held))
    if total != num_layers:
        raise InputError(where, f"{OPTION} {layout} holds {total} layers, but the model has {num_layers}.")
    return held
