"""Where the figures of a plan are from: what was measured, what lies between measurements, and what is assumed."""

from collections.abc import Iterator

from pipette_opt.specs import Instance, StackSpec
from pipette_opt.specs.efficiency import Origin
from pipette_opt.specs.stack import CONSTANTS

ORIGINS: tuple[Origin, ...] = ("measured", "interpolated", "assumed")
"""In the order in which they are said."""


def provenance(instance: Instance) -> tuple[str, ...]:
    """Say for each origin what has it, a sentence each: "Measured: links between hosts"."""
    found = list(_sources(instance))
    told = {origin: "; ".join(what for what, its in found if its == origin) for origin in ORIGINS}
    return tuple(f"{origin.capitalize()}: {what}." for origin, what in told.items() if what)


def _sources(instance: Instance) -> Iterator[tuple[str, Origin]]:
    """All that decides times and sizes, and its origin."""
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
    if stack.memory is not None:
        yield "constants of memory", "measured"
    yield "memory, between traced layers", "interpolated"


def _constants(stack: StackSpec) -> Iterator[tuple[str, Origin]]:
    """Those of a fit are measured; of another stack, what it says of each of them, and assumed what it does not say."""
    told = {origin: [name for name in CONSTANTS if stack.origins.get(name, "assumed") == origin] for origin in ORIGINS}
    if stack.fitted is not None:
        yield f"constants of the stack {stack.name}", "measured"
    elif len(told["assumed"]) == len(CONSTANTS):
        yield f"constants of the stack {stack.name}", "assumed"
    else:
        for origin in ORIGINS[:2]:
            if told[origin]:
                yield f"{', '.join(told[origin])} of the stack {stack.name}", origin
        yield f"the other constants of the stack {stack.name}", "assumed"
