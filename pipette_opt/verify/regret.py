"""
Regret of a plan over worlds: how much slower it is, in each world, than the best configuration of that world can be.

A world multiplies the times of a configuration by a factor (:mod:`pipette_opt.worlds`). Configurations with equal
degrees, chunks, micro-batch and recomputation form a group, which has one factor in a world. The lower bound of a
world is the least product of a group's bound and its factor. The best plan found is never the denominator: bounds are
compute alone, the simulation with the fastest links (:mod:`.bounds`), and the bound that the search proved for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from pipette_opt.base.degrees import CHUNKS, CONTEXT, CONTEXT_A2A, DEGREES, EXPERT, EXPERT_TENSOR, TENSOR
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import CheckedConfig
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.certificate import REGRET_QUANTILE, Regret
from pipette_opt.plans.plainness import kind_of
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.least_times import peak_gpu_seconds
from pipette_opt.specs import Instance
from pipette_opt.verify.bounds import cheap_bounds_s, ideal_cluster, on_fastest_hosts
from pipette_opt.worlds.terms import SENSITIVITIES, TERMS, describe, features_of
from pipette_opt.worlds.worlds import Worlds

MAX_KINDS = 400
"""
Number of choices of degrees, micro-batch and recomputation that are looked at, those with the least compute. Chosen:
their terms take about ten seconds.
"""

Group = tuple[object, ...]
"""Degrees, micro-batch, recomputation and chunks of a configuration."""


def group_of(config: ParallelConfig) -> Group:
    """Return the group of a configuration, whose members have equal factors in each world."""
    return (*kind_of(config), config.num_chunks)


def words_of(group: Group) -> str:
    """Return a group as people type it for ``explain`` and pins, e.g. ``tp8 pp4 dp2 mbs1 vpp2``."""
    *sizes, recomputation, chunks = group
    size_of = dict(zip([degree for degree in DEGREES if degree != CHUNKS], sizes, strict=True)) | {CHUNKS: chunks}
    usual = {CONTEXT: 1, CONTEXT_A2A: 1, EXPERT: 1, EXPERT_TENSOR: size_of[TENSOR]}
    shown = [f"{degree.short}{size}" for degree, size in size_of.items() if size != usual.get(degree)]
    return " ".join([*shown, *([] if recomputation is None else [f"recompute={recomputation}"])])


class Groups:
    """
    Groups of the configurations that fit, their predictions' terms, and lower bounds on their times.

    Parameters
    ----------
    checked
        Configurations that are legal and fit.
    capacity_bytes
        Memory that a stage may take on one GPU of each host, shape ``(num_nodes,)``.
    fastest
        Configuration of the fastest plan, whose group is always looked at.
    work
        Bounds by compute alone that a search found; by default they are derived again.

    Attributes
    ----------
    least_s
        Lower bound on every plan of every configuration, as the search proved it, seconds; 0 until it is known.
    left_out_s
        Least bound by compute alone of the configurations that are not looked at, seconds; ``None`` if all are.
    """

    def __init__(
        self,
        instance: Instance,
        checked: Sequence[CheckedConfig],
        capacity_bytes: IntArray,
        fastest: ParallelConfig | None = None,
        work: WorkBounds | None = None,
    ) -> None:
        self._instance, self._capacity_bytes, self.least_s = instance, capacity_bytes, 0.0
        members, least_of = dict[Group, list[tuple[float, CheckedConfig]]](), dict[Group, float]()
        work = work or WorkBounds(instance)
        for fits in checked:
            if (bound_s := work(fits.config)) < np.inf:
                members.setdefault(group_of(fits.config), []).append((bound_s, fits))
                kind = kind_of(fits.config)
                least_of[kind] = min(bound_s, least_of.get(kind, bound_s))
        kinds = sorted(least_of, key=lambda kind: least_of[kind])
        if fastest is not None:
            kinds.sort(key=lambda kind: kind != kind_of(fastest))
        looked_at = set(kinds[:MAX_KINDS])
        self.left_out_s = min((least_of[kind] for kind in kinds[MAX_KINDS:]), default=None)
        self._members = {group: found for group, found in members.items() if group[:-1] in looked_at}
        self.numbers: Mapping[Group, int] = {group: number for number, group in enumerate(self._members)}
        firsts = [min(members, key=lambda member: member[0])[1] for members in self._members.values()]
        self.terms = _terms(instance, firsts, capacity_bytes)
        alone = [min(bound_s for bound_s, _ in members) for members in self._members.values()]
        self._alone_s, self._known_s = np.array(alone), np.full(len(alone), np.nan)
        self._bounds_s: FloatArray = self._alone_s.copy()
        least_s = peak_gpu_seconds(instance) / np.array([fits.config.world_size for fits in firsts])
        self._least_log_factors: FloatArray = np.log(least_s / self._alone_s)
        self._simulated = np.zeros(len(alone), dtype=np.bool_)

    @property
    def bounds_s(self) -> FloatArray:
        """
        Lower bound on each group, seconds, shape ``(num_groups,)``.

        It is raised from compute alone to the simulation with the fastest links once it decides the bound of a world.
        """
        found: FloatArray = np.maximum(self._bounds_s, self.least_s)
        return found

    def log_factors(self, worlds: Worlds) -> FloatArray:
        """
        Return the logarithm of the time in each world over the predicted time, shape ``(num_groups, num_worlds)``.

        In no world does the compute of a group go faster than the GPUs' peak.
        """
        return self.below_peak(worlds.log_factors(self.terms))

    def below_peak(self, log_factors: FloatArray) -> FloatArray:
        """Return factors raised as far as the GPUs' peak demands, of and to the shape ``(num_groups, num_worlds)``."""
        return np.maximum(log_factors, self._least_log_factors[:, None])

    def by_group(self, values: FloatArray) -> dict[Group, float]:
        """Return values of shape ``(num_groups,)`` by their group."""
        return {group: float(values[number]) for group, number in self.numbers.items()}

    def world_bounds_s(
        self, log_factors: FloatArray, needed: Callable[[FloatArray], IntArray] | None = None
    ) -> FloatArray:
        """
        Return a lower bound on all plans in each world, seconds, shape ``(num_worlds,)``.

        Parameters
        ----------
        log_factors
            Logarithm of the time in a world over the predicted time, shape ``(num_groups, num_worlds)``.
        needed
            Numbers of the worlds whose bounds must be as high as simulation makes them, by the bounds so far; by
            default all worlds.
        """
        factors = np.exp(log_factors)
        while True:
            products = self.bounds_s[:, None] * factors
            least_s, deciding = products.min(axis=0), products.argmin(axis=0)
            deciding = np.unique(deciding if needed is None else deciding[needed(least_s)])
            waiting = deciding[~self._simulated[deciding]]
            if not len(waiting):
                return np.asarray(least_s)
            self._simulate(waiting.tolist())

    def start_again(self) -> None:
        """
        Take back all raised bounds; their simulations are kept.

        So which bounds are raised depends on nothing but ``least_s`` and the worlds that are asked from here on.
        """
        self._bounds_s = self._alone_s.copy()
        self._simulated[:] = False

    def _simulate(self, numbers: Sequence[int]) -> None:
        """Raise the bounds of groups to the simulation of their members with the fastest links."""
        unknown = [number for number in numbers if np.isnan(self._known_s[number])]
        if unknown:
            every = list(self._members.values())
            members = [(number, fits) for number in unknown for _, fits in every[number]]
            bounds_s = cheap_bounds_s(self._instance, [fits for _, fits in members], self._capacity_bytes)
            self._known_s[unknown] = np.inf
            np.minimum.at(self._known_s, [number for number, _ in members], bounds_s)
        self._bounds_s[list(numbers)] = self._known_s[list(numbers)]
        self._simulated[list(numbers)] = True


