"""Configurations of a job that may be the fastest in some world, and the plan of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.base.risk import IGNORED_RISK, USUAL_RISK
from pipette_opt.base.types import FloatArray
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.candidates.known import only
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import CheckedConfig, keep_fitting, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement, without_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import load_predictor
from pipette_opt.specs import Instance
from pipette_opt.tune.choice import Candidates
from pipette_opt.tune.memory_odds import MemoryOdds
from pipette_opt.worlds.bands import with_band
from pipette_opt.worlds.terms import describe
from pipette_opt.worlds.worlds import Worlds

MAX_SIMULATED = 600
"""Most configurations that are simulated, those with the least time on compute alone. Chosen."""

MAX_LISTED = 100
"""Most configurations that are listed, those nearest to the fastest in any world. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """
    Configurations that may be tried, with their predictions.

    Parameters
    ----------
    configs
        Configurations in the order of ``candidates``.
    risks
        Risk of running out of memory at which each configuration was listed.
    """

    configs: tuple[ParallelConfig, ...]
    risks: tuple[float, ...]
    candidates: Candidates


def list_configs(
    instance: Instance,
    space: SearchSpace,
    worlds: Worlds,
    known: Sequence[ParallelConfig],
    max_oom_risk: float,
) -> Listing:
    """
    Return the configurations of a job that may be the fastest in some world.

    Parameters
    ----------
    known
        Configurations that are listed in any case: those tried before.
    max_oom_risk
        Accepted probability of running out of memory. Configurations are listed with the least recomputation that it
        allows, and with that of ``USUAL_RISK``.

    Raises
    ------
    InfeasibleError
        If no configuration is legal and fits in memory at the accepted risk.
    """
    legal = enumerate_candidates(instance, space)
    predictor = load_predictor(max_oom_risk, instance)
    checks = {
        risk: check_memory(instance, legal, predictor, risk) for risk in (max_oom_risk, min(max_oom_risk, USUAL_RISK))
    }
    risks = {found.config: risk for risk, check in checks.items() for found in check.fitting}
    checked = {found.config: found for check in checks.values() for found in check.fitting}
    if not checked:
        raise InfeasibleError(checks[max_oom_risk].explain())
    likely = sorted(checked, key=WorkBounds(instance))[:MAX_SIMULATED]
    if known:
        checked |= {found.config: found for found in keep_fitting(instance, known, predictor, IGNORED_RISK).fitting}
    configs = list(dict.fromkeys([*likely, *known]))
    placed = [(config, listed_placement(instance, config)) for config in configs]
    predicted_s, terms = describe(instance, placed)
    times_s = predicted_s[:, None] * np.exp(worlds.log_factors(terms))
    nearest = (times_s / times_s.min(axis=0)).min(axis=1)
    order = np.argsort(nearest, kind="stable").tolist()
    listed = set(_alike_once(configs, predicted_s, order)[:MAX_LISTED])
    chosen = [index for index in order if index in listed or configs[index] in known]
    kept = [configs[index] for index in chosen]
    return Listing(
        configs=tuple(kept),
        risks=tuple(risks.get(config, max_oom_risk) for config in kept),
        candidates=Candidates(
            predicted_s=predicted_s[chosen],
            terms=terms[chosen],
            memory=_memory(instance, predictor, [checked[config] for config in kept]),
        ),
    )


def listed_placement(instance: Instance, config: ParallelConfig) -> Placement:
    """Return the placement on the first hosts as listed, in Megatron's usual order of ranks."""
    per_node = instance.cluster.gpus_per_node
    hosts = np.arange(-(-config.world_size // per_node))
    return identity_placement(config, per_node, hosts, "tp-cp-ep-dp-pp")


def plan_of(
    instance: Instance, config: ParallelConfig, params: OptimizeParams, watcher: Watcher, inputs: Mapping[str, Any]
) -> Plan:
    """Return the best plan found that has this configuration, with the band of its time; see :func:`only`."""
    plan = optimize(instance, only(config), params, watcher, inputs)
    return replace(plan, estimate=with_band(plan.estimate, instance, plan.config, plan.placement))


def _alike_once(configs: Sequence[ParallelConfig], predicted_s: FloatArray, order: Sequence[int]) -> list[int]:
    """Return the indices in order without those that differ from a faster one only in overlap of the reduction."""
    fastest: dict[ParallelConfig, int] = {}
    for index in order:
        base = without_overlap(configs[index])
        known = fastest.setdefault(base, index)
        if predicted_s[index] <= predicted_s[known]:
            fastest[base] = index
    kept = set(fastest.values())
    return [index for index in order if index in kept and np.isfinite(predicted_s[index])]


def _memory(instance: Instance, predictor: MemoryPredictor, checked: Sequence[CheckedConfig]) -> MemoryOdds:
    """Return the belief about memory before the first trial: that of each configuration's fullest stage."""
    usable = float(usable_bytes(instance.cluster, predictor).min())
    fullest = [int(found.prediction.predicted_bytes.argmax()) for found in checked]
    needed = [float(found.prediction.predicted_bytes[stage]) for found, stage in zip(checked, fullest, strict=True)]
    spread = [float(found.prediction.own_spread[stage]) for found, stage in zip(checked, fullest, strict=True)]
    return MemoryOdds(
        usable_bytes=np.full(len(checked), usable),
        needed_bytes=np.array(needed),
        shown_bytes=np.array(needed),
        spread=np.array(spread),
    )
