"""The predictor: right against traces, bounded risk, one answer however it is asked, no torch, and damaged files."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, TINY, make_config

from models.memory.files import write_weights
from models.memory.sample import sample_point
from models.memory.trace import trace_stage
from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import SMALLEST_RISK, USUAL_RISK
from pipette_opt.base.units import GIB, MIB
from pipette_opt.memory.features import FEATURE_NAMES
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability, token_buffer_bytes, user_buffer_bytes
from pipette_opt.memory.weights import NetworkWeights, read_weights
from pipette_opt.read.model import read_model
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.memory_constants import MemoryConstants

JOB = TrainingSpec(global_batch_size=64, seq_length=4096)
BARE = MemoryConstants(base_gib=0.0, group_gib=0.0)


def network() -> NetworkWeights:
    """A network that always answers zero."""
    size = len(FEATURE_NAMES)
    return NetworkWeights(
        mean=np.zeros(size),
        scale=np.ones(size),
        weights=(np.zeros((1, size)),),
        biases=(np.zeros(1),),
        lowest=np.full(size, -1e9),
        highest=np.full(size, 1e9),
        log_ratio_range=np.array([-1.0, 1.0]),
    )


@pytest.fixture(scope="module")
def shipped() -> MemoryPredictor:
    """The shipped one."""
    return MemoryPredictor.load()


@pytest.mark.search
def test_shipped_network_is_close_to_unseen_traces() -> None:
    """Random points of another seed: 0.5 % off on average, none more than 10 %."""
    predictor = MemoryPredictor.load(memory_constants=BARE)
    errors = []
    for index in range(6):
        point = sample_point(4321, index)
        predicted = predictor.predict(point.model, point.training, [point.config])[0].predicted_bytes[point.stage]
        traced = trace_stage(point.model, point.training, point.config, point.stage).peak_bytes
        errors.append(abs(predicted / traced - 1))
    assert np.mean(errors) < 0.005
    assert max(errors) < 0.1


def test_many_configurations_at_once_equal_each_alone(shipped: MemoryPredictor) -> None:
    """Predictions do not depend on what else is asked."""
    configs = [
        make_config(tp, pp, 2, mbs, 32, sequence_parallel=tp > 1, recompute_granularity=recompute)
        for tp in (1, 4) for pp in (1, 2, 8) for mbs in (1, 4) for recompute in (None, "full")
    ]  # fmt: skip
    together = shipped.predict(LLAMA_8B, JOB, configs)
    for one, prediction in zip(configs, together, strict=True):
        (alone,) = shipped.predict(LLAMA_8B, JOB, [one])
        assert prediction.predicted_bytes.shape == (one.pipeline_model_parallel_size,)
        np.testing.assert_allclose(alone.predicted_bytes, prediction.predicted_bytes, rtol=1e-9)
        np.testing.assert_allclose(alone.upper_bytes, prediction.upper_bytes, rtol=1e-9)
        assert (prediction.upper_bytes > prediction.predicted_bytes).all()
    assert shipped.predict(LLAMA_8B, JOB, []) == []


def test_more_of_everything_needs_more(shipped: MemoryPredictor) -> None:
    """Larger micro-batches, no savers, no sharing of optimizer state: more memory."""
    base = make_config(4, 2, 2, 2, 32, sequence_parallel=True, use_distributed_optimizer=True)
    larger = [
        replace(base, micro_batch_size=4),
        replace(base, use_distributed_optimizer=False),
        replace(base, sequence_parallel=False),
        replace(base, tensor_model_parallel_size=2),
    ]
    (need, *more) = shipped.predict(LLAMA_8B, JOB, [base, *larger])
    for one in more:
        assert (one.predicted_bytes > need.predicted_bytes).all()
    (less,) = shipped.predict(LLAMA_8B, JOB, [replace(base, recompute_granularity="full")])
    assert (less.predicted_bytes < need.predicted_bytes).all()


@pytest.mark.parametrize("risk", [0.005, 0.01, 0.1, 0.5])
def test_bound_and_probability_agree(shipped: MemoryPredictor, risk: float) -> None:
    """At exactly the bound the probability is the risk, a little below it is more; risks nobody can vouch for fail."""
    base = make_config(tp=8, pp=4, dp=2, num_layers=32)
    (found,) = shipped.predict(LLAMA_8B, JOB, [base], max_oom_risk=risk)
    said = oom_probability(found, found.upper_bytes)
    np.testing.assert_allclose(said, risk, rtol=1e-4)
    assert (oom_probability(found, found.upper_bytes * 0.99) > said).all()
    for wrong in (SMALLEST_RISK / 2, 0.0, float("nan")):
        with pytest.raises(InputError, match="max_oom_risk"):
            shipped.predict(LLAMA_8B, JOB, [base], max_oom_risk=wrong)


def test_usable_memory_is_what_context_and_libraries_leave(shipped: MemoryPredictor) -> None:
    """80 GiB less what no tensor can have; never negative."""
    assert shipped.usable_bytes(A100_80) == A100_80.memory_bytes - int(0.625 * GIB)
    assert shipped.usable_bytes(replace(A100_80, memory_bytes=1)) == 0


def test_what_is_outside_of_training_says_so(shipped: MemoryPredictor) -> None:
    """A usual job is inside; tensor parallelism over 128 GPUs was never seen."""
    wide = replace(TINY, num_attention_heads=128, num_query_groups=128, kv_channels=128, hidden_size=16384,
                   ffn_hidden_size=65536)  # fmt: skip
    inside, outside = (shipped.predict(wide, JOB, [make_config(tp, 1, 1, 1)])[0] for tp in (8, 128))
    assert not inside.extrapolates.any()
    assert outside.extrapolates.all()


@pytest.mark.parametrize(
    ("layers", "chunks"), [((15, *(16,) * 6, 15), 8), ((7, *(8,) * 14, 7), 8), ((31, 32, 32, 31), 2)]
)
def test_chunks_with_a_layer_less_are_inside_of_training(
    shipped: MemoryPredictor, layers: tuple[int, ...], chunks: int
) -> None:
    """Llama 3.1 405B's stages, with chunks of one and of no layers at the ends; no stage needs more than with them."""
    model = replace(LLAMA_8B, num_layers=126, hidden_size=16384, ffn_hidden_size=53248, num_attention_heads=128)
    counted = make_config(
        tp=8,
        pp=len(layers),
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=chunks,
        sequence_parallel=True,
    )
    even = replace(counted, layers_per_stage=(layers[1],) * len(layers))
    (less,), (whole,) = (
        shipped.predict(replace(model, num_layers=sum(one.layers_per_stage)), JOB, [one]) for one in (counted, even)
    )
    assert not less.extrapolates.any()
    assert (less.predicted_bytes[[0, -1]] < whole.predicted_bytes[[0, -1]]).all()
    np.testing.assert_array_equal(less.predicted_bytes[1:-1], whole.predicted_bytes[1:-1])


