"""Content of files as types: what fits comes back, and what does not is named."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.typed import typed
from pipette_opt.specs import ModelSpec, StackSpec, TrainingSpec, YarnScaling
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.stack import Anchor

MODEL = ModelSpec(
    name="small",
    num_layers=4,
    hidden_size=64,
    ffn_hidden_size=256,
    num_attention_heads=4,
    num_query_groups=4,
    kv_channels=16,
    vocab_size=1000,
    max_position_embeddings=128,
)
LONG = replace(
    MODEL,
    position_embedding_type="yarn",
    yarn=YarnScaling(rotary_scaling_factor=4.0),
    no_rope_freq=(0, 0, 0, 1),
    window_size=(127, 0),
    window_attn_skip_freq=2,
)
TRAINING = TrainingSpec(global_batch_size=8, seq_length=128)
ANCHOR = Anchor(run="a", terms=(0.5,), log_ratio=0.1, reference=(0.25,))
STACK = StackSpec(
    fitted={"constants": "kept", "runs": 3, "errors": [0.1]},
    memory=MemoryConstants(group_gib=0.1, errors=(0.1,), twins={"0a": 0.5}),
    anchors=(ANCHOR,),
    versions={"1.0": 1.1},
)


def as_read(spec: Any) -> dict[str, Any]:
    """What a plan file has of a spec."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return content


@pytest.mark.parametrize("spec", [MODEL, LONG, TRAINING, StackSpec()])
def test_specs_come_back(spec: Any) -> None:
    """Through JSON and back nothing changes."""
    assert typed(type(spec), as_read(spec), "here", closed=True) == spec


def test_a_stack_with_tables_comes_back() -> None:
    """Classes inside the stack are made again."""
    found = typed(StackSpec, as_read(STACK), "here", closed=True)
    assert found.anchors == (ANCHOR,)
    assert (found.fitted, found.memory, found.versions) == (STACK.fitted, STACK.memory, STACK.versions)


def test_fields_with_defaults_may_be_absent() -> None:
    """Plans of the same version may lack what came later."""
    content = as_read(TRAINING)
    del content["expert_imbalance"]
    assert typed(TrainingSpec, content, "here", closed=True) == TRAINING
    content = {name: value for name, value in as_read(MODEL).items() if name not in ("rotary_base", "norm_epsilon")}
    assert typed(ModelSpec, content, "here", closed=True) == MODEL


WRONG: list[tuple[Any, str, object, str]] = [
    (MODEL, "num_layers", [4], r"here: num_layers must be a whole number, got \[4\]"),
    (MODEL, "num_layers", True, "num_layers must be a whole number, got True"),
    (MODEL, "num_layers", 10**20, "num_layers must be a whole number from -2.53 to 2.53, got 1000"),
    (MODEL, "num_layers", 10**9, "num_layers must be at most 1[0,]+, got 1,000,000,000"),
    (MODEL, "num_experts", "8", "num_experts must be a whole number or null, got '8'"),
    (MODEL, "gated_linear_unit", 1, "gated_linear_unit must be true or false, got 1"),
    (MODEL, "normalization", "x", "normalization must be one of LayerNorm, RMSNorm, got 'x'"),
    (MODEL, "hidden_dropout", None, "hidden_dropout must be a finite number, got nothing"),
    (MODEL, "hidden_dropout", 1, r"hidden_dropout must be in \[0, 1\), got 1"),
    (TRAINING, "global_batch_size", 10**12, "global_batch_size must be at most 1,000,000,000, got 1e\\+12"),
    (TRAINING, "flash_version", 2.0, "flash_version must be one of 1, 2, 3, got 2.0"),
    (STACK, "memory", 3, "memory must be a mapping of fields, got 3"),
    (STACK, "memory", {"group_gib": "much"}, "here: memory.group_gib must be a number in \\[0, 10000\\], got 'much'"),
    (STACK, "memory", {"late_buffers": []}, r"memory.late_buffers must be a mapping of fields or null, got \[\]"),
    (STACK, "anchors", [{}], r"here: anchors\[0\].run is missing"),
    (STACK, "anchors", [3], r"here: anchors\[0\] must be a mapping of fields, got 3"),
    (STACK, "anchors", [{"run": 3}], r"here: anchors\[0\].run must be text, got 3"),
    (STACK, "matmul_speed", float("nan"), r"matmul_speed must be a number in \[1e-09, 1e\+15\], got nan"),
    (STACK, "matmul_speed", 0, r"matmul_speed must be a number in \[1e-09, 1e\+15\], got 0"),
    (STACK, "streaming", 2, r"streaming must be a number in \[1e-09, 1\], got 2"),
    (STACK, "stream", 2, r"here: unknown field 'stream'. Did you mean streaming\?"),
    (STACK, "anchors", [{"runs": 3}], r"here: anchors\[0\] unknown field 'runs'. Did you mean run\?"),
    (STACK, "fitted", {"errors": [1, {"of": 10**20}]}, r"fitted.errors\[1\].of must be a whole number from"),
    (STACK, "colour", 2, r"here: unknown field 'colour'. Known fields: matmul_speed, "),
]


@pytest.mark.parametrize(("spec", "name", "value", "message"), WRONG)
def test_what_does_not_fit_is_named(spec: Any, name: str, value: object, message: str) -> None:
    """Place, field, value and what would be right; no word of Python's."""
    with pytest.raises(InputError, match=message) as caught:
        typed(type(spec), {**as_read(spec), name: value}, "here", closed=True)
    assert "not supported between" not in str(caught.value)


def test_what_is_no_spec_at_all() -> None:
    """A list, nothing, and a mapping without what is needed."""
    for data in (None, [], "model"):
        with pytest.raises(InputError, match="must be a mapping of fields"):
            typed(ModelSpec, data, "here", closed=True)
    with pytest.raises(InputError, match="here: name is missing"):
        typed(ModelSpec, {}, "here", closed=True)


def test_numbers_of_fields_that_nobody_reads_are_checked_too() -> None:
    """A field that a type does not have is left out, unless its number is none that all readers read alike."""
    content = as_read(TRAINING) | {"former": {"x": 3}}
    assert typed(TrainingSpec, content, "here") == TRAINING
    content["former"]["x"] = 1e300
    with pytest.raises(InputError, match=r"here: former.x must be a finite number from -1e\+18 to 1e\+18, got 1e\+300"):
        typed(TrainingSpec, content, "here")
