"""
Answers to ``whatif`` questions: a plan's job, changed in many ways.

The plan itself, simulated on the changed job, is the first time to beat. Questions about the same job share its
preparation: a search over all hosts bounds every plan on fewer hosts. The search without a host starts from that plan,
with an idle host in place of the lost one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError, MissingLinkError
from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.candidates import SearchSpace, broken_rules, space_of
from pipette_opt.certify.finish import is_proven
from pipette_opt.certify.first_plans import first_plan
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.plan import AS_GOOD, Plan
from pipette_opt.plans.target import HOUR_S
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, load_predictor
from pipette_opt.replan.changes import Change, repaired_host
from pipette_opt.replan.searching import (
    GAP,
    MIN_S,
    Searched,
    alike,
    certified,
    search,
    time_s,
    with_spares,
    without_hosts,
)
from pipette_opt.replan.space import space_for
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import SimulatedSolution, stage_memory
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance
from pipette_opt.worlds.bands import job_band, with_band
from pipette_opt.worlds.factor import job_factor
from pipette_opt.worlds.ratios import ratio_ends

SEARCH_WEIGHT = 12
"""Time of a search that needs a preparation, relative to a search that reuses a preparation. Chosen by lab-16x8."""

MIXED_WEIGHT = 24
"""Relative time of a search that needs a preparation on hosts of several GPU types. Chosen: 2 fast and 1 slow host."""

UNIT_S = 0.3
"""Default seconds of a question that reuses a preparation. Chosen: 16 hosts in 20 s."""

LEAST_S = 12.0
"""Least default seconds of all questions. Chosen: a search of 70B on 12 hosts of 8 GPUs is then not narrowed."""

MAX_REPAIRS = 3
"""Maximum number of repaired hosts for which a new plan is searched, the largest gains first. Chosen."""

MIN_GAIN = 1e-4
"""Minimum relative gain in iteration time for which a repair is reported. Chosen."""

MAX_SOURCES = 3
"""Maximum number of plans from other questions, the fastest, in which a lost host is replaced. Chosen."""


OTHER_JOBS = ("training", "GPU")
"""Groups of questions about another training job or GPU type than the plan's."""

_Key = tuple[int, SearchSpace, bool]
"""Key of a stored search: ``id`` of the job, search space, whether some hosts are barred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    Answer to a question about a plan.

    Parameters
    ----------
    expected_s, tokens_per_s
        Expected seconds of an iteration of the best plan found, the middle of the error band, and the tokens per second
        at this time; ``None`` if no plan was found.
    low_s, high_s
        Ends of the error band, in seconds.
    as_it_is_s
        Expected seconds of the old plan, unchanged, on the changed job; ``None`` if it cannot run there.
    bound_s
        Lower bound, in expected seconds, on every searched plan with any layer split; ``None`` if nothing was searched.
    simulated_s, simulated_as_it_is_s, simulated_bound_s
        Simulated seconds, before the factor of the job; solver and proofs use them.
    narrowed
        Whether the time limit left configurations out of the search; ``bound_s`` holds for them, by compute alone.
    config
        Label of the best plan found.
    price_per_hour, price_per_million_tokens
        Prices of the best plan found, in the currency of the hosts' prices; ``None`` if a host has no price.
    num_gpus, num_hosts, idle_hosts
        GPUs and hosts that the best plan found uses, and the hosts that stay idle.
    change
        Tokens per second over those of today's plan, minus 1.
    least_change, most_change
        Error range of ``change``: nine in ten pairs of measured runs of the worlds lie between; an open gap of the
        search raises its upper end. ``None`` for another job or GPU type, and for the plan's own configuration
        without a gap.
    why
        Reason why no plan was found; otherwise empty.
    """

    name: str
    group: str
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    tokens_per_s: float | None = None
    change: float | None = None
    least_change: float | None = None
    most_change: float | None = None
    as_it_is_s: float | None = None
    bound_s: float | None = None
    simulated_s: float | None = None
    simulated_as_it_is_s: float | None = None
    simulated_bound_s: float | None = None
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
        """Return whether the plan found is proven to be the fastest searched."""
        return None not in (self.bound_s, self.expected_s) and is_proven(self.bound_s, self.expected_s)  # type: ignore[arg-type]


