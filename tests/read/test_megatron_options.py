"""Options out of a command line or a script, and what the numbers make of each."""

import csv
import json
import os
import re
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args
from pipette_opt.read.megatron_fields import LATENT, MODEL, TRAINING, WIDE, YARN
from pipette_opt.read.megatron_options import given_options
from pipette_opt.read.megatron_table import MegatronOption, field_of, megatron_options, parts_saved, table_rows
from pipette_opt.specs import TrainingSpec

RECIPES = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "recipes"
ON_RECIPES = pytest.mark.skipif(not RECIPES.is_dir(), reason=f"no folder {RECIPES}")

DENSE = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--micro-batch-size 1 --global-batch-size 16 --bf16"
)
EXPERTS = f"{DENSE} --num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"


def said(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """What is not modelled, by option: value, effect, direction."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in given_options(text, "here").not_modelled:
        found.setdefault(one.option, []).append((one.value, one.effect, one.direction))
    return found


@pytest.mark.parametrize(
    ("option", "is_large"),
    [
        ("--sft", True),
        ("--rampup-batch-size 16 16 1000", True),
        ("--no-rope-fusion", False),
        ("--deterministic-mode", True),
    ],
)
def test_large_effects_on_time_are_marked(option: str, is_large: bool) -> None:
    """Of the time only: what packing does to memory is another note."""
    found = given_options(f"{DENSE} {option}", "here").not_modelled
    assert any(entry.is_large for entry in found) is is_large
    assert not any(entry.is_large for entry in found if entry.effect == "memory")


def test_options_have_their_types() -> None:
    """Whole and other numbers, words and flags, with a space or an equals sign."""
    text = "pretrain.py --num-layers=4 --hidden-dropout 0 --normalization RMSNorm --swiglu --lr 1e-4 -- tail"
    given = given_options(text, "here").values
    assert given == {"num_layers": 4, "hidden_dropout": 0.0, "normalization": "RMSNorm", "swiglu": True, "lr": "1e-4"}
    assert isinstance(given["hidden_dropout"], float)


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--recompute-granularity", ("selective", "full")),
        ("--recompute-method", ("uniform", "block")),
        ("--moe-token-dispatcher-type", ("alltoall", "allgather", "flex")),
    ],
)
def test_words_are_checked(option: str, choices: tuple[str, ...]) -> None:
    """Each choice is taken as it is; any other word is an error that names them."""
    for word in choices:
        assert getattr(parse_megatron_args(f"{option} {word}"), option[2:].replace("-", "_")) == word
    with pytest.raises(InputError, match=f"{option} must be {' or '.join(choices)}.*, got 'other'"):
        parse_megatron_args(f"{option} other")


def test_words_that_no_release_knows() -> None:
    """Of every option with a list of words: another one is an error, the shell's variables are not looked at."""
    listed = {option.name: option for option in megatron_options().values() if option.choices}
    assert len(listed) > 40
    for name, option in listed.items():
        with pytest.raises(InputError, match=f"{name} must be .*{re.escape(option.choices[-1])}, got 'nonsense'"):
            given_options(f"{name} nonsense", "here")
    assert given_options("--moe-router-dtype $DTYPE", "here").values["moe_router_dtype"] == "$DTYPE"


@ON_RECIPES
def test_defaults_of_megatron_change_nothing() -> None:
    """An option that says what Megatron does without it is never refused, nor listed as left out."""
    launch = "--num-layers 8 --bf16 --num-experts 8 --moe-token-dispatcher-type alltoall --use-distributed-optimizer"
    with (RECIPES / "options.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["option"] and row["default"] not in ("", "None", "[]")]
    checked = 0
    for row in rows:
        option, value = megatron_options()[field_of(row["option"])], row["default"].strip("[]'")
        if option.kind != "flag":
            assert option.name not in said(f"{launch} {row['option']} {value}"), row["option"]
            checked += 1
    assert checked > 100


def test_activations_win_over_the_granularity() -> None:
    """``--recompute-activations`` is selective, whatever granularity is given (``validate_args``)."""
    assert parse_megatron_args("--bf16").recompute_granularity is None
    assert parse_megatron_args("--recompute-activations").recompute_granularity == "selective"
    both = parse_megatron_args("--recompute-activations --recompute-granularity full")
    assert both.recompute_granularity == "selective"


def test_block_recomputation_is_read_whole() -> None:
    """Method and number as in a launch."""
    said = "--recompute-granularity full --recompute-method block"
    args = parse_megatron_args(f"{said} --recompute-num-layers 3")
    assert (args.recompute_granularity, args.recompute_method, args.recompute_num_layers) == ("full", "block", 3)


TIME_OFF = {
    "--tensor-model-parallel-size 2 --tp-comm-overlap": "either",
    "--overlap-moe-expert-parallel-comm --delay-wgrad-compute": "less",
    "--context-parallel-size 2 --cp-comm-type a2a p2p": "either",
    "--fp8-format hybrid --fp8-recipe custom": "either",
    "--optimizer sgd": "either",
}
MEMORY_OFF = {
    "--cuda-graph-impl local": "more",
    "--overlap-moe-expert-parallel-comm --delay-wgrad-compute": "more",
    "--context-parallel-size 2 --cp-comm-type a2a p2p": "either",
    "--fp8-format hybrid --fp8-recipe custom": "either",
    "--optimizer sgd": "either",
}


@pytest.mark.parametrize("options", sorted(TIME_OFF.keys() | MEMORY_OFF.keys()))
def test_what_is_not_modelled_is_said(options: str) -> None:
    """Each option that the numbers leave out has its value, and what it does to time and memory."""
    ((option, found),) = said(options).items()
    _, _, value = options.partition(f"{option} ")
    assert {one[0] for one in found} == {value}
    directions = {effect: direction for _, effect, direction in found}
    both = directions.get("both")
    assert directions.get("time", both) == TIME_OFF.get(options)
    assert directions.get("memory", both) == MEMORY_OFF.get(options)


@pytest.mark.parametrize(
    "options",
    [
        "--optimizer adam --cuda-graph-impl none --fp8-recipe mxfp8",
        "--tensor-model-parallel-size 1 --tp-comm-overlap",
        "--context-parallel-size 1 --cp-comm-type a2a",
        "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
        "--moe-permute-fusion --moe-router-fusion",
        "--recompute-granularity full --recompute-modules mlp",
        "--num-distributed-optimizer-instances 1 --cpu-offloading-num-layers 0",
        "--lr 1e-4 --data-path 0.5 $A 0.5 $B --save ckpt --log-interval 1",
    ],
)
def test_what_changes_nothing_is_not_listed(options: str) -> None:
    """Defaults, what only goes with an option that is not given, and what is no part of a step."""
    assert said(options) == {}


@pytest.mark.parametrize(
    ("words", "name"),
    [("--tp 8", "tensor-model-parallel-size"), ("--mbs=2", "micro-batch-size"), ("--seq-len 8192", "seq-length")],
)
def test_aliases_of_this_tool_are_no_options_of_megatron(words: str, name: str) -> None:
    """A launch with ``--tp 8`` was predicted without tensor parallelism."""
    with pytest.raises(InputError, match=f"Megatron-LM has no option .*; write --{name}"):
        given_options(words, "text")
    option, value = words.replace("=", " ").split()
    assert given_options(f"{words} --{name} {value}", "text").not_modelled[0].option == option
    with pytest.raises(InputError, match=f"sets {option} {value}, which .* not read"):
        given_options(f"{words} --{name} 4", "text")


def test_unknown_options_are_never_silent() -> None:
    """Of somebody's own: listed, with its value; torchrun's: nothing of the job."""
    assert said("--our-secret-sauce 3 --bf16 --nproc-per-node 8") == {"--our-secret-sauce": [("3", "both", "either")]}


def test_experts_one_by_one_are_said() -> None:
    """The numbers count grouped products, which an option must ask for."""
    found = parse_megatron_args(EXPERTS.replace("--moe-grouped-gemm ", "")).not_modelled
    assert [(one.option, one.effect, one.direction) for one in found] == [("--moe-grouped-gemm", "time", "more")]
    assert parse_megatron_args(EXPERTS).not_modelled == ()


def training(text: str) -> TrainingSpec:
    """The training that arguments say."""
    args = parse_megatron_args(text)
    return args.training(TrainingSpec(global_batch_size=8, seq_length=64, precision=args.precision or "bf16"))


@pytest.mark.parametrize(
    ("options", "gradient_bytes"),
    [
        ("--bf16", 4),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--bf16 --main-grads-dtype bf16", 4),
        ("--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16", 2),
        ("--fp16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
    ],
)
def test_bytes_of_a_gradient(options: str, gradient_bytes: int) -> None:
    """As Megatron-LM decides."""
    assert training(options).gradient_bytes == gradient_bytes


def test_formats_and_kernels_are_read() -> None:
    """States have formats of their own only with the precision-aware optimizer."""
    states = "--main-params-dtype fp16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8"
    assert training(f"--bf16 {states}").optimizer_bytes == 12
    assert training(f"--bf16 --use-distributed-optimizer --use-precision-aware-optimizer {states}").optimizer_bytes == 5
    kernels = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "unfused"}
    for word, kernel in kernels.items():
        assert training(f"--attention-backend {word}").attention_kernel == kernel
    assert training("--transformer-impl local --no-masked-softmax-fusion").attention_kernel == "unfused"
    assert not training("--no-masked-softmax-fusion").fused_softmax
    both = "--accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16"
    assert parse_megatron_args(f"--bf16 {both}").gradients_in_fp32 is False
    assert parse_megatron_args(f"--fp16 {both}").gradients_in_fp32 is True
    assert parse_megatron_args("--fp16 --grad-reduce-in-bf16").gradients_in_fp32 is None


def test_a_whole_launch_without_a_format_trains_in_fp32() -> None:
    """As Megatron does; what only describes a model or its degrees says nothing of formats."""
    assert parse_megatron_args(DENSE.replace("--bf16", "")).precision == "fp32"
    assert parse_megatron_args("--tensor-model-parallel-size 8 --micro-batch-size 1").precision is None
    assert parse_megatron_args(DENSE).precision == "bf16"


def test_modules_of_recomputation() -> None:
    """Those that are given, in one order; an older word for one of them; Megatron's default."""
    selective = "--recompute-granularity selective"
    for text, modules in (
        (f"{selective} --recompute-modules mlp moe_act", ("moe_act", "mlp")),
        (selective, ("core_attn",)),
        ("--moe-layer-recompute --num-experts 8 --moe-grouped-gemm --recompute-activations", ("core_attn", "moe")),
    ):
        args = parse_megatron_args(text)
        assert (args.recompute_granularity, args.recompute_modules) == ("selective", modules)
        assert args.not_modelled == ()
    assert parse_megatron_args("--recompute-granularity full --recompute-modules mlp").recompute_modules == (
        "core_attn",
    )


def test_recipes_of_products_are_read() -> None:
    """With their parameter gather, which the other format's option does not ask for."""
    found = training("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --fp4-param-gather")
    assert (found.fp8, found.fp4, found.fp8_recipe, found.fp8_param_gather) == (True, False, "mxfp8", True)
    assert found.other_arguments == (("--fp8-format", "e4m3"),)
    found = training("--bf16 --fp4-format e2m1 --fp8-recipe mxfp8 --fp8-param-gather")
    assert (found.fp8, found.fp4, found.fp8_recipe, found.fp8_param_gather) == (False, True, "delayed", False)


def test_what_is_on_the_host_is_read() -> None:
    """Layers, inputs of modules, the optimizer; a share of all states unless it is said."""
    assert training("--cpu-offloading-num-layers 5").cpu_offloading_num_layers == 5
    some = "--fine-grained-activation-offloading --offload-modules core_attn attn_proj"
    assert training(some).offload_modules == ("core_attn", "attn_proj")
    assert training("--offload-modules core_attn").offload_modules == ()
    assert training("--optimizer-cpu-offload").optimizer_offload_fraction == 1.0
    found = training("--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d")
    assert (found.optimizer_offload_fraction, found.overlap_cpu_optimizer_d2h_h2d) == (0.5, True)


@pytest.mark.parametrize(
    ("options", "modules"),
    [
        ("--cuda-graph-impl local", ()),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", ("attn", "moe_router")),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn,mlp", ("attn", "mlp")),
        ("--cuda-graph-impl full_iteration --cuda-graph-modules attn", ()),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", ()),
        ("--external-cuda-graph --cuda-graph-scope attn", ("attn",)),
        ("--cuda-graph-impl none --cuda-graph-modules attn", None),
    ],
)
def test_cuda_graphs_are_read(options: str, modules: tuple[str, ...] | None) -> None:
    """By today's words and older ones; no parts are all of them."""
    found = training(options)
    assert (found.cuda_graph, found.cuda_graph_modules) == (modules is not None, modules or ())


def test_what_no_number_counts_is_passed_on() -> None:
    """As it was given; not what has no effect, what is Megatron's default, or what the training has anyway."""
    text = (
        "--bf16 --optimizer adam --no-rope-fusion --cp-comm-type p2p a2a --context-parallel-size 2 --lr 1 "
        "--cuda-graph-impl none --suggested-communication-unit-size 5"
    )
    assert training("--attention-backend fused").other_arguments == (("--attention-backend", "fused"),)
    assert training("--attention-backend flash").other_arguments is None
    assert training(text).other_arguments == (("--no-rope-fusion",), ("--cp-comm-type", "p2p", "a2a"))


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --overlap-param-gather", 3),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --overlap-param-gather", 0),
        ("--use-megatron-fsdp --overlap-param-gather", 3),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ],
)
def test_fully_sharded_data_parallelism(options: str, stage: int) -> None:
    """What replicas share; it overlaps by itself, and one replica shares nothing."""
    options = f"{options} --overlap-grad-reduce"
    found = parse_megatron_args(options).parallel_config(8, 4)
    assert found.sharding_stage == stage
    assert found.overlap_grad_reduce == (stage < 2)
    assert parse_megatron_args(options).parallel_config(8, 1).zero_stage is None


