"""Pinned values that cannot go together: which, why, and what would."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.coverage import DIMENSIONS, listed
from pipette_opt.candidates.enumeration import Enumeration, enumerate_with_reasons, has_any
from pipette_opt.candidates.space import OPTION_OF_FIELD, SearchSpace
from pipette_opt.specs import Instance

MAX_NAMED = 12
"""Values of an option that a message names at most. Chosen: powers of two up to a thousand GPUs are eleven."""

MAX_REASONS = 3
"""Broken rules that a message explains at most. Chosen."""


def contradiction(instance: Instance, space: SearchSpace) -> InputError | None:
    """
    The pins of a space without legal configurations that contradict each other, or the job; ``None`` if none do.

    Pins are taken away, one after the other, as long as nothing is legal still. What stays is irreducible: with any of
    these taken away, something is legal. Without any pin nothing may be legal either; then no pin is to blame.
    """
    unpinned = SearchSpace()
    pinned = [name for name in OPTION_OF_FIELD if getattr(space, name) != getattr(unpinned, name)]
    free = replace(space, **{name: getattr(unpinned, name) for name in pinned})
    if not pinned or not has_any(instance, free):
        return None
    kept = space
    for name in pinned:
        without = _without(kept, name)
        if without is not None and not has_any(instance, without):
            kept = without
    blamed = [name for name in pinned if getattr(kept, name) != getattr(unpinned, name)]
    said = [f"{OPTION_OF_FIELD[name]} {given_text(getattr(kept, name))}" for name in blamed]
    what = "contradict each other" if len(blamed) > 1 else "leaves no legal configuration"
    rights = "; ".join(_rights(instance, kept, blamed))
    would = (
        f" What would be legal{' with the others as they are' if len(blamed) > 1 else ''}: {rights}." if rights else ""
    )
    return InputError(" and ".join(said), f"{what}: {_reason(enumerate_with_reasons(instance, kept))}.{would}")


def _rights(instance: Instance, kept: SearchSpace, blamed: list[str]) -> Iterator[str]:
    """Values of each pin that are legal with the other ones."""
    for name in blamed:
        freed = _without(kept, name)
        if name in DIMENSIONS and freed is not None:
            values = enumerate_with_reasons(instance, freed).values(DIMENSIONS[name])
            more = ", ..." if len(values) > MAX_NAMED else ""
            yield f"{OPTION_OF_FIELD[name]} {listed(values[:MAX_NAMED])}{more}"


def _without(space: SearchSpace, name: str) -> SearchSpace | None:
    """The space without a pin; ``None`` where another pin needs it."""
    try:
        return replace(space, **{name: getattr(SearchSpace(), name)})
    except InputError:
        return None


def given_text(value: object) -> str:
    """A pinned value as it is typed."""
    values = value if isinstance(value, tuple) else (value,)
    words = {None: "none", True: "on", False: "off"}
    known = (None, True, False)
    return ",".join(words[one] if any(one is word for word in known) else str(one).replace(" ", "") for one in values)


def _reason(enumeration: Enumeration) -> str:
    """An example of each broken rule, the most frequent first."""
    return "; ".join([enumeration.examples[rule] for rule in enumeration.rejected][:MAX_REASONS])
