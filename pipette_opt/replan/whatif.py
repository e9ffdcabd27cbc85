"""
What if: a plan's job changed in many ways, each answered soon.

The plan itself, simulated on the changed job, is the time to beat from the beginning. Questions that share a job share
its preparation: one search over all hosts bounds every plan on fewer of them, and the best plan without a host begins
with that search's plan and a host that it leaves idle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError, MissingLinkError
from pipette_opt.candidates import SearchSpace, broken_rules, space_of
from pipette_opt.certify.finish import is_proven
from pipette_opt.certify.first_plans import first_plan
from pipette_opt.memory.predictor import IGNORED_RISK
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.plan import AS_GOOD, Plan
from pipette_opt.plans.target import HOUR_S
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, load_predictor
from pipette_opt.read.bands import gain_band, job_band, with_band
from pipette_opt.replan.changes import Change, repaired_host
from pipette_opt.replan.searching import MIN_S, Searched, alike, certified, search, time_s, with_spares
from pipette_opt.replan.space import space_for
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.fullness import with_edge_loss
from pipette_opt.simulate.solutions import SimulatedSolution, stage_memory
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

SEARCH_WEIGHT = 12
"""Time of a search that must be prepared over that of one that shares its preparation. Chosen by lab-16x8."""

UNIT_S = 0.3
"""Seconds of a question that shares its preparation, unless a time limit is given. Chosen: 16 hosts in 20 s."""

MAX_REPAIRS = 3
"""Hosts for whose repair another plan is looked for, those whose repair helps the plan as it is most. Chosen."""

MIN_GAIN = 1e-4
"""Share of the iteration time from which on the repair of a host is an answer. Chosen."""

MAX_SOURCES = 3
"""Plans of other questions in which a lost host is replaced, the fastest. Chosen."""


OTHER_JOBS = ("training", "GPU")
"""Groups of questions whose answers are of another job than the plan."""

_Key = tuple[int, SearchSpace, bool]
"""A search by its job (``id``), its space, and whether some hosts may not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What becomes of the plan.

    Parameters
    ----------
    iteration_time_s
        Simulated, of the best plan found; ``None`` if there is none.
    expected_s, tokens_per_s
        Its expected time, the middle of its band, and the tokens per second at it.
    low_s, high_s
        Ends of that band.
    as_it_is_s
        Simulated, of the old plan, on its own GPUs; ``None`` where it cannot be there.
    bound_s
        No plan of what was searched is faster, with any layers in its stages. ``None`` where nothing was searched.
    narrowed
        Whether the time limit narrowed what was searched, so that a plan outside of it may be faster than ``bound_s``.
    config
        Of the best plan found, as a label.
    price_per_hour, price_per_million_tokens
        Of the best plan found, in the currency of the hosts' prices; ``None`` where one of its hosts has none.
    num_gpus, num_hosts, idle_hosts
        Of the best plan found: GPUs and hosts that it uses, and hosts that there are beside these.
    change
        Tokens per second over the plan's, minus one.
    least_change, most_change
        Ends of the change, as pairs of public runs of one job differ from their prediction; ``None`` where no such pair
        tells: another job or kind of GPU, and the plan's own configuration.
    why
        Why there is no plan.
    """

    name: str
    group: str
    iteration_time_s: float | None = None
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    tokens_per_s: float | None = None
    change: float | None = None
    least_change: float | None = None
    most_change: float | None = None
    as_it_is_s: float | None = None
    bound_s: float | None = None
    narrowed: bool = False
    config: str = ""
    price_per_hour: float | None = None
    price_per_million_tokens: float | None = None
    num_gpus: int = 0
    num_hosts: int = 0
    idle_hosts: int = 0
    why: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether no plan of what was searched is faster."""
        return None not in (self.bound_s, self.iteration_time_s) and is_proven(self.bound_s, self.iteration_time_s)  # type: ignore[arg-type]


