"""Rules on the certificate, checked against the search space enumerated again."""

from collections.abc import Callable, Iterator
from typing import get_args

from pipette_opt.base.types import ProofStep
from pipette_opt.candidates import covered, layers_are_free, left_out, searched_values
from pipette_opt.parallel import ParallelConfig, with_whole_layers
from pipette_opt.plans.notes import ENDED_EARLY, plan_notes
from pipette_opt.plans.plan import Plan, Proof
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.verify.alternatives import named_alternatives
from pipette_opt.verify.bounds import num_without_room
from pipette_opt.verify.common import CHEAP, CLOSED_GAP, REPRODUCED, ROUNDING
from pipette_opt.verify.space import Searched

SpaceRule = Callable[[Searched, Plan], Iterator[str]]
"""Rule on the certificate: takes the search space, enumerated again, and the plan, and yields each violation."""

LEFT_OUT = ("legality rules", "memory", "fewer recomputed layers", "less on the host", "tensor overlap")
"""Proof steps that rule out configurations before any lower bound is computed."""

LEFT_OUT_NAMES = {
    "memory": "predicted peak",
    "fewer recomputed layers": "fewer fit",
    "less on the host": "less fits",
    "tensor overlap": "fits with it",
    "no placement": "hosts or links",
}
"""Name under which each of these proof steps counts its configurations."""

NOT_RUNNABLE = (*LEFT_OUT, "no placement")
"""Proof steps without a lower bound: configurations that cannot run, or only recompute or offload more."""


