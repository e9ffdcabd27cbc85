"""Training logs as measured runs."""

import os
import time
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.read import log_lines
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.megatron_logs import WARM_UP, Reports, import_runs, read_as_log, reports_of
from pipette_opt.read.runs import MeasuredRun, read_runs
from pipette_opt.specs import TrainingSpec

FORMATS = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "formats"

ARGUMENTS = {
    "world_size": "16",
    "num_layers": "24",
    "hidden_size": "2048",
    "ffn_hidden_size": "8192",
    "num_attention_heads": "16",
    "group_query_attention": "False",
    "num_query_groups": "1",
    "seq_length": "2048",
    "global_batch_size": "64",
    "micro_batch_size": "2",
    "tensor_model_parallel_size": "2",
    "pipeline_model_parallel_size": "2",
    "data_parallel_size": "4",
    "virtual_pipeline_model_parallel_size": "None",
    "sequence_parallel": "True",
    "use_distributed_optimizer": "True",
    "recompute_granularity": "selective",
    "bf16": "True",
    "padded_vocab_size": "50304",
}


def log(arguments: dict[str, str], times_ms: list[float], more: str = "") -> str:
    """What Megatron prints; a single time is of the tenth iteration."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    lines += [
        f" iteration {index:8d}/ 500000 | consumed samples: 64 | elapsed time per iteration (ms): {time:.1f} | "
        "learning rate: 1.0E-04 | global batch size:    64 | lm loss: 1.0E+01 |"
        for index, time in enumerate(times_ms, start=1 if len(times_ms) > 1 else 10)
    ]
    return "\n".join([*lines, more]) + "\n"


def imported(tmp_path: Path, text: str) -> MeasuredRun:
    """The only run of a folder with this log."""
    folder = tmp_path / "logs"
    folder.mkdir(parents=True)
    (folder / "run1.log").write_text(text)
    table = tmp_path / "runs.csv"
    table.write_text(import_runs([folder], gpu="h100-80gb")[0])
    (run,) = read_runs(table)
    return run


def test_a_log_becomes_a_row(tmp_path: Path) -> None:
    """Degrees from the arguments, the median after the warm-up, the largest reserved memory."""
    memory = (
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 20480.0 | reserved: 30000.0 | "
        "max reserved: 30720.0\n"
        "[Rank 8] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 20480.0 | reserved: 20480.0 | "
        "max reserved: 20480.0"
    )
    run = imported(tmp_path, log(ARGUMENTS, [9000.0, 4000.0, 3000.0, 2400.0, 2500.0, 2700.0], memory))
    assert run.iter_time_s == 2.5
    assert run.peak_mem_bytes == 30 * GIB
    assert run.oom is False
    launch = run.launch
    assert (run.num_gpus, launch.global_batch_size, launch.micro_batch_size) == (16, 64, 2)
    assert launch.model is not None
    config = launch.parallel_config(launch.model.num_layers, 16)
    assert config.label().startswith("tp2 pp2 dp4")
    assert (launch.model.num_query_groups, launch.use_distributed_optimizer, launch.precision) == (16, True, "bf16")
    assert (launch.recompute_granularity, launch.sequence_parallel) == ("selective", True)


@pytest.mark.parametrize(("fp8", "is_fp8"), [("None", False), ("hybrid", True), ("e4m3", True)])
def test_products_in_fp8(tmp_path: Path, fp8: str, is_fp8: bool) -> None:
    """Megatron prints the format as ``fp8``."""
    assert imported(tmp_path, log({**ARGUMENTS, "fp8": fp8}, [2500.0] * 6)).launch.fp8 == is_fp8


def test_sharded_parameters_are_not_the_distributed_optimizer(tmp_path: Path) -> None:
    """Megatron-FSDP is read as such, and its absence, too."""
    plain, sharded = (
        imported(tmp_path / value, log(ARGUMENTS | {"use_megatron_fsdp": value} | more, [2500.0] * 6))
        for value, more in (
            ("False", {}),
            ("True", {"data_parallel_sharding_strategy": "optim_grads_params", "sequence_parallel": "True"}),
        )
    )
    assert (plain.launch.zero_stage, sharded.launch.zero_stage) == (None, 3)


def test_an_impossible_log_does_not_cost_the_others(tmp_path: Path) -> None:
    """Its own line is named, and no unit that a person would mistake: a program printed the numbers."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, text in (
        ("a.log", log(ARGUMENTS, [2500.0] * 6)),
        ("b.log", log(ARGUMENTS, [25.0] * 6)),
        ("c.log", log(ARGUMENTS | {"data_parallel_size": "3"}, [2500.0] * 6)),
        ("d.log", log(ARGUMENTS, [2600.0] * 6)),
        ("e.log", log(ARGUMENTS, [2600.0] * 6, "[Rank 0] (after 2 iterations) memory (MB) | max reserved: 190000.0")),
    ):
        (folder / name).write_text(text)
    text, notes = import_runs([folder], gpu="h100-80gb")
    (tmp_path / "runs.csv").write_text(text)
    assert [run.iter_time_s for run in read_runs(tmp_path / "runs.csv")] == [2.5, 2.6]
    left_out = [note for note in notes if "left out" in note]
    assert left_out[0].startswith(
        f"b.log, line {len(ARGUMENTS) + 7}: left out, iter_time_s=0.025 is impossible: 16 h100"
    )
    assert left_out[0].endswith("check the times of the log, and its GPU.")
    assert left_out[1].startswith("c.log: left out, tp * cp * pp * dp = 2 * 1 * 2 * 3 = 12 must be num_gpus = 16")
    assert left_out[2].startswith("e.log: left out, peak_mem_gib=185.547 is more than a h100-80gb has")
    assert left_out[2].endswith("check the GPU of the log.")
    for name in ("a.log", "d.log"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"no log could be used\. b\.log, line [0-9]+: left out, iter_time_s"):
        import_runs([folder], gpu="h100-80gb")


