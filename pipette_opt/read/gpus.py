"""The GPU catalogue, ``data/gpus.yaml``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from pipette_opt.errors import InputError
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.shipped import shipped_path
from pipette_opt.specs import GpuSpec
from pipette_opt.units import GB, MIB, TFLOP, US

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")

GPU_FIELDS = ("memory_mib", "memory_bandwidth_gb_per_s", "peak_tflops", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """
    One kind of GPU, and what is usual inside a host that has it.

    Parameters
    ----------
    intra_node_bytes_per_s
        What one GPU sends to another of its host, one direction; assumed where nothing was measured.
    intra_node_latency_s
        Fixed cost of such a message.
    device_names
        Regular expressions for the names the driver gives.
    compute_capability
        Times ten, e.g. 90; tells the generation of NVLink.
    """

    gpu: GpuSpec
    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    device_names: tuple[str, ...]
    compute_capability: int


@cache
def read_gpu_catalogue() -> Mapping[str, CatalogueEntry]:
    """All kinds of GPU by name, e.g. ``a100-80gb``."""
    path = shipped_path("data", "gpus.yaml")
    entries = {name: _read_entry(f"{path.name}, {name}", name, data) for name, data in read_yaml(path).items()}
    return MappingProxyType(entries)


def read_gpu_entry(name: str, where: str = "gpu") -> CatalogueEntry:
    """Look a GPU up, whatever the case; ``where`` starts the error message if there is none."""
    catalogue = read_gpu_catalogue()
    entry = catalogue.get(name.strip().lower())
    if entry is None:
        hint = did_you_mean(name, catalogue)
        raise InputError(where, f"unknown GPU {name!r}.{hint} Known: {', '.join(catalogue)}.")
    return entry


def read_gpu(name: str, where: str = "gpu") -> GpuSpec:
    """A kind of GPU by name, e.g. ``a100-80gb`` or ``H100-80GB``."""
    return read_gpu_entry(name, where).gpu


def recognise_gpu(device_name: str) -> CatalogueEntry | None:
    """Kind of GPU of a driver's device name, e.g. ``NVIDIA H100 80GB HBM3``; ``None`` if not in the catalogue."""
    for entry in read_gpu_catalogue().values():
        if any(re.search(pattern, device_name, re.IGNORECASE) for pattern in entry.device_names):
            return entry
    return None


def parse_gpu(where: str, name: str, fields: Fields) -> GpuSpec:
    """A GPU written out in a file, with the fields ``GPU_FIELDS``."""
    peaks = Fields(f"{where}, peak_tflops", fields.any("peak_tflops"), PRECISIONS)
    flops = {precision: peaks.positive(precision) * TFLOP for precision in PRECISIONS if peaks.has(precision)}
    if not flops:
        raise InputError(where, f"peak_tflops must name at least one of {', '.join(PRECISIONS)}.")
    return GpuSpec(
        name=name,
        memory_bytes=fields.whole("memory_mib") * MIB,
        peak_flops=flops,
        memory_bytes_per_s=fields.positive("memory_bandwidth_gb_per_s") * GB,
        source=fields.text("source", ""),
    )


def _read_entry(where: str, name: str, data: object) -> CatalogueEntry:
    fields = Fields(where, data, (*GPU_FIELDS, "intra_node", "device_names", "compute_capability"))
    inside = Fields(f"{where}, intra_node", fields.any("intra_node"), ("bandwidth_gb_per_s", "latency_us", "source"))
    return CatalogueEntry(
        gpu=parse_gpu(where, name, fields),
        intra_node_bytes_per_s=inside.positive("bandwidth_gb_per_s") * GB,
        intra_node_latency_s=inside.not_negative("latency_us") * US,
        device_names=tuple(fields.any("device_names")),
        compute_capability=fields.whole("compute_capability"),
    )
