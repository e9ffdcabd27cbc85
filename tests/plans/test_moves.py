"""What GPUs hold, and what they have to load."""

from dataclasses import replace

import numpy as np
import pytest
from factories import HOST_ORDER, LLAMA_8B, TINY, make_config, small_config

from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.moves import Layout, Move, hosts_that_load, layers_of_stages, moves
from pipette_opt.specs import ModelSpec

HOSTS = ("n0", "n1", "n2", "n3", "n4")


def layout(chosen: ParallelConfig, hosts: tuple[int, ...] = HOST_ORDER, names: tuple[str, ...] = HOSTS) -> Layout:
    """A configuration on hosts of four GPUs, one stage a host."""
    block = next(one for one in host_tiles(chosen, 4, "slurm") if one.stages == 1)
    placement = tile_placement(chosen, block, np.array(hosts).reshape(block.node_grid(chosen)))
    return Layout(config=chosen, placement=placement, hosts=names)


def total(found: tuple[Move, ...]) -> tuple[int, int]:
    """Bytes of parameters and of optimizer states."""
    return sum(move.parameter_bytes for move in found), sum(move.optimizer_bytes for move in found)


def test_layers_of_interleaved_stages() -> None:
    """Two chunks: the stages are gone through twice."""
    plain = make_config(tp=1, pp=2, dp=1, mbs=1, layers_per_stage=(3, 5))
    assert layers_of_stages(plain) == [(0, 1, 2), (3, 4, 5, 6, 7)]
    chunks = make_config(tp=1, pp=2, dp=1, mbs=1, layers_per_stage=(4, 4), virtual_pipeline_model_parallel_size=2)
    assert layers_of_stages(chunks) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    counted = make_config(tp=1, pp=2, dp=1, mbs=1, layers_per_stage=(3, 3), virtual_pipeline_model_parallel_size=2)
    assert layers_of_stages(counted) == [(0, 3, 4), (1, 2, 5)]


def test_the_same_plan_moves_nothing() -> None:
    """Also if the hosts have other numbers in another cluster."""
    old = layout(small_config())
    assert moves(old, old, TINY) == ()
    renumbered = layout(small_config(), hosts=(0, 1, 2, 3), names=("n3", "n0", "n4", "n1"))
    assert moves(old, renumbered, TINY) == ()


def test_a_new_host_loads_its_whole_shard() -> None:
    """Each of its four ranks: two tensor slices of four layers and the embedding, in two replicas."""
    old = layout(small_config())
    new = layout(small_config(), hosts=(2, 0, 4, 1))
    found = moves(old, new, TINY)
    assert {move.host for move in found} == {"n2"}
    assert [move.was for move in found] == [None] * 4
    layer = 12 * 1024**2 + (3 + 4) * 1024  # attention and MLP with the biases of their first halves
    slices = 4 * (layer // 2 + 2 * 1024 + 2 * 2 * 1024)  # row-parallel biases and norms are whole on both
    tables = 50432 // 2 * 1024 + 2048 * 1024  # the vocabulary is padded to a multiple of 256
    assert total(found)[0] == 2 * 4 * (slices + tables)
    assert total(found)[1] == 12 * 4 * -(-(slices + tables) // 4)  # four replicas share the optimizer's state
    assert hosts_that_load(found).keys() == {"n2"}
    assert found[0].layers == (0, 1, 2, 3)


def test_replicas_keep_their_parameters() -> None:
    """Two hosts of one stage change places: only their shares of the optimizer's state are others."""
    old = layout(small_config())
    new = layout(small_config(), hosts=(0, 3, 4, 1))
    found = moves(old, new, TINY)
    parameters, states = total(found)
    assert parameters == 0
    assert states > 0
    assert len(found) == 8
    assert hosts_that_load(found) == {}
    shared = make_config(tp=2, pp=2, dp=4, mbs=2, sequence_parallel=True)
    assert moves(layout(shared), layout(shared, hosts=(0, 3, 4, 1)), TINY) == ()


def test_fewer_layers_are_loaded_where_stages_overlap() -> None:
    """5 + 3 layers instead of 4 + 4: the first stage lacks one, the second none."""
    even = make_config(tp=2, pp=2, dp=4, mbs=2)
    uneven = make_config(tp=2, pp=2, dp=4, mbs=2, layers_per_stage=(5, 3))
    found = moves(layout(even), layout(uneven), TINY)
    assert {(move.stage, move.layers) for move in found} == {(0, (4,))}


def test_another_tensor_size_loads_everything() -> None:
    """Slices do not fit each other."""
    two, four = make_config(tp=2, pp=2, dp=4, mbs=2), make_config(tp=4, pp=2, dp=2, mbs=2)
    found = moves(layout(two), layout(four), TINY)
    assert len(found) == 16
    assert all(len(move.layers) == 4 for move in found)


@pytest.mark.parametrize("model", [TINY, LLAMA_8B, replace(LLAMA_8B, mtp_num_layers=2)])
def test_all_first_loads_add_up_to_the_model(model: ModelSpec) -> None:
    """On hosts that held nothing, one replica without tensor parallelism loads every parameter once."""
    one = make_config(tp=1, pp=4, dp=1, mbs=1, num_layers=model.num_layers)
    block = next(iter(host_tiles(one, 4, "slurm")))
    placement = tile_placement(one, block, np.zeros(block.node_grid(one), dtype=np.int64))
    nobody = Layout(config=one, placement=placement, hosts=("elsewhere",))
    here = Layout(config=one, placement=placement, hosts=("here",))
    padding = (model.padded_vocab_size(1) - model.vocab_size) * model.hidden_size
    tables = 2 if model.untie_embeddings_and_output_weights else 1
    # The last stage has a copy of tied embeddings, or one to look tokens up in for multi-token prediction.
    copies = model.padded_vocab_size(1) * model.hidden_size * ((tables == 1) + (model.mtp_num_layers > 0))
    expected = model.num_parameters + tables * padding + copies
    assert total(moves(nobody, here, model)) == (2 * expected, 12 * expected)


@pytest.mark.parametrize(("etp", "ep"), [(None, 1), (None, 4), (1, 2), (1, 8)])
def test_a_new_host_loads_its_experts(etp: int | None, ep: int) -> None:
    """
    Two hosts of a stage, eight ranks: each has the experts of its place in a block of ranks.

    The optimizer's state of all else is shared by four replicas, that of experts by as many as hold the same.
    """
    model = replace(TINY, num_experts=8, add_bias_linear=False, add_qkv_bias=False)
    chosen = small_config(expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    found = moves(layout(chosen), layout(chosen, hosts=(2, 0, 4, 1)), model)
    block = (etp or 2) * ep
    attention, whole = 4 * 1024**2 // 2, 2 * 2 * 1024 + 8 * 1024
    tables = 50432 // 2 * 1024 + 2048 * 1024
    experts = 4 * 8 * 8 * 1024**2 // block
    rest = 4 * (attention + whole) + tables
    assert total(found) == (2 * 4 * (rest + experts), 12 * 4 * (-(-rest // 4) + -(-experts // (8 // block))))


def test_another_expert_size_loads_everything() -> None:
    """Other ranks are a slice of each layer then."""
    model = replace(TINY, num_experts=8, add_bias_linear=False, add_qkv_bias=False)
    old = layout(small_config(expert_model_parallel_size=2))
    assert len(moves(old, layout(small_config(expert_model_parallel_size=4)), model)) == 16
    assert moves(old, old, model) == ()
