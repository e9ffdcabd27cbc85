"""
Other systems on one job: the configuration and placement that each would choose, timed by the simulator.

A system searches its own space, with its own view of the links and its own rule. All have our memory prediction, which
is better than theirs. ``LACKS`` lists what each cannot express.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.squares.compare import square_row
from pipette_opt.base.errors import InfeasibleError, InputError, MissingLinkError
from pipette_opt.baselines.amp import AmpParams, amp
from pipette_opt.baselines.amp_layers import with_amp_splits
from pipette_opt.baselines.compare import learned_problem, searched, simulated_plans
from pipette_opt.baselines.megatron import identity_order, listed_solutions, megatron_rule
from pipette_opt.baselines.pipette import PipetteParams, pipette
from pipette_opt.baselines.varuna import varuna
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.placed import placed_times
from pipette_opt.memory.fewest import check_memory
from pipette_opt.optimize import optimize
from pipette_opt.parallel import ParallelConfig, microbatches_of, tile_placement
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, load_predictor, prepare
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.simulate.solutions import best_first
from pipette_opt.specs import Instance, LinkMatrix
from pipette_opt.verify.bounds import cheap_bounds_s, fastest_placement_s

RISK = 0.01
"""Accepted risk of running out of memory, equal for all systems."""

SEARCH_S = 5.0
"""Maximum seconds of annealing of Pipette and AMP. Chosen."""

MAX_EXHAUSTIVE_HOSTS = 4
"""Maximum number of hosts for exhaustive search: 24 orders of each host tiling. Chosen."""

MAX_PLACEMENTS = 10_000
"""Maximum number of placements of one configuration that exhaustive search simulates. Chosen."""

PLAIN = SearchSpace(
    virtual_pipeline=(1,),
    context_parallel=(1,),
    expert_parallel=(1,),
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    uneven_layers=False,
    recompute=(None, "selective", "full"),
)
"""Space of most systems: tensor, pipeline and data parallelism with equal stages."""

REPLICATED = replace(PLAIN, use_distributed_optimizer=(False,), recompute=(None, "full"))
"""Space of ``PLAIN`` without a sharded optimizer, as at the time of Pipette, AMP and Varuna."""

SQUARES = {4: 2, 16: 4}
"""Side of the square of ranks for tensor-parallel sizes that are squares."""

LACKS = {
    "this project": "strategies of single layers; squares; ZeRO 2 and 3",
    "Pipette": "interleaving, sharded optimizer, context and expert parallelism, unequal stages, overlap",
    "AMP": "single links (a median of each host), memory, interleaving, sharded optimizer, context and experts",
    "Varuna": "tensor parallelism, the order of hosts, interleaving, sharded optimizer",
    "Megatron's rule": "links and times: a rule of thumb; interleaving is off",
    "Galvatron": "single links (one speed between hosts), the order of hosts; its strategies of single layers run "
    "nowhere, so all layers have one",
    "PrimePar": "the order of hosts, interleaving, overlap of gradients; squares run nowhere (planned only)",
    "exhaustive": f"more than {MAX_EXHAUSTIVE_HOSTS} hosts; unusual splits and unequal chunks",
}
"""Features that each system cannot express, or that are not used here."""


class Choice(NamedTuple):
    """Choice of a system: its label, its simulated seconds, and the proven lower bound on all plans in seconds."""

    label: str
    seconds: float
    lower_bound_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow:
    """
    Result of one system on one job.

    Parameters
    ----------
    choice
        Label of its configuration, or the reason why it has none.
    iteration_time_s
        Simulated iteration time; ``None`` without a choice.
    lower_bound_s
        Proven lower bound on all plans, seconds; for this project only.
    seconds
        Seconds of its search.
    """

    case: str
    system: str
    choice: str
    iteration_time_s: float | None
    lower_bound_s: float | None
    seconds: float


def run_case(name: str, instance: Instance, time_limit_s: float, workers: int = 1, seed: int = 0) -> list[SystemRow]:
    """Run every system on one job."""
    runs: dict[str, Callable[[], Choice | None]] = {
        "this project": lambda: _ours(instance, time_limit_s, workers, seed),
        "Pipette": lambda: _pipette(instance, time_limit_s, seed),
        "AMP": lambda: _amp(instance, time_limit_s, seed),
        "Varuna": lambda: _by_rule(instance, REPLICATED, varuna),
        "Megatron's rule": lambda: _by_rule(instance, PLAIN, megatron_rule),
        "Galvatron": lambda: galvatron_view(instance),
        "PrimePar": lambda: primepar_space(instance),
        "exhaustive": lambda: exhaustive(instance, 2 * time_limit_s),
    }
    rows: list[SystemRow] = []
    for system, run in runs.items():
        started, problem, choice = time.perf_counter(), "nothing fits", None
        try:
            choice = run()
        except (InputError, MissingLinkError) as error:
            problem = str(error)
        except InfeasibleError:
            pass
        rows.append(
            SystemRow(
                case=name,
                system=system,
                choice=problem if choice is None else choice.label,
                iteration_time_s=None if choice is None else choice.seconds,
                lower_bound_s=None if choice is None else choice.lower_bound_s,
                seconds=time.perf_counter() - started,
            )
        )
    return rows


def _ours(instance: Instance, time_limit_s: float, workers: int, seed: int) -> Choice:
    params = OptimizeParams(time_limit_s=time_limit_s, workers=workers, seed=seed, max_oom_risk=RISK)
    plan = optimize(instance, SearchSpace(), params)
    return Choice(plan.config.label(), plan.estimate.iteration_time_s, plan.certificate.lower_bound_s)


def _prepared(instance: Instance, space: SearchSpace) -> Prepared:
    return prepare(Question(instance, space, RISK))


def _judged(instance: Instance, data: ProblemData, result: Result, believed: Instance | None = None) -> Choice | None:
    """
    Return the fastest plan of a result with its simulated time; ``None`` without a plan.

    ``believed``: job as the system sees it, by which it chooses its plan; by default as it is.
    """
    plans = simulated_plans(believed or instance, data, result)
    if not plans:
        return None
    best = best_first(plans)[0]
    config, placement = best.candidate.config, tile_placement(best.candidate.config, best.candidate.tile, best.nodes)
    return Choice(config.label(), estimate(instance, config, placement).iteration_time_s)


def _by_rule(instance: Instance, space: SearchSpace, rule: Callable[[ProblemData], Result]) -> Choice | None:
    data = _prepared(instance, space).problem
    return _judged(instance, data, rule(data))


def _pipette(instance: Instance, time_limit_s: float, seed: int) -> Choice | None:
    """Return Pipette's choice: degrees that fit, and hosts annealed on the paths that the solver found (DATE 2024)."""
    search = OptimizeParams(time_limit_s=min(time_limit_s, SEARCH_S), seed=seed)
    data = learned_problem(searched(_prepared(instance, REPLICATED), search, Watcher()))
    params = PipetteParams(time_limit_s=search.time_limit_s, seed=seed)
    return _judged(instance, data, pipette(data, params))


