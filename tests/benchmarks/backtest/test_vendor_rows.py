"""Rows that vendors published, with what they leave out."""

from types import ModuleType

import pytest
from benchmark_modules import loaded
from factories import GPT_RUN, make_run

from pipette_opt.calibrate.cases import Case, Skipped, assumed_cluster, make_case
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.specs import DEFAULT_STACK


@pytest.fixture(scope="module")
def vendor() -> ModuleType:
    """The module."""
    return loaded("vendor")


def test_gpt_oss(vendor: ModuleType) -> None:
    """Only in 16 bits; the degree comes out of the notes."""
    job = {"model": "GPT OSS 120B", "num_gpus": 64, "tp": 1, "pp": 4, "dp": 16, "gbs": 1280, "mbs": 1}
    changes = [{"gpu": "GB200", "gpus_per_node": 4}, {"precision": "mxfp8"}, {"model": "Llama-3-8B"}, {"gpu": "TPU"}]
    seen, tested = vendor.gpt_oss([make_run(**job | change, notes="EP 8; FSDP 0") for change in [{}, *changes]])
    assert not seen
    assert [(each.model, each.gpus_per_node) for each in tested] == [
        ("GPT OSS 120B, A100-80GB", 8),
        ("GPT OSS 120B, GB200", 4),
    ]
    case = make_case(tested[0], DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.config.expert_model_parallel_size == 8
    assert 115e9 < case.instance.model.num_parameters < 118e9


def test_mixtures(vendor: ModuleType) -> None:
    """Qwen3 30B is seen, 235B tested; both have the parameters of their names, and the degree of the notes."""
    given = {"gpu": "H100", "hidden": None, "precision": "fp8", "notes": "EP 8; FSDP 0", "tp": 1, "mbs": 1}
    small = make_run(model="Qwen3_30B_a3B", num_gpus=16, pp=1, dp=16, gbs=1024, **given)
    large = make_run(model="Qwen3_235B_a22B", num_gpus=256, pp=2, dp=128, gbs=2048, **given)
    seen, tested = vendor.experts([small, large, make_run(model="DeepSeekV3")])
    for (run,), billions, layers in ((seen, 30.5, 48), (tested, 235.0, 94)):
        case = make_case(run, DEFAULT_STACK)
        assert isinstance(case, Case)
        assert case.instance.model.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
        assert case.instance.model.num_layers == layers
        assert case.config.expert_model_parallel_size == 8
        assert case.instance.training.fp8


def test_dense_models(vendor: ModuleType) -> None:
    """Pre-training alone; sequence parallel wherever there are tensor ranks; the optimizer is sharded."""
    job = {"model": "Llama-3-70B", "num_gpus": 64, "tp": 4, "pp": 4, "dp": 4, "gbs": 128, "hidden": None}
    changes = [{}, {"notes": "LoRA Performance"}, {"model": "Llama-3.1-405B", "pp": 2, "dp": 8}]
    seen, tested = vendor.dense([make_run(**job | change) for change in changes])
    assert len(seen) == len(tested) == 1
    (case,) = (make_case(run, DEFAULT_STACK) for run in seen)
    assert isinstance(case, Case)
    assert case.instance.model.num_parameters / 1e9 == pytest.approx(70.6, rel=0.01)
    assert case.config.sequence_parallel
    assert case.config.use_distributed_optimizer


def test_hosts(vendor: ModuleType) -> None:
    """Hosts of a fabric send over a link for each GPU; 256 GPUs are four domains. Others are as the row says."""
    run = make_run(gpu="GB200", num_gpus=256, gpus_per_node=4, dp=64, gbs=128)
    hosts = vendor.on_hosts(run, {})
    assert (hosts.gpus_per_node, hosts.cells["node_bandwidth_gb_per_s"]) == (4, "200.0")
    cluster = assumed_cluster(hosts, read_gpu_entry("gb200"), DEFAULT_STACK)
    assert (cluster.num_nodes, cluster.most_in_domain) == (64, 16)
    assert (cluster.pair_bytes_per_s(4)[0, [15, 16]] / 1e9).tolist() == [4 * 720, 4 * 50]
    plain = vendor.on_hosts(make_run(), {"a": "b"})
    assert (plain.gpus_per_node, plain.cells) == (8, GPT_RUN | {"a": "b"})


def test_rounds_are_versions(vendor: ModuleType) -> None:
    """Each round of GPT-3; Llama is tested."""
    rounds = [make_run(model="GPT-3-175B", source=f"MLPerf-{one}", attention_kernel="") for one in ("v3.0", "v3.1")]
    seen, tested = vendor.mlperf([*rounds, make_run(model="Llama-3.1-405B")])
    assert [run.cells["stack_version"] for run in seen] == ["MLPerf-v3.0", "MLPerf-v3.1"]
    assert len(tested) == 1
    case = make_case(seen[0], DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.instance.training.attention_kernel == "flash"


def test_what_a_row_says_a_host_sends_counts() -> None:
    """In place of the stack's assumption, for the run that says it."""
    told = make_run(node_bandwidth_gb_per_s="7")
    for run, expected in ((told, 7e9), (make_run(), 0.55 * 8 * 25e9)):
        case = make_case(run, DEFAULT_STACK)
        assert isinstance(case, Case)
        assert case.instance.cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(expected)


def test_fully_sharded_rows() -> None:
    """Stage 3 takes longer than stage 1 on slow links; with chunks the reason is said, and nothing is guessed."""
    slow = {"node_bandwidth_gb_per_s": "5", "tp": 1, "pp": 1, "dp": 16, "mbs": 1}
    one, three, pipeline = predict_runs(
        [make_run(zero_stage=stage, **slow) for stage in (1, 3)] + [make_run(zero_stage=3, vpp=2)],
        DEFAULT_STACK,
    )
    assert one.iter_time_s is not None
    assert three.iter_time_s is not None
    assert three.iter_time_s > 1.5 * one.iter_time_s
    assert pipeline.iter_time_s is None
    assert "ZeRO stage 3 cannot be timed with an interleaved pipeline" in pipeline.reason
    assert not isinstance(make_case(make_run(zero_stage=3), DEFAULT_STACK), Skipped)
