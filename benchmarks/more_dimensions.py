"""
Cost of searching a dimension without benefit: ``python -m benchmarks.more_dimensions [--repeats N] [--only NAME]``.

Each job is small enough for a proven optimum. It is solved twice: with a dimension held at the optimum's value, and
with the dimension free. Then the dimension has no benefit, so the iteration time must be equal, and the search should
take little longer. Dimensions that the default space lacks are added to it. Seconds are processor time on one thread,
the least of the repeats, held and free in turn, so that other work on the machine matters less. Results go to
``benchmarks/results/more-dimensions.md``.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from benchmarks.page import RESULTS, made_by, option, run_page, say
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.space import RECOMPUTATIONS
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.job.read import read_job
from pipette_opt.optimize import optimize
from pipette_opt.options.description import JobOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance

LIMIT_S = 300.0
"""Time limit of a search, seconds; every search should end before it with a proof. Chosen."""

MAX_RATIO = 1.2
"""Goal for the search time with a free dimension over that with the dimension held."""

SHARING = ("optim", "optim_grads", "optim_grads_params")


JOBS = {
    "4 hosts of 8 H100, llama-2-13b, batch 256 x 4096": JobOptions(
        nodes="4", gpu="h100-80gb", model="llama-2-13b", global_batch_size=256, seq_length=4096
    ),
    "2 hosts of 8 A100, llama-3-8b, batch 128 x 4096": JobOptions(
        nodes="2", gpu="a100-80gb", model="llama-3-8b", global_batch_size=128, seq_length=4096
    ),
}

Fields = Mapping[str, Any]
"""Fields of a search space or of the training, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one dimension of a job: seconds of an iteration and processor seconds of the search, held and free."""

    name: str
    held_s: float
    free_s: float
    held_search_s: float
    free_search_s: float
    held_configs: int
    free_configs: int
    proven: bool

    @property
    def ratio(self) -> float:
        """Search seconds with the dimension free over those with it held."""
        return self.free_search_s / self.held_search_s


def dimensions(instance: Instance, plan: Plan) -> Iterator[tuple[str, Fields, Fields]]:
    """Yield each dimension with the fields that hold it at the default space's optimum, and the fields that free it."""
    config, default = plan.config, SearchSpace()
    of_default = {
        "recomputation": ("recompute", (config.recomputation,)),
        "context parallelism": ("context_parallel", (config.context_parallel_size,)),
        "interleaving": ("virtual_pipeline", (config.num_chunks,)),
        "micro-batch sizes": ("micro_batch_size", (config.micro_batch_size,)),
        "gradients beside compute": ("overlap_grad_reduce", config.overlap_grad_reduce),
        "parameters beside compute": ("overlap_param_gather", config.overlap_param_gather),
    }
    if instance.model.num_experts is not None:
        of_default["expert groups"] = "expert_parallel", (config.expert_model_parallel_size,)
        of_default["tensor groups of experts"] = "expert_tensor_parallel", (config.expert_tensor_size,)
    for name, (field, value) in of_default.items():
        yield name, {field: value}, {field: getattr(default, field)}
    sharing = "data_parallel_sharding_strategy"
    yield "recomputed norms", {}, {"recompute": (*RECOMPUTATIONS, "layernorm")}
    yield "no sequence parallelism", {}, {"sequence_parallel": (False, True)}
    yield "no sharded optimizer", {}, {"use_distributed_optimizer": (False, True)}
    yield "sharded gradients (ZeRO 2)", {}, {sharing: SHARING[:2]}
    yield "sharded parameters (ZeRO 3)", {}, {sharing: SHARING[::2]}
    yield (
        "groups of replicas that share",
        {sharing: SHARING},
        {sharing: SHARING, "num_distributed_optimizer_instances": (1, 2)},
    )
    yield "optimizer in the hosts' memory", {}, {"offload": (None, "optimizer")}
    yield "unequal micro-batches", {}, {"unequal_microbatches": True}


def solved(instance: Instance, given: Fields) -> tuple[Plan, float]:
    """Return the plan, and the processor seconds of the search."""
    of_space = {field.name for field in fields(SearchSpace)}
    space = SearchSpace(**{name: value for name, value in given.items() if name in of_space})
    others = {name: value for name, value in given.items() if name not in of_space}
    job = replace(instance, training=replace(instance.training, **others))
    begun = time.process_time()
    plan = optimize(job, space, OptimizeParams(time_limit_s=LIMIT_S, workers=1))
    return plan, time.process_time() - begun


def row(instance: Instance, name: str, held: Fields, free: Fields, repeats: int) -> Row:
    """Return the result for one dimension; its two searches alternate, ``repeats`` times."""
    pairs = [(solved(instance, held), solved(instance, free)) for _ in range(repeats)]
    (before, _), (after, _) = pairs[0]
    return Row(
        name=name,
        held_s=before.estimate.iteration_time_s,
        free_s=after.estimate.iteration_time_s,
        held_search_s=min(seconds for (_, seconds), _ in pairs),
        free_search_s=min(seconds for _, (_, seconds) in pairs),
        held_configs=before.certificate.num_candidates + before.certificate.num_pruned,
        free_configs=after.certificate.num_candidates + after.certificate.num_pruned,
        proven=before.certificate.status == after.certificate.status == "OPTIMAL",
    )


def page(rows: Mapping[str, Sequence[Row]]) -> str:
    """Return the page with all rows of all jobs."""
    ratios = [row.ratio for of_job in rows.values() for row in of_job]
    lines = [
        "# Cost of searching a dimension without benefit",
        "",
        f"{made_by()} Every job is solved twice: with a dimension held at its proven optimum's value, and with the "
        "dimension free. If the iteration is then shorter, the default space lacks the dimension, and it has a "
        "benefit. Seconds of the search are processor time on one thread, the least of the repeats. "
        "Configurations: legal ones, as the certificate counts them. Configurations of one stage are simulated first; "
        "their time rules out most other configurations by a first bound. So most of a small search is enumeration, "
        "memory prediction and first bounds, which grow with the number of configurations.",
        "",
        f"At most {MAX_RATIO:.2f} times as long: {sum(ratio <= MAX_RATIO for ratio in ratios)} of {len(ratios)}.",
    ]
    for job, of_job in rows.items():
        lines += ["", f"## {job}", ""]
        lines.append("| dimension | configurations | with it | iteration, s | with it | search, s | with it | ratio |")
        lines.append("|---|---|---|---|---|---|---|---|")
        for row in sorted(of_job, key=lambda row: -row.ratio):
            lines.append(
                f"| {row.name} | {row.held_configs:,} | {row.free_configs:,} | {row.held_s:.6f} | {row.free_s:.6f}"
                f"{'' if row.proven else ' (not proven)'} | {row.held_search_s:.1f} | {row.free_search_s:.1f} "
                f"| {row.ratio:.2f} |"
            )
    return "\n".join(lines) + "\n"


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the chosen jobs; yield the page after each row."""
    rows: dict[str, list[Row]] = {}
    for name, options in JOBS.items():
        if given.only not in name:
            continue
        instance = read_job(options).instance
        optimum, _ = solved(instance, {})  # also loads the kernels
        for dimension, held, free in dimensions(instance, optimum):
            found = row(instance, dimension, held, free, given.repeats)
            rows.setdefault(name, []).append(found)
            say(f"{name}: {found}")
            yield page(rows)


OPTIONS = (
    option("--repeats", type=int, default=2),
    option("--only", help="only jobs whose name contains this text", default=""),
)


if __name__ == "__main__":
    run_page(make, *OPTIONS, out=RESULTS / "more-dimensions.md")