def test_groups_of_fully_sharded_jobs() -> None:
    """They divide the replicas, and have an effect where something is shared."""
    fsdp = "--use-megatron-fsdp --data-parallel-sharding-strategy"
    groups = "--num-distributed-optimizer-instances"
    with pytest.raises(InputError, match="--num-distributed-optimizer-instances 3 does not divide"):
        parse_megatron_args(f"{fsdp} optim_grads_params {groups} 3").parallel_config(8, 8)
    instances = parse_megatron_args(f"--use-distributed-optimizer {groups} 2")
    assert instances.not_modelled == ()
    assert instances.parallel_config(8, 8).num_distributed_optimizer_instances == 2
    alone = parse_megatron_args(f"{groups} 2")  # has no effect
    assert (alone.not_modelled, alone.parallel_config(8, 8).num_distributed_optimizer_instances) == ((), 1)
    assert parse_megatron_args(f"{fsdp} optim_grads_params {groups} 2").not_modelled[0].option == "--use-megatron-fsdp"


def test_a_strategy_that_is_not_given_is_said() -> None:
    """Its default differs between releases: today's is counted, and said."""
    option = "--data-parallel-sharding-strategy"
    (said,) = [one for one in parse_megatron_args("--use-megatron-fsdp").not_modelled if one.option == option]
    assert "optim_grads_params is assumed" in said.why


