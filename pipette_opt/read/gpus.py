"""Catalogue of GPU types, ``data/gpus.yaml``."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from pipette_opt.base.errors import InputError, meant, visible
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.typed import typed
from pipette_opt.base.units import GB, GIB, MIB, TFLOP, US
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.read.nics import Nics, parse_nics
from pipette_opt.specs import ClusterSpec, GpuSpec
from pipette_opt.specs.cluster import SLOWEST_NVLINK
from pipette_opt.specs.efficiency import ASSUMED_EFFICIENCY, AttentionLaw, GpuEfficiency, Origin, ProductLaw

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "mxfp8", "nvfp4")

HOST_LINK = 25e9
"""Default bandwidth between a GPU and its host, bytes/s: 0.8 of PCIe 4 with 16 lanes."""

LAWS = ("wide", "narrow", "block", "fp4")
"""Names of efficiency curves of matrix products; fields of :class:`~pipette_opt.specs.efficiency.GpuEfficiency`."""

GPU_FIELDS = (
    "memory_mib",
    "memory_bandwidth_gb_per_s",
    "peak_tflops",
    "host_link_gb_per_s",
    "source",
    "like",
    "sustains_bursts",
    "generation",
)

ONE_GENERATION = 3
"""Largest difference of compute capabilities, times ten, of GPUs with similar kernels, such as 8.6 and 8.9. Chosen."""

_NOISE = re.compile(r"^(nvidia|dgx|hgx|tesla|geforce|gpu|sxm[0-9]?|hbm[0-9]?e?|tensor|core)$")
"""Words of a GPU's name that are ignored. SXM is among them, as a name without PCIe or NVL means the SXM module."""


FORMS = frozenset({"pcie", "nvl"})
"""Words in the names of GPUs that are PCIe cards, not SXM modules."""


