"""Explanation of pinned values that contradict each other: which values, why, and legal values instead."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.coverage import DIMENSIONS, listed
from pipette_opt.candidates.enumeration import enumerate_with_reasons, has_any
from pipette_opt.candidates.space import PINNABLE, SearchSpace
from pipette_opt.options.names import option_name
from pipette_opt.specs import Instance

MAX_NAMED = 12
"""Most values of an option that a message lists; powers of two up to a thousand GPUs are eleven. Chosen."""

MAX_REASONS = 3
"""Most broken rules that a message explains. Chosen."""


def contradiction(instance: Instance, space: SearchSpace) -> InputError | None:
    """
    Return an error that names contradictory pinned values; ``None`` if pinned values are not the reason.

    Pinned values are dropped one after the other as long as no configuration becomes legal. The rest is irreducible:
    without any single one of them, a configuration is legal. Pinned values are not the reason if nothing is legal
    without any.
    """
    unpinned = SearchSpace()
    pinned = [name for name in PINNABLE if getattr(space, name) != getattr(unpinned, name)]
    free = replace(space, **{name: getattr(unpinned, name) for name in pinned})
    if not pinned or not has_any(instance, free):
        return None
    kept = space
    for name in pinned:
        without = _without(kept, name)
        if without is not None and not has_any(instance, without):
            kept = without
    blamed = [name for name in pinned if getattr(kept, name) != getattr(unpinned, name)]
    given = [f"{option_name(name)} {given_text(getattr(kept, name))}" for name in blamed]
    problem = "contradict each other" if len(blamed) > 1 else "leaves no legal configuration"
    rights = "; ".join(_rights(instance, kept, blamed))
    would = (
        f" Legal values{', with the other options unchanged' if len(blamed) > 1 else ''}: {rights}." if rights else ""
    )
    enumeration = enumerate_with_reasons(instance, kept)
    broken = "; ".join([enumeration.examples[rule] for rule in enumeration.rejected][:MAX_REASONS])
    return InputError(" and ".join(given), f"{problem}: {broken}.{would}")


def _rights(instance: Instance, kept: SearchSpace, blamed: list[str]) -> Iterator[str]:
    """Yield, as text, the legal values of each contradictory option, given the other pinned values."""
    for name in blamed:
        freed = _without(kept, name)
        if name in DIMENSIONS and freed is not None:
            values = enumerate_with_reasons(instance, freed).values(DIMENSIONS[name])
            more = ", ..." if len(values) > MAX_NAMED else ""
            yield f"{option_name(name)} {listed(values[:MAX_NAMED])}{more}"


def _without(space: SearchSpace, name: str) -> SearchSpace | None:
    """Return the space with one field unpinned; ``None`` if another pinned value depends on it."""
    try:
        return replace(space, **{name: getattr(SearchSpace(), name)})
    except InputError:
        return None


def given_text(value: object) -> str:
    """Return a pinned value as text of a command-line option, such as ``none,full`` or ``on``."""
    values = value if isinstance(value, tuple) else (value,)
    words = {None: "none", True: "on", False: "off"}
    known = (None, True, False)
    texts = (words[each] if any(each is word for word in known) else str(each).replace(" ", "") for each in values)
    return ",".join(texts)