def test_groups_of_optimizers_that_do_not_divide() -> None:
    """Whoever shares; and errors of degrees name the file once."""
    with pytest.raises(InputError, match=r"--num-distributed-optimizer-instances 3 does not divide the 8 data-"):
        parse_megatron_args("--use-distributed-optimizer --num-distributed-optimizer-instances 3").parallel_config(8, 8)
    chunks = parse_megatron_args("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "file")
    with pytest.raises(InputError, match=r"^file: num_layers_per_virtual_pipeline_stage must divide"):
        chunks.parallel_config(8, 8)


SCRIPT = """#!/bin/bash
# don't use --swiglu
TP=8
PP=${PP:-4}
GPT_ARGS="
    --num-layers 32 \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} --data-path "$DATA_PATH"
"
MOE_ARGS=(
    --moe-layer-freq "([0]*1+[1]*31)"  # it's dense first
    --pipeline-model-parallel-layout "Et*8|(t*8|)*2,t*8L" --spec local)
torchrun --nnodes 2 pretrain_gpt.py ${GPT_ARGS} "${MOE_ARGS[@]}" $MORE_ARGS --bf16 2>&1 | tee --append log
"""


def test_a_shell_script() -> None:
    """Quotes, arrays, comments, variables that it sets; those that it does not are empty, as in bash, and said."""
    found = given_options(SCRIPT, "here")
    assert found.values == {
        "num_layers": 32,
        "tensor_model_parallel_size": 8,
        "pipeline_model_parallel_size": 4,
        "data_path": "",
        "moe_layer_freq": "([0]*1+[1]*31)",
        "pipeline_model_parallel_layout": "Et*8|(t*8|)*2,t*8L",
        "spec": ["local"],
        "bf16": True,
    }
    assert found.not_modelled == ()
    assert found.notes == ("not set, and taken for empty: DATA_PATH (line 7), MORE_ARGS (line 12)",)


def test_variables_that_have_no_value() -> None:
    """Not set: of options alone the variable is named, in a script the option has no value, as in bash."""
    with pytest.raises(InputError, match=r"is the shell variable \$\{TP\}, which is not set here; write its value"):
        given_options("--tensor-model-parallel-size ${TP}", "here")
    with pytest.raises(InputError, match=r"must be followed by a value\. .*TP \(line 2\)"):
        given_options("#!/bin/bash\ntorchrun pretrain_gpt.py --tensor-model-parallel-size ${TP} --bf16", "here")
    assert given_options("TP=2\nTP=4\n--tensor-model-parallel-size ${TP}", "here").values == {
        "tensor_model_parallel_size": 4
    }


def test_options_of_launchers_are_theirs() -> None:
    """Of srun, and of a container; what follows is Megatron's, options in one quoted word among it."""
    text = """srun -n 8 --container-image x bash -c 'python pretrain_gpt.py $@ --num-layers 4' me '--lr 1'"""
    found = given_options(text, "here")
    assert found.values == {"num_layers": 4, "lr": "1"}
    assert found.not_modelled == ()


def test_values_that_nothing_depends_on_may_be_variables() -> None:
    """A path that the script's user sets."""
    text = "--tensor-model-parallel-size 2 --tp-comm-overlap --tp-comm-overlap-cfg $HERE/a.yaml --save ${THERE}"
    assert said(text)["--tp-comm-overlap-cfg"] == [("$HERE/a.yaml", "time", "either")]


def test_the_table_holds_together() -> None:
    """Every option once; who is off says where; who needs another names one that there is."""
    names = [name for row in table_rows() if row["option"] for name in (row["option"], *row["aliases"].split())]
    assert len(names) == len(set(names))
    for option in megatron_options().values():
        assert option.why.endswith("."), option.name
        off = option.time is not None or option.memory is not None
        assert off if option.status in ("in part", "approximated") else (not off or option.status == "modelled"), (
            option.name
        )
        for need in option.needs:
            assert field_of(need.partition("=")[0]) in megatron_options(), option.name


VALUES = {"flag": "", "whole": "7", "number": "0.5", "word": "other", "list": "other"}
"""A value of each kind that no row calls modelled."""


def value_for(option: MegatronOption) -> str:
    """A value that the option may have, if possible one that is not modelled."""
    return min(option.choices, key=option.modelled_values.__contains__, default=VALUES[option.kind])


@pytest.mark.parametrize("status", ["modelled", "priced", "harmless", "in part", "approximated", "refused"])
def test_every_option_does_what_the_table_says(status: str) -> None:
    """With what it needs and a value that is not modelled: read, passed over, listed or refused."""
    for option in megatron_options().values():
        if option.status != status:
            continue
        text = f"{option.name} {value_for(option)} --bf16"
        needs_refused = False
        needs = list(option.needs[:1])
        for need in needs:
            name, equals, value = need.partition("=")
            row = megatron_options()[field_of(name)]
            text += f" {name} {value if equals else value_for(row)}"
            needs_refused |= row.status == "refused" and value not in row.modelled_values
            needs += row.needs[:1]
        refusals = []
        try:
            found = given_options(text, "here")
            assert option.field in found.values
            listed = any(one.option == option.name for one in found.not_modelled)
            assert listed == (option.time is not None or option.memory is not None), option.name
        except InputError as error:
            refusals.append(str(error))
        assert bool(refusals) == (status == "refused" or needs_refused), option.name
        assert all(option.name in one for one in refusals) or needs_refused


def test_an_option_that_changes_the_numbers_is_not_left_out() -> None:
    """It is counted in part; what no number counts is left out."""
    priced, unpriced = (given_options(f"--bf16 {text}", "here").not_modelled for text in PRICED_AND_NOT)
    assert [entry.in_part for entry in priced] == [True]
    assert [entry.in_part for entry in unpriced] == [False]


PRICED_AND_NOT = (
    "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
    "--tensor-model-parallel-size 2 --sequence-parallel --cross-entropy-loss-fusion",
)


def test_every_modelled_option_is_used() -> None:
    """Each of them sets a field in a table, or one of the readers asks for it by name."""
    folder = Path(__file__).parents[2] / "pipette_opt" / "read"
    tables = {"megatron_table", "megatron_fields"}
    readers = "".join(path.read_text() for path in folder.glob("megatron_*.py") if path.stem not in tables)
    set_by_row = {row.option or row.name for row in (*MODEL, *YARN, *LATENT, *TRAINING) if row.name} | set(WIDE)
    in_conflicts = set(re.findall(r"\w+", shipped_path("data", "megatron_conflicts.csv").read_text()))
    assumed = {"moe_grouped_gemm", "moe_router_force_load_balancing", "reuse_grad_buf_for_mxfp8_param_ag"}
    for option in megatron_options().values():
        if option.status == "modelled" and option.field not in assumed:
            named = option.field in set_by_row or option.field in MegatronArgs.__dataclass_fields__
            used = f'"{option.field}"' in readers or option.field in in_conflicts or named
            assert used, option.name


def test_every_priced_option_has_a_price() -> None:
    """A module of the costs or of memory asks for it by name, so that it is not passed over."""
    package = Path(__file__).parents[2] / "pipette_opt"
    prices = "".join(path.read_text() for room in ("costs", "memory") for path in (package / room).glob("*.py"))
    for option in megatron_options().values():
        if option.status == "priced":
            assert f'argument("{option.name}")' in prices, option.name


def test_parts_that_bound_what_is_saved() -> None:
    """Overlapped communication saves no more than all of it."""
    left_out = given_options("--use-sharp --delay-wgrad-compute", "here").not_modelled
    assert parts_saved(left_out) == {"--use-sharp": "data_parallel"}


@ON_RECIPES
def test_nothing_large_is_harmless() -> None:
    """No option that somebody else simulated large is passed over here, and none is missing."""
    known = megatron_options()
    with (RECIPES / "options.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["option"]]
    assert [row["option"] for row in rows if field_of(row["option"]) not in known] == []
    large = [row["option"] for row in rows if row["weight"] == "large"]
    assert [option for option in large if known[field_of(option)].status == "harmless"] == []


@pytest.mark.search
@ON_RECIPES
def test_every_recipe_is_read_or_refused() -> None:
    """Each option of each file is modelled, harmless or listed; or the file is refused with an option's name."""
    with (RECIPES / "recipes.jsonl").open() as file:
        num_gpus = {recipe["name"]: recipe["num_gpus"] for recipe in map(json.loads, file)}
    num_read, refused = 0, {}
    for path in sorted((RECIPES / "megatron_args").glob("*.args")):
        text = path.read_text()
        options = {word.partition("=")[0] for word in text.split() if word.startswith("--")}
        try:
            args = parse_megatron_args(text, path.stem)
            assert args.model is not None
            args.parallel_config(args.model.num_layers, num_gpus[path.stem])
        except InputError as error:
            refused[path.stem] = any(option in str(error) for option in options)
            continue
        num_read += 1
        given = given_options(text, path.stem)
        listed = {one.option for one in given.not_modelled}
        for option in options:
            row = megatron_options()[field_of(option)]
            fine = not row.unlike(given.values[row.field]) or not row.matters(given.values)
            assert row.status in ("modelled", "priced", "harmless") or fine or row.name in listed, option
    assert all(refused.values()), refused
    assert num_read >= 90


def test_what_an_option_needs_has_to_matter_itself() -> None:
    """How tensor communication overlaps means nothing without that, nor with it on one tensor rank."""
    both = "--tp-comm-overlap --tp-comm-overlap-cfg a.yaml"
    assert set(said(both)) == set(said("--tp-comm-overlap-cfg a.yaml --tensor-model-parallel-size 2")) == set()
    assert set(said(f"{both} --tensor-model-parallel-size 2")) == {"--tp-comm-overlap", "--tp-comm-overlap-cfg"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ("deepep", None)),
        ("--moe-enable-deepep --moe-deepep-num-sms 16", ("deepep", 16)),
        ("--moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32", ("hybridep", 32)),
        ("--moe-flex-dispatcher-backend hybridep --moe-deepep-num-sms 16", ("hybridep", None)),
        (
            "--moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32 --moe-flex-dispatcher-num-sms 8",
            ("hybridep", 8),
        ),
        ("--moe-flex-dispatcher-backend ncclep", ("deepep", None)),
    ],
)
def test_kernels_of_the_flex_dispatcher(options: str, expected: tuple[str, int | None]) -> None:
    """Whose, and on how many multiprocessors: today's word before those of one backend; NCCL's have a note."""
    text = f"--num-experts 8 --moe-grouped-gemm --moe-router-topk 2 --moe-token-dispatcher-type flex {options}"
    found = parse_megatron_args(text)
    base = TrainingSpec(global_batch_size=8, seq_length=64, moe_token_dispatcher_type="flex")
    training = found.training(base)
    assert (training.moe_flex_dispatcher_backend, training.moe_flex_dispatcher_num_sms) == expected
    assert [one.option for one in found.not_modelled] == ["--moe-flex-dispatcher-backend"] * ("ncclep" in options)


