"""megatron-core's own rank generator gives the groups that the exported rank map says."""

import json
import warnings
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from clients_here import require_at_collection
from factories import make_config, make_plan

from pipette_opt.base.types import RankOrder
from pipette_opt.export.targets import export
from pipette_opt.parallel import Placement
from pipette_opt.plans.plan import Plan

require_at_collection("megatron.core")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.parallel_state import RankGenerator

pytestmark = pytest.mark.client("megatron.core")

ORDERS: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
SIZES = [
    sizes
    for sizes in product((1, 2, 4), (1, 2), (1, 2, 4), (1, 2, 3), (1, 2, 4), (None, 1))
    if np.prod(sizes[:4]) <= 32
]
"""Tensor, context, data, pipeline, expert; tensor size of experts."""


@cache
def base() -> Plan:
    """Simulated once."""
    return make_plan()


def map_of(sizes: tuple[Any, ...], order: RankOrder) -> Plan:
    """A plan of these degrees; only its rank map is asked for."""
    tp, cp, dp, pp, ep, etp = sizes
    chosen = make_config(
        tp=tp,
        pp=pp,
        dp=dp,
        num_layers=12,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    ranks = np.arange(chosen.world_size)
    return replace(
        base(),
        config=chosen,
        gpus_per_node=4,
        hosts=tuple(f"h{number}" for number in range(-(-chosen.world_size // 4))),
        placement=Placement(order=order, node=ranks // 4, local_rank=ranks % 4),
    )


def groups(rows: list[dict[str, Any]], *along: str, among: tuple[str, ...]) -> list[list[int]]:
    """Ranks that differ in some coordinates only, each group in rank order."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in among if name not in along)].append(row["rank"])
    return sorted(found.values())


@pytest.mark.parametrize("order", ORDERS)
def test_dense_groups(order: RankOrder) -> None:
    """Tensor, context, data and pipeline groups, and those over several of them, for every size."""
    for sizes in SIZES:
        tp, cp, dp, pp, ep, etp = sizes
        if ep > 1 or etp is not None:
            continue
        theirs = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
        rows = json.loads(export(map_of(sizes, order), "rankmap-json")["rankmap.json"])["ranks"]
        for along in ("tp", "cp", "dp", "pp", "tp-pp", "dp-cp", "tp-cp", "tp-dp-cp"):
            ours = groups(rows, *along.split("-"), among=("tp", "cp", "dp", "pp"))
            assert ours == sorted(theirs.get_ranks(along)), (sizes, along)


@pytest.mark.parametrize("order", ORDERS)
def test_expert_groups(order: RankOrder) -> None:
    """Expert groups, wherever megatron-core accepts the sizes: expert and dense pipeline groups must agree."""
    accepted = 0
    for sizes in SIZES:
        tp, cp, dp, pp, ep, etp = sizes
        inner = tp if etp is None else etp
        if (tp * cp * dp) % (inner * ep):
            continue
        experts = RankGenerator(tp=inner, ep=ep, dp=tp * cp * dp // (inner * ep), pp=pp, cp=1, order=order)
        dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
        if experts.get_ranks("pp") != dense.get_ranks("pp"):
            continue
        accepted += 1
        rows = json.loads(export(map_of(sizes, order), "rankmap-json")["rankmap.json"])["ranks"]
        for group in experts.get_ranks("ep"):
            assert [rows[rank]["ep"] for rank in group] == list(range(ep)), sizes
            assert len({rows[rank]["pp"] for rank in group}) == 1
        for group in (*experts.get_ranks("tp"), *experts.get_ranks("dp"), *experts.get_ranks("pp")):
            assert len({rows[rank]["ep"] for rank in group}) == 1, sizes
    assert accepted > 60
