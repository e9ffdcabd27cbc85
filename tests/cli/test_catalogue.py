"""``pipette-opt gpus`` and ``pipette-opt models``."""

import json
from collections.abc import Callable

from pipette_opt.read.backtests import runs_by_gpu
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.model import list_models, read_model

Run = Callable[..., tuple[int, str, str]]


def test_gpus_lists_every_kind_with_its_source(command: Run) -> None:
    """One row a kind; the table has at most 100 columns."""
    code, out, _ = command("gpus")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert set(read_gpu_catalogue()) <= names
    row = next(line for line in out.splitlines() if line.startswith("h100-80gb"))
    for words in ("3,350", "989", "1,979", "360 GB/s", "8 GPUs, 8x400", "NVIDIA H100 datasheet"):
        assert words in row
    assert " none " in next(line for line in out.splitlines() if line.startswith("rtx-4090"))
    assert max(map(len, out.splitlines())) <= 100


def test_gpus_for_machines(command: Run) -> None:
    """All figures, whole sources, and one kind by any of its names."""
    code, out, _ = command("gpus", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(read_gpu_catalogue())
    code, out, _ = command("gpus", "H100 SXM5", "--json")
    (row,) = json.loads(out)
    assert (row["name"], row["usual_host"]["nics"], row["peak_tflops"]["fp8"]) == ("h100-80gb", "8x400", 1978.9)
    assert "whitepaper" in row["source"]
    assert row["public_runs"] == runs_by_gpu()["h100-80gb"] > 0
    assert "DGX H100" in row["usual_host"]["source"]
    assert command("gpus", "h1000")[0] == 2
    code, out, _ = command("gpus", "mi250x")
    assert "mi250x: a GPU is one of the two dies (GCD) of a card" in " ".join(out.split())


def test_models_lists_every_preset(command: Run) -> None:
    """Parameters, layers, experts and where it comes from."""
    code, out, _ = command("models")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert set(list_models()) <= names
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert rows["llama-3-8b"].split()[1:6] == ["8.03", "B", "32", "4096", "32/8"]
    assert "arXiv 2407.21783" in rows["llama-3-8b"]
    assert "2 of 8" in rows["mixtral-8x7b"]


def test_models_for_machines(command: Run) -> None:
    """The figures of the specification itself."""
    code, out, _ = command("models", "Mixtral-8x7B", "--json")
    (row,) = json.loads(out)
    spec = read_model("mixtral-8x7b")
    assert code == 0
    assert (row["num_parameters"], row["num_experts"], row["moe_router_topk"]) == (spec.num_parameters, 8, 2)
    assert "huggingface.co" in row["source"]
    assert "mistralai/Mixtral-8x7B-v0.1" in row["hub_ids"]
    code, out, _ = command("models", "Qwen/Qwen3-235B-A22B")
    assert (code, "235.09 B" in out) == (0, True)
    assert "352.80 B" in command("models", "glm-4.7")[1]
    code, _, err = command("models", "llama-3-9b")
    assert (code, "Did you mean llama-3-8b" in err) == (2, True)
