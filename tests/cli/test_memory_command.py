"""``pipette-opt memory predict``, end to end and with wrong input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app

RUNNER = CliRunner()
JOB = ["memory", "predict", "--model", "llama-3-8b", "--global-batch-size", "64", "--seq-length", "4096"]


def test_predict_prints_every_stage() -> None:
    """JSON has a row for each stage: a prediction, a bound above it, and a risk that is small where there is room."""
    found = RUNNER.invoke(app, [*JOB, "--tensor-parallel", "4", "--pipeline-parallel", "2", "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert [row["stage"] for row in rows] == [0, 1]
    for row in rows:
        assert row["predicted_gib"] < row["upper_gib"] < row["capacity_gib"]
        assert 0 < row["oom_probability"] <= 0.01


def test_predict_knows_experts_and_savers() -> None:
    """Each way to save memory leaves less than the job without it: experts spread, recomputation, ZeRO 3."""
    mixtral = [*JOB[:3], "mixtral-8x7b", *JOB[4:], "--json"]
    spread = ["--data-parallel", "8", "--expert-parallel", "8", "--pipeline-parallel", "4"]
    block = ["--recompute", "full", "--recompute-method", "block", "--recompute-num-layers", "4"]
    peaks = []
    for options in (["--data-parallel", "8"], ["--data-parallel", "8", "--zero-stage", "3"], spread, [*spread, *block]):
        found = RUNNER.invoke(app, [*mixtral, *options])
        assert found.exit_code == 0, found.output
        peaks.append(json.loads(found.stdout)[0]["predicted_gib"])
    assert peaks == sorted(peaks, reverse=True)


def test_predict_counts_embedding_and_head_where_chunks_need_it() -> None:
    """32 layers in 17 chunks of two stages: 16 each, since embedding and head are the others; as Llama 405B on 16."""
    found = RUNNER.invoke(app, [*JOB, "--pipeline-parallel", "2", "--virtual-pipeline", "17"])
    assert found.exit_code == 0, found.output
    assert "pp2 dp1 mbs1 vpp17" in found.output
    llama = ["memory", "predict", "--model", "llama-3.1-405b", "--global-batch-size", "64", "--seq-length", "4096"]
    stages = ["--tensor-parallel", "8", "--pipeline-parallel", "16", "--virtual-pipeline"]
    found = RUNNER.invoke(app, [*llama, *stages, "8"])
    assert "layers7,8x14,7" in found.output
    error = RUNNER.invoke(app, [*llama, *stages, "7"]).exception
    assert isinstance(error, InputError)
    assert "must divide the 126 layers" in str(error)


@pytest.mark.parametrize(
    "options",
    [
        ("--recompute-num-layers", "4"),
        ("--recompute-method", "block", "--recompute", "selective"),
        ("--expert-parallel", "2"),
        ("--expert-tensor-parallel", "1"),
    ],
)
def test_predict_refuses_what_has_no_effect(options: tuple[str, ...]) -> None:
    """A depth of recomputation without it, experts of a dense model, links without the constants that go with them."""
    found = RUNNER.invoke(app, [*JOB, *options])
    assert isinstance(found.exception, InputError)
    assert str(found.exception).startswith(f"{options[0]}: has no effect")


def test_predict_shows_a_table() -> None:
    """Without ``--json`` the title names the configuration."""
    found = RUNNER.invoke(app, JOB)
    assert found.exit_code == 0, found.output
    assert "tp1 pp1 dp1 mbs1" in found.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pipeline-parallel", "5"], "must divide the 32 layers"),
        (["--recompute", "some"], "--recompute"),
        (["--data-parallel", "7"], "global_batch_size=64"),
        (["--virtual-pipeline", "2"], "pipeline_model_parallel_size"),
        (["--tensor-parallel", "3"], "num_attention_heads"),
        (["--max-oom-risk", "0"], "max_oom_risk"),
        (["--weights", "nowhere.npz"], "nowhere"),
        (["--framework", "nanotronn"], "Did you mean nanotron"),
        (["--framework", "nowhere.yaml"], "does not exist"),
        (["--recompute-method", "some"], "--recompute-method"),
        (["--fp8", "--precision", "fp32"], "fp8 goes with"),
        (["--context-parallel", "2", "--attention-kernel", "unfused"], "fused attention kernel"),
    ],
)
def test_wrong_options_are_named(options: list[str], message: str) -> None:
    """Every wrong option ends in an error that names it, never in a traceback of something else."""
    found = RUNNER.invoke(app, [*JOB, *options])
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be a whole number >= 1, got 0"),
        ({"num_hidden_layers": 32.5}, "num_hidden_layers must be a whole number"),
        ({"vocab_size": -5}, "vocab_size must be a whole number"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 7}, "7 heads must divide"),
        ({"hidden_size": 10**11}, "hidden_size must be at most 2147483647, got 100000000000"),
        ({"num_hidden_layers": 10**9}, "num_layers must be at most"),
        ({"intermediate_size": 10**18}, "intermediate_size must be at most 2147483647"),
        ({"hidden_size": 10**6, "num_hidden_layers": 1000}, "parameters, more than 1e+14; check num_layers"),
    ],
)
def test_absurd_models_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Nothing, fractions, words, and sizes beyond any machine: never a number, least of all a safe one."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | change), encoding="utf-8")
    found = RUNNER.invoke(app, [*JOB[:3], str(path), *JOB[4:]])
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception)


def test_absurd_sequences_are_refused() -> None:
    """A hundred billion tokens."""
    found = RUNNER.invoke(app, [*JOB[:-1], str(10**11)])
    assert isinstance(found.exception, InputError)
    assert "seq_length must be at most 1,000,000,000" in str(found.exception)


def test_profiles_change_the_answer() -> None:
    """Nanotron needs more than Megatron-Core for the same job; a bound never lies below the prediction."""
    rows = {}
    for name in ("megatron-core", "nanotron", "internevo"):
        found = RUNNER.invoke(app, [*JOB, "--tensor-parallel", "4", "--framework", name, "--json"])
        assert found.exit_code == 0, found.output
        (rows[name],) = json.loads(found.stdout)
        assert rows[name]["predicted_gib"] < rows[name]["upper_gib"]
    assert rows["nanotron"]["predicted_gib"] > 1.08 * rows["megatron-core"]["predicted_gib"]
    # InternEvo's step by hand: 18 bytes per parameter with gaps of 4 %, a flat copy of the gradients, two temporary
    # tensors of Adam; workspaces, two buckets, and NCCL's buffers of a group. A rank has a quarter of the matrices, and
    # all 65 norms.
    size = (8_030_261_248 - 65 * 4096) / 4 + 65 * 4096
    by_hand = (1.04 * 18 + 10) * size / 2**30 + 0.0625 + 1.8626 + 0.667
    assert rows["internevo"]["predicted_gib"] == pytest.approx(by_hand, rel=1e-3)


def test_buffers_of_collectives_go_with_links() -> None:
    """Two groups, 0.667 GiB each at the 235 GB/s of A100's NVLink; no more than a third more on faster ones."""
    command = [*JOB, "--tensor-parallel", "4", "--data-parallel", "2", "--framework", "megatron-core", "--json"]
    told = []
    for rate in (None, "235", "23.5", "450"):
        found = RUNNER.invoke(app, [*command, *(() if rate is None else ("--intra-node-gb-per-s", rate))])
        assert found.exit_code == 0, found.output
        told.append(json.loads(found.stdout)[0]["predicted_gib"])
    assert told[0] == told[1]
    assert told[1] - told[2] == pytest.approx(0.9 * 2 * 0.667, abs=1e-6)
    assert told[3] - told[1] == pytest.approx(2 * 0.667 / 3, abs=1e-6)
