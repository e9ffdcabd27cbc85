"""Experts: our groups and rules against megatron-core's own."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from unittest import mock

import numpy as np
import pytest
from clients_here import require_megatron_release
from factories import TINY, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import RankOrder
from pipette_opt.candidates.expert_rules import expert_ranks, expert_widths, experts
from pipette_opt.costs.placed_experts import check_expert_ranks
from pipette_opt.costs.stage import expert_block
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.specs import TrainingSpec

require_megatron_release()

with warnings.catch_warnings():
    # What megatron-core says on import without Transformer Engine and Apex, and torch about its use of torch.jit.
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed", category=UserWarning)
    warnings.filterwarnings("ignore", message="The following imports from `dynamic_context.py`")
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
    import torch
    from megatron.core import parallel_state
    from megatron.core.parallel_state import RankGenerator
    from megatron.core.transformer.moe.moe_layer import BaseMoELayer
    from megatron.core.utils import divide
    from torch.testing._internal.distributed.fake_pg import FakeStore

pytestmark = pytest.mark.client("megatron.core")

MOE = replace(TINY, name="moe", num_experts=8, add_bias_linear=False, add_qkv_bias=False)
SIZES = [
    (tp, cp, dp, pp, ep, etp)
    for tp, cp, dp, pp, ep in product((1, 2, 4), (1, 2), (1, 2, 4, 6), (1, 2, 3), (1, 2, 4, 8))
    for etp in (None, 1, 2)
]


def sized(sizes: tuple[int, ...]) -> ParallelConfig:
    """A configuration of these degrees."""
    tp, cp, dp, pp, ep, etp = sizes
    return make_config(
        tp=tp,
        pp=pp,
        dp=dp,
        num_layers=12,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        sequence_parallel=tp > 1,
    )


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
def test_groups_of_experts(order: RankOrder) -> None:
    """Where ranks can be numbered, the groups that we cost are RankGenerator's; elsewhere its pipelines differ."""
    numbered = 0
    for sizes in SIZES:
        tp, cp, dp, pp, ep, _ = sizes
        chosen = sized(sizes)
        etp, block = chosen.expert_tensor_size, expert_block(chosen)
        if (tp * cp * dp) % block:
            continue
        theirs = RankGenerator(tp=etp, ep=ep, dp=chosen.expert_data_parallel_size, pp=pp, cp=1, order=order)
        dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
        if theirs.get_ranks("pp") != dense.get_ranks("pp"):
            with pytest.raises(InputError, match="megatron-core wants"):
                check_expert_ranks(MOE, chosen, order)
            continue
        check_expert_ranks(MOE, chosen, order)
        numbered += 1
        blocks = RankGrid.of(chosen, order).ranks().reshape(pp, -1, ep, etp)
        ours = {
            "tp": blocks.reshape(-1, etp),
            "ep": blocks.swapaxes(2, 3).reshape(-1, ep),
            "tp-ep": blocks.reshape(-1, block),
            "dp": blocks.transpose(0, 2, 3, 1).reshape(-1, chosen.expert_data_parallel_size),
        }
        for name, groups in ours.items():
            assert sorted(groups.tolist()) == sorted(theirs.get_ranks(name)), (sizes, name)
    assert numbered > (300 if order == "tp-cp-ep-dp-pp" else 80)


@contextmanager
def world(chosen: ParallelConfig) -> Iterator[None]:
    """Process groups of rank 0 on a backend that sends nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=chosen.world_size)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=chosen.tensor_model_parallel_size,
            pipeline_model_parallel_size=chosen.pipeline_model_parallel_size,
            context_parallel_size=chosen.context_parallel_size,
            expert_model_parallel_size=chosen.expert_model_parallel_size,
            expert_tensor_parallel_size=chosen.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


class Counted(BaseMoELayer):
    """The part of the layer that counts experts."""

    def forward(self, hidden_states: torch.Tensor) -> None:
        """Not run."""


def megatron_refuses(chosen: ParallelConfig, num_experts: int, width: int) -> bool:
    """Whether the groups, the count of local experts or the split of their width fails."""
    settings = mock.Mock(num_moe_experts=num_experts)
    try:
        with world(chosen):
            groups = mock.Mock(
                ep=parallel_state.get_expert_model_parallel_group(),
                expt_tp=parallel_state.get_expert_tensor_parallel_group(),
            )
            Counted(config=settings, pg_collection=groups)
            divide(width, torch.distributed.get_world_size(groups.expt_tp))
    except (AssertionError, RuntimeError, ValueError):
        return True
    return False


def test_same_verdict_on_experts() -> None:
    """On random sizes our rules and megatron-core agree; each rule is the only one broken in some."""
    rng = np.random.default_rng(1)
    training = TrainingSpec(global_batch_size=48, seq_length=1024)
    alone: Counter[str] = Counter()
    for _ in range(400):
        num_experts, width = int(rng.choice([4, 6, 8, 12])), int(rng.choice([64, 64, 65, 66]))
        chosen = sized(
            (
                int(rng.choice([1, 2, 4])),
                int(rng.choice([1, 2])),
                int(rng.choice([1, 2, 3, 4, 6])),
                int(rng.choice([1, 2])),
                int(rng.choice([1, 2, 3, 4, 8])),
                [None, 1, 2][rng.integers(3)],  # type: ignore[arg-type]
            )
        )
        model = replace(MOE, num_experts=num_experts, moe_ffn_hidden_size=width)
        broken = [rule.__name__ for rule in (experts, expert_ranks, expert_widths) if rule(model, training, chosen)]
        assert bool(broken) == megatron_refuses(chosen, num_experts, width), (chosen, num_experts, width, broken)
        if len(broken) < 2:
            alone[broken[0] if broken else "none"] += 1
    assert alone["none"] > 50, alone
    assert all(alone[name] >= 5 for name in ("experts", "expert_ranks", "expert_widths")), alone


def test_unnumbered_order_is_refused_before_it_is_simulated() -> None:
    """The check is the one that the simulator makes, with the sizes in the message."""
    given = make_job(make_cluster(2, gpus=4), MOE)
    with pytest.raises(InputError, match="here 4, to be tensor \\* context parallel size, here 2"):
        check_expert_ranks(given.model, sized((2, 1, 4, 2, 2, None)), "tp-cp-ep-pp-dp")
