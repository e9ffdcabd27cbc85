"""
Check of whether ``solve`` finds a plan at least as fast as each recipe's layout, on the recipe's own GPUs.

Used by ``python -m benchmarks.recipes --solve N``. The job is that of ``pipette-opt solve --model RECIPE.args``: model,
batch, sequence, precision and all training options are the recipe's. The same simulator times both layouts over the
same links.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.library.current import Current
from pipette_opt.library.known import with_layout_of
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.read.megatron_args import MegatronArgs

EQUAL = 1e-6
"""Relative excess up to which a plan counts as equally fast. Chosen."""

MAX_OOM_RISK = 0.01
"""Accepted risk of running out of memory, the default of ``solve``."""

HEAD = """# NVIDIA's recipes against plans for their jobs

Plans of `solve` for the job of each recipe, on the recipe's own GPUs, in 60 s, against the recipe's own layout. Made by
`python -m benchmarks.recipes --solve N`.

- Ratio: time of an iteration of the plan over that of the recipe, both by the simulator; below 1 the plan is faster.
- Gap: proven maximum by which any layout of the searched space can be faster than the plan.
- The search does not know the recipe's layout. `solve --model RECIPE.args` does (here with `--told`): it starts from
  the layout, and its plan is never slower if the layout fits.
- A plan may run out of memory with a risk of 0.01 at most; a recipe whose own risk is above that is not held to it.
"""


@dataclass(frozen=True, kw_only=True)
class Solved:
    """
    Recipe with the plan for its job.

    Parameters
    ----------
    recipe_s, plan_s
        Seconds of an iteration; the plan's are infinite if none was found.
    recipe_oom
        Largest risk of any stage of the recipe's layout to run out of memory.
    gap
        Maximum by which any layout of the searched space can be faster than the plan, as a fraction.
    searched_s
        Seconds of the search by its own clock, without loading of kernels.
    """

    name: str
    family: str
    num_gpus: int
    recipe: str
    recipe_s: float
    recipe_oom: float
    plan: str
    plan_s: float
    gap: float
    searched_s: float

    @property
    def is_equalled(self) -> bool:
        """Return whether the plan is at least as fast as the recipe."""
        return self.plan_s <= (1 + EQUAL) * self.recipe_s


def in_turn(recipes: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return the recipes in a random order: one of each family first, then the second of each family, and so on."""
    shuffled = list(recipes)
    random.Random(seed).shuffle(shuffled)
    seen: Counter[str] = Counter()
    turns = []
    for recipe in shuffled:
        turns.append(seen[recipe["family"]])
        seen[recipe["family"]] += 1
    return [shuffled[index] for index in sorted(range(len(shuffled)), key=turns.__getitem__)]


def solved(recipe: dict[str, Any], priced: Current, time_limit_s: float, given: MegatronArgs | None = None) -> Solved:
    """
    Return the result of the search on the recipe's own GPUs.

    With ``given``, the search starts from the recipe's layout, as ``solve --model RECIPE.args`` does.
    """
    watcher = Watcher(begun=time.perf_counter(), started=time.perf_counter())  # by the clock of now
    plan, found, first = "", None, None
    space = SearchSpace(num_gpus=recipe["num_gpus"])
    if given is not None:
        space, first, _ = with_layout_of(priced.instance, space, given, MAX_OOM_RISK)
    try:
        found = optimize(
            priced.instance,
            space,
            OptimizeParams(time_limit_s=time_limit_s, max_oom_risk=MAX_OOM_RISK),
            watcher,
            first=first,
        )
        plan = found.config.label()
    except (InfeasibleError, InputError) as error:
        plan = str(error).split("\n", 1)[0][:120]
    return Solved(
        name=recipe["name"],
        family=recipe["family"],
        num_gpus=recipe["num_gpus"],
        recipe=priced.config.label(),
        recipe_s=priced.estimate.iteration_time_s,
        recipe_oom=max(stage.oom_probability for stage in priced.memory),
        plan=plan,
        plan_s=_seconds(found),
        gap=1.0 if found is None else found.certificate.gap,
        searched_s=watcher.elapsed_s,
    )


def _seconds(plan: Plan | None) -> float:
    return float("inf") if plan is None else plan.estimate.iteration_time_s


def by_cpu() -> None:
    """Make searches count CPU seconds of this process instead of the clock's, for machines that others load."""
    time.perf_counter = time.process_time


def page(rows: Sequence[Solved], label: str, clock: str) -> str:
    """
    Return a section of the result page: a summary sentence, tables by family, and each recipe.

    ``label`` is the heading; ``clock`` names the clock by which time limits and seconds count.
    """
    equalled = [row for row in rows if row.is_equalled]
    ratios = [row.plan_s / row.recipe_s for row in rows]
    load = os.getloadavg()[0]
    parts = [
        f"## {label}",
        f"Of {len(rows)} recipes {len(equalled)} are matched or beaten by the plan for their job. Time of the plan "
        f"over that of the recipe: median {median(ratios):.3f}, best {min(ratios):.3f}, worst {max(ratios):.3f}. "
        f"Limits and seconds are of {clock}; load of the machine at the end {load:.1f}.",
        _family_table(rows),
        _table(rows),
    ]
    lost = [row for row in rows if not row.is_equalled]
    if lost:
        parts += ["Lost:", "\n".join(f"- {row.name}: {row.recipe}; plan: {row.plan}" for row in lost)]
    return "\n\n".join(parts) + "\n"


def _family_table(rows: Sequence[Solved]) -> str:
    lines = ["| family | recipes | beaten or equalled | median ratio | median gap |", "|---|" + "---:|" * 4]
    for family in sorted({row.family for row in rows}):
        ours = [row for row in rows if row.family == family]
        ratio, gap = median(row.plan_s / row.recipe_s for row in ours), median(row.gap for row in ours)
        count = sum(row.is_equalled for row in ours)
        lines.append(f"| {family} | {len(ours)} | {count} | {ratio:.3f} | {gap:.1%} |")
    return "\n".join(lines)


def _table(rows: Sequence[Solved]) -> str:
    lines = [
        "| recipe | GPUs | recipe, s | its risk of OOM | plan, s | ratio | gap | searched, s |",
        "|---|" + "---:|" * 7,
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.num_gpus} | {row.recipe_s:.4g} | {row.recipe_oom:.2f} | {row.plan_s:.4g} | "
            f"{row.plan_s / row.recipe_s:.3f} | {row.gap:.1%} | {row.searched_s:.0f} |"
        )
    return "\n".join(lines)
