"""Training logs as measured runs."""

from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.read.megatron_logs import EXPERTS, import_runs
from pipette_opt.read.runs import MeasuredRun, read_runs

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
    """What Megatron prints."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    lines += [
        f" iteration {index:8d}/ 500000 | consumed samples: 64 | elapsed time per iteration (ms): {time:.1f} | "
        "learning rate: 1.0E-04 | global batch size:    64 | lm loss: 1.0E+01 |"
        for index, time in enumerate(times_ms, start=1)
    ]
    return "\n".join([*lines, more]) + "\n"


def imported(tmp_path: Path, text: str) -> MeasuredRun:
    """The only run of a folder with this log."""
    folder = tmp_path / "logs"
    folder.mkdir()
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
    assert (run.num_gpus, run.tp, run.pp, run.dp, run.vpp, run.gbs, run.mbs) == (16, 2, 2, 4, 1, 64, 2)
    assert (run.kv_heads, run.zero_stage, run.recompute, run.precision) == (16, 1, "selective", "bf16")
    assert run.seq_parallel is True


@pytest.mark.parametrize(("fp8", "precision"), [("None", "bf16"), ("hybrid", "fp8"), ("e4m3", "fp8")])
def test_products_in_fp8(tmp_path: Path, fp8: str, precision: str) -> None:
    """Megatron prints the format as ``fp8``."""
    assert imported(tmp_path, log({**ARGUMENTS, "fp8": fp8}, [2500.0] * 6)).precision == precision


@pytest.mark.parametrize(("name", "value"), [("use_megatron_fsdp", "True"), ("fp4", "e2m1")])
def test_runs_that_would_pass_for_others_are_left_out(tmp_path: Path, name: str, value: str) -> None:
    """Sharded parameters are not the distributed optimizer, products in 4 bits are not those in 16."""
    off = "False" if value == "True" else "None"
    assert imported(tmp_path, log(ARGUMENTS | {name: off}, [2500.0] * 6)).precision == "bf16"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.log").write_text(log(ARGUMENTS | {name: value}, [2500.0] * 6))
    with pytest.raises(InputError, match=rf"a\.log: left out, {name} is {value}"):
        import_runs([tmp_path / "other"], gpu="h100-80gb")


EMBEDDING, LOSS = (f"account_for_{name}_in_pipeline_split" for name in ("embedding", "loss"))


@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ({EMBEDDING: "False", LOSS: "False", "decoder_first_pipeline_num_layers": "None"}, None),
        ({"num_layers": "30", EMBEDDING: "True", LOSS: "True"}, (15, 15)),
        ({"num_layers": "31", LOSS: "True"}, (16, 15)),
        ({"num_layers": "30", "decoder_first_pipeline_num_layers": "14"}, (14, 16)),
    ],
)
def test_stages_of_their_own(tmp_path: Path, arguments: dict[str, str], layers: tuple[int, ...] | None) -> None:
    """Two stages, with what Megatron says of the first and the last; nothing where all are equal."""
    run = imported(tmp_path, log(ARGUMENTS | arguments, [2500.0] * 6))
    assert run.layers_per_stage == layers


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


def test_a_mixture_of_experts_has_its_columns(tmp_path: Path) -> None:
    """So that the row is predicted as one; what Megatron leaves at ``None`` stays empty."""
    run = imported(tmp_path, log(ARGUMENTS | MIXTURE, [1000.0]))
    told = {name: value for name, value in run.extra.items() if name in ("num_experts", *EXPERTS)}
    assert told == {
        "num_experts": "8",
        "moe_router_topk": "2",
        "moe_ffn_hidden_size": "1024",
        "moe_shared_expert_intermediate_size": "",
        "ep": "4",
        "etp": "1",
    }


def test_a_dense_model_has_no_columns_of_experts(tmp_path: Path) -> None:
    """Megatron prints its defaults for them all the same."""
    run = imported(tmp_path, log(ARGUMENTS | MIXTURE | {"num_experts": "None"}, [1000.0]))
    assert not any(run.extra[name] for name in ("num_experts", *EXPERTS))


def test_experts_in_some_layers_are_left_out(tmp_path: Path) -> None:
    """No column says in which; the message does."""
    (tmp_path / "a.log").write_text(log(ARGUMENTS | MIXTURE | {"moe_layer_freq": "([0]*1+[1]*23)"}, [1000.0]))
    with pytest.raises(InputError, match=r"a\.log: left out, moe_layer_freq is \(\[0\]"):
        import_runs([tmp_path], gpu="h100-80gb")


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
    with pytest.raises(InputError, match="no such file"):
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
    assert run.tp == 2


def test_a_restarted_job_counts_from_its_last_start(tmp_path: Path) -> None:
    """Arguments and times of the last start only."""
    first = log(ARGUMENTS, [9000.0] * 8)
    second = log(ARGUMENTS | {"micro_batch_size": "1"}, [2500.0] * 4)
    run = imported(tmp_path, first + second)
    assert (run.iter_time_s, run.mbs) == (2.5, 1)


def test_broken_bytes_cost_nothing(tmp_path: Path) -> None:
    """Logs have them where a progress bar was cut."""
    (tmp_path / "run.log").write_bytes(b"\xff\xfe\n" + log(ARGUMENTS, [2500.0] * 4).encode())
    assert ",2.5," in import_runs([tmp_path], gpu="h100-80gb")[0]


@pytest.mark.parametrize(
    ("arguments", "kernel"),
    [
        ({}, "unfused"),
        ({"use_flash_attn": "True"}, "flash"),
        ({"attention_backend": "AttnBackend.flash"}, "flash"),
        ({"attention_backend": "AttnBackend.fused"}, "flash"),
        ({"attention_backend": "AttnBackend.unfused"}, "unfused"),
        ({"attention_backend": "AttnBackend.auto", "transformer_impl": "transformer_engine"}, "flash"),
        ({"attention_backend": "AttnBackend.auto", "transformer_impl": "local"}, "unfused"),
        ({"attention_backend": "AttnBackend.local", "transformer_impl": "local"}, "unfused"),
    ],
)
def test_kernels_of_attention(tmp_path: Path, arguments: dict[str, str], kernel: str) -> None:
    """What the backend takes, also where Transformer Engine chooses."""
    assert imported(tmp_path, log(ARGUMENTS | arguments, [100.0])).attention_kernel == kernel


def test_the_gpu_is_named_before_the_arguments(tmp_path: Path) -> None:
    """As jobs that begin with nvidia-smi print it."""
    (tmp_path / "a.log").write_text("NVIDIA A100-SXM4-80GB\n" + log(ARGUMENTS, [100.0]))
    assert ",A100-SXM4-80GB," in import_runs([tmp_path])[0].splitlines()[1] + ","