EMBEDDING, LOSS = (f"account_for_{name}_in_pipeline_split" for name in ("embedding", "loss"))


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ({EMBEDDING: "False", LOSS: "False", "decoder_first_pipeline_num_layers": "None"}, (12, 12)),
        ({"num_layers": "30", EMBEDDING: "True", LOSS: "True"}, (15, 15)),
        ({"num_layers": "31", LOSS: "True"}, (16, 15)),
        ({"num_layers": "30", "decoder_first_pipeline_num_layers": "14"}, (14, 16)),
    ],
)
def test_stages_of_their_own(tmp_path: Path, arguments: dict[str, str], layers: tuple[int, ...] | None) -> None:
    """Two stages, with what Megatron says of the first and the last."""
    run = imported(tmp_path, log(ARGUMENTS | arguments, [2500.0] * 6))
    assert run.launch.model is not None
    assert run.launch.layers_per_stage(run.launch.model.num_layers) == layers


def test_layers_that_do_not_fit_the_stages_are_said(tmp_path: Path) -> None:
    """31 layers and both ends are no multiple of two stages."""
    (tmp_path / "run1.log").write_text(log(ARGUMENTS | {"num_layers": "31", EMBEDDING: "True", LOSS: "True"}, [1.0]))
    with pytest.raises(InputError, match="33 layers must be a multiple of the 2 stages"):
        import_runs([tmp_path], gpu="h100-80gb")


MIXTURE = {
    "num_experts": "8",
    "moe_router_topk": "2",
    "moe_ffn_hidden_size": "1024",
    "moe_shared_expert_intermediate_size": "None",
    "moe_layer_freq": "1",
    "expert_model_parallel_size": "4",
    "expert_tensor_parallel_size": "1",
}


def test_a_mixture_of_experts_is_one(tmp_path: Path) -> None:
    """Its experts and their degrees are the launch's; what Megatron leaves at ``None`` has no value."""
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE, [1000.0])).launch
    assert launch.model is not None
    assert (launch.model.num_experts, launch.model.moe_router_topk, launch.model.moe_ffn_hidden_size) == (8, 2, 1024)
    assert (launch.expert_model_parallel_size, launch.expert_tensor_parallel_size) == (4, 1)
    assert not launch.model.moe_shared_expert_intermediate_size


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    """Megatron prints its defaults for them all the same."""
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE | {"num_experts": "None"}, [1000.0])).launch
    assert launch.model is not None
    assert launch.model.num_experts is None


def test_experts_in_some_layers(tmp_path: Path) -> None:
    """In those that the argument says."""
    layers = {"moe_layer_freq": "([0]*1+[1]*23)"}
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE | layers, [1000.0])).launch
    assert launch.model is not None
    assert launch.model.num_moe_layers == 23


