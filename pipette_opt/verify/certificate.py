"""Rules on the certificate, against the searched space enumerated again."""

from collections.abc import Callable, Iterator
from typing import get_args

from pipette_opt.base.types import ProofStep
from pipette_opt.candidates import covered, layers_are_free, left_out, searched_values
from pipette_opt.parallel import ParallelConfig, with_whole_layers
from pipette_opt.plans.notes import plan_notes
from pipette_opt.plans.plan import Plan, Proof
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.verify.alternatives import named_alternatives
from pipette_opt.verify.bounds import num_without_room
from pipette_opt.verify.common import CHEAP, CLOSED_GAP, REPRODUCED, ROUNDING
from pipette_opt.verify.space import Searched

SpaceRule = Callable[[Searched, Plan], Iterator[str]]
"""As a rule on the plan; it is given what was searched, enumerated again."""

LEFT_OUT = ("legality rules", "memory", "fewer recomputed layers", "less on the host", "tensor overlap")
"""Parts of a proof with what was not bounded."""

NOT_RUNNABLE = (*LEFT_OUT, "no placement")
"""Reasons that are no bound: a plan of these cannot run, or is another that recomputes or moves more."""


def plan_is_searched(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    The plan's configuration and those beside it are of the searched space, and fit; as many fit as is said.

    With block recomputation of more layers than memory asks for a configuration has less risk, and is no faster.
    """
    fitting = {one.config for one in searched.memory.fitting}
    fewest = {base: layers for config in fitting for base, layers in (_block_layers(config),)}
    named = {"parallel": plan.config} | {name: one.config for name, one in named_alternatives(plan)}
    for name, config in named.items():
        base, layers = _block_layers(config)
        if config not in fitting and not (config.recomputation == "block" and layers >= fewest.get(base, layers + 1)):
            yield f"{name} ({config.label()}) is not among the {len(fitting)} that are legal and fit"
    if plan.certificate.num_candidates != len(fitting):
        yield f"num_candidates is {plan.certificate.num_candidates}, {len(fitting)} are legal and fit"


def _block_layers(config: ParallelConfig) -> tuple[ParallelConfig, int]:
    """A configuration with one recomputed layer in place of all that block recomputation has, and how many it has."""
    if config.recomputation != "block":
        return config, 0
    return with_whole_layers(config, "block", 1), config.recompute_num_layers


def scope_is_reproduced(searched: Searched, plan: Plan) -> Iterator[str]:
    """What was searched and what was not follow from the space; the sentence says so."""
    proof = plan.certificate
    values = searched_values(searched.instance, searched.enumeration)
    for name in sorted({*values, *proof.searched}):
        said, right = proof.searched.get(name), values.get(name)
        if said != right:
            yield f"searched.{name} is {said}, the space has {right}"
    any_split = proof.joint_model is not None
    missing = left_out(searched.instance, searched.space, searched.enumeration, any_split=any_split)
    if proof.not_searched != missing:
        yield f"not_searched is {list(proof.not_searched)}, the space leaves out {list(missing)}"
    if proof.scope != (sentence := covered(searched.instance, missing)):
        yield f"scope is {proof.scope!r}, the space gives {sentence!r}"


def notes_are_reproduced(searched: Searched, plan: Plan) -> Iterator[str]:
    """The notes are those that follow from the job and the plan."""
    expected = plan_notes(searched.instance, plan.config, plan.estimate.iteration_time_s, searched.memory, plan.memory)
    yield from (f"the note {note!r} is missing" for note in expected if note not in plan.notes)
    yield from (f"the note {note!r} does not follow from the plan" for note in plan.notes if note not in expected)


def proof_adds_up(searched: Searched, plan: Plan) -> Iterator[str]:
    """Every combination has one reason, as many as there are have each, and no part's bound is below the whole's."""
    certificate, counts = plan.certificate, dict.fromkeys((*NOT_RUNNABLE, *get_args(ProofStep)), 0)
    for part in certificate.proof:
        if part.by not in counts or part.configurations < 1 or counts[part.by]:
            yield f"{part.configurations} configurations are ruled out by {part.by!r}"
            return
        counts[part.by] = part.configurations
        if (part.bound_s is None) != (part.by in NOT_RUNNABLE):
            yield f"what {part.by} rules out has bound_s {part.bound_s}"
        elif part.bound_s is not None and not part.bound_s >= certificate.lower_bound_s * (1 - ROUNDING):
            yield f"{part.by} bounds {part.bound_s} s, lower_bound_s is {certificate.lower_bound_s}"
    least_s = min((part.bound_s for part in certificate.proof if part.bound_s is not None), default=0.0)
    if least_s > certificate.best_s * (1 + CLOSED_GAP):
        yield f"every part bounds {least_s} s or more, and the fastest plan takes {certificate.best_s} s"
    by_bounds = len(searched.memory.fitting) - counts["search"] if certificate.proof else 0
    if certificate.num_pruned != by_bounds:
        yield f"num_pruned is {certificate.num_pruned}, {by_bounds} are ruled out without a search"
    if not certificate.proof:
        return  # the search was stopped before; bound_holds asks for all of it
    enumeration, memory = searched.enumeration, searched.memory
    fitting = len(memory.fitting)
    for name, said, right in (
        ("legality rules", counts["legality rules"], enumeration.num_combinations - len(enumeration.candidates)),
        ("memory", counts["memory"], len(memory.rejected)),
        ("fewer recomputed layers", counts["fewer recomputed layers"], len(memory.spared)),
        ("less on the host", counts["less on the host"], len(memory.kept_on_gpu)),
        ("tensor overlap", counts["tensor overlap"], len(memory.not_overlapped)),
        ("everything else", sum(counts.values()) - sum(counts[name] for name in LEFT_OUT), fitting),
    ):
        if said != right:
            yield f"{said} configurations are ruled out by {name}, it should be {right}"
    for part in certificate.proof:
        if part.named:
            yield from _names_add_up(searched, part)


def _names_add_up(searched: Searched, part: Proof) -> Iterator[str]:
    """Rules, bounds and engines of one part: as many as it has in all; rules with their counts, all with an example."""
    names, number = [one.name for one in part.named], sum(one.configurations for one in part.named)
    if number != part.configurations or len(set(names)) < len(names):
        yield f"{', '.join(names)} rule out {number} configurations, {part.by} rules out {part.configurations}"
    enumeration, memory = searched.enumeration, searched.memory
    if part.by == "legality rules":
        said = {one.name: (one.configurations, one.example) for one in part.named}
        for rule, right in enumeration.first_broken.items():
            if said.pop(rule, None) != (right, enumeration.examples[rule]):
                yield f"{rule} rules out {right} configurations, e.g. {enumeration.examples[rule]}"
        yield from (f"{rule} is no rule that a configuration breaks" for rule in said)
        return
    left_out = {
        "memory": [one.config for one in memory.rejected],
        "fewer recomputed layers": memory.spared,
        "less on the host": memory.kept_on_gpu,
        "tensor overlap": memory.not_overlapped,
    }
    labels = {one.label() for one in left_out.get(part.by, [one.config for one in memory.fitting])}
    for one in part.named:
        if one.example not in labels:
            yield f"{one.name} rules out {one.example!r}, {part.by} has no such configuration"


def joint_model_bounds(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    The joint model was asked where the layers are free, handed on the splits that are searched, and bounds all others.

    That no other split is faster than its bound is what the model proved; it is asked again with a proof.
    """
    model, certificate = plan.certificate.joint_model, plan.certificate
    if model is None:
        return
    if not layers_are_free(searched.instance, searched.space):
        yield "joint_model is given, and the layers of the stages are not free"
    if model.splits > len(searched.space.more_splits):  # there may be that of an old plan, too
        yield f"joint_model.splits is {model.splits}, {len(searched.space.more_splits)} are searched"
    if model.status not in ("INFEASIBLE", "FEASIBLE"):
        yield f"joint_model.status is {model.status!r}"
    if not model.bound_s >= certificate.lower_bound_s * (1 - ROUNDING):
        yield f"joint_model bounds {model.bound_s} s, lower_bound_s is {certificate.lower_bound_s}"
    if model.status == "INFEASIBLE" and model.bound_s < certificate.best_s * (1 - CLOSED_GAP):
        yield f"joint_model has no faster split, and bounds {model.bound_s} s of {certificate.best_s}"


def other_numbers_are_bounded(searched: Searched, plan: Plan) -> Iterator[str]:
    """Numbers of GPUs of whole hosts that the search left out by time take at least as long as the certificate says."""
    space = searched.space
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
    Bounds that need no search are reproduced, and no placement that can be simulated is faster than the certificate's.

    Where kinds of GPU differ, only the last: a cheap bound may know which kind a stage can be on.
    """
    certificate, fitting = plan.certificate, {one.config for one in searched.memory.fitting}
    for one in plan.baselines:
        if one.config in fitting and one.iteration_time_s < searched.claimed_s:
            yield f"lower_bound_s is {certificate.lower_bound_s}, baseline {one.name} takes {one.iteration_time_s} s"
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
                    f"alone or over the best links {reached} take as long"
                )
    unplaced = sum(part.configurations for part in certificate.proof if part.by == "no placement")
    if unplaced and searched.all_measured:
        memory = searched.memory
        roomless = num_without_room(searched.instance, memory.fitting, memory.capacity_bytes)
        if unplaced > roomless:
            yield f"{unplaced} configurations are said to have no placement, {roomless} have none"
    said = sum(part.configurations for part in certificate.proof if part.by not in (*CHEAP, *NOT_RUNNABLE))
    num_fitting = len(searched.memory.fitting)
    num_below = num_fitting - searched.num_from(searched.claimed_s, num_fitting - said)
    if num_below > said:
        yield f"the search rules out {said} configurations, {num_below} can be faster over the best links"