def test_no_effect_without_chunks() -> None:
    """Groups of micro-batches and gathers beside the step are of interleaved pipelines."""
    options = "--microbatch-group-size-per-virtual-pipeline-stage 4 --overlap-param-gather-with-optimizer-step"
    assert not parse_megatron_args(f"{DENSE} --pipeline-model-parallel-size 2 {options}").not_modelled
    chunked = f"{DENSE} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 {options}"
    assert len(parse_megatron_args(chunked).not_modelled) == 2


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ("", 3),
        ("--flash-attention-version 2", 2),
        ("--flash-attention-version 3 --attention-backend flash", 3),
        ("--flash-attention-version 4 --attention-backend auto", 3),
        ("--flash-attention-version 2 --attention-backend fused", 3),
    ],
)
def test_versions_of_flash_attention(options: str, version: int) -> None:
    """The second has a rate of its own, later ones are the GPU's usual; cuDNN's kernels have none."""
    found = parse_megatron_args(f"{DENSE} {options}")
    assert found.training(TrainingSpec(global_batch_size=16, seq_length=1024)).flash_version == version
    assert not found.not_modelled


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ("--fp8-format hybrid", (0, 0)),
        ("--first-last-layers-bf16 --num-layers-at-end-in-bf16 4", (0, 0)),
        ("--fp8-format hybrid --first-last-layers-bf16", (1, 1)),
        (
            "--fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 4",
            (0, 4),
        ),
    ],
)
def test_layers_in_16_bits(options: str, ends: tuple[int, int]) -> None:
    """One at each end unless said otherwise, and only where products are in fewer bits."""
    model = parse_megatron_args(f"{DENSE} {options}").model
    assert model is not None
    assert (model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16) == ends