def test_out_of_memory_is_a_result(tmp_path: Path) -> None:
    """No time, no peak, and the flag."""
    run = imported(tmp_path, log(ARGUMENTS, [], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"))
    assert (run.oom, run.iter_time_s, run.peak_mem_bytes) == (True, None, None)


def test_logs_without_arguments_are_left_out(tmp_path: Path) -> None:
    """A folder in which nothing can be used is an error that says why."""
    (tmp_path / "other.log").write_text("hello\n")
    with pytest.raises(InputError, match=r"other\.log: left out, no Megatron arguments"):
        import_runs([tmp_path])


def test_a_missing_argument_is_named(tmp_path: Path) -> None:
    """The note says which."""
    arguments = {name: value for name, value in ARGUMENTS.items() if name != "hidden_size"}
    (tmp_path / "bad.log").write_text(log(arguments, [1000.0]))
    with pytest.raises(InputError, match="hidden_size"):
        import_runs([tmp_path], gpu="a100-80gb")


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    """So is one that is not there."""
    with pytest.raises(InputError, match="has no logs"):
        import_runs([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        import_runs([tmp_path / "nowhere"])


def test_a_log_that_breaks_off(tmp_path: Path) -> None:
    """The last number is cut in two, and says nothing: 2500.0 is not 2 milliseconds, 30720.0 MB not 3."""
    text = log(ARGUMENTS, [2500.0] * 3).rstrip("\n") + "\n"
    text += "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 1.0 | reserved: 1.0 | max reserved: 1024.0\n"
    text += "[Rank 8] (after 2 iterations) memory (MB) | max allocated: 1.0 | reserved: 1.0 | max reserved: 3"
    run = imported(tmp_path, text)
    assert run.peak_mem_bytes == GIB
    shorter = log(ARGUMENTS, [2500.0, 2500.0]) + " iteration 3/ 50 | elapsed time per iteration (ms): 2"
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "run.log").write_text(shorter)
    table = import_runs([tmp_path / "short"], gpu="h100-80gb")[0]
    assert ",2.5," in table
    assert "2 reports of time" in table


def test_ranks_that_write_at_once(tmp_path: Path) -> None:
    """Prefixes of torchrun, and two reports in one line."""
    lines = log(ARGUMENTS, [2500.0] * 6).splitlines()
    mixed = [f"[default{index % 2}]:{line}" for index, line in enumerate(lines)]
    mixed[-1] += "[default1]:[Rank 8] (after 2 iterations) memory (MB) | max allocated: 1.0 | max reserved: 2048.0 |"
    run = imported(tmp_path, "\n".join(mixed) + "\n")
    assert run.iter_time_s == 2.5
    assert run.peak_mem_bytes == 2 * GIB
    assert run.launch.tensor_model_parallel_size == 2


def test_a_restarted_job_counts_from_its_last_start(tmp_path: Path) -> None:
    """Arguments and times of the last start only."""
    first = log(ARGUMENTS, [9000.0] * 8)
    second = log(ARGUMENTS | {"micro_batch_size": "1"}, [2500.0] * 4)
    run = imported(tmp_path, first + second)
    assert (run.iter_time_s, run.launch.micro_batch_size) == (2.5, 1)


def test_broken_bytes_cost_nothing(tmp_path: Path) -> None:
    """Logs have them where a progress bar was cut."""
    (tmp_path / "run.log").write_bytes(b"\xff\xfe\n" + log(ARGUMENTS, [2500.0] * 4).encode())
    assert ",2.5," in import_runs([tmp_path], gpu="h100-80gb")[0]


@pytest.mark.parametrize(
    ("arguments", "kernel"),
    [
        ({}, "flash"),
        ({"use_flash_attn": "False", "transformer_impl": "transformer_engine"}, "flash"),  # versions 0.8 to 0.10
        ({"use_flash_attn": "False", "transformer_impl": "local"}, "unfused"),
        ({"use_flash_attn": "True", "transformer_impl": "local"}, "flash"),
        ({"use_flash_attn": "True", "attention_backend": "AttnBackend.unfused"}, "unfused"),
        ({"attention_backend": "AttnBackend.flash"}, "flash"),
        ({"attention_backend": "AttnBackend.fused"}, "flash"),
        ({"attention_backend": "AttnBackend.unfused"}, "unfused"),
        ({"attention_backend": "AttnBackend.auto", "transformer_impl": "transformer_engine"}, "flash"),
        ({"attention_backend": "AttnBackend.auto", "transformer_impl": "local"}, "unfused"),
        ({"attention_backend": "AttnBackend.local", "transformer_impl": "local"}, "unfused"),
    ],
)
def test_kernels_of_attention(tmp_path: Path, arguments: dict[str, str], kernel: str) -> None:
    """What the backend takes, also where Transformer Engine chooses; an unprinted kernel is said to be assumed."""
    run = imported(tmp_path, log(ARGUMENTS | arguments, [100.0]))
    trained = run.launch.training(TrainingSpec(global_batch_size=64, seq_length=2048))
    assert trained.attention_kernel == kernel
    assert ("assumed fused" in run.notes) == (not arguments)


def test_the_gpu_is_named_before_the_arguments(tmp_path: Path) -> None:
    """As jobs that begin with nvidia-smi print it."""
    (tmp_path / "a.log").write_text("NVIDIA A100-SXM4-80GB\n" + log(ARGUMENTS, [2500.0]))
    assert ",A100-SXM4-80GB," in import_runs([tmp_path])[0].splitlines()[1] + ","


@pytest.mark.parametrize(
    ("modules", "recompute"),
    [("['core_attn']", ("core_attn",)), ("['layernorm', 'moe_act']", ("layernorm", "moe_act"))],
)
def test_modules_that_are_recomputed(tmp_path: Path, modules: str, recompute: tuple[str, ...]) -> None:
    """Selective recomputation of other modules than the core does not pass for that of the core."""
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE | {"recompute_modules": modules}, [2500.0] * 6)).launch
    assert set(launch.recompute_modules) == set(recompute)


def test_unknown_modules_are_named(tmp_path: Path) -> None:
    """A module of a newer Megatron-Core leaves the log out."""
    (tmp_path / "a.log").write_text(log(ARGUMENTS | {"recompute_modules": "['hyper']"}, [2500.0] * 6))
    with pytest.raises(InputError, match=r"a\.log: left out, .*hyper"):
        import_runs([tmp_path], gpu="h100-80gb")


def test_overlap_and_dispatchers(tmp_path: Path) -> None:
    """As the launch has them."""
    overlap = {"overlap_grad_reduce": "True", "overlap_param_gather": "False", "cuda_graph_impl": "none"}
    tokens = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    beside = {"overlap_moe_expert_parallel_comm": "False", "fp8": "hybrid", "fp8_recipe": "mxfp8"}
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE | overlap | tokens | beside, [2500.0] * 6)).launch
    assert (launch.overlap_grad_reduce, launch.overlap_param_gather) == (True, False)
    assert launch.moe_token_dispatcher_type == "flex"
    assert launch.training_fields["fp8_recipe"] == "mxfp8"