def test_an_empty_stage_needs_next_to_nothing(shipped: MemoryPredictor) -> None:
    """A middle stage without layers is legal data: a finite, tiny need and no risk above the smallest."""
    empty = replace(make_config(1, 4, 1, 1, 8), layers_per_stage=(4, 0, 0, 4))
    (prediction,) = shipped.predict(TINY, JOB, [empty])
    assert (prediction.predicted_bytes[1:3] > 0).all()
    assert (prediction.predicted_bytes[1:3] < 800 * MIB).all()  # of which NCCL has 683
    assert np.isfinite(oom_probability(prediction, 80 * GIB)).all()


def test_ten_thousand_predictions_are_quick() -> None:
    """Ten thousand stages with the constants of a stack: 0.1 s on a quiet machine."""
    predictor = MemoryPredictor.load(memory_constants=MemoryConstants())
    configs = [make_config(tp, 8, dp, mbs, 32) for tp in (1, 2, 4, 8) for dp in (1, 2, 4) for mbs in (1, 2, 4)] * 35
    start = time.process_time()
    found = predictor.predict(LLAMA_8B, JOB, configs, gpus_per_node=8)
    assert time.process_time() - start < 1.0
    assert sum(len(one.predicted_bytes) for one in found) == 10080


@pytest.mark.search
def test_neither_torch_nor_pandas_is_imported() -> None:
    """Predicting is plain numpy: a fresh interpreter loads, filters and never sees torch."""
    code = (
        "import sys\n"
        "from pipette_opt.memory.filter import keep_fitting\n"
        "from pipette_opt.memory.predictor import MemoryPredictor\n"
        "MemoryPredictor.load()\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_survive_the_file(tmp_path: Path) -> None:
    """Written and read, the network is the same; the same network is the same bytes."""
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    write_weights(one, MemoryPredictor.load().network)
    write_weights(two, read_weights(one))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_cut_files_are_refused(tmp_path: Path, keep: int) -> None:
    """A file that ends early is named, wherever it ends."""
    path = tmp_path / "memory.npz"
    write_weights(path, network())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"memory\.npz"):
        read_weights(path)