def _terms(instance: Instance, checked: Sequence[CheckedConfig], capacity_bytes: IntArray) -> FloatArray:
    """
    Return the terms of configurations with the fastest links, shape ``(len(checked), num_terms)``.

    Sensitivities are simulated once for all numbers of chunks.
    """
    firsts = {kind_of(fits.config): fits for fits in reversed(checked)}
    of_gpu: dict[int, list[tuple[Group, tuple[ParallelConfig, Placement]]]] = {}
    for kind, fits in firsts.items():
        gpu, placed = on_fastest_hosts(instance, fits, capacity_bytes)
        of_gpu.setdefault(gpu, []).append((kind, placed))
    sensitivities: dict[Group, FloatArray] = {}
    for gpu, parts in of_gpu.items():
        ideal = replace(instance, cluster=ideal_cluster(instance.cluster, gpu, both_ways=False))
        _, terms = describe(ideal, [placed for _, placed in parts])
        sensitivities.update(zip((kind for kind, _ in parts), terms[:, : len(SENSITIVITIES)], strict=True))
    rows = [(*sensitivities[kind_of(fits.config)], *features_of(instance, fits.config)) for fits in checked]
    return np.array(rows).reshape(len(checked), len(TERMS))


def regret_of(
    config: ParallelConfig, seconds: float, groups: Groups, worlds: Worlds, found_s: Mapping[ParallelConfig, float]
) -> Regret:
    """
    Return the regret of a plan over the worlds.

    Parameters
    ----------
    seconds
        Predicted time of the plan.
    found_s
        Predicted times of plans found, by configuration, seconds. They show how much of the regret is not known to be
        a faster plan, but only a bound that is not tight.
    """
    log_factors = groups.log_factors(worlds)
    bounds_s = groups.world_bounds_s(log_factors)
    factors = np.exp(log_factors)
    times_s = seconds * factors[groups.numbers[group_of(config)]]
    plans_s = [
        found * factors[groups.numbers[group]]
        for other, found in found_s.items()
        if (group := group_of(other)) in groups.numbers
    ]
    over_found = times_s / np.min([times_s, *plans_s], axis=0) - 1
    over_bounds = times_s / bounds_s - 1
    return Regret(
        mean=float(over_bounds.mean()),
        high=float(np.quantile(over_bounds, REGRET_QUANTILE)),
        quantile=REGRET_QUANTILE,
        over_found_mean=float(over_found.mean()),
        over_found_high=float(np.quantile(over_found, REGRET_QUANTILE)),
        worlds=len(bounds_s),
        measured_runs=len(worlds.observations),
        groups=len(groups.numbers),
        lower_bounds_s=tuple(bounds_s.tolist()),
        left_out_s=groups.left_out_s,
    )


