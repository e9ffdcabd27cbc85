"""Arguments beside a model that is named elsewhere: one model, differences by name."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from factories import make_plan
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.job.models import check_job_of_plan, check_one_model, model_differences, with_launch
from pipette_opt.job.read import Made, read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import TrainingSpec

TRAINING = TrainingSpec(global_batch_size=64, seq_length=2048)

LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --max-position-embeddings 8192 --micro-batch-size 1 --bf16 "
    "--global-batch-size 64 --seq-length 4096 --tensor-model-parallel-size 2"
)
"""A script of Llama 3 8B that leaves the vocabulary to its tokenizer, and says nothing of dropout."""


def differences(name: str, arguments: str) -> list[str]:
    """What arguments say otherwise than a preset."""
    found = model_differences(read_model(name), TRAINING, parse_megatron_args(arguments))
    return [difference.words for difference in found]


def test_a_script_without_a_vocabulary_goes_with_its_model() -> None:
    """The model says the vocabulary; without one the message says what would do."""
    given = parse_megatron_args(LLAMA)
    assert given.model is None
    check_one_model(read_model("llama-3-8b"), TRAINING, given)
    with pytest.raises(InputError, match=r"--vocab-size .* is missing, and no tokenizer of known size is named"):
        read_model(LLAMA)


def test_a_known_tokenizer_says_the_vocabulary() -> None:
    """By the last name of a path; what is counted is said."""
    text = f"{LLAMA} --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/gpt2/Meta-Llama-3-8B"
    given = parse_megatron_args(text)
    assert given.model is not None
    assert given.model.vocab_size == 128256
    assert "128,256 is counted" in next(one for one in given.not_modelled if one.option == "--vocab-size").why
    assert read_model(f"{LLAMA} --vocab-file gpt2-vocab.json").vocab_size == 50257
    assert read_model(f"{LLAMA} --vocab-file gpt2-vocab.json --vocab-size 9").vocab_size == 9


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--vocab-size 50257", ["--vocab-size 50257 differs from the job's 128256"]),
        ("--vocab-size 128255", []),
        ("--padded-vocab-size 128256", []),
        ("--mtp-num-layers 1", ["--mtp-num-layers 1, but the job's model has none"]),
        ("--window-size 128,0", ["--window-size 128,0, but the job's model has none"]),
        ("--num-layers 16", ["--num-layers 16 differs from the job's 32"]),
        ("--hidden-dropout 0.1", ["--hidden-dropout 0.1 differs from the job's 0.0"]),
        ("--rotary-base 10000 --norm-epsilon 1e-6 --use-rope-scaling", []),
        ("--num-experts 8", ["--num-experts 8, but the job's model has none"]),
    ],
)
def test_options_are_compared_one_by_one(more: str, said: list[str]) -> None:
    """In parts and in a whole launch; what changes neither time nor memory is no difference."""
    assert differences("llama-3-8b", more) == said
    assert differences("llama-3-8b", f"{LLAMA} {more}") == said


@pytest.mark.parametrize("flag", ["--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"])
def test_what_a_whole_launch_does_not_say_counts(flag: str) -> None:
    """An absent flag is Megatron's default; of arguments that only say degrees it is nothing."""
    assert f"{flag} is missing, but the job's model needs it" in differences("llama-3-8b", LLAMA.replace(flag, ""))
    assert differences("llama-3-8b", "--tensor-model-parallel-size 2") == []


@pytest.mark.search
@pytest.mark.parametrize("name", list_models())
def test_a_preset_does_not_differ_from_itself(name: str) -> None:
    """Degrees say nothing of a model, also of one that Megatron has no options for."""
    assert differences(name, "--tensor-model-parallel-size 2 --seq-length 4096") == []
    (other,) = differences(name, "--vocab-size 7")
    assert other.startswith("--vocab-size 7 differs from the job's ")


@pytest.mark.parametrize(
    ("options", "arguments", "model", "whole", "said"),
    [
        ({"example": "lab-16x8"}, "--tensor-model-parallel-size 2", None, False, ""),
        ({"example": "lab-16x8"}, f"{LLAMA} --vocab-size 9", None, True, "that of the launch, not"),
        ({"model": "llama-3-8b"}, LLAMA, "llama-3-8b", False, "llama-3-8b, from --model"),
        ({}, f"{LLAMA} --vocab-size 9", None, True, ""),
    ],
)
def test_which_model_it_is(options: dict[str, str], arguments: str, model: str | None, whole: bool, said: str) -> None:
    """``--model`` before a whole model in the launch, that before the example's; which of them is said."""
    launch = parse_megatron_args(arguments)
    found, made, words = with_launch(JobOptions(**options), Made(), launch)  # type: ignore[arg-type]
    assert found.model == model
    assert made is (launch.model if whole else None)
    assert said in words
    assert bool(said) == bool(words)


