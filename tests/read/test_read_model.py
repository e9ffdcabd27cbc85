"""Models: presets, Hugging Face, Megatron arguments."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import list_models, model_document, read_architecture, read_model
from pipette_opt.specs import ModelSpec

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
RECIPES = SHARED / "recipes" / "megatron_args"

EXACT = table(__file__, "EXACT")
"""Sum of the tensors of the published checkpoints."""

PAGES = table(__file__, "PAGES")
"""Billions that the models' pages and papers say, without multi-token prediction."""

PAPER = table(__file__, "PAPER")
"""The "number of parameters" columns of the papers."""


@pytest.mark.parametrize("name", EXACT)
def test_presets_have_the_published_parameters(name: str) -> None:
    """To the last parameter."""
    assert read_model(name).num_parameters == EXACT[name]


@pytest.mark.parametrize("name", PAPER)
def test_presets_agree_with_the_papers(name: str) -> None:
    """To the digits that the tables have."""
    tolerance = 0.03 if name == "megatron-1.7b" else 0.0125
    assert read_model(name).num_parameters == pytest.approx(PAPER[name], rel=tolerance)


@pytest.mark.parametrize("name", PAGES)
def test_presets_agree_with_their_pages(name: str) -> None:
    """To the digits that they have."""
    model = read_model(name)
    assert (model.num_parameters - model.num_mtp_parameters) / 1e9 == pytest.approx(PAGES[name], rel=0.01)


@pytest.mark.parametrize("name", list_models())
def test_every_preset_reads_and_names_its_source(name: str) -> None:
    """Any case; the file's name is the model's."""
    assert read_model(name.upper()).name == name
    from pipette_opt.base.shipped import shipped_path

    assert "source:" in shipped_path("data", "architectures", f"{name}.yaml").read_text()


def test_unknown_models_name_near_ones() -> None:
    """A typing mistake costs nothing."""
    with pytest.raises(InputError, match=r"'llama3-9b': is neither a preset nor a file. Did you mean llama-3-8b"):
        read_model("llama3-9b")


def test_architecture_files_name_wrong_fields(tmp_path: Path) -> None:
    """A misspelt field of our YAML."""
    path = tmp_path / "mine.yaml"
    path.write_text("num_layer: 3")
    with pytest.raises(InputError, match=r"unknown field 'num_layer'. Did you mean num_layers"):
        read_architecture(path)


LLAMA_ARGS = """
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
    --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \\
    --normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights \\
    --max-position-embeddings 8192 --vocab-size 128256 --hidden-dropout 0.0 --attention-dropout=0
"""


def test_megatron_arguments_give_the_preset() -> None:
    """Llama 3 8B as Megatron is told about it."""
    model, preset = read_model(LLAMA_ARGS), read_model("llama-3-8b")
    assert model.num_parameters == preset.num_parameters
    assert model.num_query_groups == 8
    assert (model.hidden_dropout, model.attention_dropout) == (0.0, 0.0)


def test_megatron_defaults() -> None:
    """Four times the width, biases, learned positions, dropout 0.1, no grouping without the flag."""
    model = read_model("--num-layers 2 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 --vocab-size 1000")
    assert model.ffn_hidden_size == 4096
    assert model.kv_channels == 64
    assert model.num_query_groups == 16
    assert model.max_position_embeddings == 512
    assert model.add_bias_linear
    assert model.add_qkv_bias
    assert model.position_embedding_type == "learned_absolute"
    assert model.hidden_dropout == 0.1
    assert not model.untie_embeddings_and_output_weights
    assert model.padded_vocab_size(2) == 1024


def test_swiglu_default_width() -> None:
    """int(4 h * 2/3 / 64) * 64: for h = 4096, 10922.67 / 64 = 170.67, hence 170 * 64 = 10880."""
    text = "--num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 8 --padded-vocab-size 999 --swiglu"
    model = read_model(text)
    assert model.ffn_hidden_size == 10880
    assert model.padded_vocab_size(1) == 999


