"""From a search space to every legal configuration, and why the others are not."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates.combinations import Combination, combinations, known_combinations
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.candidates.world_sizes import world_sizes
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """
    What a search space holds.

    Parameters
    ----------
    world_sizes
        GPUs of the candidates, the most first.
    candidates
        Every legal configuration that packs onto the hosts.
    num_combinations
        Combinations looked at, the candidates among them.
    reasons
        Combinations that are ruled out, by rule and reason, with the numbers; one that breaks several rules counts for
        each.
    first_broken
        Combinations by the first rule that they break, most first; together with the candidates these are all
        combinations.
    """

    world_sizes: tuple[int, ...]
    candidates: tuple[ParallelConfig, ...]
    num_combinations: int
    reasons: Mapping[tuple[str, str], int]
    first_broken: Mapping[str, int]

    @cached_property
    def rejected(self) -> dict[str, int]:
        """Combinations that each rule rules out, most first."""
        found = Counter[str]()
        for (rule, _), number in self.reasons.items():
            found[rule] += number
        return dict(found.most_common())

    @cached_property
    def examples(self) -> dict[str, str]:
        """For each of these rules the reason that rules out most."""
        return dict(sorted(self.reasons, key=lambda one: (self.reasons[one], one)))

    def values(self, name: str) -> tuple[Any, ...]:
        """The values of a property among the candidates, ascending; none first. They are looked for once."""
        if name not in self._values:
            found = {getattr(one, name) for one in self.candidates}
            self._values[name] = tuple(sorted(found, key=lambda value: (str(type(value)), value)))
        return self._values[name]

    @cached_property
    def _values(self) -> dict[str, tuple[Any, ...]]:
        return {}

    def explain(self) -> str:
        """Which rule rules out how many combinations, one line each."""
        sizes = " or ".join(map(str, self.world_sizes))
        head = f"{len(self.candidates)} of {self.num_combinations} combinations are legal on {sizes} GPUs"
        lines = [f"{rule} rules out {count}, e.g. {self.examples[rule]}" for rule, count in self.rejected.items()]
        return "\n  ".join([f"{head}{':' if lines else '.'}", *lines])


def enumerate_candidates(instance: Instance, space: SearchSpace) -> list[ParallelConfig]:
    """
    Every legal configuration, smaller degrees first; the order depends on nothing but the arguments.

    Raises
    ------
    InfeasibleError
        If there is none; the message says which rule rules out how many combinations.
    """
    found = enumerate_with_reasons(instance, space)
    if not found.candidates:
        raise InfeasibleError(found.explain())
    return list(found.candidates)


def enumerate_with_reasons(instance: Instance, space: SearchSpace) -> Enumeration:
    """Every legal configuration, and how many combinations each rule rules out."""
    sizes = world_sizes(instance, space)
    found = chain(*(combinations(instance, space, num_gpus) for num_gpus in sizes), known_combinations(instance, space))
    return _counted(sizes, found)


def enumerate_more(instance: Instance, space: SearchSpace, known: SearchSpace, enumeration: Enumeration) -> Enumeration:
    """
    The enumeration of a space, of which all is known but some splits and layouts; what is new comes last.

    Parameters
    ----------
    known
        A space that differs in ``more_splits`` and ``more_layouts`` alone, which are fewer.
    enumeration
        Of that space.
    """
    sizes = enumeration.world_sizes
    return _counted(
        sizes,
        chain(*(combinations(instance, space, num_gpus, known=known) for num_gpus in sizes)),
        enumeration,
    )


def _counted(sizes: Sequence[int], found: Iterable[Combination], before: Enumeration | None = None) -> Enumeration:
    """Combinations by what became of them, with those before; a configuration that comes twice counts once."""
    candidates = [] if before is None else list(before.candidates)
    reasons = Counter({} if before is None else before.reasons)
    first_broken = Counter({} if before is None else before.first_broken)
    ruled_out = 0 if before is None else before.num_combinations - len(candidates)
    for configs, number, broken in found:
        for reason in broken.items():
            reasons[reason] += number
        if broken:
            ruled_out += number
            first_broken[next(iter(broken))] += number
        else:
            candidates += configs
    distinct = tuple(dict.fromkeys(candidates))
    return Enumeration(
        world_sizes=tuple(sizes),
        candidates=distinct,
        num_combinations=ruled_out + len(distinct),
        reasons=+reasons,
        first_broken=dict((+first_broken).most_common()),
    )


def has_any(instance: Instance, space: SearchSpace) -> bool:
    """Whether a space has a legal configuration."""
    return any(
        not combination.broken
        for num_gpus in world_sizes(instance, space)
        for combination in combinations(instance, space, num_gpus, only_counted=True)
    )


def is_counted(instance: Instance, space: SearchSpace, sizes: Sequence[int], is_over: Callable[[], bool]) -> bool:
    """
    Whether all configurations of a space can be looked at before time is over.

    Parameters
    ----------
    sizes
        The world sizes of the space.
    """
    return not any(is_over() for num_gpus in sizes for _ in combinations(instance, space, num_gpus, only_counted=True))
