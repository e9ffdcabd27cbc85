"""Origin of a plan's figures: measured, interpolated between measurements, or assumed."""

from collections.abc import Iterator

from pipette_opt.specs import Instance, StackSpec
from pipette_opt.specs.efficiency import Origin
from pipette_opt.specs.memory_constants import MEGATRON_CORE
from pipette_opt.specs.stack import CONSTANTS

ORIGINS: tuple[Origin, ...] = ("measured", "interpolated", "assumed")
"""Origins of figures, in the order of their sentences in a plan's notes."""


def provenance(instance: Instance) -> tuple[str, ...]:
    """Return a sentence for each origin, such as "Measured: links between hosts.", with all figures of that origin."""
    found = list(_sources(instance))
    texts = {origin: "; ".join(source for source, its in found if its == origin) for origin in ORIGINS}
    return tuple(f"{origin.capitalize()}: {text}." for origin, text in texts.items() if text)


def _sources(instance: Instance) -> Iterator[tuple[str, Origin]]:
    """Yield every source of times and memory sizes, each with its origin."""
    cluster, stack = instance.cluster, instance.stack
    if instance.profile is not None:
        yield "layer times of the profile", "measured"
    for gpu in cluster.gpu_kinds:
        laws = gpu.efficiency
        by = f" (kernels of {laws.like})" if laws.like and laws.like != gpu.kind else ""
        yield f"rates of products and attention on {gpu.name}{by}", laws.origin
    if cluster.num_nodes > 1:
        yield "links between hosts", "measured" if cluster.links_measured else "assumed"
    yield from _constants(stack)
    if stack.memory != MEGATRON_CORE:
        yield "constants of memory", stack.origins.get("memory", "measured")
    yield "memory, between traced layers", "interpolated"


def _constants(stack: StackSpec) -> Iterator[tuple[str, Origin]]:
    """Yield the constants of a stack with their origins. All count as measured if the stack was fitted."""
    if stack.is_fitted:
        yield f"constants of the stack {stack.name}", "measured"
    elif len(stack.names_of("assumed")) == len(CONSTANTS):
        yield f"constants of the stack {stack.name}", "assumed"
    else:
        for origin in ORIGINS[:2]:
            if names := stack.names_of(origin):
                yield f"{', '.join(names)} of the stack {stack.name}", origin
        yield f"the other constants of the stack {stack.name}", "assumed"