def test_query_groups_without_the_flag_do_nothing() -> None:
    """As in Megatron, and a group of one with the flag alone."""
    base = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --vocab-size 9"
    assert read_model(f"{base} --num-query-groups 2").num_query_groups == 4
    assert read_model(f"{base} --group-query-attention").num_query_groups == 1


def test_a_shell_script_with_everything(tmp_path: Path) -> None:
    """Arrays, comments and foreign options are no hindrance."""
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n# --num-layers 99 is not it\nMODEL_ARGS=(\n    --num-layers 40  # deep\n    --hidden-size 5120\n"
        '    --num-attention-heads 40\n)\nTRAIN="--seq-length 2048 --max-position-embeddings 2048 --lr 1e-4 --bf16"\n'
        "DATA='--vocab-size 50257 --tokenizer-type GPT2BPETokenizer'\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} $TRAIN $DATA \\\n"
        "  --tensor-model-parallel-size 8 \\\n"
        "  --pipeline-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64\n"
    )
    assert read_model(script).num_layers == 40
    args = parse_megatron_args(script.read_text(), str(script))
    assert args.precision == "bf16"
    assert (args.micro_batch_size, args.global_batch_size, args.seq_length) == (4, 64, 2048)
    config = args.parallel_config(40, 64)
    assert (config.tensor_model_parallel_size, config.pipeline_model_parallel_size, config.data_parallel_size) == (
        8,
        2,
        4,
    )


def test_current_degrees_only() -> None:
    """Degrees without a model, for a comparison with today's run."""
    args = parse_megatron_args(
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
        "--sequence-parallel --use-distributed-optimizer --recompute-activations --use-tp-pp-dp-mapping"
    )
    assert args.model is None
    config = args.parallel_config(32, 32)
    assert config.layers_per_stage == (8, 8, 8, 8)
    assert config.virtual_pipeline_model_parallel_size == 4
    assert config.data_parallel_size == 2
    assert config.sequence_parallel
    assert config.use_distributed_optimizer
    assert config.recompute_granularity == "selective"
    assert args.rank_order == "tp-cp-ep-pp-dp"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", (10, 10, 10)),
        ("--decoder-first-pipeline-num-layers 8", (8, 11, 11)),
        ("--decoder-last-pipeline-num-layers 6", (12, 12, 6)),
        ("--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 7", (9, 14, 7)),
    ],
)
def test_layers_per_stage(text: str, layers: tuple[int, ...]) -> None:
    """Thirty layers on three stages."""
    args = parse_megatron_args(f"--pipeline-model-parallel-size 3 {text}")
    assert args.layers_per_stage(30) == layers


def test_embedding_and_loss_count_as_layers() -> None:
    """(30 + 2) / 4 = 8 a stage; the first and the last have one layer less."""
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    args = parse_megatron_args(f"--pipeline-model-parallel-size 4 {flags}")
    assert args.layers_per_stage(30) == (7, 8, 8, 7)


@pytest.mark.parametrize(
    "chunks", ["--num-virtual-stages-per-pipeline-rank 8", "--num-layers-per-virtual-pipeline-stage 2"]
)
def test_embedding_and_loss_count_as_layers_of_chunks(chunks: str) -> None:
    """Llama 3.1 405B: (126 + 2) / (8 x 8) = 2 a chunk, and 1 in the first and in the last."""
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    args = parse_megatron_args(f"--pipeline-model-parallel-size 8 {chunks} {flags}")
    found = args.parallel_config(126, 64)
    assert found.layers_per_chunk == ((1, *(2,) * 7), *((2,) * 8,) * 6, (*(2,) * 7, 1))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--num-virtual-stages-per-pipeline-rank 2", r"must divide the 17 layers of a stage .* got 2"),
        ("--num-layers-per-virtual-pipeline-stage 2", r"must divide the 17 layers of a stage, got 2"),
        ("--decoder-first-pipeline-num-layers 15", r"cannot be combined with --decoder-first-"),
        ("--decoder-last-pipeline-num-layers 15", r"cannot be combined with --decoder-first-"),
    ],
)
def test_counted_layers_that_megatron_refuses(more: str, message: str) -> None:
    """32 layers, embedding and head are 17 on each of two stages: not two chunks, although 16 would be."""
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    plain = parse_megatron_args(f"--pipeline-model-parallel-size 2 {flags}")
    assert plain.parallel_config(32, 8).layers_per_stage == (16, 16)
    args = parse_megatron_args(f"--pipeline-model-parallel-size 2 {flags} {more}")
    with pytest.raises(InputError, match=message):
        args.parallel_config(32, 8)


