"""What a certificate covers: the values searched, what was left out, and which reason ruled out how much."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from pipette_opt.base.errors import InfeasibleError, NoPlanInTimeError
from pipette_opt.base.types import ProofStep
from pipette_opt.base.units import counted
from pipette_opt.candidates import covered, left_out, searched_values
from pipette_opt.certify.ledger import Reason
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.plans.plan import Proof, RuledOut
from pipette_opt.prepare import Prepared


def searched(prepared: Prepared) -> dict[str, tuple[Any, ...]]:
    """The values of each dimension among the legal configurations."""
    return searched_values(prepared.instance, prepared.enumeration)


def not_searched(prepared: Prepared) -> tuple[str, ...]:
    """What the job could have and the search space has not, each a short text."""
    any_split = prepared.joined is not None
    return left_out(prepared.instance, prepared.space, prepared.enumeration, any_split=any_split)


def scope(prepared: Prepared) -> str:
    """What the bound covers, and what it does not."""
    return covered(prepared.instance, not_searched(prepared))


def proof(prepared: Prepared, reasons: Mapping[ParallelConfig, Reason]) -> tuple[Proof, ...]:
    """
    Who ruled out how many configurations: steps of the search, each with its rules, bounds and engines by name.

    Parameters
    ----------
    reasons
        Of each configuration that was not left out before.
    """
    enumeration, memory, pruned = prepared.enumeration, prepared.memory, prepared.pruned
    found = dict(reasons)
    for one in memory.fitting:
        if one.config not in found and pruned is not None:
            base = without_overlap(one.config)
            step: ProofStep = "work alone" if base in pruned.by_work else "best links"
            if base in pruned.by_family:
                step = "any layers"
            found[one.config] = Reason(step, step, pruned.bounds_s[base])
    nothing = Reason("best links", "best links", float("inf"))
    placed = {one.config: found.get(one.config, nothing) for one in memory.fitting}
    unplaced = [config for config, reason in placed.items() if reason.bound_s == float("inf")]
    legality = tuple(
        RuledOut(name=rule, configurations=number, example=enumeration.examples[rule])
        for rule, number in enumeration.first_broken.items()
    )
    parts = [
        _part("legality rules", legality),
        _part("memory", _named({one.config: "predicted peak" for one in memory.rejected})),
        _part("fewer recomputed layers", _named(dict.fromkeys(memory.spared, "fewer fit"))),
        _part("less on the host", _named(dict.fromkeys(memory.kept_on_gpu, "less fits"))),
        _part("tensor overlap", _named(dict.fromkeys(memory.not_overlapped, "fits with it"))),
        _part("no placement", _named(dict.fromkeys(unplaced, "hosts or links"))),
    ]
    for step in get_args(ProofStep):
        those = {one: reason for one, reason in found.items() if reason.step == step and reason.bound_s < float("inf")}
        bound_s = min((reason.bound_s for reason in those.values()), default=None)
        parts.append(_part(step, _named({one: reason.name for one, reason in those.items()}), bound_s))
    return tuple(part for part in parts if part.configurations)


def _part(by: str, named: tuple[RuledOut, ...], bound_s: float | None = None) -> Proof:
    return Proof(by=by, configurations=sum(one.configurations for one in named), bound_s=bound_s, named=named)


def _named(names: Mapping[ParallelConfig, str]) -> tuple[RuledOut, ...]:
    """Configurations by name, most first, with the first of each as example."""
    counts, examples = Counter(names.values()), dict[str, str]()
    for config, name in names.items():
        if name not in examples:
            examples[name] = config.label()
    return tuple(
        RuledOut(name=name, configurations=number, example=examples[name]) for name, number in counts.most_common()
    )


def why_nothing(prepared: Prepared) -> InfeasibleError:
    """Why there is no plan although some candidates are legal and fit: in the time there was, or at all."""
    counts = prepared.problem.candidates
    cluster = prepared.instance.cluster
    missing = int((~cluster.usable_links).sum()) - cluster.num_nodes
    ruled_out = 0 if prepared.pruned is None else prepared.pruned.ruled_out
    if ruled_out and prepared.ruled_out_s < float("inf"):
        return NoPlanInTimeError(
            f"No plan was found within the time limit: {counted(len(prepared.memory.fitting), 'candidate')} are legal "
            f"and fit some host, {ruled_out:,} of them were not placed, and the others cannot be ({missing} directed "
            "pairs of hosts were not measured). Give more time with --time-limit, or fewer GPUs with --num-gpus."
        )
    return InfeasibleError(
        f"{len(prepared.memory.fitting)} candidates are legal and fit some host, but none of their {len(counts)} "
        f"packings can be placed on the {cluster.num_nodes} hosts of {cluster.name}: too few hosts have the memory, "
        f"or links are missing ({missing} directed pairs were not measured) or far too slow. Allow fewer GPUs with "
        "--num-gpus, other degrees, more recomputation, or import the links with a fill value."
    )
