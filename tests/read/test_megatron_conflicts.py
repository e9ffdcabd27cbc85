"""Megatron's own checks of options: each on both sides of its edge."""

import re

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.megatron_conflicts import (
    DEFAULTS,
    MegatronRule,
    check_conflicts,
    derived_options,
    megatron_rules,
)
from pipette_opt.read.megatron_options import option_values

WHOLE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --vocab-size 64"

FULL, SELECTIVE = "--recompute-granularity full", "--recompute-granularity selective"

GRAPHS, ALL_TO_ALL = "--cuda-graph-impl transformer_engine", "--moe-token-dispatcher-type alltoall"
DROPPING = "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1"

EDGES = (
    ("--bf16 --fp16", "--bf16"),
    (
        "--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2",
        "--num-layers-per-virtual-pipeline-stage 2",
    ),
    (
        "--pipeline-model-parallel-layout Et|tL --num-virtual-stages-per-pipeline-rank 2",
        "--pipeline-model-parallel-layout Et|tL",
    ),
    (
        "--num-layers-per-virtual-pipeline-stage 2 --decoder-first-pipeline-num-layers 3",
        "--num-virtual-stages-per-pipeline-rank 2 --decoder-first-pipeline-num-layers 3",
    ),
    ("--recompute-activations --recompute-method uniform", f"{FULL} --recompute-method uniform"),
    (f"{SELECTIVE} --recompute-num-layers 1", f"{FULL} --recompute-num-layers 1"),
    (f"{FULL} --recompute-method block", f"{FULL} --recompute-method block --recompute-num-layers 2"),
    (f"{FULL} --moe-layer-recompute", f"{SELECTIVE} --moe-layer-recompute"),
    ("--use-precision-aware-optimizer", "--use-precision-aware-optimizer --use-megatron-fsdp"),
    (
        "--use-precision-aware-optimizer --use-distributed-optimizer --optimizer muon",
        "--use-precision-aware-optimizer --use-distributed-optimizer",
    ),
    (
        "--bf16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16",
        "--fp16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16",
    ),
    (
        "--overlap-param-gather --overlap-grad-reduce",
        "--overlap-param-gather --overlap-grad-reduce --use-megatron-fsdp",
    ),
    (
        "--overlap-param-gather --use-distributed-optimizer",
        "--overlap-param-gather --use-distributed-optimizer --overlap-grad-reduce",
    ),
    (
        "--use-torch-fsdp2 --pipeline-model-parallel-size 2",
        "--use-torch-fsdp2 --pipeline-model-parallel-size 1",
    ),
    ("--use-torch-fsdp2 --expert-model-parallel-size 2", "--use-torch-fsdp2 --expert-model-parallel-size 1"),
    ("--use-torch-fsdp2 --use-distributed-optimizer", "--use-torch-fsdp2"),
    ("--use-torch-fsdp2 --fp16", "--use-torch-fsdp2 --bf16"),
    ("--fp8-format hybrid --fp4-format e2m1", "--fp8-format hybrid"),
    (
        f"{WHOLE} --tp-comm-overlap --sequence-parallel",
        f"{WHOLE} --tp-comm-overlap --sequence-parallel --tensor-model-parallel-size 2",
    ),
    ("--delay-wgrad-compute", "--delay-wgrad-compute --overlap-moe-expert-parallel-comm"),
    (f"{WHOLE} --overlap-moe-expert-parallel-comm", f"{WHOLE} --overlap-moe-expert-parallel-comm --num-experts 4"),
    (
        "--overlap-moe-expert-parallel-comm --moe-shared-expert-overlap",
        "--overlap-moe-expert-parallel-comm",
    ),
    ("--context-parallel-size 4 --cp-comm-type a2a+p2p", "--context-parallel-size 4 --cp-comm-type a2a p2p"),
    (
        "--context-parallel-size 8 --hierarchical-context-parallel-sizes 2 2",
        "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 2",
    ),
    (
        f"{WHOLE} --defer-embedding-wgrad-compute",
        f"{WHOLE} --defer-embedding-wgrad-compute --pipeline-model-parallel-size 2",
    ),
    (
        "--defer-embedding-wgrad-compute --no-gradient-accumulation-fusion",
        "--no-gradient-accumulation-fusion",
    ),
    (
        "--moe-shared-expert-overlap --moe-shared-expert-intermediate-size 8",
        "--moe-shared-expert-overlap",
    ),
    ("--moe-enable-deepep", "--moe-enable-deepep --moe-token-dispatcher-type flex"),
    (
        "--moe-enable-deepep --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
    ),
    (
        "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor -1",
        "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1",
    ),
    (
        "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1 --moe-token-dispatcher-type flex",
        "--moe-pad-expert-input-to-capacity --moe-expert-capacity-factor 1 --moe-flex-dispatcher-backend deepep",
    ),
    ("--swiglu --squared-relu", "--quick-geglu --squared-relu"),
    ("--no-position-embedding", "--no-position-embedding --use-rotary-position-embeddings"),
    ("--group-query-attention --multi-latent-attention", "--multi-latent-attention"),
    ("--enable-cuda-graph --cuda-graph-impl local", "--enable-cuda-graph --cuda-graph-impl none"),
    ("--enable-cuda-graph --external-cuda-graph", "--external-cuda-graph"),
    (f"{GRAPHS} --num-experts 8", f"{GRAPHS} --num-experts 8 --cuda-graph-scope attn moe_router"),
    (
        f"{GRAPHS} --num-experts 8 --cuda-graph-scope moe",
        f"{DROPPING} {GRAPHS} --num-experts 8 --cuda-graph-modules moe",
    ),
    (f"{WHOLE} {GRAPHS} --cuda-graph-modules moe_router", f"{WHOLE} {GRAPHS} --cuda-graph-modules attn mlp"),
    (
        f"--num-experts 8 {GRAPHS} --cuda-graph-modules moe_preprocess",
        "--num-experts 8 --cuda-graph-impl local --cuda-graph-modules moe_preprocess",
    ),
    (
        f"--num-experts 8 {GRAPHS} --cuda-graph-modules attn moe_router {SELECTIVE} --recompute-modules moe",
        f"--num-experts 8 {GRAPHS} --cuda-graph-modules attn moe_router {SELECTIVE} --recompute-modules moe_act",
    ),
    (
        f"--num-experts 8 {ALL_TO_ALL} {GRAPHS} --cuda-graph-modules moe_router moe_preprocess "
        "--moe-expert-capacity-factor 1",
        f"--num-experts 8 {ALL_TO_ALL} {GRAPHS} --cuda-graph-modules moe_router moe_preprocess",
    ),
    ("--fine-grained-activation-offloading", "--offload-modules core_attn"),
    ("--use-torch-fsdp2 --use-megatron-fsdp", "--use-torch-fsdp2"),
    ("--transformer-impl local --fp8-format hybrid", "--transformer-impl local"),
    ("--transformer-impl local --fp4-format e2m1", "--fp4-format e2m1"),
)
"""For each rule, in their order: options that break it, and options just beside them that do not."""


