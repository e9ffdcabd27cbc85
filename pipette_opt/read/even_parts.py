"""Even division of a model's layers into chunks, with the embedding and the head counted as layers."""

from typing import NamedTuple

from pipette_opt.parallel.layout import layout_of


class EvenParts(NamedTuple):
    """
    Rule that divides layers into chunks, in the order of the model.

    Parameters
    ----------
    num_parts
        Number of chunks of all stages; ``None`` if ``layers`` gives it.
    layers
        Most layers of a chunk; ``None`` if ``num_parts`` is given.
    first_less, last_less
        Layers that the embedding and the head count for.
    """

    num_parts: int | None
    layers: int | None
    first_less: int
    last_less: int

    def layout(self, num_layers: int, num_stages: int) -> str:
        """
        Return the chunks as a layout of Megatron-Core; the first chunks have the layers that are left over.

        Raises ``ValueError`` for a number of chunks that is no multiple of the stages, and for a chunk of less than no
        layer.
        """
        counted = num_layers + self.first_less + self.last_less
        parts = self.num_parts or -(-counted // (self.layers or counted))
        if parts % num_stages:
            raise ValueError(f"{num_layers} layers make {parts} chunks, no multiple of the {num_stages} stages.")
        held = [counted // parts + (part < counted % parts) for part in range(parts)]
        held[0] -= self.first_less
        held[-1] -= self.last_less
        if min(held) < 0:
            raise ValueError(f"{num_layers} layers are too few for {parts} chunks.")
        return layout_of([held[start : start + num_stages] for start in range(0, parts, num_stages)])
