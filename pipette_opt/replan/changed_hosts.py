"""
New plans for a running job whose hosts change: the optimum, the parameters to load, and the price of fewer loads.

Varuna calls this morphing (Athlur et al., EuroSys 2022): a job continues with other replicas or other degrees. Hosts
that survive keep their parameters. The trade-off lists the fastest plan found for each number of hosts that must load
other parameters.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pipette_opt.annealing.keeping import Kept, anneal_keeping, num_loads
from pipette_opt.base.degrees import DATA, DEGREES, MICRO_BATCH
from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import counted, gib, three_digits
from pipette_opt.certify.budget import clock_of, joint_limits
from pipette_opt.certify.finish import joint_model_up_to, make_certificate
from pipette_opt.certify.first_plans import begin_with
from pipette_opt.optimize import OptimizeParams, complete
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.plans.moves import Layout, Move, hosts_that_load, moves
from pipette_opt.plans.notes import plan_notes
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prepare
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.solution import checked_solution
from pipette_opt.replan.space import kept_configs, sizes_of, space_for, unequal_instance, void_pins
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import (
    SimulatedSolution,
    make_plan,
    simulate_solution,
    stage_memory,
)
from pipette_opt.specs import Instance
from pipette_opt.verify import verify_content

Item = TypeVar("Item")

KEEPING_SHARE, SEARCH_SHARE = 0.15, 0.9
"""
Shares of the remaining time: for placements that keep parameters on their hosts, then for the free optimum. Chosen.
"""

OWN_SHARE = 0.8
"""Share of the time for equal micro-batches if unequal ones are searched afterwards. Chosen."""

MAX_KEPT = 4
"""Maximum number of configurations placed so that hosts keep their parameters. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """A plan to continue with, and the parameters that its ranks must load."""

    plan: Plan
    moves: tuple[Move, ...]

    def __repr__(self) -> str:
        title, *lines = repr(self.plan).splitlines()
        return lines_at_most(title, [self._loads(), *(line.strip() for line in lines)])

    def line(self) -> str:
        """Return a line: configuration, simulated time, and parameters to load."""
        seconds = three_digits(self.plan.estimate.iteration_time_s)
        return f"{self.plan.config.label()}: simulated {seconds} s, {self._loads()}"

    def _loads(self) -> str:
        return f"{counted(self.num_loads, 'host')} with other parameters, {gib(self.bytes_to_load):,.1f} GiB to load"

    @property
    def num_loads(self) -> int:
        """Number of hosts, joining hosts included, that must load parameters which they do not hold."""
        return len(hosts_that_load(self.moves))

    @property
    def bytes_to_load(self) -> int:
        """Bytes of parameters and optimizer states to load, summed over all ranks."""
        return sum(move.parameter_bytes + move.optimizer_bytes for move in self.moves)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replanned:
    """
    Result of :func:`replan`.

    A load is a host that must read other parameters from the checkout than it holds now.

    Parameters
    ----------
    old
        The plan that ran before.
    chosen
        The plan to continue with.
    options
        The best trade-offs of loads and time, fewest loads first; each further plan needs more loads and is faster.
    unequal
        The fastest plan found with different numbers of micro-batches per replica. ``None`` if the job allows them
        anyway, or if no such plan uses more hosts and is faster than ``chosen``.
    loosened
        Pinned options of the old plan that the number of hosts cannot satisfy.
    """

    old: Plan
    chosen: Option
    options: tuple[Option, ...]
    unequal: Option | None = None
    loosened: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown, *of_plan = repr(self.chosen.plan).splitlines()
        others = [f"or {option.line()}" for option in self.options if option.plan.config != self.chosen.plan.config]
        return lines_at_most(shown, [self.chosen.line(), *(line.strip() for line in of_plan), *others])


