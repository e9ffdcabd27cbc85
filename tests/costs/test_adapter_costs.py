"""Time and traffic with adapters: no gradients of frozen weights, matrices restored from fewer bits."""

from dataclasses import replace

import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.collectives import gathered_bytes, gradient_traffic, has_tied_stages
from pipette_opt.costs.compute import head_product_s, layer_times_s, optimizer_time_s, owned_parameters
from pipette_opt.costs.products import product_s
from pipette_opt.layers.adapters import BASE_BYTES, MLP_TARGETS, Adapters, linears_of
from pipette_opt.layers.parameters import num_trained_parameters
from pipette_opt.read.model import read_model
from pipette_opt.specs import ModelSpec

JOB = make_job(make_cluster(1), LLAMA_8B)
CONFIG = make_config(tp=1, pp=1, dp=8, num_layers=32, use_distributed_optimizer=True)


def lora(base: str = "16-bit", targets: tuple[str, ...] = (), model: ModelSpec = LLAMA_8B) -> ModelSpec:
    """The model with adapters of rank 8, by default at all its matrices."""
    return replace(model, adapters=Adapters(rank=8, targets=targets or linears_of(model), base=base))  # type: ignore[arg-type]


def test_a_frozen_matrix_has_no_gradient_product() -> None:
    """The other two products take as long; in 4 bits the matrix is read, and written in 16 bits, before both."""
    product = LLAMA_8B.branches(LLAMA_8B.layers[0])[1].products[0]
    given = JOB.training, CONFIG, A100_80, JOB.stack
    trained = product_s(product, None, *given)
    frozen, in_4_bits = (product_s(product, lora(base).adapters, *given) for base in ("16-bit", "nf4"))
    assert frozen == (trained.forward_s, trained.inputs_s, 0.0)
    moved = product.outputs * product.inputs * (BASE_BYTES["nf4"] + 2.0)
    restored = moved / (A100_80.memory_bytes_per_s * JOB.stack.streaming)
    assert in_4_bits == pytest.approx((frozen.forward_s + restored, frozen.inputs_s + restored, 0.0))
    head = head_product_s(lora(), *given)
    assert head.weights_s == 0.0 < head_product_s(LLAMA_8B, *given).weights_s


def test_a_layer_with_adapters_is_faster_and_in_4_bits_slower() -> None:
    """The backward pass loses a product of three, and gains small ones; more adapters take longer."""

    def times(model: ModelSpec) -> tuple[float, float]:
        return layer_times_s(replace(JOB, model=model), CONFIG, A100_80)

    whole, last, every = times(LLAMA_8B), times(lora(targets=("down_proj",))), times(lora())
    assert whole[0] < last[0] < every[0]
    assert last[1] < every[1] < whole[1]
    assert all(narrow > wide for narrow, wide in zip(times(lora("nf4")), every, strict=True))


def test_only_adapters_travel_and_are_stepped() -> None:
    """Gradients, parameters after the step and the step itself are the adapters'; ZeRO 3 gathers the frozen format."""
    model, count = lora("nf4"), num_trained_parameters(lora())
    assert owned_parameters(model, CONFIG).sum() == pytest.approx(count / 8)
    assert optimizer_time_s(replace(JOB, model=model), CONFIG, A100_80) < 0.01 * optimizer_time_s(JOB, CONFIG, A100_80)
    rings = [gradient_traffic(each, JOB.training, CONFIG) for each in (LLAMA_8B, model)]
    whole, own = (sum(ring.hop_bytes for ring in of_stages) for of_stages in rings)
    assert own / whole == pytest.approx(count / LLAMA_8B.num_parameters, rel=1e-3)
    assert gathered_bytes(model, JOB.training, CONFIG, trained=True) == [2.0 * count]
    matrices = sum(n * k for kind in LLAMA_8B.layers for part in LLAMA_8B.branches(kind) for n, k, _ in part.products)
    rest = LLAMA_8B.num_parameters - matrices + count
    every = BASE_BYTES["nf4"] * matrices + 2.0 * rest
    assert gathered_bytes(model, JOB.training, CONFIG) == pytest.approx([every], rel=1e-3)


def test_frozen_tables_are_not_reduced() -> None:
    """A head that shares its table with the embeddings has no gradient to share between first and last stage."""
    tied = read_model("llama-3.2-1b")
    config = make_config(tp=1, pp=2, dp=4, num_layers=16)
    assert has_tied_stages(tied, config)
    assert not has_tied_stages(lora(model=tied), config)


def test_flops_are_four_for_a_frozen_parameter() -> None:
    """Attention itself has all three products."""
    attention = LLAMA_8B.flops_per_token(4096) - LLAMA_8B.flops_per_token(2048)
    of_products = LLAMA_8B.flops_per_token(4096) - 2 * attention
    assert lora().flops_per_token(4096) == pytest.approx(of_products * 4 / 6 + 2 * attention)


def test_experts_with_adapters() -> None:
    """Routed experts' gradients are not computed, and their adapters are."""
    moe = read_model("qwen3-30b-a3b")
    config = make_config(tp=1, pp=1, dp=8, num_layers=48, expert_model_parallel_size=8)
    job = make_job(make_cluster(1), moe)
    whole, attention, every = (
        layer_times_s(replace(job, model=each), config, A100_80)
        for each in (moe, lora(model=moe, targets=("q_proj",)), lora(model=moe, targets=MLP_TARGETS))
    )
    assert attention[1] < every[1] < whole[1] + every[0]
    assert attention[0] < every[0]
