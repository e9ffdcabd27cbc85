"""Names that kept tensors have for modules are those of Megatron-Core."""

import numpy as np
import pytest
from factories import make_config

from pipette_opt.base.offload import OFFLOAD_MODULES
from pipette_opt.layers.branch_bytes import branch_bytes
from pipette_opt.layers.branches import named_branches
from pipette_opt.parallel.recompute import RECOMPUTE_MODULES
from pipette_opt.read.model import read_model
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.activations import on_rank

MODELS = (
    "llama-3-8b",
    "deepseek-v3",
    "llama-4-maverick",
    "qwen3-next-80b-a3b",
    "nemotron-3-nano-30b-a3b",
    "gpt-oss-20b",
)


@pytest.mark.parametrize("name", MODELS)
def test_modules_of_kept_tensors_exist(name: str) -> None:
    """Each tensor has a size, and the names of offloading and of recomputation."""
    training, config = TrainingSpec(global_batch_size=8, seq_length=4096, fp8=True), make_config(tp=2)
    rank = on_rank(training, lambda field: getattr(config, field))
    for branch in named_branches(read_model(name)).values():
        for tensor in branch.kept(rank):
            assert np.all(tensor.size >= 0)
            assert tensor.module in (*OFFLOAD_MODULES, "rest", None)
            assert set(tensor.freed_by) <= set(RECOMPUTE_MODULES)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_many_configurations_at_once(name: str) -> None:
    """An array of degrees gives the array of what each of them gives alone."""
    training = TrainingSpec(global_batch_size=8, seq_length=4096)
    configs = [make_config(tp=tp, mbs=mbs, sequence_parallel=tp > 1) for tp in (1, 2) for mbs in (1, 2)]
    together = on_rank(training, lambda field: np.array([getattr(config, field) for config in configs]))
    for branch in named_branches(read_model(name)).values():
        sums = sum(tensor.size for tensor in branch.kept(together)) + branch.work(together).peak
        for config, found in zip(configs, sums, strict=True):
            rank = on_rank(training, lambda field, config=config: getattr(config, field))
            alone = sum(tensor.size for tensor in branch.kept(rank)) + branch.work(rank).peak
            assert found == pytest.approx(float(np.sum(alone)))


@pytest.mark.parametrize("compiled", [True, False])
def test_operations_keep_every_second_output(compiled: bool) -> None:
    """
    By hand for Llama 3 8B, a token of a layer in 16 bits.

    Layer input 4,096, queries 4,096, values 1,024, output of attention 4,096, gate 14,336; without compilation output
    of the MLP 4,096; 32 fp32 sums of the softmax.
    """
    training = TrainingSpec(global_batch_size=8, seq_length=8192, fused_norm=compiled)
    model = read_model("llama-3-8b")
    rank = on_rank(training, lambda field: getattr(make_config(), field))
    branches = model.branches(model.layers[0])
    again = [branch_bytes(branch, rank, {"ops": np.array(True)}) for branch in branches]
    assert sum(each.kept for each in again) == 8192 * (
        2 * (4096 + 4096 + 1024 + 4096 + 14336 + (not compiled) * 4096) + 4 * 32
    )
    assert [each.restored for each in again] == [branch_bytes(branch, rank, {}).whole for branch in branches]
