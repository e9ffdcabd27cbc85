"""Coverage of a certificate: values searched, choices left out, and configurations ruled out by each reason."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from pipette_opt.base.errors import InfeasibleError, NoPlanInTimeError
from pipette_opt.base.types import ProofStep
from pipette_opt.base.units import counted
from pipette_opt.candidates import covered, left_out, searched_values
from pipette_opt.certify.state import Reason
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.plans.plan import Proof, RuledOut
from pipette_opt.prepare import Prepared


def searched(prepared: Prepared) -> dict[str, tuple[Any, ...]]:
    """Return the values of each searched dimension among the legal configurations."""
    return searched_values(prepared.instance, prepared.enumeration)


def not_searched(prepared: Prepared) -> tuple[str, ...]:
    """Return the choices that the search space leaves out, each as a short text."""
    any_split = prepared.joined is not None
    return left_out(prepared.instance, prepared.space, prepared.enumeration, any_split=any_split)


def scope(prepared: Prepared) -> str:
    """Return a text about the plans that the bound covers, and those that it does not."""
    return covered(prepared.instance, not_searched(prepared))


def proof(prepared: Prepared, reasons: Mapping[ParallelConfig, Reason]) -> tuple[Proof, ...]:
    """
    Return the number of configurations that each step of the search ruled out, by rule, bound or engine.

    Parameters
    ----------
    reasons
        Reason of each configuration that fits.
    """
    enumeration, memory = prepared.enumeration, prepared.memory
    nothing = Reason("best links", "best links", float("inf"))
    found = {fits.config: reasons.get(fits.config, nothing) for fits in memory.fitting}
    unplaced = [config for config, reason in found.items() if reason.bound_s == float("inf")]
    legality = tuple(
        RuledOut(name=rule, configurations=number, example=enumeration.examples[rule])
        for rule, number in enumeration.first_broken.items()
    )
    parts = [
        _part("legality rules", legality),
        _part("memory", _named({miss.config: "predicted peak" for miss in memory.rejected})),
        _part("fewer recomputed layers", _named(dict.fromkeys(memory.spared, "fewer fit"))),
        _part("less on the host", _named(dict.fromkeys(memory.kept_on_gpu, "less fits"))),
        _part("tensor overlap", _named(dict.fromkeys(memory.not_overlapped, "fits with it"))),
        _part("no placement", _named(dict.fromkeys(unplaced, "hosts or links"))),
    ]
    for step in get_args(ProofStep):
        by_step = {
            config: reason for config, reason in found.items() if reason.step == step and reason.bound_s < float("inf")
        }
        bound_s = min((reason.bound_s for reason in by_step.values()), default=None)
        parts.append(_part(step, _named({config: reason.name for config, reason in by_step.items()}), bound_s))
    return tuple(part for part in parts if part.configurations)


def _part(by: str, named: tuple[RuledOut, ...], bound_s: float | None = None) -> Proof:
    return Proof(by=by, configurations=sum(part.configurations for part in named), bound_s=bound_s, named=named)


def _named(names: Mapping[ParallelConfig, str]) -> tuple[RuledOut, ...]:
    """Count configurations by name, most frequent name first, each with its first configuration as example."""
    counts, examples = Counter(names.values()), dict[str, str]()
    for config, name in names.items():
        if name not in examples:
            examples[name] = config.label()
    return tuple(
        RuledOut(name=name, configurations=number, example=examples[name]) for name, number in counts.most_common()
    )


def why_nothing(prepared: Prepared) -> InfeasibleError:
    """
    Return an error that explains why no plan was found although configurations are legal and fit.

    Either time was too short, or no placement exists.
    """
    counts = prepared.problem.candidates
    cluster = prepared.instance.cluster
    missing = int((~cluster.usable_links).sum()) - cluster.num_nodes
    bounds_s = {} if prepared.pruned is None else prepared.pruned.bounds_s
    num_left = sum(
        bounds_s.get(without_overlap(left.config), float("inf")) < float("inf") for left in prepared.left_out
    )
    if num_left:
        return NoPlanInTimeError(
            f"No plan was found within the time limit: {counted(len(prepared.memory.fitting), 'candidate')} are legal "
            f"and fit some host, {num_left:,} of them were not placed, and the others cannot be ({missing} directed "
            "pairs of hosts were not measured). Give more time with --time-limit, or fewer GPUs with --num-gpus."
        )
    return InfeasibleError(
        f"{len(prepared.memory.fitting)} candidates are legal and fit some host, but none of their {len(counts)} host "
        f"tiles (parts of the model on one host) can be placed on the {cluster.num_nodes} hosts of {cluster.name}: too "
        f"few hosts have the memory, or links are missing ({missing} directed pairs were not measured) or far too slow."
        " Allow fewer GPUs with --num-gpus, other degrees, more recomputation, or import the links with a fill value."
    )
