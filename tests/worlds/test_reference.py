"""Reference layouts of jobs."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job, make_random_cluster
from llama_jobs import OTHER_GPU, job

from pipette_opt.candidates import broken_rules
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import Instance, TrainingSpec
from pipette_opt.worlds.reference import BYTES_PER_PARAMETER, ROOM, reference_layout, reference_terms

H100 = read_gpu_catalogue()["h100-80gb"].gpu
USUAL = TrainingSpec(global_batch_size=512, seq_length=4096)


@pytest.mark.parametrize(
    ("name", "tp", "pp", "ep", "micro_batch", "dp"),
    [
        # 8.0 B x 18 B = 144 GB: 4 GPUs hold 36 GB each of 68; 512 / (16 rounds x 2) = 16 replicas.
        ("llama-3-8b", 4, 1, 1, 2, 16),
        # 70.6 B x 18 B = 1.27 TB: 16 GPUs would hold 79 GB each, 32 hold 40 GB; 512 / (16 x 4 x 2) = 4 replicas.
        ("llama-3-70b", 8, 4, 1, 2, 4),
        # Experts over the host, then stages; data parallelism holds the experts' ranks.
        ("mixtral-8x7b", 1, 2, 8, 2, 8),
    ],
)
def test_layouts_by_hand(name: str, tp: int, pp: int, ep: int, micro_batch: int, dp: int) -> None:
    """Tensor ranks inside a host, then stages, until 18 bytes per parameter take 80 % of a GPU."""
    config = reference_layout(read_model(name), USUAL, H100, 8)
    found = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size)
    assert (*found, config.expert_model_parallel_size) == (tp, pp, ep)
    assert (config.micro_batch_size, config.data_parallel_size) == (micro_batch, dp)


@pytest.mark.search
@pytest.mark.parametrize("name", list_models())
def test_layouts_are_legal_and_fit(name: str) -> None:
    """Each preset that 1,024 GPUs hold, with an even and an odd batch."""
    model = read_model(name)
    for batch in (512, 7):
        training = replace(USUAL, global_batch_size=batch, seq_length=2048)
        config = reference_layout(model, training, H100, 8)
        assert not broken_rules(model, training, config)
        need = BYTES_PER_PARAMETER * float(stage_parameters(model, config).total.max())
        assert need <= ROOM * H100.memory_bytes or batch == 7 or model.num_parameters > 5e11


def test_a_long_sequence_that_a_model_refuses_still_has_a_layout() -> None:
    """Where no layout is legal, legality does not count, and memory does."""
    config = reference_layout(read_model("gpt-3-175b"), replace(USUAL, seq_length=8192), H100, 8)
    assert config.tensor_model_parallel_size * config.pipeline_model_parallel_size >= 64


def test_hosts_and_links_do_not_count() -> None:
    """More hosts, measured links, a reserved rank order: the job's reference is the same."""
    rng = np.random.default_rng(7)
    base = make_job(make_cluster(2, kinds=(H100, H100)), LLAMA_8B)
    expected = reference_terms(base)
    for hosts in (1, 3, 12):
        cluster = make_random_cluster(rng, hosts, kinds=(H100,) * hosts)
        cluster = replace(cluster, intra_node_bytes_per_s=base.cluster.intra_node_bytes_per_s)
        cluster = replace(cluster, intra_node_latency_s=base.cluster.intra_node_latency_s)
        assert np.array_equal(reference_terms(replace(base, cluster=cluster, launcher="torchrun")), expected)


def test_options_of_layouts_do_not_count() -> None:
    """A dispatcher, CUDA graphs, offloading, unfused attention: choices inside a job, not another job."""
    base = job()
    for changes in (
        {"cuda_graph": True},
        {"tp_comm_overlap": True},
        {"attention_kernel": "unfused"},
        {"optimizer_offload_fraction": 0.5},
        {"unequal_microbatches": True},
    ):
        given: Instance = replace(base, training=replace(base.training, **changes))
        assert np.array_equal(reference_terms(given), reference_terms(base))
    other = replace(base, training=replace(base.training, global_batch_size=512))
    assert not np.array_equal(reference_terms(other), reference_terms(base))


def test_slow_and_unknown_gpus_have_a_reference() -> None:
    """A host at a part of its speed counts as its type; a GPU outside the catalogue has a usual NIC."""
    slow = make_job(make_cluster(2, kinds=(H100, H100.at_speed(0.8))), LLAMA_8B)
    assert np.array_equal(reference_terms(slow), reference_terms(make_job(make_cluster(2, kinds=(H100,)), LLAMA_8B)))
    assert np.isfinite(reference_terms(make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B))).all()


def test_the_fastest_gpu_type_counts() -> None:
    """Hosts of a slower type beside it, more or fewer, leave the reference as it is."""
    slow = read_gpu_catalogue()["a100-80gb"].gpu
    alone = make_job(make_cluster(1, kinds=(H100,)), LLAMA_8B)
    for kinds in ((H100, slow), (slow, slow, slow, H100)):
        assert np.array_equal(
            reference_terms(make_job(make_cluster(len(kinds), kinds=kinds), LLAMA_8B)), reference_terms(alone)
        )
