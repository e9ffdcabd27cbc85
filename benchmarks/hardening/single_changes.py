"""
Single changes of plans that ``explain`` finds faster: ``python -m benchmarks.hardening.single_changes PLAN...``.

A plan is compared with every configuration that differs in one degree, the number of chunks, the micro-batch or the
recomputation. Each is asked as a user would: ``explain`` with the plan's other choices pinned. Layers per stage,
overlap and the number of replicas stay open. A change counts as faster if its placed plan is faster than the fastest
plan that the search found. The exit code is 1 if any is faster.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pipette_opt as po
from pipette_opt.base.degrees import (
    CHUNKS,
    CONTEXT,
    CONTEXT_A2A,
    DATA,
    DEGREES,
    EXPERT,
    EXPERT_TENSOR,
    MICRO_BATCH,
    TENSOR,
    Degree,
)
from pipette_opt.library.explain import Explanation
from pipette_opt.parallel.recompute import RECOMPUTE_MODULES
from pipette_opt.plans.plan import AS_GOOD, Plan

MAX_MICRO_BATCH = 64
"""Largest micro-batch that is asked. Chosen."""

MAX_CHUNKS = 16
"""Largest number of model chunks that is asked. Chosen."""

RECOMPUTATIONS = ("none", "selective", "block", "full", *RECOMPUTE_MODULES, "moe_act+layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faster:
    """Single change that is faster than the plan: its text, its configuration, and the share of the time it saves."""

    asked: str
    config: str
    saved: float


def single_changes(plan: Plan) -> Iterator[str]:
    """Yield the configurations that differ from a plan in a single choice, as texts for ``explain``."""
    config = plan.config
    has_experts = bool(plan.inputs["model"].get("num_experts"))
    degrees = [
        degree for degree in DEGREES if degree != DATA and (has_experts or degree not in (EXPERT, EXPERT_TENSOR))
    ]
    own = {degree.short: str(getattr(config, degree.number)) for degree in degrees}
    own["recompute"] = config.recomputation or "none"
    values = {degree.short: list(map(str, _values(plan, degree))) for degree in degrees} | {"recompute": RECOMPUTATIONS}
    for name, others in values.items():
        kept = own if name not in (TENSOR.short, CONTEXT.short) else {**own, EXPERT_TENSOR.short: ""}
        for value in others:
            if value != own[name]:
                changed = {**kept, name: value}
                yield ",".join(f"{choice}={text}" for choice, text in changed.items() if text)


def _values(plan: Plan, degree: Degree) -> Iterator[int]:
    """Yield the values of a degree that are asked."""
    most = plan.config.world_size
    if degree == MICRO_BATCH:
        most = min(MAX_MICRO_BATCH, plan.global_batch_size)
    if degree == CHUNKS:
        most = MAX_CHUNKS
    whole = {MICRO_BATCH: plan.global_batch_size, CHUNKS: 0, CONTEXT_A2A: plan.config.context_parallel_size}
    yield from (value for value in range(1, most + 1) if whole.get(degree, plan.config.world_size) % value == 0)


def faster(answers: Iterator[Explanation]) -> Iterator[Faster]:
    """Yield the answers whose placed plan is faster than the fastest plan of the search."""
    for answer in answers:
        placed = answer.placed
        if placed is not None and placed.iteration_time_s < (1 - AS_GOOD) * placed.fastest_s:
            saved = 1 - placed.iteration_time_s / placed.fastest_s
            yield Faster(asked=answer.asked, config=placed.config, saved=saved)


def main() -> None:
    """Parse the arguments, ask all changes of each plan, and print the faster ones and a line for each plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds to place each configuration")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    limits = {"time_limit_s": given.time_limit, "workers": given.workers}
    num_faster = 0
    for path in given.plans:
        begin, texts, verdicts = time.monotonic(), list(single_changes(po.read_plan(path))), Counter[str]()
        asked = (po.explain(text, plan=path, **limits).answers[0] for text in texts)
        counted = (verdicts.update([answer.why.verdict]) or answer for answer in asked)
        found = []
        for change in faster(counted):
            found.append(change)
            print(f"{path}: {change.asked}: {change.config} saves {change.saved:.2%}", flush=True)
        words = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
        seconds = time.monotonic() - begin
        print(f"{path}: {len(found)} of {len(texts)} single changes are faster; {words}; {seconds:.0f} s", flush=True)
        num_faster += len(found)
    sys.exit(1 if num_faster else 0)


if __name__ == "__main__":
    main()