class WhatIf:
    """
    Answers questions about one plan.

    Parameters
    ----------
    instance
        The plan's job. The plan's certificate counts only if its time is the same here.
    params
        Without the time limit, which each :meth:`ask` is given.
    """

    def __init__(self, plan: Plan, instance: Instance, params: OptimizeParams, watcher: Watcher) -> None:
        self.plan, self.instance, self.params, self.watcher = plan, instance, params, watcher
        self.time_limit_s = params.time_limit_s
        self.now = with_band(estimate(instance, plan.config, plan.placement), instance, plan.config)
        is_same = abs(self.now.iteration_time_s / plan.estimate.iteration_time_s - 1) <= AS_GOOD
        self._proven_s = plan.certificate.lower_bound_s if is_same else 0.0
        self._searched: dict[_Key, Searched | Exception] = {}

    def ask(
        self,
        changes: Sequence[Change],
        time_limit_s: float | None = None,
        told: Callable[[Answer], None] = lambda answer: None,
    ) -> list[Answer]:
        """
        An answer to each question, in their order; fewer after a stop of the watcher.

        Parameters
        ----------
        time_limit_s
            Of all of them together, from now on; :meth:`seconds_for` them by default.
        told
            Told each answer when it is there.
        """
        self.time_limit_s = self.watcher.elapsed_s + (time_limit_s or self.seconds_for(changes))
        answers: list[Answer] = []
        for number, change in enumerate(changes):
            if self.watcher.stop.is_set():
                break
            self.watcher.report(f"{change.name} ({number + 1} of {len(changes)})")
            answers.append(self._answer(change, changes[number:]))
            told(answers[-1])
        return [self._with_later(change, answer) for change, answer in zip(changes, answers, strict=False)]

    def today(self) -> Answer:
        """The plan itself, as an answer."""
        plan, change = self.plan, Change(name="the plan", group="training", instance=self.instance)
        answer = Answer(name=change.name, group=change.group, as_it_is_s=self.now.iteration_time_s)
        bound_s = self._proven_s or None
        return self._with_plan(answer, change, self.now.iteration_time_s, plan.config, plan.placement, bound_s)

    def repairs(self, hosts: Sequence[str]) -> list[Change]:
        """
        Repairs of hosts that may help, the most useful for the plan as it is first.

        The first few, and idle hosts, which a repair may bring back, are to be searched; the others are simulated only.
        """
        used = {self.plan.hosts[node] for node in self.plan.placement.nodes_used}
        gains: list[tuple[float, Change]] = []
        for host in hosts:
            change = repaired_host(self.instance, host)
            placement = self.placement_on(change)
            seconds = float("inf") if placement is None else self._simulated_s(change, placement)
            gains.append((1 - seconds / self.now.iteration_time_s, change))
        helping = [change for gain, change in sorted(gains, key=lambda pair: -pair[0]) if gain > MIN_GAIN]
        idle = [change for host, (gain, change) in zip(hosts, gains, strict=True) if host not in used]
        searched = [*helping, *(one for one in idle if one not in helping)][:MAX_REPAIRS]
        return [*searched, *(replace(one, is_searched=False) for one in helping if one not in searched)]

    def seconds_for(self, changes: Sequence[Change]) -> float:
        """Seconds that questions take unless a time limit is given."""
        return max(1.0, UNIT_S * sum(self._weights(changes)))

    def _answer(self, change: Change, left: Sequence[Change]) -> Answer:
        """One answer, in its share of the time that is left."""
        as_it_is = self.placement_on(change)
        as_it_is_s = None if as_it_is is None else self._simulated_s(change, as_it_is)
        answer = Answer(name=change.name, group=change.group, as_it_is_s=as_it_is_s)
        config = self.plan.config
        if as_it_is is not None and as_it_is_s is not None and (change.barred or not change.is_searched):
            bound_s = (self._own_bound_s(config.world_size) or None) if change.barred else None
            return self._with_plan(answer, change, as_it_is_s, config, as_it_is, bound_s)
        if not change.is_searched:
            return replace(answer, why="the plan cannot be there as it is, and no other was looked for")
        try:
            first = None if as_it_is is None else first_plan(change.instance, config, as_it_is, as_it_is_s or 0.0)
            searched, seconds = self._search(change, first, left), self._seconds(change, left)
            best, bound_s = searched.best, searched.bound_s
            barred = [searched.prepared.instance.cluster.hosts.index(host) for host in change.barred]
            if set(barred) & set(best.nodes.ravel().tolist()):
                best, bound_s = self._without(searched, barred, seconds)
        except (InfeasibleError, InputError) as error:
            why = error.problem if isinstance(error, InputError) else str(error)
            return replace(answer, why=why.splitlines()[0])
        if change.barred:
            bound_s = max(bound_s, self._own_bound_s(change.num_gpus))
        answer = replace(answer, narrowed=bool(searched.prepared.space.narrowed))
        if as_it_is is not None and as_it_is_s is not None and as_it_is_s <= best.estimate.iteration_time_s:
            return self._with_plan(answer, change, as_it_is_s, config, as_it_is, bound_s)
        return self._with_best(answer, change, best, bound_s)

    def _with_later(self, change: Change, answer: Answer) -> Answer:
        """The answer with a better plan of a question that came later, on hosts that it may use."""
        if not change.barred or not answer.num_gpus or answer.iteration_time_s is None:
            return answer
        searched = self._searched.get(self._key(change))
        if not isinstance(searched, Searched):
            return answer
        hosts = searched.prepared.instance.cluster.hosts
        able = [one for one in searched.found if not {hosts[node] for node in one.nodes.flat} & change.barred]
        best = min(able, key=time_s, default=None)
        if best is None or time_s(best) >= answer.iteration_time_s:
            return answer
        return self._with_best(answer, change, best, answer.bound_s)

    def _with_best(self, answer: Answer, change: Change, best: SimulatedSolution, bound_s: float | None) -> Answer:
        return self._with_plan(answer, change, time_s(best), best.candidate.config, best.placement, bound_s)

    def _with_plan(
        self,
        answer: Answer,
        change: Change,
        seconds: float,
        config: ParallelConfig,
        placement: Placement,
        bound_s: float | None,
    ) -> Answer:
        """The answer with a plan and its bound."""
        band = job_band(change.instance, config, seconds)
        expected_s = band.middle_s
        tokens_per_s, cluster = change.instance.training.tokens / expected_s, change.instance.cluster
        hosts = len(placement.nodes_used)
        prices = [cluster.nodes[node].price_per_gpu_hour for node in placement.node.tolist()]
        known = [price for price in prices if price is not None]
        hourly = sum(known) if len(known) == len(prices) else None
        ratio = tokens_per_s / self.now.expected_tokens_per_s
        least, most = self._ends(change, ratio, config)
        return replace(
            answer,
            iteration_time_s=seconds,
            expected_s=expected_s,
            low_s=band.low_s,
            high_s=band.high_s,
            tokens_per_s=tokens_per_s,
            change=ratio - 1,
            least_change=least,
            most_change=most,
            bound_s=None if bound_s is None else min(bound_s, seconds),
            config=config.label(),
            price_per_hour=hourly,
            price_per_million_tokens=None if hourly is None else hourly / HOUR_S / tokens_per_s * 1e6,
            num_gpus=config.world_size,
            num_hosts=hosts,
            idle_hosts=cluster.num_nodes - len(change.barred) - hosts,
        )

    def _ends(self, change: Change, ratio: float, config: ParallelConfig) -> tuple[float | None, float | None]:
        """
        Return the least and the greatest relative change of tokens per second where ``ratio`` is predicted.

        ``(None, None)`` for a job of another size or model, and for the plan's own configuration.
        """
        if change.group in OTHER_JOBS or config == self.plan.config:
            return None, None
        low, high = gain_band(ratio, config.world_size / self.plan.config.world_size)
        return low - 1, high - 1

    def _own_bound_s(self, num_gpus: int | None) -> float:
        """
        What the plan's certificate proves of plans on some of its hosts; 0 where it is of other plans.

        Parameters
        ----------
        num_gpus
            GPUs of those plans; ``None`` for any number.
        """
        recorded = self.plan.inputs.get("search")
        if recorded is None:
            return 0.0
        space = space_of(recorded)
        is_of_all = bool(space.world_sizes) or num_gpus == self.plan.config.world_size
        return self._proven_s if is_of_all and not space.narrowed else 0.0

    def _simulated_s(self, change: Change, placement: Placement) -> float:
        return estimate(with_edge_loss(change.instance), self.plan.config, placement).iteration_time_s

    def placement_on(self, change: Change) -> Placement | None:
        """
        The plan as it is, its hosts found by name in the changed cluster.

        ``None`` if it lacks a host or a measured link there, is not legal, or does not fit.
        """
        instance, plan = change.instance, self.plan
        cluster, used = instance.cluster, {plan.hosts[node] for node in plan.placement.nodes_used}
        if used & change.barred or not used <= set(cluster.hosts):
            return None
        if change.num_gpus not in (None, plan.config.world_size):
            return None
        if broken_rules(instance.model, instance.training, plan.config):
            return None
        index = np.array([cluster.hosts.index(host) if host in used else -1 for host in plan.hosts])
        placement = replace(plan.placement, node=index[plan.placement.node])
        risk = self.params.max_oom_risk
        if risk < IGNORED_RISK:
            stages = stage_memory(instance, plan.config, placement, load_predictor(risk, instance), risk)
            if any(stage.upper_bytes > stage.capacity_bytes for stage in stages):
                return None
        try:
            self._simulated_s(change, placement)
        except MissingLinkError:
            return None
        return placement

    def _space(self, change: Change) -> SearchSpace:
        """The plan's pins as far as the hosts can keep them, and its layers among the splits; at most hosts there."""
        cluster = change.instance.cluster
        there = (cluster.num_nodes - len(change.barred)) * cluster.gpus_per_node
        space = space_for(self.plan, cluster, change.num_gpus)
        return space if change.num_gpus is not None else replace(space, max_gpus=min(there, space.max_gpus or there))

    def _key(self, change: Change) -> "_Key":
        return id(change.instance), self._space(change), bool(change.barred)

    def _seconds(self, change: Change, left: Sequence[Change]) -> float:
        """Share of the time that is left, by what each question costs."""
        weights = self._weights(left)
        rest_s = self.time_limit_s - self.watcher.elapsed_s
        return max(MIN_S, rest_s * max(weights[0], 1) / max(sum(weights), 1))

    def _weights(self, changes: Sequence[Change]) -> list[int]:
        """What each question costs; the first of those that share a preparation makes it."""
        seen, weights = {(one, barred) for one, _, barred in self._searched}, []
        for change in changes:
            key = (id(change.instance), bool(change.barred))
            is_new = change.is_searched and key not in seen
            weights.append(SEARCH_WEIGHT * is_new + (bool(change.barred) or not is_new))
            seen.add(key)
        return weights

    def _search(self, change: Change, first: FirstPlan | None, left: Sequence[Change]) -> Searched:
        """The search over all hosts of a job, or that of an earlier question."""
        key = self._key(change)
        if key not in self._searched:
            seconds, instance, space = self._seconds(change, left), with_edge_loss(change.instance), key[1]
            like = next((one for one in self._prepared(space) if alike(one.given, instance)), None)
            try:
                self._searched[key] = search(instance, space, first, seconds, self.params, self.watcher, like)
            except (InfeasibleError, InputError) as error:
                self._searched[key] = error
        found = self._searched[key]
        if isinstance(found, Exception):
            raise found
        return found

    def _prepared(self, space: SearchSpace) -> list[Prepared]:
        """Return the prepared problems of earlier searches of this search space, for reuse."""
        done = self._searched.items()
        return [one.prepared for (_, other, _), one in done if other == space and isinstance(one, Searched)]

    def _without(self, searched: Searched, barred: Sequence[int], seconds: float) -> tuple[SimulatedSolution, float]:
        """The best plan found without some hosts, and the bound of all such plans."""
        prepared, best = searched.prepared, searched.best
        capacity = prepared.problem.capacity_mib.copy()
        capacity[list(barred)] = -1
        fewer = replace(
            prepared,
            problem=replace(prepared.problem, capacity_mib=capacity),
            lower=replace(prepared.lower, capacity_mib=capacity),
        )
        able = [one for one in searched.found if not set(one.nodes.ravel().tolist()) & set(barred)]
        sources = sorted((one for one in searched.found if one not in able), key=time_s)[:MAX_SOURCES]
        known = [*able, *(one for source in (best, *sources) for one in with_spares(fewer, source, barred))]
        found, bound_s, _ = certified(fewer, known, seconds, self.params, self.watcher)
        searched.found.append(found)
        return found, max(bound_s, searched.bound_s)