@pytest.mark.parametrize(
    "words",
    [
        "$(cat more) --bf16",
        "--bf16 $(cat more)",
        "--swiglu --use-flash-attn $(cat more)",
        "--micro-batch-size $(nproc)",
        '--log-interval 1 "$(cat more)"',
        "--save=$(cat more)",
        "--micro-batch-size=$(nproc)",
        "--$(hostname)=1",
    ],
)
def test_unknown_words_that_may_be_options(words: str) -> None:
    """Refused, as they may be any option; and values that count."""
    with pytest.raises(InputError, match=r"here, line 1: \$\(.*\), in .*, is known only when the script runs"):
        given_options(f"torchrun pretrain_gpt.py --num-layers 4 {words}".replace("--num-layers 4 $", "$"), "here")


@pytest.mark.parametrize(
    "value",
    ["$(hostname)", '"$(date)"', "/x/$(date +%F)", "$(pwd)/x", "`whoami`", "$(date)", "$RANDOM", "${SECONDS}-a"],
)
@pytest.mark.parametrize("option", ["--save ", "--log-dir ", "--save=", "--log-dir="])
def test_values_that_no_number_depends_on_may_be_unknown(option: str, value: str) -> None:
    """Paths of Megatron-LM, and of options that it does not have, where no word can be an option; they are named."""
    found = given_options(f"torchrun pretrain_gpt.py {option}{value} --num-layers 4", "here")
    assert found.values["num_layers"] == 4
    (note,) = found.notes
    assert note.startswith("known only when the script runs, and not needed: ")