def test_a_plain_dispatcher(tmp_path: Path) -> None:
    """Megatron prints ``moe_flex_dispatcher_backend`` whatever the type."""
    tokens = {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "deepep"}
    launch = imported(tmp_path, log(ARGUMENTS | MIXTURE | tokens, [2500.0] * 6)).launch
    assert launch.moe_token_dispatcher_type == "alltoall"
    assert not launch.overlap_grad_reduce


@pytest.mark.parametrize(
    "tag", [" 7: ", "[1,7]<stdout>:", "[prterun-a-1@1,7]<stdout>: ", "2026-06-10T11:02:13.000Z ", "gpu1: "]
)
def test_tags_do_not_matter(tmp_path: Path, tag: str) -> None:
    """A log behind a launcher's tags has the row of the log alone."""
    text = log(ARGUMENTS, [9000.0, 4000.0, 3000.0, 2400.0, 2500.0, 2700.0])
    run = imported(tmp_path, "".join(f"{tag}{line}\n" for line in text.splitlines()))
    launch = run.launch
    assert (run.iter_time_s, launch.tensor_model_parallel_size, launch.global_batch_size) == (2.5, 2, 64)
    assert launch.model is not None
    assert launch.model.vocab_size == 50304


PRIMUS = "\x1b[32m[20260610 11:02:13][rank-7/8][INFO ] \x1b[0m [---------trainer.py:1553] : "


def test_primus(tmp_path: Path) -> None:
    """Its prefix, its mean beside the time, and memory that is used on the device, in GB that are GiB."""
    report = (
        " [2026-06-10 11:02:13.123456] iteration        2/      50 | elapsed time per iteration (ms): 6048.6/6050.2 | "
        "hip mem usage/free/total/usage_ratio: 75.20GB/4.79GB/79.98GB/94.24% | global batch size:   64 |"
    )
    lines = ["AMD Instinct MI300X", *log(ARGUMENTS, []).splitlines(), report, report.replace("75.20GB", "74.10GB")]
    (tmp_path / "run.log").write_text("".join(f"{PRIMUS}{line}\n" for line in lines))
    table, notes = import_runs([tmp_path])
    assert ",MI300X," in table
    assert ",6.0486,75.2000,False," in table
    assert "memory: used on the device" in table
    assert not any("left out" in note for note in notes)