@pytest.mark.parametrize("command", ["estimate", "solve", "explain"])
def test_commands_refuse_differences_by_name(command: str, tmp_path: Path) -> None:
    """Every option that says another model, with both values, whatever the command."""
    words = "--tensor-model-parallel-size 8 --micro-batch-size 1 --vocab-size 128256 --mtp-num-layers 1"
    out = ["-o", str(tmp_path / "plan.json")] if command == "solve" else []
    result = CliRunner().invoke(app, [command, "--example", "lab-16x8", "--launch", words, *out])
    assert isinstance(result.exception, InputError)
    for part in ("--vocab-size 128256 differs from the job's 32000", "--mtp-num-layers 1", "give the same model"):
        assert part in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--num-layers 16", "--num-layers 16 differs from the job's 32"),
        ("--global-batch-size 128", "--global-batch-size 128 differs from the plan's 256; give both"),
        ("--seq-length 2048", "--seq-length 2048 differs from the plan's 4096; give both"),
        ("--tensor-model-parallel-size 2 --global-batch-size 256", ""),
    ],
)
def test_a_plan_is_compared_with_scripts_of_its_job(arguments: str, said: str) -> None:
    """Before, ``export`` listed changes to a script of another model."""
    job = replace(
        make_plan(),
        inputs={
            "model": asdict(read_model("llama-3-8b")),
            "training": asdict(TrainingSpec(global_batch_size=256, seq_length=4096)),
        },
    )
    given = parse_megatron_args(arguments, "train.sh")
    check_job_of_plan(replace(job, inputs={}), given)
    if said:
        with pytest.raises(InputError, match=said):
            check_job_of_plan(job, given)
    else:
        check_job_of_plan(job, given)


def test_estimate_says_which_model() -> None:
    """In the notes."""
    words = [f"{LLAMA} --vocab-size 128256", "--example", "lab-16x8", "--json"]
    result = CliRunner().invoke(app, ["estimate", "--launch", *words])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["notes"][0].startswith("The model is that of the launch")


def test_a_model_does_not_ask_how_it_is_trained() -> None:
    """Options of the training that Megatron refuses, or that have no numbers, are none of the model."""
    training = (
        "--use-precision-aware-optimizer --overlap-param-gather --perform-rl-step --fp8-format hybrid --fp4-format e2m1"
    )
    plain = read_model(f"{LLAMA} --vocab-size 128256")
    assert replace(read_model(f"{LLAMA} --vocab-size 128256 {training}"), name=plain.name) == plain
    result = CliRunner().invoke(app, ["import", "model", f"{LLAMA} --vocab-size 128256 {training}"])
    assert result.exit_code == 0, result.output
    with pytest.raises(InputError, match="attention variants"):
        read_model(f"{LLAMA} --vocab-size 9 --experimental-attention-variant dsv4_hybrid")


def test_a_job_of_arguments_still_asks(tmp_path: Path) -> None:
    """Who trains with refused options is told."""
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun pretrain_gpt.py {LLAMA} --vocab-size 9 --use-precision-aware-optimizer\n")
    with pytest.raises(InputError, match="--use-precision-aware-optimizer needs"):
        read_job(JobOptions(launch=str(script), nodes="1", gpu="h100"))


@pytest.mark.search
def test_an_option_says_the_vocabulary(tmp_path: Path) -> None:
    """Of arguments that leave it to a tokenizer, and of nothing else."""
    script = tmp_path / "train.sh"
    script.write_text(f"torchrun pretrain_gpt.py {LLAMA}\n")
    assert read_model(str(script), 99).vocab_size == 99
    options = JobOptions(launch=str(script), vocab_size=99, nodes="1", gpu="h100", nics="8x400")
    assert read_job(options).instance.model.vocab_size == 99
    result = CliRunner().invoke(app, ["import", "model", str(script), "--vocab-size", "99", "--json"])
    assert json.loads(result.output)["vocab_size"] == 99
    with pytest.raises(InputError, match="a vocabulary of 9, which contradicts --vocab-size 99"):
        read_model(f"{LLAMA} --vocab-size 9", 99)
    for wrong in (
        replace(options, model="llama-3-8b"),
        JobOptions(example="lab-2x8", vocab_size=9),
    ):
        with pytest.raises(InputError, match="--vocab-size"):
            read_job(wrong)


def test_formats_are_none_of_the_model() -> None:
    """Layers at the end that stay in 16 bits are the model's; whether others are in fewer is the training's."""
    text = (
        f"{LLAMA} --vocab-size 128256 --first-last-layers-bf16 --num-layers-at-end-in-bf16 4 --fp4-format e2m1 --bf16"
    )
    given = parse_megatron_args(text)
    assert model_differences(read_model(text), TrainingSpec(global_batch_size=8, seq_length=8192), given) == []
