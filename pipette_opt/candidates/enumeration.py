"""Enumeration of a search space: every legal configuration, and the reasons against the other combinations."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates.combinations import Combination, combinations, known_combinations
from pipette_opt.candidates.single_changes import single_changes
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.candidates.world_sizes import world_sizes
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """
    Legal configurations of a search space, and counts of the combinations ruled out.

    Parameters
    ----------
    world_sizes
        Numbers of GPUs that were enumerated, largest first.
    candidates
        Every legal configuration that can be placed on whole hosts.
    near
        Candidates that are in the space only as single changes of ``SearchSpace.near``.
    num_combinations
        Number of combinations enumerated, legal ones included.
    reasons
        Number of combinations ruled out, by rule and reason; a combination counts for each rule that it breaks.
    first_broken
        Number of combinations by the first rule that they break, most frequent first. Together with the legal
        configurations they add up to ``num_combinations``.
    """

    world_sizes: tuple[int, ...]
    candidates: tuple[ParallelConfig, ...]
    num_combinations: int
    reasons: Mapping[tuple[str, str], int]
    first_broken: Mapping[str, int]
    near: frozenset[ParallelConfig] = frozenset()

    @cached_property
    def rejected(self) -> dict[str, int]:
        """Number of combinations that each rule rules out, most frequent first."""
        found = Counter[str]()
        for (rule, _), number in self.reasons.items():
            found[rule] += number
        return dict(found.most_common())

    @cached_property
    def examples(self) -> dict[str, str]:
        """Most frequent reason of each rule that ruled out combinations."""
        return dict(sorted(self.reasons, key=lambda reason: (self.reasons[reason], reason)))

    def values(self, name: str) -> tuple[Any, ...]:
        """
        Return the distinct values of a property among the legal configurations, ascending, ``None`` first.

        Single changes of a plan do not count: their values are not combined with all others.
        """
        if name not in self._values:
            found = set(map(attrgetter(name), self._combined))
            self._values[name] = tuple(sorted(found, key=lambda value: (str(type(value)), value)))
        return self._values[name]

    @cached_property
    def _combined(self) -> tuple[ParallelConfig, ...]:
        if not self.near:
            return self.candidates
        return tuple(config for config in self.candidates if config not in self.near)

    @cached_property
    def _values(self) -> dict[str, tuple[Any, ...]]:
        return {}

    def explain(self) -> str:
        """Return text on how many combinations each rule rules out, one line per rule."""
        sizes = " or ".join(map(str, self.world_sizes))
        head = f"{len(self.candidates)} of {self.num_combinations} combinations are legal on {sizes} GPUs"
        lines = [f"{rule} rules out {count}, e.g. {self.examples[rule]}" for rule, count in self.rejected.items()]
        return "\n  ".join([f"{head}{':' if lines else '.'}", *lines])


def enumerate_candidates(instance: Instance, space: SearchSpace) -> list[ParallelConfig]:
    """
    Return every legal configuration, smaller degrees first; the order depends only on the arguments.

    Raises
    ------
    InfeasibleError
        If no configuration is legal; the message says how many combinations each rule rules out.
    """
    found = enumerate_with_reasons(instance, space)
    if not found.candidates:
        raise InfeasibleError(found.explain())
    return list(found.candidates)


def keeps_all(config: ParallelConfig) -> bool:
    """Return ``True``: as ``keep`` of an enumeration, list every legal configuration."""
    return True


def enumerate_with_reasons(
    instance: Instance, space: SearchSpace, keep: Callable[[ParallelConfig], bool] = keeps_all
) -> Enumeration:
    """
    Return every legal configuration, and the number of combinations that each rule rules out.

    Parameters
    ----------
    keep
        Predicate of the legal configurations to list; the others count as if the space did not have them.
    """
    sizes = world_sizes(instance, space)
    found = chain(*(combinations(instance, space, num_gpus) for num_gpus in sizes), known_combinations(instance, space))
    return _counted(sizes, found, _near(instance, space), keep)


def enumerate_more(
    instance: Instance,
    space: SearchSpace,
    known: SearchSpace,
    enumeration: Enumeration,
    keep: Callable[[ParallelConfig], bool] = keeps_all,
) -> Enumeration:
    """
    Return an enumeration extended by further numbers of GPUs, layer splits, layouts and single changes.

    New configurations come last.

    Parameters
    ----------
    space
        Search space with the further ``world_sizes``, ``more_splits``, ``more_layouts`` and ``near``.
    known
        Search space of ``enumeration``; otherwise equal to ``space``.
    enumeration
        Enumeration of ``known``.
    keep
        Predicate of the legal configurations to list.
    """
    sizes, known_sizes = world_sizes(instance, space), enumeration.world_sizes
    has_more = (space.more_splits, space.more_layouts) != (known.more_splits, known.more_layouts)
    found = chain(
        *(combinations(instance, space, num_gpus, known=known) for num_gpus in known_sizes if has_more),
        *(combinations(instance, space, num_gpus) for num_gpus in sizes if num_gpus not in known_sizes),
    )
    return _counted(sizes, found, _near(instance, space), keep, enumeration)


def _near(instance: Instance, space: SearchSpace) -> Iterator[ParallelConfig]:
    """Yield the legal single changes of the configurations in ``space.near``."""
    for narrow in single_changes(instance, space):
        yield from legal_candidates(instance, narrow)


def _counted(
    sizes: Sequence[int],
    found: Iterable[Combination],
    near: Iterable[ParallelConfig],
    keep: Callable[[ParallelConfig], bool],
    before: Enumeration | None = None,
) -> Enumeration:
    """Return the enumeration of these combinations and single changes, added to ``before``; duplicates count once."""
    known = () if before is None else before.candidates
    reasons = Counter({} if before is None else before.reasons)
    first_broken = Counter({} if before is None else before.first_broken)
    ruled_out = 0 if before is None else before.num_combinations - len(known)
    legal = list[ParallelConfig]()
    for configs, number, broken in found:
        for reason in broken.items():
            reasons[reason] += number
        if broken:
            ruled_out += number
            first_broken[next(iter(broken))] += number
        else:
            legal += filter(keep, configs)
    known_near = frozenset[ParallelConfig]() if before is None else before.near
    near = tuple(filter(keep, near))
    distinct = tuple(dict.fromkeys((*known, *legal, *near)))
    only_near = known_near.union(near).difference(legal, (config for config in known if config not in known_near))
    return Enumeration(
        world_sizes=tuple(sizes),
        candidates=distinct,
        num_combinations=ruled_out + len(distinct),
        reasons=+reasons,
        first_broken=dict((+first_broken).most_common()),
        near=only_near,
    )


def legal_candidates(instance: Instance, space: SearchSpace) -> list[ParallelConfig]:
    """Return the configurations of :func:`enumerate_with_reasons` without counting the other combinations."""
    found = chain(
        *(combinations(instance, space, num_gpus) for num_gpus in world_sizes(instance, space)),
        known_combinations(instance, space),
    )
    return [config for configs, _, broken in found if not broken for config in configs]


def has_any(instance: Instance, space: SearchSpace) -> bool:
    """Return whether a search space has at least one legal configuration."""
    return any(
        not combination.broken
        for num_gpus in world_sizes(instance, space)
        for combination in combinations(instance, space, num_gpus, only_counted=True)
    )


def num_legal(instance: Instance, space: SearchSpace, sizes: Sequence[int], most: float = float("inf")) -> int:
    """Return the number of legal configurations on these numbers of GPUs; counting ends above ``most``."""
    number = 0
    for num_gpus in sizes:
        for combination in combinations(instance, space, num_gpus, only_counted=True):
            number += 0 if combination.broken else combination.number
            if number > most:
                return number
    return number