def replan(
    instance: Instance,
    old: Plan,
    *,
    num_gpus: int | None = None,
    max_loads: int | None = None,
    tolerance: float = 0.005,
    params: OptimizeParams | None = None,
    watcher: Watcher | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Replanned:
    """
    Plan again for the hosts that are available now.

    Parameters
    ----------
    instance
        The job on the cluster without the lost and with the joined hosts; hosts are matched by name.
    num_gpus
        World size; ``None`` for the fastest.
    max_loads
        Maximum number of hosts that may load parameters; the fastest such plan is chosen. ``None``: choose the fewest
        loads among plans at most ``tolerance`` (a share) slower than the fastest.

    Raises
    ------
    InfeasibleError
        If no plan fits in memory, or every plan needs more loads.
    """
    params, watcher = params or OptimizeParams(), watcher or Watcher()
    offered = unequal_instance(instance, old) if num_gpus is None else None
    own_share = 1.0 if offered is None else OWN_SHARE
    own = replace(params, time_limit_s=own_share * params.time_limit_s)
    options = _options(instance, old, num_gpus, own, watcher, inputs)
    more: list[Option] = []
    if offered is not None and not watcher.stop.is_set():
        with contextlib.suppress(InfeasibleError, InputError):
            more = _options(offered, old, None, params, watcher, _inputs_of(offered, inputs))
    front = _front(options, lambda option: (option.num_loads, option.plan.estimate.iteration_time_s))
    chosen = _choose(front, max_loads, tolerance)
    verify_content(instance, chosen.plan)
    unequal = min(more, key=lambda option: option.plan.estimate.iteration_time_s, default=None)
    if unequal is not None and unequal.plan.estimate.iteration_time_s >= chosen.plan.estimate.iteration_time_s:
        unequal = None
    void = void_pins(old, sizes_of(instance.cluster) if num_gpus is None else [num_gpus])
    loosened = tuple("--" + name.replace("_", "-") for name in void)
    return Replanned(old=old, chosen=chosen, options=tuple(front), unequal=unequal, loosened=loosened)


def _inputs_of(instance: Instance, inputs: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the inputs to record, with the training settings of the instance if the inputs contain any."""
    if inputs is None or "training" not in inputs:
        return inputs
    return {**inputs, "training": asdict(instance.training)}


def _options(
    instance: Instance,
    old: Plan,
    num_gpus: int | None,
    params: OptimizeParams,
    watcher: Watcher,
    inputs: Mapping[str, Any] | None,
) -> list[Option]:
    """
    Return the optimum, and faster or less-loading plans whose hosts keep their parameters.

    The time limit counts from the start of the watcher.
    """
    before, kept_first = _layout(old), kept_configs(instance, old, num_gpus)
    space = replace(space_for(old, instance.cluster, num_gpus), more_configs=kept_first)
    clock = clock_of(instance, params, watcher)
    prepared = prepare(
        Question(
            instance,
            space,
            params.max_oom_risk,
            keep=frozenset(kept_first).__contains__,
            joint=joint_limits(instance, params, clock),
            chooses_sizes=True,
        ),
        clock,
    )
    with watcher.loading_kernels():
        _compile(prepared)
    watcher.report("placing with parameters kept on their hosts")
    seconds = KEEPING_SHARE * max(1.0, params.time_limit_s - watcher.elapsed_s)
    kept = keep(prepared, old, seconds, params.seed, watcher.stop.is_set)
    simulated = [_simulated(prepared, old, before, index, placed) for index, placed in kept]
    search = replace(params, time_limit_s=max(0.5, SEARCH_SHARE * (params.time_limit_s - watcher.elapsed_s)))
    fresh = Watcher(on_progress=watcher.on_progress, stop=watcher.stop, begun=watcher.begun)
    known = [_on_hosts(prepared, index, placed) for index, placed in kept]
    free = complete(begin_with(prepared, search, clock_of(instance, search, fresh), known), inputs)
    options = [Option(plan=free, moves=moves(before, _layout(free), instance.model))]
    for solution, loads in _front(
        simulated, lambda pair: (len(hosts_that_load(pair[1])), pair[0].estimate.iteration_time_s)
    ):
        if (
            solution.estimate.iteration_time_s < free.estimate.iteration_time_s
            or len(hosts_that_load(loads)) < options[0].num_loads
        ):
            options.append(Option(plan=_plan(prepared, solution, free, params), moves=loads))
    return options


def _compile(prepared: Prepared) -> None:
    data = prepared.problem
    somewhere = np.arange(data.candidates[0].num_cells).reshape(data.candidates[0].grid)
    anneal_keeping(data, 0, somewhere, np.full(data.num_nodes, -1), num_moves=1)


def _simulated(
    prepared: Prepared, old: Plan, before: Layout, index: int, kept: Kept
) -> tuple[SimulatedSolution, tuple[Move, ...]]:
    """
    Simulate a placement in which hosts keep their parameters; return it with the loads of its ranks.

    The GPUs of each host keep their order.
    """
    simulated = _on_hosts(prepared, index, kept)
    if prepared.has_slots:
        simulated = replace(simulated, slots=_kept_slots(prepared, old, simulated))
        again = estimate(prepared.given, simulated.candidate.config, simulated.placement)
        simulated = replace(simulated, estimate=again)
    after = Layout(
        config=simulated.candidate.config, placement=simulated.placement, hosts=prepared.instance.cluster.hosts
    )
    return simulated, moves(before, after, prepared.instance.model)


def _on_hosts(prepared: Prepared, index: int, kept: Kept) -> SimulatedSolution:
    """Return a placement of the candidate at ``index``, simulated on relaxed hosts."""
    return simulate_solution(prepared.instance, prepared.problem, replace(kept.solution, candidate=index))


def _kept_slots(prepared: Prepared, old: Plan, simulated: SimulatedSolution) -> IntArray:
    """Return the GPUs of each host in rank order: as in the old plan if it used equally many, else 0, 1, ..."""
    used = simulated.candidate.config.world_size // simulated.nodes.size
    slots = np.tile(np.arange(used), (*simulated.nodes.shape, 1))
    for cell in np.ndindex(*simulated.nodes.shape):
        host = prepared.instance.cluster.hosts[simulated.nodes[cell]]
        before = old.placement.local_rank[[old.hosts[node] == host for node in old.placement.node]]
        if len(before) == used:
            slots[cell] = before
    return slots


def _choose(front: Sequence[Option], max_loads: int | None, tolerance: float) -> Option:
    if max_loads is None:
        fastest = front[-1].plan.estimate.iteration_time_s
        return next(option for option in front if option.plan.estimate.iteration_time_s <= (1 + tolerance) * fastest)
    allowed = [option for option in front if option.num_loads <= max_loads]
    if not allowed:
        raise InfeasibleError(
            f"every plan found makes {front[0].num_loads} or more hosts load parameters, but --max-moves allows only "
            f"{max_loads}."
        )
    return allowed[-1]


def _layout(plan: Plan) -> Layout:
    return Layout(config=plan.config, placement=plan.placement, hosts=plan.hosts)


def keep(
    prepared: Prepared, old: Plan, seconds: float, seed: int = 0, stopped: Callable[[], bool] = lambda: False
) -> list[tuple[int, Kept]]:
    """
    Return placements by number of loads, each with the index of its configuration in the problem.

    Only configurations with the stages of the old plan are placed, at most ``MAX_KEPT``: first those in which most
    hosts keep their parameters, then those with the smallest bounds. Interleaved schedules are placed by a relaxation;
    the simulator times them later.
    """
    data, found = prepared.problem, []
    holds = {
        index: held_cells(prepared.instance, candidate, old)
        for index, candidate in enumerate(data.candidates)
        if same_stages(candidate.config, old.config)
    }
    ranked = sorted(
        holds, key=lambda index: (-int((holds[index] >= 0).sum()), optimistic_ticks(data, data.candidates[index]))
    )[:MAX_KEPT]
    for index in ranked:
        start = start_from(data, data.candidates[index], holds[index])
        if start is not None:
            share = seconds / len(ranked)
            kept = anneal_keeping(data, index, start, holds[index], seconds=share, seed=seed, stopped=stopped)
            as_it_is = checked_solution(data, index, start)  # the simulator may like it better than a relaxation does
            if as_it_is is not None:
                kept.append(Kept(num_loads=num_loads(holds[index], start), solution=as_it_is))
            found += [(index, placed) for placed in kept]
    return found


def same_stages(config: ParallelConfig, old: ParallelConfig) -> bool:
    """Return whether two configurations split the model into the same parts, whatever their numbers of replicas."""
    degrees = (degree.number for degree in DEGREES if degree not in (DATA, MICRO_BATCH))
    names = (*degrees, "layers_per_stage")
    return all(getattr(config, name) == getattr(old, name) for name in names)


def held_cells(instance: Instance, candidate: CandidateData, old: Plan) -> IntArray:
    """
    Return which part of the model each host holds from the old plan.

    The part is ``row * parts + part``, with the grid row of the stages and the part of the tensor group, as in
    :func:`~pipette_opt.annealing.keeping.anneal_keeping`; -1 if a host holds no complete part. Shape ``(num_nodes,)``.
    """
    coordinates = RankGrid.of(old.config, old.placement.order).coordinates()
    stages, parts = candidate.tile.stages, candidate.tile.nodes_per_slot
    slot = old.config.tensor_model_parallel_size * old.config.context_parallel_size
    holds = np.full(instance.cluster.num_nodes, -1, dtype=np.int64)
    for node, host in enumerate(old.hosts):
        ranks = np.flatnonzero(old.placement.node == node)
        if host not in instance.cluster.hosts or not len(ranks):
            continue
        rows = set((coordinates[ranks, 0] // stages).tolist())
        within = coordinates[ranks, 2] * old.config.tensor_model_parallel_size + coordinates[ranks, 3]
        tensor_parts = set((within // (slot // parts)).tolist()) if parts > 1 else {0}
        whole = len(set(coordinates[ranks, 0].tolist())) == stages
        if len(rows) == 1 and len(tensor_parts) == 1 and whole:
            holds[instance.cluster.hosts.index(host)] = rows.pop() * parts + tensor_parts.pop()
    return holds


def start_from(data: ProblemData, candidate: CandidateData, holds: IntArray) -> IntArray | None:
    """Return a placement in which as many hosts as possible keep their part; ``None`` if memory does not allow any."""
    rows, columns, parts = candidate.grid
    allowed = data.allowed(candidate)
    nodes = np.full(candidate.grid, -1, dtype=np.int64)
    free = set(range(data.num_nodes))
    for row in range(rows):
        for part in range(parts):
            stay = [node for node in np.flatnonzero(holds == row * parts + part).tolist() if allowed[row, node]]
            for column, node in enumerate(stay[:columns]):
                nodes[row, column, part] = node
                free.discard(node)
    idle = sorted(free, key=lambda node: holds[node] >= 0)
    for cell in np.argwhere(nodes < 0):
        row = int(cell[0])
        fitting = [node for node in idle if allowed[row, node]]
        if not fitting:
            return None
        nodes[tuple(cell)] = fitting[0]
        idle.remove(fitting[0])
    return nodes


def _plan(prepared: Prepared, simulated: SimulatedSolution, free: Plan, params: OptimizeParams) -> Plan:
    """Return a plan for a simulated placement, with the bounds that the free search proved."""
    proven = make_certificate(
        prepared.given, prepared.problem, simulated, free.certificate.lower_bound_s, free.certificate.wall_time_s
    )
    certificate = replace(
        free.certificate,
        status=proven.status,
        objective_s=proven.objective_s,
        lower_bound_s=proven.lower_bound_s,
        gap=proven.gap,
        placement_dependent_s=proven.placement_dependent_s,
        placement_gap=proven.placement_gap,
    )
    if certificate.joint_model is not None:
        joint_model = joint_model_up_to(certificate.joint_model, certificate.best_s)
        certificate = replace(certificate, joint_model=joint_model)
    memory = stage_memory(
        prepared.instance, simulated.candidate.config, simulated.placement, prepared.predictor, params.max_oom_risk
    )
    return make_plan(
        prepared.given,
        prepared.problem,
        [simulated],
        certificate,
        memory,
        notes=plan_notes(prepared.instance, simulated.candidate.config, prepared.memory, memory),
        seed=params.seed,
        inputs=free.inputs,
    )


def _front(items: Sequence[Item], rank: Callable[[Item], tuple[int, float]]) -> list[Item]:
    """
    Return the Pareto front: fewest loads first, each further item faster than all before.

    ``rank`` returns loads and seconds of an item.
    """
    front: list[Item] = []
    for item in sorted(items, key=rank):
        if not front or rank(item)[1] < rank(front[-1])[1]:
            front.append(item)
    return front
