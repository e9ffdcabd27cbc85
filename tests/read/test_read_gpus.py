"""The GPU catalogue."""

import pickle

import pytest

from pipette_opt.errors import InputError
from pipette_opt.read.gpus import read_gpu, read_gpu_catalogue, recognise_gpu
from pipette_opt.units import GIB

REQUIRED = (
    "v100-16gb v100-32gb a100-40gb a100-80gb a10g l4 t4 h100-80gb h200-141gb gh200-96gb b200 gb200 b300 gb300".split()  # noqa: SIM905
)


def test_the_catalogue_is_complete_and_sourced() -> None:
    """Every GPU has a source, an fp32 peak, and bf16 only where the hardware has it."""
    catalogue = read_gpu_catalogue()
    assert set(REQUIRED) <= set(catalogue)
    for name, entry in catalogue.items():
        assert entry.gpu.name == name
        assert len(entry.gpu.source) > 20
        assert entry.gpu.peak_flops["fp32"] > 0
        assert ("bf16" in entry.gpu.peak_flops) == (name not in ("v100-16gb", "v100-32gb", "t4"))
        assert entry.gpu.peak_flops["fp16"] > entry.gpu.peak_flops["fp32"]
        assert entry.intra_node_bytes_per_s < entry.gpu.memory_bytes_per_s


@pytest.mark.parametrize(
    ("name", "nominal_gb", "bf16_tflops"),
    [
        ("a100-80gb", 80, 312),
        ("H100-80GB", 80, 989.4),
        ("h200-141gb", 141, 989.4),
        ("b300", 270, 36000 / 2 / 8),
        ("gb300", 278, 360e3 / 2 / 72),
    ],
)
def test_figures_by_hand(name: str, nominal_gb: float, bf16_tflops: float) -> None:
    """Dense peaks, not those with sparsity; memory is what the driver reports, near the nominal size."""
    gpu = read_gpu(name)
    assert gpu.peak_flops["bf16"] == pytest.approx(bf16_tflops * 1e12)
    assert 0.98 * nominal_gb * GIB < gpu.memory_bytes <= nominal_gb * GIB


def test_unknown_gpu_names_near_matches() -> None:
    """The message has the nearest names."""
    with pytest.raises(InputError, match=r"unknown GPU 'a100-80'.*Did you mean a100-80gb"):
        read_gpu("a100-80")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
    ],
)
def test_device_names(device: str, expected: str) -> None:
    """What the driver calls a GPU leads to its entry."""
    entry = recognise_gpu(device)
    assert entry is not None
    assert entry.gpu.name == expected


def test_strangers_are_not_recognised() -> None:
    """L40S is no L4, T400 no T4."""
    assert recognise_gpu("NVIDIA L40S") is None
    assert recognise_gpu("NVIDIA T400 4GB") is None


def test_gpus_can_be_sent_to_other_processes() -> None:
    """Worker processes get their GPUs pickled."""
    gpu = read_gpu("a100-80gb")
    assert pickle.loads(pickle.dumps(gpu)) == gpu