def test_a_batch_that_is_ramped_up(tmp_path: Path) -> None:
    """Only times of the last batch count."""
    text = log(ARGUMENTS, [1000.0] * 8 + [2500.0] * 4)
    head, rest = text.split(" iteration        9/", 1)
    run = imported(tmp_path, head.replace("batch size:    64", "batch size:    32") + " iteration        9/" + rest)
    assert (run.iter_time_s, run.launch.global_batch_size) == (2.5, 64)


def test_out_of_memory_after_some_iterations(tmp_path: Path) -> None:
    """The time is one; whether the job runs out is open."""
    run = imported(tmp_path, log(ARGUMENTS, [2500.0] * 6, "torch.OutOfMemoryError: CUDA out of memory."))
    assert (run.oom, run.iter_time_s) == (None, 2.5)
    assert "out of memory after these" in run.notes


def test_full_recomputation_of_some_layers(tmp_path: Path) -> None:
    """``block`` with fewer layers than a stage has does not pass for all of them."""
    block = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": "5"}
    launch = imported(tmp_path, log(ARGUMENTS | block, [2500.0] * 6)).launch
    assert (launch.recompute_method, launch.recompute_num_layers) == ("block", 5)


@pytest.mark.parametrize("cut", range(40, 1500, 60))
def test_a_log_cut_anywhere(tmp_path: Path, cut: int) -> None:
    """What is there is used, or the message says what is missing; never another row."""
    text = log(ARGUMENTS, [2500.0] * 6)
    (tmp_path / "run.log").write_text(text[:cut])
    try:
        table = import_runs([tmp_path], gpu="h100-80gb")[0]
    except InputError as error:
        problem, known = str(error), ("break off", "no Megatron arguments", "neither times", "only its first iteration")
        assert any(part in problem for part in known)
    else:
        assert ",2.5," in table


def test_other_files_of_a_folder_are_named(tmp_path: Path) -> None:
    """With what they look like; a log of another program as well."""
    (tmp_path / "run.log").write_text(log(ARGUMENTS, [2500.0] * 6))
    (tmp_path / "titan.log").write_text("[rank0]:[titan] step: 10 loss: 8.5 tps: 1,103 mfu: 39\n")
    (tmp_path / "history.jsonl").write_text('{"_step": 2, "iteration-time": 23.0}\n')
    (tmp_path / "metrics.prom").write_bytes(b"\x1f\x8b\x00")
    notes = " ".join(import_runs([tmp_path], gpu="h100-80gb")[1])
    assert "titan.log: left out, no Megatron arguments" in notes
    assert "It looks like a log of torchtitan, which no command reads" in notes
    assert "history.jsonl: not read, a log ends in .log, .out, .txt, .err." in notes
    assert "metrics.prom: not read" in notes
    assert "It looks like a gzip archive" in notes
    for log_file in tmp_path.glob("*.log"):
        log_file.unlink()
    with pytest.raises(InputError, match=r"has no logs; they end in .* history\.jsonl: not read"):
        import_runs([tmp_path])


def test_unused_lines_of_logs_are_counted(tmp_path: Path) -> None:
    """Those of a job around it."""
    (tmp_path / "run.log").write_text("module load cuda\n" + log(ARGUMENTS, [2500.0] * 6) + "bye\n")
    notes = import_runs([tmp_path], gpu="h100-80gb")[1]
    assert "run.log: 2 of 29 lines were not used: first, line 1: 'module load cuda'." in notes


