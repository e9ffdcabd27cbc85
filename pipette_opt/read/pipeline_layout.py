"""Layers in ``--pipeline-model-parallel-layout``, a text that lists the layers of each chunk of each stage."""

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.layout import layout_layers, num_mtp_layers_of

OPTION = "--pipeline-model-parallel-layout"


def layers_of_layout(
    layout: str, num_layers: int, depths: int | None, num_stages: int, where: str
) -> tuple[tuple[int, ...], ...]:
    """
    Return the number of transformer layers of each chunk of each stage, shape ``(num_chunks, num_stages)``.

    Parameters
    ----------
    depths
        Multi-token prediction depths of the model; ``None`` if unknown.

    Raises
    ------
    InputError
        If Megatron-Core would refuse the layout (:mod:`~pipette_opt.parallel.layout`), or if its number of layers or of
        prediction depths differs from the model's.
    """
    try:
        held = layout_layers(layout, num_stages)
    except ValueError as error:
        raise InputError(where, f"{OPTION} {layout} {error}") from None
    total = sum(map(sum, held))
    if total != num_layers:
        raise InputError(where, f"{OPTION} {layout} holds {total} layers, but the model has {num_layers}.")
    found = num_mtp_layers_of(layout)
    if depths is not None and found != depths:
        problem = f"holds {found} prediction depths (m), but --mtp-num-layers is {depths}."
        raise InputError(where, f"{OPTION} {layout} {problem}")
    return held
