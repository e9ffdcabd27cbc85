"""Adapters: parameters as PEFT counts them, and the tensors that autograd keeps of frozen matrices."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_config

from pipette_opt.layers.adapters import ATTENTION_TARGETS, MLP_TARGETS, TARGET_WORDS, TARGETS, Adapters, linears_of
from pipette_opt.layers.branch_bytes import branch_bytes
from pipette_opt.layers.parameters import layer_parameters, num_trained_parameters, rank_parameters
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.activations import on_rank


def with_adapters(model: ModelSpec, rank: int = 8, targets: tuple[str, ...] = (), **options: object) -> ModelSpec:
    """The model with adapters, by default at all its matrices."""
    adapters = Adapters(rank=rank, targets=targets or linears_of(model), **options)  # type: ignore[arg-type]
    return replace(model, adapters=adapters)


@pytest.mark.parametrize(
    ("name", "rank", "targets", "trained"),
    [
        ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),  # tloen/alpaca-lora prints it
        ("llama-2-7b", 16, (*ATTENTION_TARGETS, *MLP_TARGETS), 39_976_960),
        ("llama-3.1-8b", 8, (*ATTENTION_TARGETS, *MLP_TARGETS), 20_971_520),
        ("llama-3.1-8b", 16, (*ATTENTION_TARGETS, *MLP_TARGETS), 41_943_040),
        ("llama-3.1-8b", 16, ("o_proj",), 32 * 16 * 2 * 4096),
    ],
)
def test_parameters_are_those_that_peft_prints(name: str, rank: int, targets: tuple[str, ...], trained: int) -> None:
    """``print_trainable_parameters`` of PEFT."""
    assert num_trained_parameters(with_adapters(read_model(name), rank, targets)) == trained


def test_experts_have_an_adapter_each() -> None:
    """128 experts of 768 channels and three matrices, in 48 layers."""
    model = with_adapters(read_model("qwen3-30b-a3b"), 4, MLP_TARGETS)
    assert num_trained_parameters(model) == 48 * 128 * 3 * 4 * (2048 + 768)


@pytest.mark.parametrize("name", list_models())
def test_ranks_hold_the_split_half_and_the_whole_half(name: str) -> None:
    """Without adapters all is trained; with them, tensor ranks together hold each split half once."""
    model = read_model(name)
    assert num_trained_parameters(model) == model.num_parameters
    model = with_adapters(model)
    frozen = rank_parameters(replace(model, adapters=None), 1, 1, 1)
    alone = rank_parameters(model, 1, 1, 1, trained=True)
    both = rank_parameters(model, 1, 1, 1)
    for kind in dict.fromkeys(model.layers):
        assert both.layers[kind] == frozen.layers[kind] + alone.layers[kind]
        assert layer_parameters(model, kind) == layer_parameters(replace(model, adapters=None), kind)
        halves = rank_parameters(model, 2, 1, 1, trained=True).layers[kind]
        assert alone.layers[kind] / 2 <= halves <= alone.layers[kind]
    assert (alone.embeddings, alone.head) == (0, 0)


def test_words_for_matrices_are_known_names() -> None:
    """Of PEFT and of Megatron-Bridge."""
    assert {name for names in TARGET_WORDS.values() for name in names} == set(TARGETS)
    with pytest.raises(ValueError, match="adapters have the target gate_proj, which gpt-3-175b lacks"):
        with_adapters(read_model("gpt-3-175b"), 8, ("gate_proj",))
    for options in ({"rank": 0}, {"base": "nf3"}, {"dropout": 1.0}, {"targets": ("q_proj", "q_proj")}):
        with pytest.raises(ValueError, match="must be"):
            Adapters(**{"rank": 8, "targets": ("q_proj",), **options})  # type: ignore[arg-type]


def kept_bytes(model: ModelSpec, tokens: int) -> tuple[float, ...]:
    """Bytes that attention and MLP keep of a micro-batch of one sequence."""
    training = TrainingSpec(global_batch_size=1, seq_length=tokens)
    config = make_config(tp=1, pp=1, dp=1, num_layers=model.num_layers)
    rank = on_rank(training, lambda name: getattr(config, name))
    return tuple(float(branch_bytes(branch, rank, {}).whole) for branch in model.branches(model.layers[0]))


def test_a_frozen_matrix_keeps_its_input_only_for_an_adapter() -> None:
    """By hand, in 16 bits: h channels before queries, gate and up; the width before the last product; r per adapter."""
    tokens, h, width = 64, LLAMA_8B.hidden_size, LLAMA_8B.ffn_hidden_size
    attention, mlp = kept_bytes(LLAMA_8B, tokens)
    with_queries = kept_bytes(with_adapters(LLAMA_8B, 8, ("q_proj",)), tokens)
    assert with_queries == (attention + 2 * tokens * 8, mlp - 2 * tokens * (h + width))
    with_last = kept_bytes(with_adapters(LLAMA_8B, 4, ("down_proj",)), tokens)
    assert with_last == (attention - 2 * tokens * h, mlp - 2 * tokens * h + 2 * tokens * 4)
    dropped = kept_bytes(with_adapters(LLAMA_8B, 4, ("down_proj",), dropout=0.1), tokens)
    assert dropped[1] == with_last[1] + tokens * width  # a copy in place of the input, and its mask


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("targets", [("gate_proj",), ("down_proj",), MLP_TARGETS])
def test_autograd_keeps_these_tensors(targets: tuple[str, ...], dropout: float) -> None:
    """PyTorch's own saved tensors of an MLP whose activation is one operation, with frozen matrices and adapters."""
    torch = pytest.importorskip("torch", reason="needs torch")
    tokens, h, width, rank = 16, 32, 48, 4
    shapes = {"gate_proj": (width, h), "up_proj": (width, h), "down_proj": (h, width)}
    frozen = {name: torch.randn(shape) for name, shape in shapes.items()}
    halves = {
        name: (
            torch.randn(rank, shapes[name][1], requires_grad=True),
            torch.randn(shapes[name][0], rank, requires_grad=True),
        )
        for name in targets
    }
    storages: dict[int, float] = {}

    def kept(tensor: "torch.Tensor") -> "torch.Tensor":
        in_16_bits = 1.0 if tensor.dtype == torch.bool else 0.5
        storages[tensor.untyped_storage().data_ptr()] = in_16_bits * tensor.untyped_storage().nbytes()
        return tensor

    def linear(name: str, x: "torch.Tensor") -> "torch.Tensor":
        out = torch.nn.functional.linear(x, frozen[name])
        if name in halves:
            inner, outer = halves[name]
            x = torch.native_dropout(x, dropout, True)[0] if dropout else x
            out = out + torch.nn.functional.linear(torch.nn.functional.linear(x, inner), outer)
        return out

    class Gated(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context, gate, up):  # type: ignore[no-untyped-def]
            context.save_for_backward(gate, up)
            return torch.nn.functional.silu(gate) * up

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            gate, up = context.saved_tensors
            return gradient * up, gradient * torch.nn.functional.silu(gate)

    x = torch.randn(tokens, h, requires_grad=True)  # an activation of the layer before
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        linear("down_proj", Gated.apply(linear("gate_proj", x), linear("up_proj", x)))
    parameters = [*frozen.values(), *(half for pair in halves.values() for half in pair)]
    for parameter in parameters:
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    model = replace(LLAMA_8B, hidden_size=h, ffn_hidden_size=width, num_attention_heads=2, num_query_groups=2)
    model = with_adapters(replace(model, kv_channels=16), rank, targets, dropout=dropout)
    norms = 2 * tokens * (h + 2)  # the input of the norm, and its fp32 scale
    assert sum(storages.values()) == kept_bytes(model, tokens)[1] - norms
