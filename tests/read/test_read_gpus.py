"""The GPU catalogue."""

import pickle
from dataclasses import replace

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.read.fields import Fields
from pipette_opt.read.gpus import (
    ONE_GENERATION,
    _efficiency_like,
    catalogue_name,
    gpu_generations,
    measured_gpus,
    note_on_gpu,
    read_gpu,
    read_gpu_catalogue,
    read_gpu_entry,
    recognise_gpu,
)

REQUIRED = table(__file__, "REQUIRED")


def test_the_catalogue_is_complete_and_sourced() -> None:
    """Every GPU has a source, an fp32 peak, and bf16 only where the hardware has it."""
    catalogue = read_gpu_catalogue()
    assert set(REQUIRED) <= set(catalogue)
    for name, entry in catalogue.items():
        assert entry.gpu.name == name
        assert len(entry.gpu.source) > 20
        assert entry.gpu.peak_flops["fp32"] > 0
        assert ("bf16" in entry.gpu.peak_flops) == (not name.startswith(("v100", "t4")))
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
        ("vr200", 278, 288e3 / 72),
        ("r100", 278, 288e3 / 72),
        ("mi300x", 192, 1307.4),
        ("mi355x", 288, 2516.6),
        ("a800-80gb", 80, 312),
        ("h800-80gb", 80, 989.4),
        ("h20-96gb", 96, 148),
        ("h20-141gb", 141, 148),
        ("l20", 45, 119.5),
        ("mi250x", 64, 383 / 2),
        ("mi325x", 256, 1307.4),
        ("gb10", 120, 1000 / 8),
    ],
)
def test_figures_by_hand(name: str, nominal_gb: float, bf16_tflops: float) -> None:
    """Dense peaks, not those with sparsity; memory is what the driver reports, near the nominal size."""
    gpu = read_gpu(name)
    assert gpu.peak_flops["bf16"] == pytest.approx(bf16_tflops * 1e12)
    assert 0.98 * nominal_gb * GIB < gpu.memory_bytes <= nominal_gb * GIB


@pytest.mark.parametrize(("name", "expected"), table(__file__, "names_as_people_write_them"))
def test_names_as_people_write_them(name: str, expected: str) -> None:
    """Case, separators, form factors and the vendor's name do not matter."""
    assert read_gpu(name).name == expected


@pytest.mark.parametrize(("name", "message"), table(__file__, "names_that_leave_it_open_are_refused_with_the_choices"))
def test_names_that_leave_it_open_are_refused_with_the_choices(name: str, message: str) -> None:
    """No family is guessed; an unknown name gives the nearest."""
    with pytest.raises(InputError, match=message):
        read_gpu(name)


def test_names_in_profiles_are_the_catalogues() -> None:
    """A measured layer time is found again under the name that a cluster has; a GPU of one's own keeps its name."""
    assert catalogue_name("H100 SXM5") == "h100-80gb"
    assert catalogue_name(" Mine ") == "mine"
    assert catalogue_name("a100") == "a100-80gb"


def test_the_commonest_of_a_name_is_said() -> None:
    """H100 and A100 are the SXM kinds with most memory; who means another card is told its name."""
    assert note_on_gpu("a100", read_gpu_entry("a100")) == (
        "GPU 'a100' is taken for a100-80gb; others of that name: a100-40gb, a100-pcie-40gb, a100-pcie-80gb."
    )
    assert note_on_gpu("A100-SXM4", read_gpu_entry("A100-SXM4")) == (
        "GPU 'A100-SXM4' is taken for a100-80gb; others of that name: a100-40gb."
    )
    assert note_on_gpu("A100 PCIe", read_gpu_entry("A100 PCIe")) == (
        "GPU 'A100 PCIe' is taken for a100-pcie-80gb; others of that name: a100-pcie-40gb."
    )
    assert note_on_gpu("H100", read_gpu_entry("H100")) == (
        "GPU 'H100' is taken for h100-80gb; others of that name: h100-pcie, h100-nvl."
    )
    assert note_on_gpu("h100-sxm", read_gpu_entry("h100-sxm")) is None
    assert note_on_gpu("h100-80gb", read_gpu_entry("h100-80gb")) is None
    note = note_on_gpu("mi250x", read_gpu_entry("mi250x"))
    assert note is not None
    assert note.startswith("GPU mi250x: a GPU is one of the two dies (GCD)")