@pytest.mark.parametrize(
    ("rule", "broken", "kept"), [(rule, *edge) for rule, edge in zip(megatron_rules(), EDGES, strict=True)]
)
def test_each_rule_on_both_sides_of_its_edge(rule: MegatronRule, broken: str, kept: str) -> None:
    """What breaks it is refused in its words, and only that; its source is Megatron's, or a reason."""
    assert rule.is_broken({**DEFAULTS, **derived_options(option_values(broken, "test"))})
    assert not rule.is_broken({**DEFAULTS, **derived_options(option_values(kept, "test"))})
    with pytest.raises(InputError, match=re.escape(rule.problem.partition("{")[0])):
        check_conflicts(option_values(broken, "test"), "test")
    check_conflicts(option_values(kept, "test"), "test")
    assert (rule.concerns == "price") != bool(re.search(r"\.(py|md), ", rule.source))


def test_what_megatron_changes_in_silence() -> None:
    """Sequence parallelism without tensor ranks, the optimizer of Megatron-FSDP, no experts, squared ReLU first."""
    alone = parse_megatron_args("--sequence-parallel")
    assert not alone.sequence_parallel
    assert parse_megatron_args("--sequence-parallel --tensor-model-parallel-size 2").sequence_parallel
    assert parse_megatron_args("--use-megatron-fsdp").use_distributed_optimizer
    dense = parse_megatron_args(f"{WHOLE} --num-experts 0").model
    assert dense is not None
    assert dense.num_experts is None
    relu = parse_megatron_args(f"{WHOLE} --quick-geglu --squared-relu").model
    assert relu is not None
    assert (relu.activation_func, relu.gated_linear_unit) == ("squared_relu", False)


def test_a_pattern_says_layers_and_depths() -> None:
    """Whatever the options for them say (``validate_args``, with a warning)."""
    text = WHOLE.replace("--num-layers 4", "--num-layers 9 --mtp-num-layers 3 --position-embedding-type none")
    model = parse_megatron_args(f"{text} --hybrid-layer-pattern M-M*/MM --mamba-head-dim 32 --mamba-num-groups 1").model
    assert model is not None
    assert (model.num_layers, model.mtp_num_layers, model.mtp_layer_pattern) == (4, 1, "MM")