def changed(path: Path, **arrays: object) -> Path:
    """The same file with some arrays replaced."""
    write_weights(path, network())
    with np.load(path) as file:
        contents = {name: file[name] for name in file.files}
    np.savez(path, **(contents | arrays))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"format": np.array("other")}, "format must be"),
        ({"feature_names": np.array(["a", "b"])}, "other features"),
        ({"mean": np.zeros(3)}, "mean has shape"),
        ({"scale": np.zeros(len(FEATURE_NAMES))}, "scale must be > 0"),
        ({"bias_0": np.array([np.nan])}, "not finite"),
        ({"weight_0": np.zeros((1, 3))}, "layer 0"),
        ({"log_ratio_range": np.zeros(3)}, "log_ratio_range"),
        ({"mean": np.array(["x"] * len(FEATURE_NAMES))}, "damaged"),
        ({"mean": np.array([{}], dtype=object)}, "readable"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    """Another format, other features, wrong shapes or values, pickles: refused with the reason."""
    with pytest.raises(InputError, match=message):
        read_weights(changed(tmp_path / "memory.npz", **arrays))
    with pytest.raises(InputError, match="nowhere"):
        read_weights(tmp_path / "nowhere.npz")


def test_models_beyond_any_are_refused(shipped: MemoryPredictor) -> None:
    """More parameters than 1e14 are an error in units, which the message helps to find."""
    large = replace(LLAMA_8B, num_layers=1000, hidden_size=10**6, num_attention_heads=1000, num_query_groups=1000)
    with pytest.raises(InputError, match=r"parameters, more than 1e\+14; check num_layers=1000, hidden_size=1000000"):
        shipped.predict(large, JOB, [make_config(num_layers=1000)])


def test_a_large_accepted_risk_still_needs_the_prediction(shipped: MemoryPredictor) -> None:
    """At a risk of almost 1 the bound is the prediction; at 1, where memory does not count, the usual bound."""
    base = make_config(tp=8, pp=4, dp=2, num_layers=32)
    bounds = {}
    for risk in (USUAL_RISK, 0.5, 0.999999, 1.0):
        (found,) = shipped.predict(LLAMA_8B, JOB, [base], max_oom_risk=risk)
        assert (found.upper_bytes >= found.predicted_bytes).all()
        bounds[risk] = found.upper_bytes
    np.testing.assert_array_equal(bounds[0.999999], found.predicted_bytes)
    np.testing.assert_array_equal(bounds[1.0], bounds[USUAL_RISK])


def test_risks_end_where_something_is_certain(shipped: MemoryPredictor) -> None:
    """With endless room the risk is the smallest; below weights, gradients and optimizer state it is 1."""
    (found,) = shipped.predict(LLAMA_8B, JOB, [make_config(tp=8, pp=1, dp=2, num_layers=32)])
    assert oom_probability(found, 10**12) == pytest.approx([SMALLEST_RISK])
    assert oom_probability(found, found.counted_bytes - 1) == pytest.approx([1.0])
    assert (oom_probability(found, found.counted_bytes) < 1).all()
    assert (found.counted_bytes <= found.predicted_bytes).all()


def test_user_buffers_are_ten_micro_batches() -> None:
    """Llama 3 8B with 4,096 tokens: ten of 32 MiB in 16 bits, six of half the size in fp8; none without the option."""
    model = read_model("llama-3-8b")
    training = TrainingSpec(global_batch_size=8, seq_length=4096, tp_comm_overlap=True)
    chosen = make_config(tp=4, dp=2, num_layers=32, sequence_parallel=True)
    assert user_buffer_bytes(model, training, chosen) == 10 * 32 * 2**20
    assert user_buffer_bytes(model, replace(training, fp8=True), chosen) == (6 / 2 + 4) * 32 * 2**20
    assert user_buffer_bytes(model, training, replace(chosen, sequence_parallel=False)) == 0.0
    without = replace(training, tp_comm_overlap=False)
    more, less = (MemoryPredictor.load().predict(model, one, [chosen])[0] for one in (training, without))
    assert more.predicted_bytes[0] - less.predicted_bytes[0] == pytest.approx(10 * 32 * 2**20, abs=2)
    assert more.components_of(0)["buffers"] > less.components_of(0)["buffers"]


def test_room_for_tokens_of_hybrid_ep() -> None:
    """EP64 with 4,096 tokens of 7,168: 3.5 GiB by HybridEP's own page; nothing for other dispatchers or alone."""
    model = read_model("deepseek-v3")
    training = TrainingSpec(
        global_batch_size=64,
        seq_length=4096,
        moe_token_dispatcher_type="flex",
        moe_flex_dispatcher_backend="hybridep",
    )
    chosen = make_config(tp=1, dp=64, num_layers=61, sequence_parallel=False, expert_model_parallel_size=64)
    assert token_buffer_bytes(model, training, chosen) == 3.5 * 2**30
    assert token_buffer_bytes(model, replace(training, moe_flex_dispatcher_backend="deepep"), chosen) == 0.0
    assert token_buffer_bytes(model, replace(training, moe_token_dispatcher_type="alltoall"), chosen) == 0.0
    with_room, without = (
        MemoryPredictor.load().predict(model, one, [chosen])[0]
        for one in (training, replace(training, moe_flex_dispatcher_backend="deepep"))
    )
    assert with_room.predicted_bytes[0] - without.predicted_bytes[0] == pytest.approx(3.5 * 2**30, abs=2)
    assert with_room.components.sum(axis=1) == pytest.approx(with_room.predicted_bytes)
