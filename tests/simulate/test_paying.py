"""Options outside of the search that would save time."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.candidates.unsearched_options import unpriced_options, unsearched_options, with_unsearched_options
from pipette_opt.parallel import identity_placement
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.paying import MIN_SAVED_SHARE, paying_options
from pipette_opt.specs import Instance

JOB = make_job(make_cluster(2), LLAMA_8B, 32, 4096)
CONFIG = make_config(tp=8, pp=1, dp=2, num_layers=32, sequence_parallel=True, use_distributed_optimizer=True)
PLACEMENT = identity_placement(CONFIG, 8, np.arange(2), "tp-cp-ep-dp-pp")


def paying(job: Instance) -> dict[str, float]:
    """Options that pay for tensor 8 on two hosts, each with the seconds that it saves."""
    found = paying_options(job, CONFIG, PLACEMENT, load_predictor(0.01, job), 0.01)
    return {one.option: one.saved_s for one in found}


def test_each_option_saves_what_the_simulator_says_of_it() -> None:
    """The difference of two simulations; the one that saves most comes first, and none that saves nearly nothing."""
    found = paying(JOB)
    now_s = estimate(JOB, CONFIG, PLACEMENT).iteration_time_s
    changed = replace(JOB, training=replace(JOB.training, tp_comm_overlap=True))
    assert found["--tp-comm-overlap"] == pytest.approx(now_s - estimate(changed, CONFIG, PLACEMENT).iteration_time_s)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert min(found.values()) >= MIN_SAVED_SHARE * now_s


def test_what_a_job_has_is_no_option() -> None:
    """It is there already."""
    changed = replace(JOB, training=replace(JOB.training, tp_comm_overlap=True))
    assert "--tp-comm-overlap" not in paying(changed)
    assert "--tp-comm-overlap" in unsearched_options(JOB)
    assert "--tp-comm-overlap" not in unsearched_options(changed)


def test_a_precision_that_the_gpu_lacks_is_no_option() -> None:
    """A100 has no fp8, and a dense model sends no tokens."""
    assert not {"--fp8-format hybrid", "--moe-token-dispatcher-type flex"}.intersection(unsearched_options(JOB))
    assert "--moe-token-dispatcher-type flex" in unsearched_options(
        replace(JOB, model=replace(LLAMA_8B, num_experts=8))
    )


def test_graphs_of_experts_leave_the_experts_out() -> None:
    """Megatron cannot capture dropless experts: advice for them names the parts beside, for dense models the layer."""
    graphs = [option for option in unsearched_options(JOB) if "cuda-graph" in option]
    assert graphs == ["--cuda-graph-impl local"]
    routed = unsearched_options(replace(JOB, model=replace(LLAMA_8B, num_experts=8)))
    assert [option for option in routed if "cuda-graph" in option] == [
        "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router moe_preprocess"
    ]


def test_options_without_a_price_are_named() -> None:
    """Fused kernels and late weight gradients; those of experts for experts, and none that the launch has."""
    assert "--cross-entropy-loss-fusion" in unpriced_options(JOB)
    assert "--delay-wgrad-compute" not in unpriced_options(JOB)
    assert "--delay-wgrad-compute" in unpriced_options(replace(JOB, model=replace(LLAMA_8B, num_experts=8)))
    has = replace(JOB, training=replace(JOB.training, other_arguments=(("--cross-entropy-loss-fusion",),)))
    assert "--cross-entropy-loss-fusion" not in unpriced_options(has)


def test_what_does_not_fit_is_left_out() -> None:
    """On GPUs that are too small for the configuration."""
    small = replace(A100_80, memory_bytes=8 * GIB)
    assert paying(replace(JOB, cluster=make_cluster(2, kinds=(small,)))) == {}


@pytest.mark.parametrize(
    ("tensor", "is_there"), [({"tp": 8, "dp": 2}, True), ({"tp": 16, "dp": 1}, False), ({"tp": 1, "dp": 16}, False)]
)
def test_user_buffers_stay_in_a_domain(tensor: dict[str, int], is_there: bool) -> None:
    """Tensor groups of a host of eight GPUs have them, those over two hosts and single GPUs do not."""
    chosen = make_config(pp=1, num_layers=32, sequence_parallel=tensor["tp"] > 1, **tensor)
    names = [one.option for one, _ in with_unsearched_options(JOB, chosen)]
    assert ("--tp-comm-overlap" in names) == is_there


def test_a_search_with_user_buffers_has_no_tensor_groups_over_hosts() -> None:
    """They are refused, with the reason; without the option they are there."""
    space = SearchSpace(pipeline_parallel=(1,), micro_batch_size=(1,), context_parallel=(1,))
    changed = replace(JOB, training=replace(JOB.training, tp_comm_overlap=True))
    found = enumerate_with_reasons(changed, space)
    assert max(one.tensor_model_parallel_size for one in found.candidates) == 8
    assert any("user buffers of 16 tensor ranks" in reason for _, reason in found.reasons)
    assert max(one.tensor_model_parallel_size for one in enumerate_with_reasons(JOB, space).candidates) == 16
