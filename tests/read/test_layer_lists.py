"""Options that say of which kind each layer is: patterns, delta nets, stages between bars, and what is refused."""

from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.specs import LayerKind

SHAPE = (
    "--hidden-size 256 --num-attention-heads 4 --vocab-size 99 --seq-length 64 --position-embedding-type none "
    "--squared-relu --disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm "
)


def test_a_hybrid_by_its_pattern() -> None:
    """Letters are layers, bars bounds of stages; Mamba's heads fill twice the hidden size unless told otherwise."""
    args = parse_megatron_args(f"{SHAPE} --hybrid-layer-pattern M-M|*-M- --pipeline-model-parallel-size 2")
    model = args.model
    assert model is not None
    assert model.hybrid_layer_pattern == "M-M*-M-"
    assert model.mamba is not None
    assert (model.mamba.num_heads, model.mamba.state_dim, model.mamba.num_groups) == (8, 128, 8)
    assert model.layers[3] == LayerKind("attention", "none")
    assert args.parallel_config(7, 2).layers_per_stage == (3, 4)
    named = parse_megatron_args(f"{SHAPE} --num-layers 4 --hybrid-override-pattern M-M* --mamba-num-heads 16").model
    assert named is not None
    assert named.mamba is not None
    assert (named.num_layers, named.mamba.num_heads) == (4, 16)


def test_delta_nets_in_place_of_attention() -> None:
    """All layers but the last of every fourth; NVIDIA's list of Qwen3-Next says the same of each layer."""
    shape = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 99 --seq-length 64 "
    kinds = []
    for freq in ("4", "([1]*3+[0]*1)*2"):
        text = (
            f"--experimental-attention-variant gated_delta_net --linear-attention-freq {freq} --linear-num-key-heads 8"
        )
        model = parse_megatron_args(shape + text).model
        assert model is not None
        assert model.gated_delta_net is not None
        assert model.gated_delta_net.num_key_heads == 8
        kinds.append([kind.mixer for kind in model.layers])
    assert kinds[0] == kinds[1] == (["gated_delta_net"] * 3 + ["attention"]) * 2
    assert [kind.mixer for kind in read_model("qwen3-next-80b-a3b").layers] == kinds[0] * 6
