"""
Placement of experts on expert-parallel ranks that minimises the load of the busiest rank, by CP-SAT.

Every rank holds equally many experts (slots). With replicas, copies of an expert on different ranks share its tokens
evenly (FlexMoE, arXiv 2304.03946, replicates hot experts so). No launcher places or replicates experts in training. A
placement without replicas is a checkpoint with its experts in another order.
"""

from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray

LOAD_RESOLUTION = 100_000
"""Integer units in the mean load of a rank. Chosen."""

MAX_COPIES = 4
"""Largest number of copies of one expert. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlacement:
    """
    Placement of one layer's experts.

    Parameters
    ----------
    experts_of_rank
        Expert numbers of each rank, from 0, ascending.
    imbalance
        Load of the busiest rank over the mean.
    bound
        Lower bound on the imbalance of every placement.
    """

    experts_of_rank: tuple[tuple[int, ...], ...]
    imbalance: float
    bound: float


def place_experts(loads: FloatArray, ranks: int, spare_slots: int = 0, work: float = 2.0) -> ExpertPlacement:
    """
    Place one layer's experts so that the busiest rank has the least load.

    Parameters
    ----------
    loads
        Load of each expert, shape ``(num_experts,)``; not negative, at least one positive.
    ranks
        Number of ranks, a divisor of the number of experts.
    spare_slots
        Number of further experts on each rank; each is a copy of an expert that the rank lacks.
    work
        Limit in CP-SAT's deterministic time, roughly seconds. If it is reached, the bound may be below the placement.
    """
    num_experts = len(loads)
    if ranks < 1 or num_experts % ranks:
        raise InputError("ranks", f"must divide the {num_experts} experts, got {ranks}.")
    slots = num_experts // ranks + spare_slots
    most_copies = min(MAX_COPIES, ranks) if spare_slots else 1
    mean = loads.sum() / ranks
    first = _greedy(loads, ranks, slots, most_copies)
    floor = max(1.0, float(loads.max()) / most_copies / mean)
    if _busiest(first, loads) / mean <= floor * (1 + 1 / LOAD_RESOLUTION):
        return _placement(first, loads, floor)
    found, bound = _solve(loads, ranks, slots, most_copies, first, work)
    best = min((first, found), key=lambda held: _busiest(held, loads))
    return _placement(best, loads, max(floor, bound))


def _placement(held: list[list[int]], loads: FloatArray, bound: float) -> ExpertPlacement:
    imbalance = _busiest(held, loads) / (loads.sum() / len(held))
    return ExpertPlacement(
        experts_of_rank=tuple(tuple(sorted(experts)) for experts in held),
        imbalance=imbalance,
        bound=min(bound, imbalance),
    )


def _busiest(held: list[list[int]], loads: FloatArray) -> float:
    copies = np.bincount([expert for experts in held for expert in experts], minlength=len(loads))
    return max(float(sum(loads[expert] / copies[expert] for expert in experts)) for experts in held)


def _greedy(loads: FloatArray, ranks: int, slots: int, most_copies: int) -> list[list[int]]:
    """
    Return the experts of each rank by a greedy rule.

    Experts with the most load per copy get further copies. Then copies go to the least busy rank, largest load first.
    """
    copies = np.ones(len(loads), dtype=np.int64)
    for _ in range(ranks * slots - len(loads)):
        each = np.where(copies < most_copies, loads / copies, -1.0)
        copies[int(each.argmax())] += 1
    held: list[list[int]] = [[] for _ in range(ranks)]
    busy = np.zeros(ranks)
    for expert in np.argsort(-loads / copies, kind="stable").tolist():
        for _ in range(int(copies[expert])):
            able = [rank for rank in range(ranks) if len(held[rank]) < slots and expert not in held[rank]]
            if not able:  # the last free slots are on ranks that hold this expert: another expert makes room
                rank = next(rank for rank in range(ranks) if len(held[rank]) < slots)
                other, moved = _room(held, expert, rank)
                held[other].remove(moved)
                held[other].append(expert)
                held[rank].append(moved)
                busy[other] += (loads[expert] / copies[expert]) - loads[moved] / copies[moved]
                busy[rank] += loads[moved] / copies[moved]
                continue
            rank = min(able, key=busy.__getitem__)
            held[rank].append(expert)
            busy[rank] += loads[expert] / copies[expert]
    return held


def _room(held: list[list[int]], expert: int, rank: int) -> tuple[int, int]:
    """Return a rank without the expert, and an expert of that rank which ``rank`` lacks."""
    for other, its in enumerate(held):
        if expert not in its:
            for moved in its:
                if moved not in held[rank]:
                    return other, moved
    raise AssertionError("an expert has more copies than ranks.")


def _solve(
    loads: FloatArray, ranks: int, slots: int, most_copies: int, first: list[list[int]], work: float
) -> tuple[list[list[int]], float]:
    """Return the best placement that CP-SAT finds from a warm start, and a lower bound on the imbalance."""
    model = cp_model.CpModel()
    unit = loads.sum() / ranks / LOAD_RESOLUTION
    counts = range(1, most_copies + 1)
    held = {(e, r): model.new_bool_var(f"held_{e}_{r}") for e in range(len(loads)) for r in range(ranks)}
    of = {(e, c): model.new_bool_var(f"copies_{e}_{c}") for e in range(len(loads)) for c in counts}
    busiest = model.new_int_var(0, 2 * LOAD_RESOLUTION * ranks, "busiest")
    for e in range(len(loads)):
        model.add_exactly_one(of[e, c] for c in counts)
        model.add(sum(held[e, r] for r in range(ranks)) == sum(c * of[e, c] for c in counts))
    for r in range(ranks):
        model.add(sum(held[e, r] for e in range(len(loads))) == slots)
        terms = []
        for e in range(len(loads)):
            if most_copies == 1:
                terms.append(int(loads[e] / unit) * held[e, r])
                continue
            for c in counts:
                both = model.new_bool_var(f"both_{e}_{r}_{c}")
                model.add_bool_or(both, ~held[e, r], ~of[e, c])
                terms.append(int(loads[e] / c / unit) * both)
        model.add(sum(terms) <= busiest)
    copies = np.bincount([expert for experts in first for expert in experts], minlength=len(loads))
    for (e, r), variable in held.items():
        model.add_hint(variable, e in first[r])
    for (e, c), variable in of.items():
        model.add_hint(variable, int(copies[e]) == c)
    model.minimize(busiest)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    # Loads are rounded down, so the bound holds without a margin.
    bound = solver.best_objective_bound / LOAD_RESOLUTION
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return first, bound
    found = [[e for e in range(len(loads)) if solver.boolean_value(held[e, r])] for r in range(ranks)]
    return found, bound


def place_layers(loads: FloatArray, ranks: int, spare_slots: int = 0, work: float = 2.0) -> tuple[ExpertPlacement, ...]:
    """
    Return a placement of the experts for each layer.

    Parameters
    ----------
    loads
        Loads of the experts, shape ``(layers, num_experts)``.
    work
        Limit in CP-SAT's deterministic time, roughly seconds, for all layers together.
    """
    return tuple(place_experts(layer, ranks, spare_slots, work / len(loads)) for layer in loads)
