"""
Objectives other than time: tokens per GPU, cost, or progress under failures.

Each objective is the iteration time times a weight of the hosts used: their number of GPUs, their price, or the loss by
failures. So each number of hosts is a separate search for the least time. Its time bound times the least weight bounds
the objective. Numbers of hosts whose bound reaches the best plan end early. With different prices, each host count is
solved once per price cap. Such a solve uses hosts priced at or below the cap, at least one of them at the cap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.preference import Preference
from pipette_opt.optimize import begun, complete, optimize
from pipette_opt.plans.failures import best_progress
from pipette_opt.plans.plan import Plan, SizeProof, SizeStatus, Target
from pipette_opt.plans.target import HOUR_S, UNITS, best_value_of, people_value, price_of, recorded_rate, value_of
from pipette_opt.plans.watcher import Watcher
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.simulate.least_times import least_gpu_seconds
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.objective import Objective

MAX_SIZES = 48
"""Most host counts that are searched, those with most divisors; a search takes a second or more. Chosen."""

MIN_SEARCH_S = 1.0
"""Least time for the search of one host count, seconds; enumeration may take as long. Chosen."""

FIRST_SIZE_SHARE = 0.5
"""Fraction of the remaining time in which each host count is searched once. Chosen."""

ENOUGH = 1e-6
"""Relative improvement below which no better plan is searched, as in the certificate of the time. Chosen."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Size:
    """
    Search of one host count, for one price cap.

    Parameters
    ----------
    dearest
        Price cap: the price of the dearest usable host, which the plan must use; ``None`` if prices do not count.
    cluster
        Hosts that may be used.
    least_weight
        Least objective per second of iteration time.
    lower_bound_s
        Lower bound on the iteration time, seconds; infinite if nothing fits.
    plan
        Preferred plan so far.
    value
        Objective of the best plan so far.
    status
        Status as in :class:`~pipette_opt.plans.plan.SizeProof`.
    """

    num_gpus: int
    dearest: float | None
    cluster: ClusterSpec
    least_weight: float
    lower_bound_s: float
    plan: Plan | None = None
    value: float = float("inf")
    status: SizeStatus = "not searched"

    @property
    def bound(self) -> float:
        """Lower bound on the objective."""
        return min(self.least_weight * self.lower_bound_s, self.value)


def optimize_objective(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams | None = None,
    watcher: Watcher | None = None,
    inputs: Mapping[str, Any] | None = None,
    first: FirstPlan | None = None,
) -> Plan:
    """
    Find the best plan by ``params.objective``, and prove how good it is.

    For time, regret and robust, this is :func:`~pipette_opt.optimize.optimize` with equal arguments; other objectives
    use only the configuration of ``first``. Raises ``InputError`` if a price is missing, and ``InfeasibleError`` if
    nothing fits on any number of hosts.
    """
    params, watcher = params or OptimizeParams(), watcher or Watcher()
    if params.objective is Objective.TIME:
        return optimize(instance, space, params, watcher, inputs, first)
    recorded = {**(inputs or {}), "objective": str(params.objective)}
    if params.objective.is_over_worlds:
        return optimize(instance, space, params, watcher, recorded, first)
    params = params if first is None else replace(params, today=first.config)
    return _Search(instance, space, params, watcher, recorded).run()