def _amp(instance: Instance, time_limit_s: float, seed: int) -> Choice | None:
    space = with_amp_splits(instance, replace(REPLICATED, uneven_layers=True), load_predictor(RISK, instance))
    data = _prepared(instance, space).problem
    params = AmpParams(time_limit_s=min(time_limit_s, SEARCH_S), seed=seed)
    return _judged(instance, data, amp(data, params))


def galvatron_view(instance: Instance) -> Choice | None:
    """
    Return Galvatron's choice: one strategy for all layers, on hosts in listed order.

    All links between hosts have equal speed, the median of the measured links. The optimizer may be sharded, and layers
    recomputed.
    """
    matrices = tuple(
        LinkMatrix(
            concurrent_flows=matrix.concurrent_flows,
            bytes_per_s=np.full(matrix.bytes_per_s.shape, float(np.nanmedian(matrix.bytes_per_s))),
        )
        for matrix in instance.cluster.link_matrices
    )
    alike = replace(instance, cluster=replace(instance.cluster, link_matrices=matrices))
    space = replace(PLAIN, use_distributed_optimizer=(False, True), recompute=(None, "full"))
    data = _prepared(alike, space).problem
    return _judged(instance, data, identity_order(data), believed=alike)


def primepar_space(instance: Instance) -> Choice | None:
    """
    Return PrimePar's choice: Megatron's configurations, with tensor groups of 4 or 16 GPUs of a host as squares of
    ranks.

    Hosts are in listed order. Attention and the MLP of a layer are each on the square or split as in Megatron,
    whichever is faster (:func:`~benchmarks.squares.compare.square_row`). The time saved per layer is subtracted from
    each micro-batch.
    """
    data = _prepared(instance, PLAIN).problem
    best: Choice | None = None
    for solution in listed_solutions(data):
        candidate = data.candidates[solution.candidate]
        config = candidate.config
        placement = tile_placement(config, candidate.tile, solution.nodes)
        times, saved_s = placed_times(instance, config, placement), saved_by_squares_s(instance, config)
        layers = np.array(config.layers_per_stage)[None, :, None]
        # A third of a layer's products are in the forward pass.
        faster = replace(
            times,
            forward_s=np.maximum(times.forward_s - saved_s / 3 * layers, 0.0),
            backward_s=np.maximum(times.backward_s - saved_s * 2 / 3 * layers, 0.0),
        )
        seconds = simulate_times(faster, microbatches_of(instance.training, config), instance.p2p).iteration_time_s
        if best is None or seconds < best.seconds:
            best = Choice(config.label() + (" on squares" if saved_s > 0 else ""), seconds)
    return best