def high_regret(config: ParallelConfig, seconds: float, groups: Groups, worlds: Worlds) -> float:
    """
    Return the quantile ``REGRET_QUANTILE`` of :func:`regret_of` alone.

    Only the bounds of the worlds with the largest regrets are made as high as simulation makes them.
    """
    log_factors = groups.log_factors(worlds)
    times_s = seconds * np.exp(log_factors[groups.numbers[group_of(config)]])
    number = ceil((1 - REGRET_QUANTILE) * len(times_s)) + 1

    def largest(bounds_s: FloatArray) -> IntArray:
        return np.argsort(bounds_s / times_s, kind="stable")[:number]

    bounds_s = groups.world_bounds_s(log_factors, largest)
    return float(np.quantile(times_s / bounds_s - 1, REGRET_QUANTILE))


def recorded_times_s(plan: Plan) -> dict[ParallelConfig, float]:
    """Return the predicted times of the other plans that a plan records, by configuration, seconds."""
    others = (
        *plan.alternatives,
        *(trade.plan for trade in plan.risks),
        *([] if plan.fastest is None else [plan.fastest]),
    )
    return {other.config: other.iteration_time_s for other in others if other.iteration_time_s is not None}


def weights_of(groups: Groups, worlds: Worlds, quantile: float | None) -> dict[Group, float]:
    """
    Return the regret of each group plus 1, per second of predicted time.

    Parameters
    ----------
    quantile
        Quantile over the worlds that is minimised, in (0, 1); ``None``: the mean.
    """
    log_factors = groups.log_factors(worlds)
    ratios = np.exp(log_factors) / groups.world_bounds_s(log_factors)
    values = ratios.mean(axis=1) if quantile is None else np.quantile(ratios, quantile, axis=1)
    return groups.by_group(values)
