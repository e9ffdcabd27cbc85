"""Where the default space has ZeRO 3."""

from dataclasses import replace

from factories import A100_80, LLAMA_8B, make_cluster, make_job
from levels import in_domains

from pipette_opt.candidates import SearchSpace, with_data_parallelism_alone, with_shared_parameters
from pipette_opt.specs import Instance

LARGE = replace(LLAMA_8B, num_layers=80)
"""19 B parameters: in bf16 with fp32 gradients more than 80 GiB."""


def job(**training: object) -> Instance:
    """The larger model on one host."""
    given = make_job(make_cluster(1), LARGE)
    return replace(given, training=replace(given.training, **training))  # type: ignore[arg-type]


def test_where_a_gpu_cannot_hold_the_model() -> None:
    """Both sides: with fewer layers, or gradients in bf16, weights and gradients fit."""
    assert with_shared_parameters(job(), SearchSpace()).more_sharding == ("optim_grads_params",)
    bytes_held = 6 * LARGE.num_parameters
    assert bytes_held > A100_80.memory_bytes
    smaller = make_job(make_cluster(1), replace(LARGE, num_layers=50))
    assert 6 * smaller.model.num_parameters < A100_80.memory_bytes
    assert with_shared_parameters(smaller, SearchSpace()) == SearchSpace()
    in_bf16 = job(accumulate_allreduce_grads_in_fp32=False)
    assert with_shared_parameters(in_bf16, SearchSpace()) == SearchSpace()


def test_not_over_nics() -> None:
    """More GPUs than a host or an NVLink domain has."""
    shared = ("optim_grads_params",)
    two = make_job(make_cluster(2), LARGE)
    assert with_shared_parameters(two, SearchSpace()) == SearchSpace()
    assert with_shared_parameters(two, SearchSpace(num_gpus=8)).more_sharding == shared
    assert with_shared_parameters(two, SearchSpace(max_gpus=8)).more_sharding == shared
    one_domain, two_domains = (make_job(in_domains(of_node, gpus=8), LARGE) for of_node in ([0, 0], [0, 1]))
    assert with_shared_parameters(one_domain, SearchSpace()).more_sharding == shared
    assert with_shared_parameters(two_domains, SearchSpace()) == SearchSpace()


def test_not_where_something_says_otherwise() -> None:
    """Pins stay, a space that was narrowed has no time for more, Muon and experts have none."""
    for space in (
        SearchSpace(use_distributed_optimizer=(True,)),
        SearchSpace(data_parallel_sharding_strategy=("optim",)),
        SearchSpace(micro_batch_size=(1,), narrowed=("micro_batch_size",)),
    ):
        assert with_shared_parameters(job(), space) == space
    assert with_shared_parameters(job(optimizer="muon"), SearchSpace()) == SearchSpace()
    experts = make_job(make_cluster(1), replace(LARGE, num_experts=8, moe_router_topk=2))
    assert with_shared_parameters(experts, SearchSpace()) == SearchSpace()


def test_data_parallelism_alone_is_always_tried() -> None:
    """ZeRO 3 on all GPUs, over NICs too; not against a pin, and not with experts."""
    given = make_job(make_cluster(2), LARGE)
    added = with_data_parallelism_alone(given, SearchSpace(max_gpus=8)).more_configs
    assert {config.data_parallel_size for config in added} == {config.world_size for config in added} == {8}
    assert {config.sharding_stage for config in added} == {3}
    both_hosts = with_data_parallelism_alone(given, SearchSpace()).more_configs
    assert {config.data_parallel_size for config in both_hosts} == {16}
    for pinned in (
        SearchSpace(tensor_parallel=(2,)),
        SearchSpace(data_parallel_sharding_strategy=("optim",)),
        SearchSpace(use_distributed_optimizer=(True,)),
    ):
        assert with_data_parallelism_alone(given, pinned) == pinned
    experts = replace(given, model=replace(LARGE, num_experts=8, moe_router_topk=2))
    assert with_data_parallelism_alone(experts, SearchSpace()) == SearchSpace()
