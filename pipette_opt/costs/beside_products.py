"""
Messages of tensor ranks beside matrix products of the backward pass.

A column-parallel product gathers its input again beside the product for its input's gradient, and reduces this gradient
beside the product for its weights' gradient (:func:`~pipette_opt.costs.collectives.beside_traffic`). Compute beside a
message takes ``overlap_slowdown`` longer. What a product does not hide is exposed. Exported launches set
``CUDA_DEVICE_MAX_CONNECTIONS`` (``export/environment.py``), without which messages may start late. Software that is not
on Megatron-Core keeps gathered inputs, and waits for the reduction.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.collectives import RingTraffic, beside_traffic, column_products, shown_beside_s
from pipette_opt.costs.compute import head_product_s
from pipette_opt.costs.products import ProductTimes, product_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, LayerKind, StackSpec
from pipette_opt.specs.stack import ON_MEGATRON_CORE


class BesideProduct(NamedTuple):
    """Message of tensor ranks, and the seconds of the product beside it."""

    traffic: RingTraffic
    product_s: float


def beside_products(
    instance: Instance, config: ParallelConfig, kind: LayerKind, kinds: Sequence[int]
) -> tuple[BesideProduct, ...]:
    """
    Return the messages beside products in the backward pass of one layer; empty without tensor parallelism.

    The fastest of the GPU types ``kinds`` counts.
    """
    found: tuple[BesideProduct, ...] = ()
    if config.tensor_model_parallel_size == 1:
        return found
    model, training, stack = instance.model, instance.training, instance.stack
    gpus = [instance.cluster.gpu_kinds[gpu] for gpu in kinds]
    for product in column_products(model, kind):
        times = [product_s(product, model.adapters, training, config, gpu, stack) for gpu in gpus]
        found += _beside(beside_traffic(model, training, config, product.inputs), times, stack)
    return found


def beside_head(instance: Instance, config: ParallelConfig, kinds: Sequence[int]) -> tuple[BesideProduct, ...]:
    """Return the messages beside the products of the output head and of each prediction depth's, as for a layer."""
    if config.tensor_model_parallel_size == 1:
        return ()
    model, training, stack = instance.model, instance.training, instance.stack
    times = [head_product_s(model, training, config, instance.cluster.gpu_kinds[gpu], stack) for gpu in kinds]
    traffic = beside_traffic(model, training, config, model.hidden_size, is_wide=True)
    return (1 + model.mtp_num_layers) * _beside(traffic, times, stack)


def _beside(
    traffic: tuple[RingTraffic, RingTraffic], times: Sequence[ProductTimes], stack: StackSpec
) -> tuple[BesideProduct, ...]:
    gathered, reduced = traffic
    if stack.family not in ON_MEGATRON_CORE:
        return (BesideProduct(reduced, 0.0),)
    return (
        BesideProduct(gathered, min(product.inputs_s for product in times)),
        BesideProduct(reduced, min(product.weights_s for product in times)),
    )


def most_beside(first: Sequence[BesideProduct], second: Sequence[BesideProduct]) -> tuple[BesideProduct, ...]:
    """Return the messages with the longer of both products; both sequences have equal messages."""
    return tuple(
        BesideProduct(message.traffic, max(message.product_s, equal.product_s))
        for message, equal in zip(first, second, strict=True)
    )


def shown_beside_products_s(
    ring_s: Callable[[RingTraffic], FloatArray | float], messages: Sequence[BesideProduct], slowdown: float
) -> FloatArray | float:
    """Return the seconds that messages add to the backward pass; ``ring_s``: seconds of a message alone."""
    shown = (shown_beside_s(ring_s(message.traffic), message.product_s, slowdown) for message in messages)
    return sum(shown, start=0.0)
