"""The model that Megatron's arguments describe, beyond its shapes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_architecture
from pipette_opt.specs import ModelSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_frequency, layer_list

BASE = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64 --vocab-size 99"


def model(text: str) -> ModelSpec:
    """The model of some more options."""
    found = parse_megatron_args(f"{BASE} {text}").model
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("--norm-epsilon 1e-6 --apply-layernorm-1p", {"norm_epsilon": 1e-6, "layernorm_zero_centered_gamma": True}),
        ("--position-embedding-type rope --rotary-base 500000", {"rotary_base": 500000, "rope_scaling_factor": None}),
        ("--position-embedding-type rope --use-rope-scaling", {"rope_scaling_factor": 8.0}),
        ("--use-rotary-position-embeddings --use-rope-scaling --rope-scaling-factor 32", {"rope_scaling_factor": 32.0}),
        ("--position-embedding-type rope --rope-scaling-factor 32", {"rope_scaling_factor": None}),
        ("--position-embedding-type rope --no-position-embedding", {"position_embedding_type": "rope"}),
        ("--position-embedding-type rope --rotary-percent 0.25", {"rotary_percent": 0.25}),
        ("--position-embedding-type rope --rotary-interleaved", {"rotary_interleaved": True}),
        (
            "--position-embedding-type rope --rotary-seq-len-interpolation-factor 4",
            {"rotary_seq_len_interpolation_factor": 4},
        ),
        ("--position-embedding-type rope --rotary-seq-len-interpolation-factor 1", {}),
        ("--position-embedding-type rope --no-rope-freq 4", {"no_rope_freq": 4}),
        ("--position-embedding-type none", {"position_embedding_type": "none"}),
        ("--rotary-base 500000 --rotary-percent 0.5", {"rotary_base": 10000, "rotary_percent": 1.0}),
        ("--window-size 127,0", {"window_size": (127, 0), "window_attn_skip_freq": None}),
        ("--window-size (127,0) --window-attn-skip-freq 2", {"window_attn_skip_freq": 2}),
        ("--window-size 127,0 --window-attn-skip-freq [1]*6+[0]*2", {"window_attn_skip_freq": (1,) * 6 + (0,) * 2}),
        ("--window-attn-skip-freq 2", {"window_size": None, "window_attn_skip_freq": None}),
        ("--swiglu", {"gated_linear_unit": True, "activation_func": None}),
        ("--squared-relu", {"gated_linear_unit": False, "activation_func": "squared_relu", "ffn_hidden_size": 256}),
        (
            "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0",
            {"activation_func": "quick_gelu", "glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0},
        ),
        ("--softmax-type learnable", {"softmax_type": "learnable"}),
        ("--init-method-std 0.008", {"init_method_std": 0.008}),
        ("--num-experts 4 --moe-router-pre-softmax", {"moe_router_pre_softmax": True}),
        ("--moe-router-pre-softmax", {"moe_router_pre_softmax": False}),
    ],
)
def test_options_of_the_model(text: str, changes: dict[str, Any]) -> None:
    """Each is read, and says nothing where Megatron does not look at it."""
    found = model(text)
    assert {name: getattr(found, name) for name in changes} == changes


def test_yarn_is_not_rope() -> None:
    """As GPT-OSS has it in Megatron-LM 0.19; unsaid parameters have Megatron's defaults."""
    text = (
        "--position-embedding-type yarn --rotary-base 150000 --rotary-scaling-factor 32.0 --yarn-beta-fast 32.0 "
        "--yarn-original-max-position-embeddings 8192 --no-yarn-correction-range-round-to-int"
    )
    found = model(text)
    assert found.position_embedding_type == "yarn"
    assert found.yarn == YarnScaling(
        rotary_scaling_factor=32.0, original_max_position_embeddings=8192, correction_range_round_to_int=False
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("[1,0]", (1, 0)),
        ("[0]*3+[1]", (0, 0, 0, 1)),
        ("([0]*3+[1]*1)*2", (0, 0, 0, 1, 0, 0, 0, 1)),
        ("([1]+([0])*2)", (1, 0, 0)),
    ],
)
def test_lists_of_layers(text: str, value: int | tuple[int, ...]) -> None:
    """As Megatron evaluates them, and back."""
    assert layer_frequency(text, "--x", "here") == value
    assert layer_frequency(layer_list(value), "--x", "here") == value


@pytest.mark.parametrize("text", ["", "x", "[1]*[2]", "2*3", "[[1]]", "__import__('os')", "[1]*1000000000", "[1]-[0]"])
def test_wrong_lists_of_layers(text: str) -> None:
    """Nothing but lists of whole numbers, and none of more layers than any model has."""
    with pytest.raises(InputError, match="--x must be a whole number or a list such as"):
        layer_frequency(text, "--x", "here")


@pytest.mark.search
def test_a_model_survives_its_own_file(tmp_path: Path) -> None:
    """``import model`` writes lists and YaRN so that they are read again."""
    text = (
        f"{BASE} --position-embedding-type yarn --rotary-scaling-factor 4 --window-size 15,0 --window-attn-skip-freq "
        "[1]*6+[0]*2 --norm-epsilon 1e-6"
    )
    out, script = tmp_path / "megatron.yaml", tmp_path / "train.sh"
    script.write_text(text)
    assert CliRunner().invoke(app, ["import", "model", str(script), "-o", str(out)]).exit_code == 0
    assert read_architecture(out) == parse_megatron_args(text).model
    fields = yaml.safe_load(out.read_text())
    out.write_text(yaml.safe_dump(fields).replace("1.0e-06", "1e-6"))
    assert read_architecture(out).norm_epsilon == 1e-6