def plan_is_searched(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: the configurations of the plan and its alternatives are in the search space and fit, and ``num_candidates`` is
    right.

    Block recomputation of more layers than memory requires is accepted, too: it has less risk and is no faster.
    """
    fitting = {candidate.config for candidate in searched.memory.fitting}
    fewest = {base: layers for config in fitting for base, layers in (_block_layers(config),)}
    named = {"parallel": plan.config} | {name: slower.config for name, slower in named_alternatives(plan)}
    for name, config in named.items():
        base, layers = _block_layers(config)
        if config not in fitting and not (config.recomputation == "block" and layers >= fewest.get(base, layers + 1)):
            yield f"{name} ({config.label()}) is not among the {len(fitting)} that are legal and fit"
    if plan.certificate.num_candidates != len(fitting):
        yield f"num_candidates is {plan.certificate.num_candidates}, but {len(fitting)} are legal and fit"


def _block_layers(config: ParallelConfig) -> tuple[ParallelConfig, int]:
    """
    Return a configuration with block recomputation of a single layer, and its own number of recomputed layers.

    Without block recomputation: the configuration itself, and 0.
    """
    if config.recomputation != "block":
        return config, 0
    return with_whole_layers(config, "block", 1), config.recompute_num_layers


def scope_is_reproduced(searched: Searched, plan: Plan) -> Iterator[str]:
    """Rule: the recorded searched values, choices left out and scope text follow from the search space."""
    proof = plan.certificate
    values = searched_values(searched.instance, searched.enumeration)
    for name in sorted({*values, *proof.searched}):
        recorded, right = proof.searched.get(name), values.get(name)
        if recorded != right:
            yield f"searched.{name} is {recorded}, but the space has {right}"
    any_split = proof.joint_model is not None
    missing = left_out(searched.instance, searched.space, searched.enumeration, any_split=any_split)
    if proof.not_searched != missing:
        yield f"not_searched is {list(proof.not_searched)}, but the space leaves out {list(missing)}"
    if proof.scope != (sentence := covered(searched.instance, missing)):
        yield f"scope is {proof.scope!r}, but the space gives {sentence!r}"


def notes_are_reproduced(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: the recorded notes are exactly those that follow from the job and the plan.

    Why a search ended early with a gap, only the search knows; such notes are accepted if the certificate has a gap.
    """
    expected = plan_notes(searched.instance, plan.config, searched.memory, plan.memory)
    yield from (f"the note {note!r} is missing" for note in expected if note not in plan.notes)
    proof = plan.certificate
    has_gap = proof.lower_bound_s < proof.best_s * (1 - REPRODUCED / 2)  # searches call a gap of REPRODUCED closed
    others = [note for note in plan.notes if not (has_gap and note.startswith(ENDED_EARLY))]
    yield from (f"the note {note!r} does not follow from the plan" for note in others if note not in expected)


def proof_adds_up(searched: Searched, plan: Plan) -> Iterator[str]:
    """Rule: each configuration counts in one proof step, and no step's bound is below the certificate's lower bound."""
    certificate, counts = plan.certificate, dict.fromkeys((*NOT_RUNNABLE, *get_args(ProofStep)), 0)
    for part in certificate.proof:
        if part.by not in counts or part.configurations < 1 or counts[part.by]:
            yield f"{part.configurations} configurations are ruled out by {part.by!r}"
            return
        counts[part.by] = part.configurations
        if (part.bound_s is None) != (part.by in NOT_RUNNABLE):
            yield f"proof step {part.by} has bound_s {part.bound_s}"
        elif part.bound_s is not None and not part.bound_s >= certificate.lower_bound_s * (1 - ROUNDING):
            yield f"{part.by} bounds {part.bound_s} s, but lower_bound_s is {certificate.lower_bound_s}"
    least_s = min((part.bound_s for part in certificate.proof if part.bound_s is not None), default=0.0)
    if least_s > certificate.best_s * (1 + CLOSED_GAP):
        yield f"every part bounds {least_s} s or more, and the fastest plan takes {certificate.best_s} s"
    by_bounds = len(searched.memory.fitting) - counts["search"] if certificate.proof else 0
    if certificate.num_pruned != by_bounds:
        yield f"num_pruned is {certificate.num_pruned}, {by_bounds} are ruled out without a search"
    if not certificate.proof:
        return  # the search was stopped before the proof; bound_holds then counts every configuration
    enumeration, memory = searched.enumeration, searched.memory
    fitting = len(memory.fitting)
    for name, recorded, right in (
        ("legality rules", counts["legality rules"], enumeration.num_combinations - len(enumeration.candidates)),
        ("memory", counts["memory"], len(memory.rejected)),
        ("fewer recomputed layers", counts["fewer recomputed layers"], len(memory.spared)),
        ("less on the host", counts["less on the host"], len(memory.kept_on_gpu)),
        ("tensor overlap", counts["tensor overlap"], len(memory.not_overlapped)),
        ("everything else", sum(counts.values()) - sum(counts[name] for name in LEFT_OUT), fitting),
    ):
        if recorded != right:
            yield f"{recorded} configurations are ruled out by {name}, but must be {right}"
    for part in certificate.proof:
        if part.named:
            yield from _names_add_up(searched, part)


def _names_add_up(searched: Searched, part: Proof) -> Iterator[str]:
    """The named rules, bounds and engines of one proof step add up to its count, and each has a valid example."""
    names, number = [entry.name for entry in part.named], sum(entry.configurations for entry in part.named)
    if number != part.configurations or len(set(names)) < len(names):
        yield f"{', '.join(names)} rule out {number} configurations, but {part.by} rules out {part.configurations}"
    enumeration, memory = searched.enumeration, searched.memory
    if part.by == "legality rules":
        recorded = {entry.name: (entry.configurations, entry.example) for entry in part.named}
        for rule, right in enumeration.first_broken.items():
            if recorded.pop(rule, None) != (right, enumeration.examples[rule]):
                yield f"{rule} rules out {right} configurations, e.g. {enumeration.examples[rule]}"
        yield from (f"{rule} is no rule that a configuration breaks" for rule in recorded)
        return
    left_out = {
        "memory": [candidate.config for candidate in memory.rejected],
        "fewer recomputed layers": memory.spared,
        "less on the host": memory.kept_on_gpu,
        "tensor overlap": memory.not_overlapped,
    }
    right_name = LEFT_OUT_NAMES.get(part.by)
    if right_name is not None and names != [right_name]:
        yield f"{part.by} rules out by {', '.join(names)}, but must by {right_name}"
    configs = left_out.get(part.by, [candidate.config for candidate in memory.fitting])
    labels = {config.label() for config in configs}
    for entry in part.named:
        if entry.example not in labels:
            yield f"{entry.name} rules out {entry.example!r}, but {part.by} has no such configuration"


def joint_model_bounds(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: the joint CP-SAT model ran only if layers per stage are open, its splits are searched, and its bound suffices.

    The bound covers the splits that were not searched; the model itself proved it. ``verify`` with a proof runs it
    again.
    """
    model, certificate = plan.certificate.joint_model, plan.certificate
    if model is None:
        return
    if not layers_are_free(searched.instance, searched.space):
        yield "joint_model is given, and the layers of the stages are not free"
    if model.splits > len(searched.space.more_splits):  # the space may have the split of an old plan, too
        yield f"joint_model.splits is {model.splits}, {len(searched.space.more_splits)} are searched"
    if model.status not in ("INFEASIBLE", "FEASIBLE"):
        yield f"joint_model.status is {model.status!r}"
    if not model.bound_s >= certificate.lower_bound_s * (1 - ROUNDING):
        yield f"joint_model bounds {model.bound_s} s, but lower_bound_s is {certificate.lower_bound_s}"
    if model.bound_s > certificate.best_s * (1 + ROUNDING):
        yield f"joint_model bounds {model.bound_s} s, but it is asked only up to the {certificate.best_s} s of the plan"
    if model.status == "INFEASIBLE" and model.bound_s < certificate.best_s * (1 - CLOSED_GAP):
        yield f"joint_model has no faster split, and bounds {model.bound_s} s of {certificate.best_s}"


def other_numbers_are_bounded(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: numbers of hosts that the search skipped by their bounds take at least the certificate's lower bound; so do
    the configurations that it skipped on other numbers.
    """
    space = searched.space
    if space.others_below_s is not None and space.others_below_s < plan.certificate.lower_bound_s * (1 - REPRODUCED):
        yield f"lower_bound_s is {plan.certificate.lower_bound_s}, but others_below_s is {space.others_below_s}"
    if not space.world_sizes or "world_sizes" in space.narrowed:
        return
    least = LeastTimes(searched.instance, space)
    claimed_s = plan.certificate.lower_bound_s * (1 - REPRODUCED)
    for num_gpus in least.numbers:
        if num_gpus not in space.world_sizes and least.at_peak_s(num_gpus) < claimed_s and least(num_gpus) < claimed_s:
            bound_s = plan.certificate.lower_bound_s
            yield f"lower_bound_s is {bound_s}, {num_gpus} GPUs were not searched and may take {least(num_gpus)} s"


def bound_holds(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: lower bounds without a search are reproduced, and no placement is faster than the certificate's lower bound.

    With several GPU types only the placements are checked, because the search may know which types a stage can have.
    """
    certificate = plan.certificate
    for config, seconds in searched.bounded.faster:
        yield f"lower_bound_s is {certificate.lower_bound_s}, {config.label()} has a placement of {seconds} s"
    if len(searched.instance.cluster.gpu_kinds) > 1:
        return
    for part in certificate.proof:
        if part.by in CHEAP and part.bound_s is not None:
            reached = searched.num_from(part.bound_s, part.configurations)
            if reached < part.configurations:
                yield (
                    f"{part.by} rules out {part.configurations} configurations below {part.bound_s} s, by their work "
                    f"alone or over the best links only {reached} take as long"
                )
    unplaced = sum(part.configurations for part in certificate.proof if part.by == "no placement")
    if unplaced and searched.all_measured:
        memory = searched.memory
        roomless = num_without_room(searched.instance, memory.fitting, memory.capacity_bytes)
        if unplaced > roomless:
            yield f"{unplaced} configurations are recorded as having no placement, {roomless} have none"
    by_search = sum(part.configurations for part in certificate.proof if part.by not in (*CHEAP, *NOT_RUNNABLE))
    num_fitting = len(searched.memory.fitting)
    num_below = num_fitting - searched.num_from(searched.claimed_s, num_fitting - by_search)
    if num_below > by_search:
        yield f"the search rules out {by_search} configurations, but {num_below} can be faster over the best links"