class _Search:
    """Search over all numbers of hosts."""

    def __init__(
        self,
        instance: Instance,
        space: SearchSpace,
        params: OptimizeParams,
        watcher: Watcher,
        inputs: Mapping[str, Any],
    ) -> None:
        self.instance, self.space, self.params = instance, space, params
        self.watcher, self.inputs = watcher, inputs
        self.sizes = list(_sizes(instance, space, params.objective, self.inputs))
        self.reason = ""

    @property
    def best(self) -> _Size:
        return min(self.sizes, key=attrgetter("value"))

    @property
    def left_s(self) -> float:
        if self.watcher.stop.is_set():
            return 0.0
        return self.params.time_limit_s - self.watcher.elapsed_s

    def run(self) -> Plan:
        """Search each host count in a fraction of the time, then those with the least bounds in the remaining time."""
        for number, size in enumerate(self.sizes):
            share_s = FIRST_SIZE_SHARE * self.left_s / (len(self.sizes) - number)
            self._search(size, share_s)
        while (open_ := self._open()) and self.left_s > MIN_SEARCH_S:
            size = open_[0]
            before = size.lower_bound_s
            self._search(size, self.left_s / len(open_))
            if size.lower_bound_s <= before * (1 + ENOUGH):
                break
        if self.best.plan is None:
            raise InfeasibleError(self.reason or "the search was stopped before any plan was found.")
        return replace(self.best.plan, target=self._target())

    def _open(self) -> list[_Size]:
        """Return the host counts that may have a better plan, smallest bounds first."""
        enough = (1 - max(self.params.gap_limit, ENOUGH)) * self.best.value
        return sorted((size for size in self.sizes if size.bound < enough), key=attrgetter("bound"))

    def _search(self, size: _Size, seconds: float) -> None:
        """Search one host count for a plan better than the best, and raise its lower bound."""
        if self.left_s <= 0 or (self.best.plan is not None and size.bound >= self.best.value):
            if size.plan is None and size.bound >= self.best.value:
                size.status = "slower"
            return
        to_beat_s = self.best.value / size.least_weight
        inner = Watcher(on_progress=self.watcher.on_progress, stop=self.watcher.stop, begun=self.watcher.begun)
        started = inner.started
        is_whole = size.cluster is self.instance.cluster
        params = replace(
            self.params,
            objective=Objective.TIME,
            time_limit_s=max(seconds, MIN_SEARCH_S),
            to_beat_s=to_beat_s,
            host_order=self.params.host_order if is_whole else (),
        )
        self.watcher.report(f"searching {counted(size.num_gpus, 'GPU')}")
        try:
            instance = replace(self.instance, cluster=size.cluster)
            state = begun(instance, replace(self.space, num_gpus=size.num_gpus, max_gpus=None), params, inner)
            state.preference = self._preference(size, params)
            plan = complete(state, self._inputs(size))
        except (InfeasibleError, InputError) as error:
            if not self.watcher.stop.is_set():
                size.lower_bound_s, size.status, self.reason = float("inf"), "infeasible", str(error)
            return
        finally:
            self.watcher.started += inner.started - started
        size.status = "searched"
        size.lower_bound_s = max(size.lower_bound_s, plan.certificate.lower_bound_s)
        value = best_value_of(plan, size.cluster, self.params.objective)
        if value < size.value:
            size.plan, size.value = plan, value
            if size is self.best:
                self.watcher.on_plan(replace(plan, target=self._target()))

    def _preference(self, size: _Size, params: OptimizeParams) -> Preference:
        """Return the preference among plans; their value depends on their hosts if prices differ."""

        def price(nodes: IntArray) -> float:
            return sum(price_of(size.cluster, node) for node in nodes.ravel().tolist())

        by_time = Preference.by_time(params)
        return by_time if size.dearest is None else replace(by_time, hosts_factor=price)

    def _inputs(self, size: _Size) -> dict[str, Any]:
        """Return the inputs that the plan records; hosts that it may not use are listed as excluded."""
        left_out = [host for host in self.instance.cluster.hosts if host not in size.cluster.hosts]
        given = self.inputs.get("exclude_hosts")
        both = ",".join([*([given] if given else []), *([compress_hosts(tuple(left_out))] if left_out else [])])
        return {**self.inputs, "exclude_hosts": both or None}

    def _target(self) -> Target:
        """Return the proof about the objective, in units for people."""
        plan, value = self.best.plan, self.best.value
        assert plan is not None
        plan_value = value_of(plan, self.best.cluster, self.params.objective)
        bound = min(value, *(size.bound for size in self.sizes))

        def shown(value: float) -> float:
            return people_value(self.params.objective, value, self.instance.training.tokens)

        return Target(
            objective=self.params.objective,
            unit=UNITS[self.params.objective],
            value=shown(plan_value),
            bound=shown(bound),
            gap=(value - bound) / value,
            sizes=tuple(
                SizeProof(
                    num_gpus=size.num_gpus,
                    dearest=size.dearest,
                    status=size.status,
                    iteration_time_s=None if size.plan is None else size.plan.certificate.best_s,
                    lower_bound_s=None if size.lower_bound_s == float("inf") else size.lower_bound_s,
                    value=None if size.plan is None else shown(size.value),
                    bound=None if size.bound == float("inf") else shown(size.bound),
                )
                for size in self.sizes
            ),
            best_value=None if plan.fastest is None else shown(value),
        )


def _sizes(instance: Instance, space: SearchSpace, objective: Objective, inputs: Mapping[str, Any]) -> Iterator[_Size]:
    """Yield a search for every number of whole hosts of the space, fewest first; for cost, for every price cap."""
    cluster, per_host = instance.cluster, instance.cluster.gpus_per_node
    floor_s = least_gpu_seconds(instance)
    for num_gpus in _numbers(instance, space):
        num_hosts = max(num_gpus // per_host, 1)
        used = num_gpus / num_hosts
        if objective.is_rate:
            losses = objective is Objective.PROGRESS
            weight = 1.0 / best_progress(recorded_rate(inputs), num_hosts).share if losses else num_gpus
            yield _Size(
                num_gpus=num_gpus,
                dearest=None,
                cluster=cluster,
                least_weight=weight,
                lower_bound_s=floor_s / num_gpus,
            )
            continue
        prices = sorted(price_of(cluster, node) for node in range(cluster.num_nodes))
        for dearest in sorted(set(prices)):
            able = [host for node, host in enumerate(cluster.hosts) if price_of(cluster, node) <= dearest]
            if len(able) < num_hosts:
                continue
            yield _Size(
                num_gpus=num_gpus,
                dearest=dearest,
                cluster=subset_cluster(cluster, able) if len(able) < cluster.num_nodes else cluster,
                least_weight=(sum(prices[: num_hosts - 1]) + dearest) * used / HOUR_S,
                lower_bound_s=floor_s / num_gpus,
            )


def _numbers(instance: Instance, space: SearchSpace) -> list[int]:
    """Return the numbers of GPUs of whole hosts, ascending; with very many hosts, only numbers with many divisors."""
    if space.num_gpus is not None:
        return [space.num_gpus]
    per_host = instance.cluster.gpus_per_node
    most = instance.cluster.num_nodes * per_host
    most = most if space.max_gpus is None else min(most, space.max_gpus)
    if most < per_host:
        raise InputError(
            "--max-gpus", f"must be at least {per_host}, the GPUs of a host, for this objective, got {most}."
        )
    counts = range(1, most // per_host + 1)
    divisors = {count: sum(count % part == 0 for part in range(1, count + 1)) for count in counts}
    hosts = sorted(divisors, key=lambda count: (-divisors[count], count))
    return [count * per_host for count in sorted(hosts[:MAX_SIZES])]