def test_degrees_that_do_not_fit_the_gpus() -> None:
    """Tensor x pipeline must divide the GPUs."""
    args = parse_megatron_args("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 3")
    with pytest.raises(InputError, match="= 24 must divide the 64 GPUs"):
        args.parallel_config(30, 64)
    with pytest.raises(
        InputError, match=r"32 layers must be a multiple of the 3 stages .* --pipeline-model-parallel-layout"
    ):
        args.parallel_config(32, 48)


def read_back(model: ModelSpec, folder: Path) -> ModelSpec:
    """Model of the architecture file that is written of a model."""
    file = folder / "model.yaml"
    file.write_text(yaml.safe_dump(model_document(model), sort_keys=False))
    return replace(read_architecture(file), name=model.name)


@pytest.mark.parametrize("name", list_models())
def test_presets_are_read_back_as_they_are(name: str, tmp_path: Path) -> None:
    """An architecture file has everything that a model says."""
    model = read_model(name)
    assert read_back(model, tmp_path) == model


HYBRID = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --group-query-attention --num-query-groups 2 "
    "--seq-length 512 --max-position-embeddings 512 --vocab-size 1024 --normalization RMSNorm "
    "--position-embedding-type none --hybrid-layer-pattern M*-M/*-/*- --disable-bias-linear --mamba-num-heads 8 "
    "--squared-relu"
)
"""A small hybrid with two depths of prediction layers of their own."""


def test_prediction_layers_of_a_hybrid_are_counted(tmp_path: Path) -> None:
    """Both depths count; a depth of repeated layers counts once."""
    model = read_model(HYBRID)
    assert (model.mtp_num_layers, model.mtp_layer_pattern) == (2, "*-")
    assert 0 < model.num_mtp_parameters < model.num_parameters
    repeated = replace(model, mtp_use_repeated_layer=True)
    assert repeated.num_mtp_parameters == model.num_mtp_parameters / 2
    assert read_back(repeated, tmp_path) == repeated


@pytest.mark.skipif(not RECIPES.is_dir(), reason="NVIDIA's recipes are not here")
def test_recipes_are_written_and_read_back_equal(tmp_path: Path) -> None:
    """Models of all recipes but those of DeepSeek V4, whose attention is refused."""
    equal, refused = 0, []
    for file in sorted(RECIPES.glob("*.args")):
        try:
            model = read_model(file)
        except InputError:
            refused.append(file.stem)
            continue
        equal += read_back(model, tmp_path) == model and model.num_mtp_parameters >= 0
    assert (equal, len(refused)) == (227, 2), refused
    assert all(name.startswith("deepseek_v4") for name in refused)


@pytest.mark.parametrize("name", ["Qwen/Qwen3.6-27B", "NewLab/Unheard-7B"])
def test_an_id_of_the_hub_that_is_no_preset(name: str) -> None:
    """The way on is named; a name without an organisation is no id."""
    fetch = f"`hf download {name} config.json --local-dir .`"
    with pytest.raises(InputError) as refused:
        read_model(name)
    assert f"Nothing is downloaded: of a model on the Hugging Face Hub give its config.json ({fetch})." in str(
        refused.value
    )
    with pytest.raises(InputError) as refused:
        read_model(name.partition("/")[2])
    assert "Hub" not in str(refused.value)


def test_an_address_is_no_file() -> None:
    """Nothing is downloaded."""
    with pytest.raises(InputError, match="is an address, and nothing is downloaded: download the file"):
        read_model("https://example.com/Qwen/Qwen3.6-27B/config.json")
