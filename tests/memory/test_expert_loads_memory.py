"""Memory and volumes of the busiest expert-parallel rank."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_config

from pipette_opt.costs.experts import expert_traffic, rows_of_expert
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.activations import moved_bytes
from pipette_opt.specs.expert_loads import RankImbalance

MOE = replace(LLAMA_8B, num_layers=8, num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=4096)
EVEN = TrainingSpec(global_batch_size=32, seq_length=4096)
SKEWED = replace(EVEN, rank_imbalances=(RankImbalance(ranks=2, imbalance=1.5), RankImbalance(ranks=4, imbalance=2.0)))


@pytest.mark.parametrize(("ranks", "imbalance"), [(1, 1.0), (2, 1.5), (4, 2.0)])
def test_busiest_rank(ranks: int, imbalance: float) -> None:
    """Tokens, bytes sent and copies kept grow by what its size of group is said to have; one rank has all of them."""
    split = make_config(dp=4, expert_model_parallel_size=ranks)
    assert rows_of_expert(MOE, SKEWED, split) == pytest.approx(imbalance * rows_of_expert(MOE, EVEN, split))
    sent = [expert_traffic(MOE, one, split).sent_bytes for one in (SKEWED, EVEN)]
    assert sent[0] == pytest.approx(imbalance * sent[1])
    even, skewed = (stage_table(MOE, one, [split]) for one in (EVEN, SKEWED))
    grown = formula_bytes(skewed).total[0] - formula_bytes(even).total[0]
    # A copy of a token keeps its input, the gated width twice and once for the second product, and its number.
    copies = (imbalance - 1) * 2 * 4096
    at_least = 8 * copies * (2 * 4096 + 2 * 2 * 4096 + 2 * 4096 + 4)
    assert grown >= at_least * 0.99


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_offloaded_inputs_are_those_of_the_busiest_rank(imbalance: float) -> None:
    """Inputs of experts that go to the host are those of every copy on the busiest rank."""
    split = make_config(dp=4, num_layers=8, expert_model_parallel_size=2)
    given = replace(EVEN, expert_imbalance=imbalance, offload_modules=("expert_fc1",))
    assert moved_bytes(MOE, given, split, MOE.layers[0]) == pytest.approx(imbalance * 2 * 4096 * 2 * 4096)


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_recomputed_activations_are_those_of_the_busiest_rank(imbalance: float) -> None:
    """Recomputation frees the activation's output of every copy that the busiest rank has."""
    split = make_config(dp=4, num_layers=8, expert_model_parallel_size=2)
    again = replace(split, recompute_granularity="selective", recompute_modules=("moe_act",))
    given = replace(EVEN, expert_imbalance=imbalance)
    kept, less = (formula_bytes(stage_table(MOE, given, [config])).saved[0] for config in (split, again))
    assert kept - less == pytest.approx(8 * imbalance * 2 * 4096 * 2 * 4096)


def test_an_imbalance_for_all_sizes_is_cut_to_their_number() -> None:
    """Two ranks cannot have more than twice the mean on one."""
    given = replace(EVEN, expert_imbalance=3.0)
    assert [given.imbalance(ranks) for ranks in (1, 2, 4)] == [1.0, 2.0, 3.0]
    assert SKEWED.imbalance(8) == 1.0