@pytest.mark.parametrize("part", ["[Rank 1] memory (MB) max allocated: 1 ", "a:a:", "x ... ", "memory (MB) "])
def test_hostile_logs_take_linear_time(tmp_path: Path, part: str) -> None:
    """Sixteen kilobytes of what reports begin with."""
    (tmp_path / "run.log").write_text(part * (16_384 // len(part)) + "\n" + log(ARGUMENTS, [2500.0] * 6))
    start = time.process_time()
    import_runs([tmp_path], gpu="h100-80gb")
    assert time.process_time() - start < 2


@pytest.mark.skipif(not FORMATS.is_dir(), reason=f"{FORMATS} is not here")
def test_formats_of_megatron_logs() -> None:
    """Time and memory of each as its description has them."""
    table = import_runs([FORMATS / "megatron-log"], gpu="mi300x")[0].splitlines()
    assert len(table) == 5
    for row, said in zip(
        table[1:], ("23.0449,49.0234,False", "5.3616,,False", ",,True", "6.0531,150.2000,"), strict=True
    ):
        assert said in row


def test_first_iteration_is_no_time(tmp_path: Path) -> None:
    """The first iteration compiles and connects: alone it is no measured time, beside others it is left out."""
    tenth = log(ARGUMENTS, [9500.0])
    assert imported(tmp_path / "tenth", tenth).iter_time_s == 9.5
    with pytest.raises(InputError, match="only its first iteration"):
        imported(tmp_path / "first", tenth.replace("iteration       10/", "iteration        1/"))
    assert imported(tmp_path / "two", log(ARGUMENTS, [35000.0, 9000.0])).iter_time_s == 9.0


@pytest.mark.parametrize(
    ("line", "times_ms", "oom"),
    [
        ("hint: CUDA out of memory? lower the micro-batch size", [900.0] * 6, False),
        ("hint: CUDA out of memory? lower the micro-batch size", [], True),
        ("RuntimeError: CUDA error: out of memory", [900.0] * 6, True),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", [900.0] * 6, True),
        ("[rank9]: torch.OutOfMemoryError: CUDA out of memory.", [900.0] * 6, True),
    ],
)
def test_a_hint_is_no_error(line: str, times_ms: list[float], oom: bool) -> None:
    """Words about memory after good iterations are a hint; an error of PyTorch counts wherever it is."""
    reports = reports_of(read_as_log(log(ARGUMENTS, times_ms, line).encode(), "run.log"))
    assert reports.oom is oom


def test_reports_without_a_batch_size_take_linear_time() -> None:
    """A hundred thousand reports take milliseconds; with a look at all reports for each they took minutes."""
    began = time.perf_counter()
    assert len(Reports(times=[(0.25, "")] * 100_000).steady_s) == 100_000 - WARM_UP
    assert time.perf_counter() - began < 1


def test_a_huge_log_is_read_up_to_a_cap_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start has the arguments, the end the last iterations; what lies between is left out with its size."""
    monkeypatch.setattr(log_lines, "MAX_LINES", 100)
    text = log(ARGUMENTS, [900.0 + step for step in range(500)])
    reports = reports_of(read_as_log(text.encode(), "run.log"))
    assert reports.arguments["world_size"]
    assert reports.times[-1][0] == pytest.approx(1.399)
    assert len(reports.times) < 100
    assert "run.log: 1 of its 1 MB, in the middle, are not read" in caplog.text


@pytest.mark.parametrize("text", ["", "a", "\n" * 50, "a\n" * 50, "a" * 500, "a\n" * 5 + "b" * 500 + "\nc" * 5])
@pytest.mark.parametrize(("lines", "characters"), [(10, 10**6), (10**6, 100), (10, 40)])
def test_caps_hold_for_any_text(text: str, lines: int, characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read begins and ends as the text, within both caps; a text within them is unchanged."""
    monkeypatch.setattr(log_lines, "MAX_LINES", lines)
    monkeypatch.setattr(log_lines, "MAX_CHARACTERS", characters)
    kept, left_out = log_lines.within_caps(text)
    assert len(kept) <= characters + 1
    assert kept.count("\n") <= lines + 2
    assert len(text) == len(kept) + left_out - bool(left_out)
    assert (kept[:5], kept[-5:]) == (text[:5], text[-5:])


def test_words_of_a_fork_are_not_dropped(tmp_path: Path) -> None:
    """A fork prints arguments of its own: those that size the job are named; a launch or a log with them is refused."""
    path = tmp_path / "run.log"
    path.write_text(log(ARGUMENTS | {"lora_rank": "8", "lora_alpha": "16", "zero_stage": "0"}, [1000.0] * 9))
    with pytest.raises(InputError, match=r"left out, sets --lora_rank 8, which changes the size of the job"):
        import_runs([path], gpu="h100-80gb")
    with pytest.raises(InputError, match=r"sets --lora_rank 8, which changes the size of the job and is not read"):
        read_megatron_args(str(path), "--launch")