def test_links_of_cards_for_export() -> None:
    """A800 and H800 have 400 GB/s of NVLink both ways, H20 has all of H100's."""
    catalogue = read_gpu_catalogue()
    for name, both_ways in {"a800-40gb": 400, "a800-80gb": 400, "h800-80gb": 400, "h20-96gb": 900}.items():
        assert catalogue[name].intra_node_bytes_per_s == pytest.approx(0.8 * both_ways / 2 * 1e9)


def test_usual_hosts_say_their_source() -> None:
    """NICs and GPUs of a host come from a datasheet; desktop cards have no usual host."""
    hosts = {name: entry.usual_host for name, entry in read_gpu_catalogue().items()}
    h100 = hosts["h100-80gb"]
    assert h100 is not None
    assert (h100.gpus_per_node, str(h100.nics)) == (8, "8x400")
    assert hosts["rtx-4090"] is None
    assert all(len(host.source) > 20 for host in hosts.values() if host is not None)


@pytest.mark.parametrize(("device", "expected"), table(__file__, "device_names"))
def test_device_names(device: str, expected: str) -> None:
    """What the driver calls a GPU leads to its entry."""
    entry = recognise_gpu(device)
    assert entry is not None
    assert entry.gpu.name == expected


def test_strangers_are_not_recognised() -> None:
    """A40S is no A40, T400 no T4, a laptop's 4090 no 4090."""
    assert recognise_gpu("NVIDIA A40S") is None
    assert recognise_gpu("NVIDIA T400 4GB") is None
    assert recognise_gpu("NVIDIA GeForce RTX 4090 Laptop GPU") is None


def test_gpus_can_be_sent_to_other_processes() -> None:
    """Worker processes get their GPUs pickled."""
    gpu = read_gpu("a100-80gb")
    assert pickle.loads(pickle.dumps(gpu)) == gpu


def test_generations_follow_compute_capabilities() -> None:
    """A generation has GPUs of one range of capabilities, which no other generation has; AMD's have none."""
    ranges = {
        "volta": range(70, 75),
        "turing": range(75, 80),
        "ampere": range(80, 89),
        "ada": range(89, 90),
        "hopper": range(90, 100),
        "blackwell": range(100, 107),
        "rubin": range(107, 108),
        "rtx-blackwell": range(120, 130),
    }
    for name, entry in read_gpu_catalogue().items():
        capability = entry.compute_capability
        if capability is None:
            assert name.startswith("mi")
            assert entry.gpu.generation.startswith("cdna")
        else:
            assert capability in ranges[entry.gpu.generation]
    assert set(gpu_generations()) == {*ranges, "cdna2", "cdna3", "cdna4"}


def test_every_gpu_has_laws_of_a_measured_one() -> None:
    """Its own, or those of the GPU that its entry names; within a generation interpolated, beyond it assumed."""
    catalogue = read_gpu_catalogue()
    measured = measured_gpus()
    assert set(measured) == {"a100-80gb", "h100-80gb", "b200", "gb200", "l40s", "mi300x"}
    for name, entry in catalogue.items():
        laws = entry.gpu.efficiency
        assert laws.like in measured
        capability = entry.compute_capability
        theirs = measured[laws.like].compute_capability
        near = None not in (capability, theirs) and abs(capability - theirs) <= ONE_GENERATION
        expected = "measured" if name in measured else "interpolated" if near else "assumed"
        expected = "interpolated" if name == "mi300x" else expected  # rates that others print
        assert (name, laws.origin) == (name, expected)
    assert catalogue["h200-141gb"].gpu.efficiency.wide == catalogue["h100-80gb"].gpu.efficiency.wide
    burst, sustained = catalogue["gb300"].gpu.efficiency.wide, catalogue["gb200"].gpu.efficiency.wide
    assert burst.share > sustained.share
    assert replace(burst, share=sustained.share) == sustained


def test_a_gpu_like_none_that_was_measured() -> None:
    """The message names those that were."""
    fields = Fields("here", {"like": "h200-141gb"}, ("like",))
    with pytest.raises(InputError, match="here: like must be one of the GPUs that were measured: a100-80gb, h100-80gb"):
        _efficiency_like("here", fields)