WRITTEN = "In a cluster file any other GPU can be written out (data/README.md)."
"""Advice for a GPU that the catalogue lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualHost:
    """
    Host in which a GPU type is usually sold or rented.

    Parameters
    ----------
    nics
        NICs for traffic between GPUs, without NICs for storage and management.
    """

    gpus_per_node: int
    nics: Nics
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualDomain:
    """
    NVLink domain of several hosts in which a GPU type is usually sold.

    Parameters
    ----------
    hosts
        Number of hosts of a whole domain.
    used
        Number of hosts of a domain that a job usually uses; the others are spares.
    """

    hosts: int
    used: int
    source: str

    def size(self, num_hosts: int) -> int:
        """Return the hosts per NVLink domain of a job: ``hosts`` if it divides or covers ``num_hosts``, or ``used``."""
        return self.hosts if num_hosts <= self.hosts or num_hosts % self.hosts == 0 else self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """
    Catalogue entry: a GPU type and its usual host.

    Parameters
    ----------
    intra_node_bytes_per_s
        Bandwidth from a GPU to another GPU of its host, one direction, bytes/s; assumed if never measured.
    intra_node_latency_s
        Latency of such a message, seconds.
    device_names
        Regular expressions for the names that the driver reports.
    aliases
        Other names that people use.
    compute_capability
        CUDA compute capability times ten, such as 90, which gives the generation of NVLink. ``None`` for other makers.
    usual_host
        Usual host; ``None`` if no host is usual.
    usual_domain
        Usual NVLink domain; ``None`` if NVLink ends at the host.
    note
        Note for users of this GPU; mostly empty.
    """

    gpu: GpuSpec
    intra_node_bytes_per_s: float
    intra_node_latency_s: float
    device_names: tuple[str, ...]
    compute_capability: int | None
    aliases: tuple[str, ...] = ()
    usual_host: UsualHost | None = None
    usual_domain: UsualDomain | None = None
    note: str = ""

    @property
    def sizes_gb(self) -> frozenset[int]:
        """Memory sizes in GB that a name of this GPU may contain: from its names, and its rounded memory size."""
        memory = self.gpu.memory_bytes
        named = {int(word[:-2]) for name in (self.gpu.name, *self.aliases) for word in _words(name) if _is_size(word)}
        return frozenset({*named, math.floor(memory / GIB), math.ceil(memory / GIB), round(memory / GB)})


@cache
def read_gpu_catalogue() -> Mapping[str, CatalogueEntry]:
    """Return the catalogue: entries by name of the GPU type, such as ``a100-80gb``."""
    entries = {name: _read_entry(f"gpus.yaml, {name}", name, data) for name, data in _catalogue_data().items()}
    return MappingProxyType(entries)


@cache
def _catalogue_data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_yaml(shipped_path("data", "gpus.yaml"))
    return data


@cache
def gpu_generations() -> tuple[str, ...]:
    """Return the generations of the catalogue's GPU types, such as ``hopper``, in its order."""
    return tuple(dict.fromkeys(data["generation"] for data in _catalogue_data().values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGpu:
    """
    Measured efficiency of the kernels of a GPU type, each run alone.

    Parameters
    ----------
    burst
        Efficiency before the GPU reaches its power limit; equal to ``efficiency`` if the GPU never reaches the limit.
    """

    efficiency: GpuEfficiency
    burst: GpuEfficiency
    compute_capability: int | None


ORIGINS: Mapping[str, Origin] = {"measured": "measured", "published": "interpolated"}
"""Origin of the constants under each of these keys of a catalogue entry: kernels run alone, rates that others print."""


@cache
def measured_gpus() -> Mapping[str, MeasuredGpu]:
    """Return the efficiency of every GPU type with measured kernels or published rates, by name."""
    found = {}
    for name, data in _catalogue_data().items():
        for origin in ORIGINS:
            if origin in data:
                found[name] = _parse_measured(f"gpus.yaml, {name}, {origin}", name, data, origin)
    return MappingProxyType(found)


def read_gpu_entry(name: str, where: str = "gpu") -> CatalogueEntry:
    """
    Return the catalogue entry of a GPU by any usual name: ``H100``, ``h100-sxm``, ``NVIDIA A100-SXM4-80GB``.

    If the name fits several variants, the SXM variant with most memory is taken, the commonest in clusters;
    :func:`note_on_gpu` names the others. ``InputError`` at ``where`` for an unknown name, a name of several GPU
    families, or a memory size that no such GPU has.
    """
    words = _words(visible(name, where))
    named = _entries_by_name().get("".join(words)) or _in_form(recognise_gpu(name), words)
    sizes = [int(word[:-2]) for word in words if _is_size(word)]
    if named is not None and ("".join(words) in _entries_by_name() or named.sizes_gb.issuperset(sizes)):
        return named
    if words and not sizes:
        found = _commonest(name, gpus_called(name), where)
        if found is not None:
            return found
    unsized = " ".join(word for word in words if not _is_size(word))
    if unsized and sizes:
        return _entry_of_size(name, unsized, sizes, where)
    if sizes:
        kinds = gpus_called(name)
        if kinds:
            raise InputError(where, f"GPU {name!r} may be {' or '.join(kinds)}; write one of these names.")
    raise _unknown(name, where)


def _entry_of_size(name: str, unsized: str, sizes: list[int], where: str) -> CatalogueEntry:
    """Return the entry of the GPU named ``unsized`` whose memory matches ``sizes``, GB. ``InputError`` if none does."""
    catalogue, exact = read_gpu_catalogue(), _entries_by_name().get("".join(_words(unsized)))
    if exact is not None and exact.sizes_gb.issuperset(sizes):
        return exact
    recognised = _in_form(recognise_gpu(unsized), _words(unsized))
    kinds = gpus_called(unsized) or tuple(entry.gpu.name for entry in (exact, recognised) if entry is not None)
    fitting = tuple(kind for kind in kinds if catalogue[kind].sizes_gb.issuperset(sizes))
    found = _commonest(name, fitting, where)
    if found is not None:
        return found
    if kinds:
        known = ", ".join(f"{kind} ({round(catalogue[kind].gpu.memory_bytes / GIB)} GB)" for kind in kinds)
        note = "".join(f" {kind}: {catalogue[kind].note}." for kind in kinds if catalogue[kind].note)
        size_words = " and ".join(f"{size} GB" for size in sizes)
        problem = f"GPU {name!r}: no such GPU with {size_words} is known; known: {known}.{note} {WRITTEN}"
        raise InputError(where, problem)
    raise _unknown(name, where)


def _in_form(entry: CatalogueEntry | None, words: Iterable[str]) -> CatalogueEntry | None:
    """Return the entry; ``None`` if ``words`` name a PCIe or NVL card but the entry's GPU has NVLink in its host."""
    if entry is None or entry.intra_node_bytes_per_s < SLOWEST_NVLINK:
        return entry
    return None if FORMS.intersection(words) - {*_words(entry.gpu.name)} else entry


def _commonest(name: str, kinds: tuple[str, ...], where: str) -> CatalogueEntry | None:
    """
    Return the entry of the commonest of these GPU types; ``None`` without types.

    ``InputError`` for types of several families, such as A100 and H100.
    """
    catalogue = read_gpu_catalogue()
    if len({_family(kind) for kind in kinds}) > 1:
        raise InputError(where, f"GPU {name!r} may be {' or '.join(kinds)}; write one of these names.")
    return max((catalogue[kind] for kind in kinds), key=_commonness) if kinds else None


def _unknown(name: str, where: str) -> InputError:
    problem = f"unknown GPU {name!r}.{meant(_similar_names(name))} Known: {', '.join(read_gpu_catalogue())}."
    return InputError(where, f"{problem} {WRITTEN}")


MAX_HINTS = 3
"""Largest number of names that an error suggests. Chosen."""


def _similar_names(name: str) -> tuple[str, ...]:
    """
    Return catalogue names that have the letters of a word of ``name``, sorted by distance of their numbers.

    Names whose number extends the given number come first: ``h10`` is more likely ``h100`` than ``h20``.
    """
    found: dict[str, tuple[bool, float]] = {}
    for letters, number in _numbered(name):
        for kind in read_gpu_catalogue():
            for known_letters, known_number in _numbered(kind):
                if known_letters == letters:
                    starts = str(known_number).startswith(str(number))
                    rank = (not starts, abs(math.log(known_number / number)))
                    found[kind] = min(found.get(kind, rank), rank)
    return tuple(sorted(found, key=lambda kind: found[kind])[:MAX_HINTS])


def _numbered(name: str) -> list[tuple[str, int]]:
    """Return letters and number of each word that is a model: ``("h", 100)``, ``("rtx", 4090)``."""
    joined = re.sub(r"\brtx\W*(?=[0-9])", "rtx", " ".join(word for word in _words(name) if not _is_size(word)))
    found = re.findall(r"\b([a-z]+)([0-9]{1,5})[a-z]?\b", joined)
    return [(letters, int(number)) for letters, number in found if int(number)]


def _family(name: str) -> str:
    """Return the family in a catalogue name, without form and memory size: ``a100`` of ``a100-pcie-40gb``."""
    return "-".join(word for word in _words(name) if word not in FORMS and not re.fullmatch(r"[0-9]+gb", word))


def _commonness(entry: CatalogueEntry) -> tuple[bool, int]:
    """Return a sort key, largest for the commonest GPU: SXM before other forms, then more memory."""
    return not FORMS.intersection(_words(entry.gpu.name)), entry.gpu.memory_bytes


def catalogue_name(name: str) -> str:
    """Return the catalogue name of a GPU; an unknown name is returned in lower case."""
    try:
        return read_gpu_entry(name).gpu.name
    except InputError:
        return name.strip().lower()


def gpus_called(name: str) -> tuple[str, ...]:
    """
    Return the GPU types whose catalogue name has every word of ``name``, such as each A100 for ``a100``.

    A name with SXM excludes PCIe and NVL cards.
    """
    words, only_sxm = set(_words(name)), "sxm" in name.lower()
    found = {known: set(_words(known)) for known in read_gpu_catalogue() if words <= set(_words(known))}
    return tuple(known for known, its in found.items() if not (only_sxm and FORMS.intersection(its)))


def note_on_gpu(name: str, entry: CatalogueEntry) -> str | None:
    """Return the catalogue's note on a GPU, and a note if ``name`` fits other GPU types; ``None`` without notes."""
    others = [other for other in gpus_called(name) if other != entry.gpu.name]
    notes = [f"GPU {entry.gpu.name}: {entry.note}."] if entry.note else []
    if others and "".join(_words(name)) != "".join(_words(entry.gpu.name)):
        notes.append(f"GPU {name!r} is taken for {entry.gpu.name}; others of that name: {', '.join(others)}.")
    return " ".join(notes) or None


def gpu_record(cluster: ClusterSpec) -> dict[str, int | None]:
    """Return the compute capability times ten of each GPU type, as plans record it; ``None`` for types of the user."""
    known = {name.lower(): entry.compute_capability for name, entry in read_gpu_catalogue().items()}
    return {gpu.name: known.get(gpu.kind.lower()) for gpu in cluster.gpu_kinds}


def read_gpu(name: str, where: str = "gpu") -> GpuSpec:
    """Return the specification of a GPU type by name, such as ``a100-80gb`` or ``H100``."""
    return read_gpu_entry(name, where).gpu


def recognise_gpu(device_name: str) -> CatalogueEntry | None:
    """Return the catalogue entry of a driver's device name, such as ``NVIDIA H100 80GB HBM3``; ``None`` if unknown."""
    for entry in read_gpu_catalogue().values():
        if any(re.search(pattern, device_name, re.IGNORECASE) for pattern in entry.device_names):
            return entry
    return None


def parse_gpu(where: str, name: str, fields: Fields) -> GpuSpec:
    """Return the specification of a GPU that a file describes by ``GPU_FIELDS``."""
    peaks = Fields(f"{where}, peak_tflops", fields.any("peak_tflops"), PRECISIONS)
    flops = {precision: peaks.positive(precision) * TFLOP for precision in PRECISIONS if peaks.has(precision)}
    if not flops:
        raise InputError(where, f"peak_tflops must name at least one of {', '.join(PRECISIONS)}.")
    return GpuSpec(
        name=name,
        memory_bytes=fields.whole("memory_mib") * MIB,
        peak_flops=flops,
        memory_bytes_per_s=fields.positive("memory_bandwidth_gb_per_s") * GB,
        host_bytes_per_s=fields.positive("host_link_gb_per_s") * GB if fields.has("host_link_gb_per_s") else HOST_LINK,
        source=fields.text("source", ""),
        efficiency=_efficiency_like(where, fields) if fields.has("like") else ASSUMED_EFFICIENCY,
        generation=fields.choice("generation", gpu_generations(), ""),
    )


def _efficiency_like(where: str, fields: Fields, compute_capability: int | None = None) -> GpuEfficiency:
    """
    Return the efficiency of the measured GPU that the field ``like`` names.

    The efficiency is marked as interpolated within a GPU generation, else as assumed.
    """
    name, known = fields.text("like"), measured_gpus()
    if name not in known:
        raise InputError(where, f"like must be one of the GPUs that were measured: {', '.join(known)}; got {name!r}.")
    measured = known[name]
    ours, theirs = compute_capability, measured.compute_capability
    near = ours is not None and theirs is not None and abs(ours - theirs) <= ONE_GENERATION
    efficiency = measured.burst if fields.flag("sustains_bursts", False) else measured.efficiency
    return replace(efficiency, origin="interpolated" if near else "assumed")


def _parse_measured(where: str, name: str, data: Mapping[str, Any], origin: str) -> MeasuredGpu:
    fields = Fields(where, data[origin], (*LAWS, "attention", "burst_shares", "source"))
    laws = {law: _parse_law(f"{where}, {law}", fields.any(law)) for law in LAWS if fields.has(law)}
    efficiency = GpuEfficiency(
        attention=_parse_attention(f"{where}, attention", fields.any("attention")),
        origin=ORIGINS[origin],
        like=name,
        **{"narrow": laws["wide"], **laws},
    )
    burst = efficiency
    if fields.has("burst_shares"):
        shares = Fields(f"{where}, burst_shares", fields.any("burst_shares"), LAWS)
        faster: dict[str, Any] = {
            name: replace(law, share=shares.positive(name)) for name, law in laws.items() if shares.has(name)
        }
        burst = replace(efficiency, **faster)
    return MeasuredGpu(efficiency=efficiency, burst=burst, compute_capability=data.get("compute_capability"))


def _parse_attention(where: str, data: object) -> AttentionLaw:
    fields = Fields(where, data, ("shares", "half_seq", "start_us", "flash2"))
    shares = sorted(fields.any("shares").items())
    return AttentionLaw(
        head_sizes=tuple(size for size, _ in shares),
        shares=tuple(share for _, share in shares),
        half_seq=fields.not_negative("half_seq"),
        start_s=fields.not_negative("start_us") * US,
        flash2=fields.positive("flash2") if fields.has("flash2") else 1.0,
    )


def _parse_law(where: str, data: object) -> ProductLaw:
    fields = Fields(where, data, ("share", "half_inner", "half_result", "start_us"))
    return ProductLaw(
        share=fields.positive("share"),
        half_inner=fields.not_negative("half_inner"),
        half_result=fields.not_negative("half_result"),
        start_s=fields.not_negative("start_us") * US,
    )


@cache
def _entries_by_name() -> Mapping[str, CatalogueEntry]:
    """Return catalogue entries by name and alias, in lower case without separators and ignored words."""
    found: dict[str, CatalogueEntry] = {}
    for name, entry in read_gpu_catalogue().items():
        for alias in (name, *entry.aliases):
            known = found.setdefault("".join(_words(alias)), entry)
            if known is not entry:
                raise ValueError(f"{alias} is a name of both {known.gpu.name} and {name}.")
    return MappingProxyType(found)


def _words(name: str) -> list[str]:
    """Return the words of a GPU's name in lower case, without ignored words: ``h100``, ``80gb``."""
    joined = re.sub(r"(?<![a-z0-9])([0-9]+)[\s_-]*g(i?b)?(?![a-z0-9])", r"\1gb", name.lower())
    words = [word for word in re.split(r"[^a-z0-9]+", joined) if word and not _NOISE.match(word)]
    if len(words) > 1 and re.fullmatch(r"[0-9]{2,3}", words[-1]):
        words[-1] += "gb"  # A100-80
    return words


def _is_size(word: str) -> bool:
    """Return whether a word is a memory size such as ``80gb``."""
    return re.fullmatch(r"[0-9]+gb", word) is not None


def _read_entry(where: str, name: str, data: object) -> CatalogueEntry:
    own = (
        "intra_node",
        "usual_host",
        "usual_domain",
        "device_names",
        "aliases",
        "compute_capability",
        *ORIGINS,
        "note",
    )
    fields = Fields(where, data, (*GPU_FIELDS, *own))
    inside = Fields(f"{where}, intra_node", fields.any("intra_node"), ("bandwidth_gb_per_s", "latency_us", "source"))
    capability = fields.whole("compute_capability") if fields.has("compute_capability") else None
    measured = measured_gpus().get(name)
    efficiency = measured.efficiency if measured else _efficiency_like(where, fields, capability)
    return CatalogueEntry(
        gpu=replace(parse_gpu(where, name, fields), efficiency=efficiency),
        intra_node_bytes_per_s=inside.positive("bandwidth_gb_per_s") * GB,
        intra_node_latency_s=inside.not_negative("latency_us") * US,
        device_names=tuple(fields.any("device_names")),
        compute_capability=capability,
        aliases=tuple(str(name) for name in fields.any("aliases")) if fields.has("aliases") else (),
        usual_host=_read_host(f"{where}, usual_host", fields.any("usual_host")) if fields.has("usual_host") else None,
        usual_domain=typed(UsualDomain, fields.any("usual_domain"), f"{where}, usual_domain", closed=True)
        if fields.has("usual_domain")
        else None,
        note=fields.text("note", ""),
    )


def _read_host(where: str, data: object) -> UsualHost:
    fields = Fields(where, data, ("gpus_per_node", "nics", "source"))
    return UsualHost(
        gpus_per_node=fields.whole("gpus_per_node"),
        nics=parse_nics(fields.text("nics"), where),
        source=fields.text("source"),
    )
