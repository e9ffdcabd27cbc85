"""From a search space to every legal configuration, and why the others are not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates.combinations import combinations
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
    rejected
        Combinations that each rule rules out, most first; one that breaks several rules counts for each.
    examples
        For each of these rules, the reason why it ruled out the first combination, with the numbers.
    first_broken
        Combinations by the first rule that they break, most first; together with the candidates these are all
        combinations.
    """

    world_sizes: tuple[int, ...]
    candidates: tuple[ParallelConfig, ...]
    num_combinations: int
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    first_broken: Mapping[str, int]

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
    candidates: list[ParallelConfig] = []
    rejected: Counter[str] = Counter()
    first_broken: Counter[str] = Counter()
    examples: dict[str, str] = {}
    num_combinations = 0
    for num_gpus in sizes:
        for configs, broken in combinations(instance, space, num_gpus):
            num_combinations += max(len(configs), 1)
            for rule, reason in broken.items():
                rejected[rule] += max(len(configs), 1)
                examples.setdefault(rule, reason)
            if broken:
                first_broken[next(iter(broken))] += max(len(configs), 1)
            else:
                candidates += configs
    return Enumeration(
        world_sizes=sizes,
        candidates=tuple(candidates),
        num_combinations=num_combinations,
        rejected=dict(rejected.most_common()),
        examples=examples,
        first_broken=dict(first_broken.most_common()),
    )


def has_more_than(instance: Instance, space: SearchSpace, most: int, sizes: Sequence[int] | None = None) -> bool:
    """
    Whether a space has more legal configurations than that; no more of them are looked at than it takes to know.

    Parameters
    ----------
    sizes
        The world sizes of the space, where they are known.
    """
    count = 0
    for num_gpus in sizes or world_sizes(instance, space):
        for configs, broken in combinations(instance, space, num_gpus):
            count += 0 if broken else len(configs)
            if count > most:
                return True
    return False
