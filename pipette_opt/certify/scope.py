"""What a certificate covers: the values searched, what was left out, and which reason ruled out how much."""

from collections.abc import Mapping
from typing import Any, get_args

from pipette_opt.base.types import ProofStep
from pipette_opt.candidates import covered, left_out, searched_values
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.plans.plan import Proof
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


def proof(prepared: Prepared, steps: Mapping[ParallelConfig, tuple[ProofStep, float]]) -> tuple[Proof, ...]:
    """
    Which reason ruled out how many configurations.

    Parameters
    ----------
    steps
        Of each configuration that was not left out before: the last step that one of its packings needed, and the time
        in seconds that none of its plans is below.
    """
    enumeration, memory = prepared.enumeration, prepared.memory
    found = dict(steps)
    for one in memory.fitting:
        if one.config not in found and prepared.pruned is not None:
            base, pruned = without_overlap(one.config), prepared.pruned
            found[one.config] = ("work alone" if base in pruned.by_work else "best links", pruned.bounds_s[base])
    unplaced = [one for one in memory.fitting if found.get(one.config, ("best links", float("inf")))[1] == float("inf")]
    parts = [
        Proof(
            by="legality rules",
            configurations=enumeration.num_combinations - len(enumeration.candidates),
            bound_s=None,
        ),
        Proof(by="memory", configurations=len(memory.rejected), bound_s=None),
        Proof(by="fewer recomputed layers", configurations=len(memory.spared), bound_s=None),
        Proof(by="no placement", configurations=len(unplaced), bound_s=None),
    ]
    for step in get_args(ProofStep):
        bounds = [bound_s for by, bound_s in found.values() if by == step and bound_s < float("inf")]
        parts.append(Proof(by=step, configurations=len(bounds), bound_s=min(bounds, default=None)))
    return tuple(part for part in parts if part.configurations)