@pytest.mark.parametrize("words", ["--save $(my_script)", "--data-path $(ls /data)", "--seed $RANDOM --lr 1e-4"])
def test_values_of_harmless_options_may_be_several_words(words: str) -> None:
    """They stay as the script has them."""
    given = given_options(f"torchrun pretrain_gpt.py --bf16 {words}", "here")
    assert given.values["bf16"] is True
    assert given.not_modelled == ()


@pytest.mark.parametrize("value", ["$(my_script)", '"$(cat name)"', '$(date "+--bf16")', "$(hostname)$(my_script)"])
def test_values_that_may_be_options_are_refused(value: str) -> None:
    """An option that Megatron-LM does not have may be a flag, with options behind it."""
    with pytest.raises(InputError, match="is known only when the script runs"):
        given_options(f"torchrun pretrain_gpt.py --log-dir {value} --num-layers 4", "here")


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        (
            "--data-parallel-sharding-strategy optim_grads_params",
            ("--data-parallel-sharding-strategy has no effect without --use-megatron-fsdp",),
        ),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", ()),
        ("--recompute-granularity full", ()),
    ],
)
def test_options_that_mean_nothing_are_said(options: str, notes: tuple[str, ...]) -> None:
    """Megatron ignores them; what predictions would count is not dropped without a word."""
    assert given_options(f"--micro-batch-size 1 {options}", "args").notes == notes


def test_printed_defaults_are_no_choice() -> None:
    """Megatron prints the strategy in every log, whoever shares parameters."""
    lines = {"world_size": "8", "micro_batch_size": "1", "use_megatron_fsdp": "False", "num_layers": "4"}
    lines["data_parallel_sharding_strategy"] = "optim_grads_params"
    printed = "".join(f"  {name} {'.' * 20} {value}\n" for name, value in lines.items())
    assert given_options(printed, "run.log").notes == ()


def test_a_model_beside_the_arguments_may_have_experts() -> None:
    """So no option of experts is said to have no effect, unless the arguments describe a dense model."""
    beside = given_options("--moe-grouped-gemm --micro-batch-size 1", "args")
    assert beside.notes == ()
    dense = given_options("--moe-grouped-gemm --num-layers 8 --micro-batch-size 1", "args")
    assert dense.notes == ("--moe-grouped-gemm has no effect without --num-experts",)
