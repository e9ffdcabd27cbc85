"""Megatron's own checks of options: each on both sides of its edge."""

import re

import pytest
from tables import table

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

EDGES = table(__file__, "EDGES")
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