def saved_by_squares_s(instance: Instance, config: ParallelConfig) -> float:
    """Return the seconds that squares save per layer and micro-batch, forward and backward; 0 without a square."""
    side = SQUARES.get(config.tensor_model_parallel_size)
    model = instance.model
    if side is None or not config.sequence_parallel or config.recompute_granularity is not None:
        return 0.0
    if model.num_experts is not None or instance.training.fp8 or config.micro_batch_size % side:
        return 0.0
    if model.num_attention_heads % side**2 or model.num_query_groups % side or model.ffn_hidden_size % side**2:
        return 0.0
    row = square_row(instance, side, config.micro_batch_size)
    return max(row.megatron_s - row.mixed_s, 0.0)


def exhaustive(instance: Instance, time_limit_s: float) -> Choice | None:
    """
    Return the best of all placements of all configurations with usual splits, simulated unless a bound rules them out.

    Raises ``InputError`` for more than ``MAX_EXHAUSTIVE_HOSTS`` hosts, or if the time ends before the search.
    """
    if instance.cluster.num_nodes > MAX_EXHAUSTIVE_HOSTS:
        raise InputError("exhaustive", f"not run on more than {MAX_EXHAUSTIVE_HOSTS} hosts")
    started = time.perf_counter()
    candidates = enumerate_with_reasons(instance, SearchSpace()).candidates
    memory = check_memory(instance, candidates, load_predictor(RISK, instance), RISK)
    bounds = cheap_bounds_s(instance, memory.fitting, memory.capacity_bytes)
    best: Choice | None = None
    for number in np.argsort(bounds, kind="stable").tolist():
        if best is not None and bounds[number] >= best.seconds:
            break
        if time.perf_counter() - started > time_limit_s:
            raise InputError("exhaustive", "not done in its time")
        checked = memory.fitting[number]
        found = fastest_placement_s(instance, checked, memory.capacity_bytes, MAX_PLACEMENTS)
        if found is None:
            raise InputError("exhaustive", f"more than {MAX_PLACEMENTS} placements of {checked.config.label()}")
        if math.isfinite(found[0]) and (best is None or found[0] < best.seconds):
            best = Choice(checked.config.label(), found[0])
    return best