class WhatIf:
    """
    Answers questions about a plan.

    Parameters
    ----------
    instance
        The plan's job. The certificate counts only if the plan's simulated time is unchanged on it.
    params
        Settings of the searches; :meth:`ask` sets the time limit.
    """

    def __init__(self, plan: Plan, instance: Instance, params: OptimizeParams, watcher: Watcher) -> None:
        self.plan, self.instance, self.params, self.watcher = plan, instance, params, watcher
        self.time_limit_s = params.time_limit_s
        self.now = with_band(estimate(instance, plan.config, plan.placement), instance, plan.config, plan.placement)
        is_same = abs(self.now.iteration_time_s / plan.estimate.iteration_time_s - 1) <= AS_GOOD
        self._proven_s = plan.certificate.lower_bound_s if is_same else 0.0
        self._searched: dict[_Key, Searched | Exception] = {}

    def ask(
        self,
        changes: Sequence[Change],
        time_limit_s: float | None = None,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> list[Answer]:
        """
        Return an answer to each change of the job, in order; fewer if the user stops the search.

        Parameters
        ----------
        time_limit_s
            Seconds for all changes together, from now; ``None`` for :meth:`seconds_for`.
        on_answer
            Callback that gets each answer when it is ready.
        """
        self.time_limit_s = self.watcher.elapsed_s + (time_limit_s or self.seconds_for(changes))
        answers: list[Answer] = []
        for number, change in enumerate(changes):
            if self.watcher.stop.is_set():
                break
            self.watcher.report(f"{change.name} ({number + 1} of {len(changes)})")
            answers.append(self._answer(change, changes[number:]))
            on_answer(answers[-1])
        return [self._with_later(change, answer) for change, answer in zip(changes, answers, strict=False)]

    def today(self) -> Answer:
        """Return the plan itself, simulated on its job, as an answer."""
        plan, change = self.plan, Change(name="the plan", group="training", instance=self.instance)
        answer = self._asked(change, self.now.iteration_time_s)
        bound_s = self._proven_s or None
        return self._as_it_is(answer, change, self.now.iteration_time_s, plan.placement, bound_s)

    def repairs(self, hosts: Sequence[str]) -> list[Change]:
        """
        Return the repairs of hosts that help, the largest gain for the unchanged plan first.

        The first few repairs, and those of idle hosts, are marked for a search; the others are only simulated.
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
        searched = [*helping, *(change for change in idle if change not in helping)][:MAX_REPAIRS]
        return [*searched, *(replace(change, is_searched=False) for change in helping if change not in searched)]

    def seconds_for(self, changes: Sequence[Change]) -> float:
        """Return the default seconds for questions; a search whose gap is closed ends earlier."""
        return max(LEAST_S, UNIT_S * sum(self._weights(changes)))

    def _answer(self, change: Change, left: Sequence[Change]) -> Answer:
        """Return the answer to a question, found in its share of the remaining time; ``left``: open questions."""
        as_it_is = self.placement_on(change)
        as_it_is_s = None if as_it_is is None else self._simulated_s(change, as_it_is)
        answer = self._asked(change, as_it_is_s)
        config = self.plan.config
        if as_it_is is not None and as_it_is_s is not None and (change.barred or not change.is_searched):
            bound_s = (self._own_bound_s(config.world_size) or None) if change.barred else None
            return self._as_it_is(answer, change, as_it_is_s, as_it_is, bound_s)
        if not change.is_searched:
            return replace(
                answer, why="the unchanged plan cannot run on the changed job, and no other plan was searched"
            )
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

    def _asked(self, change: Change, as_it_is_s: float | None) -> Answer:
        """Return an answer before the search, with the simulated time of the old plan; ``None`` if it cannot run."""
        expected_s = None if as_it_is_s is None else job_factor(change.instance) * as_it_is_s
        answer = Answer(name=change.name, group=change.group, as_it_is_s=expected_s)
        return replace(answer, simulated_as_it_is_s=as_it_is_s)

    def _with_later(self, change: Change, answer: Answer) -> Answer:
        """Return the answer, improved by a better plan that a later question found on allowed hosts."""
        if not change.barred or not answer.num_gpus or answer.simulated_s is None:
            return answer
        searched = self._searched.get(self._key(change))
        if not isinstance(searched, Searched):
            return answer
        hosts = searched.prepared.instance.cluster.hosts
        able = [
            solution for solution in searched.found if not {hosts[node] for node in solution.nodes.flat} & change.barred
        ]
        best = min(able, key=time_s, default=None)
        if best is None or time_s(best) >= answer.simulated_s:
            return answer
        return self._with_best(answer, change, best, answer.simulated_bound_s)

    def _with_best(self, answer: Answer, change: Change, best: SimulatedSolution, bound_s: float | None) -> Answer:
        return self._with_plan(answer, change, time_s(best), best.candidate.config, best.placement, bound_s)

    def _as_it_is(
        self, answer: Answer, change: Change, seconds: float, placement: Placement, bound_s: float | None
    ) -> Answer:
        """Return the answer filled in with the plan as it is, beside which nothing was searched."""
        found = self._with_plan(answer, change, seconds, self.plan.config, placement, bound_s)
        return replace(found, least_change=None, most_change=None)

    def _with_plan(
        self,
        answer: Answer,
        change: Change,
        seconds: float,
        config: ParallelConfig,
        placement: Placement,
        bound_s: float | None,
    ) -> Answer:
        """Return the answer filled in with a plan and its bound."""
        band = job_band(change.instance, config, seconds, placement)
        expected_s = band.middle_s
        tokens_per_s, cluster = change.instance.training.tokens / expected_s, change.instance.cluster
        hosts = len(placement.nodes_used)
        prices = [cluster.nodes[node].price_per_gpu_hour for node in placement.node.tolist()]
        known = [price for price in prices if price is not None]
        hourly = sum(known) if len(known) == len(prices) else None
        bound_s = None if bound_s is None else min(bound_s, seconds)
        least, most = self._ends(change, seconds, config, placement, bound_s)
        return replace(
            answer,
            simulated_s=seconds,
            expected_s=expected_s,
            low_s=band.low_s,
            high_s=band.high_s,
            tokens_per_s=tokens_per_s,
            change=self._gain(change, seconds, tokens_per_s),
            least_change=least,
            most_change=most,
            bound_s=None if bound_s is None else bound_s * expected_s / seconds,
            simulated_bound_s=bound_s,
            config=config.label(),
            price_per_hour=hourly,
            price_per_million_tokens=None if hourly is None else hourly / HOUR_S / tokens_per_s * 1e6,
            num_gpus=config.world_size,
            num_hosts=hosts,
            idle_hosts=cluster.num_nodes - len(change.barred) - hosts,
        )

    def _gain(self, change: Change, seconds: float, tokens_per_s: float) -> float:
        """Return the gain in tokens per second: of simulated times in one job, of expected times between jobs."""
        if change.group in OTHER_JOBS:
            return tokens_per_s / self.now.expected_tokens_per_s - 1
        return self.now.iteration_time_s / seconds - 1

    def _ends(
        self, change: Change, seconds: float, config: ParallelConfig, placement: Placement, bound_s: float | None
    ) -> tuple[float | None, float | None]:
        """
        Return the smallest and largest relative change of tokens per second with a plan of ``seconds``, simulated.

        The largest is that of a plan as fast as ``bound_s``, which an open search may have missed. ``(None, None)`` for
        another job or GPU type, and for the plan's own configuration unless the search is open.
        """
        missed = seconds / bound_s if bound_s else 1.0
        if change.group in OTHER_JOBS or (config == self.plan.config and missed <= 1 + GAP):
            return None, None
        gain = self.now.iteration_time_s / seconds
        low = high = gain
        if config != self.plan.config:
            now = self.instance, self.plan.config, self.plan.placement
            low, high = ratio_ends(now, (change.instance, config, placement))
        return min(low, gain) - 1, max(high, gain) * missed - 1

    def _own_bound_s(self, num_gpus: int | None) -> float:
        """
        Return the lower bound, in seconds, that the plan's certificate proves for plans on some of its hosts; 0 if
        none.

        Parameters
        ----------
        num_gpus
            Number of GPUs of those plans; ``None`` for any.
        """
        recorded = self.plan.inputs.get("search")
        if recorded is None:
            return 0.0
        space = space_of(recorded)
        is_of_all = bool(space.world_sizes) or num_gpus == self.plan.config.world_size
        return self._proven_s if is_of_all and not space.narrowed else 0.0

    def _simulated_s(self, change: Change, placement: Placement) -> float:
        return estimate(change.instance, self.plan.config, placement).iteration_time_s

    def placement_on(self, change: Change) -> Placement | None:
        """
        Return the placement of the unchanged plan on the changed cluster, with hosts matched by name.

        ``None`` if a host or a measured link is missing, or if the plan is not legal or does not fit in memory.
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
        """Return the search space: the plan's pinned options that the hosts allow, and its layers per stage."""
        cluster = change.instance.cluster
        num_gpus = (cluster.num_nodes - len(change.barred)) * cluster.gpus_per_node
        space = space_for(self.plan, cluster, change.num_gpus)
        return (
            space if change.num_gpus is not None else replace(space, max_gpus=min(num_gpus, space.max_gpus or num_gpus))
        )

    def _key(self, change: Change) -> "_Key":
        return id(change.instance), self._space(change), bool(change.barred)

    def _seconds(self, change: Change, left: Sequence[Change]) -> float:
        """Return the seconds for a question: its share of the remaining time, by weight."""
        weights = self._weights(left)
        rest_s = self.time_limit_s - self.watcher.elapsed_s
        return max(MIN_S, rest_s * max(weights[0], 1) / max(sum(weights), 1))

    def _weights(self, changes: Sequence[Change]) -> list[int]:
        """Return the relative cost of each question; the first of those that share a preparation pays for it."""
        seen, weights = {(job, barred) for job, _, barred in self._searched}, []
        for change in changes:
            key = (id(change.instance), bool(change.barred))
            is_new = change.is_searched and key not in seen
            whole = MIXED_WEIGHT if len(change.instance.cluster.gpu_kinds) > 1 else SEARCH_WEIGHT
            weights.append(whole * is_new + (bool(change.barred) or not is_new))
            seen.add(key)
        return weights

    def _search(self, change: Change, first: FirstPlan | None, left: Sequence[Change]) -> Searched:
        """Return the search over all hosts of the changed job, reusing that of an earlier question if possible."""
        key = self._key(change)
        if key not in self._searched:
            seconds, instance, space = self._seconds(change, left), change.instance, key[1]
            like = next((prepared for prepared in self._prepared(space) if alike(prepared.given, instance)), None)
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
        return [
            searched.prepared for (_, other, _), searched in done if other == space and isinstance(searched, Searched)
        ]

    def _without(self, searched: Searched, barred: Sequence[int], seconds: float) -> tuple[SimulatedSolution, float]:
        """Return the best plan found without the barred hosts, and a lower bound, in seconds, on all such plans."""
        able = [solution for solution in searched.found if not set(solution.nodes.ravel().tolist()) & set(barred)]
        sources = sorted((solution for solution in searched.found if solution not in able), key=time_s)[:MAX_SOURCES]

        def known(fewer: Prepared) -> list[SimulatedSolution]:
            replaced = (with_spares(fewer, source, barred) for source in (searched.best, *sources))
            return [*able, *(solution for found in replaced for solution in found)]

        state = without_hosts(searched, barred, seconds, known)
        found = certified(state)
        searched.found.append(found)
        return found, max(min(state.bound_s, searched.outside_s), searched.bound_s)
