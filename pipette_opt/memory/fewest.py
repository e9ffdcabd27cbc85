"""
Least memory saving that fits: recomputed layers, offload, and absence of tensor overlap.

Megatron-Core has one number ``N`` for all stages: each chunk recomputes its first ``min(N, layers)`` layers. On given
hosts, an iteration's time never falls when ``N`` grows. A recomputed layer's backward pass has an additional forward
pass. Its traffic is never less. What hides its communication grows by the forward's waits for the host and by the
attention that overlaps with the ring, both parts of that forward pass. So no layer gets faster, and the simulator never
falls when a time grows. Of configurations that differ only in ``N``, the smallest that fits is therefore the fastest.
The others need not be searched: none of them if the configuration fits without recomputation.

Offload makes nothing faster either. The host's optimizer has less memory bandwidth than the GPU's. A layer whose inputs
travel takes the longer of its pass and the transfer; its wait for the host shrinks by no more than that. So a
configuration with offload is only searched if none with less offload fits; with block recomputation, also if it
recomputes fewer layers for it.

Tensor overlap hides a part of the tensor-parallel traffic, and takes memory for its buffers
(:mod:`~pipette_opt.specs.user_buffers`): no layer gets slower with it. So a configuration without it is searched where
it does not fit with it, or recomputes fewer layers without it.

Two cases are outside this proof, and certificates list them as not searched. Where GPUs have unequal memory, a larger
``N``, more offload, or no tensor overlap may let a stage onto other hosts. And a stack may have a near-OOM slowdown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from pipette_opt.base.offload import offload_of
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck, keep_fitting
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import (
    ParallelConfig,
    with_offload,
    with_tensor_overlap,
    with_whole_layers,
    without_overlap,
    without_recomputation,
)
from pipette_opt.specs import Instance


def check_memory(
    instance: Instance,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float = 0.01,
) -> MemoryCheck:
    """
    Check memory as :func:`~pipette_opt.memory.filter.keep_fitting`, keeping only the least memory saving that fits.

    Candidates that save less memory come first: less offload, tensor overlap. A candidate that saves more is predicted
    only where its counterparts with less do not fit. With block recomputation, it is also predicted where they
    recompute layers, and dropped if it recomputes as many.
    """
    savers = sorted(dict.fromkeys(map(_Saver.of, candidates)), key=_Saver.amount)
    if len(savers) <= 1:
        return _with_fewest_layers(instance, candidates, predictor, max_oom_risk)
    fewest, parts, needless = dict[ParallelConfig, int](), list[MemoryCheck](), list[ParallelConfig]()
    for saver in savers:
        lesser = [other for other in savers if other != saver and saver.gives_up_all_of(other)]
        asked = [config for config in candidates if _Saver.of(config) == saver]
        listed = {config: _as_listed(config) for config in asked}
        enough = {base: _fewest_with(base, lesser, fewest) for base in dict.fromkeys(listed.values())}
        tried = [config for config in asked if enough[listed[config]] > 0]
        part = _with_fewest_layers(instance, tried, predictor, max_oom_risk)
        fitting, more = list[CheckedConfig](), list[ParallelConfig]()
        for checked in part.fitting:
            base, number = _as_listed(checked.config), _num_recomputed(checked.config)
            if number < enough[base]:
                fitting.append(checked)
                fewest[base] = number
            else:
                more.append(checked.config)
        needless += [*(config for config in asked if enough[listed[config]] == 0), *more]
        parts.append(replace(part, fitting=tuple(fitting)))
    return replace(
        parts[0],
        fitting=tuple(checked for part in parts for checked in part.fitting),
        rejected=tuple(checked for part in parts for checked in part.rejected),
        spared=tuple(config for part in parts for config in part.spared),
        kept_on_gpu=tuple(config for config in needless if config.offload is not None),
        not_overlapped=tuple(config for config in needless if config.offload is None),
    )


class _Saver(NamedTuple):
    """
    Memory savings of a configuration beside recomputation.

    Parameters
    ----------
    offload
        Tensors in the host's memory; their transfer takes time.
    overlaps
        Whether tensor overlap is on, which needs buffers.
    """

    offload: str | None
    overlaps: bool

    @classmethod
    def of(cls, config: ParallelConfig) -> Self:
        """Return the choices of a configuration."""
        return cls(config.offload, config.tp_comm_overlap)

    def amount(self) -> float:
        """Return a sort key that is larger for a superset of savings."""
        on_host = offload_of(self.offload)
        parts = on_host.optimizer_offload_fraction + on_host.cpu_offloading_num_layers + len(on_host.offload_modules)
        return parts + (not self.overlaps)

    def gives_up_all_of(self, other: "_Saver") -> bool:
        """Return whether this saves at least all that another saves."""
        return self.overlaps <= other.overlaps and offload_of(self.offload).has_all_of(offload_of(other.offload))

    def in_place(self, config: ParallelConfig) -> ParallelConfig:
        """Return a configuration with these choices instead of its own."""
        return with_tensor_overlap(with_offload(config, self.offload), self.overlaps)


def _as_listed(config: ParallelConfig) -> ParallelConfig:
    """Return the configuration that stands for every number of recomputed layers and every overlap."""
    base = without_overlap(config)
    return with_whole_layers(base, "block", 1) if config.recomputation == "block" else base


def _num_recomputed(config: ParallelConfig) -> int:
    """Number of recomputed layers of each chunk where it is chosen; otherwise 0."""
    return config.recompute_num_layers if config.recomputation == "block" else 0


def _fewest_with(config: ParallelConfig, lesser: Sequence[_Saver], fewest: Mapping[ParallelConfig, int]) -> float:
    """
    Fewest recomputed layers with which a configuration with less memory saving fits; infinite without any.

    Parameters
    ----------
    config
        Configuration as from :func:`_as_listed`.
    fewest
        Fewest recomputed layers of all configurations known to fit, by configuration as from :func:`_as_listed`.
    """
    found = [float("inf")]
    for saver in lesser:
        other = saver.in_place(config)
        found.append(fewest.get(other, float("inf")))
        if config.recomputation == "block":
            found.append(fewest.get(without_recomputation(other), float("inf")))
            found += [_most_layers(other)] if _whole(other) in fewest else []
    return min(found)


def _with_fewest_layers(
    instance: Instance, candidates: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> MemoryCheck:
    """
    Check candidates that agree in offload and tensor overlap.

    A candidate with block recomputation stands for every number of layers. It becomes the one with the smallest number
    that fits, or with all layers if none does. It is spared if it fits without recomputation, or only with all layers
    recomputed where the candidates contain that, too.
    """
    others = [config for config in candidates if config.recomputation != "block"]
    plain = keep_fitting(instance, others, predictor, max_oom_risk)
    if len(others) == len(candidates):
        return plain
    fitting, rejected = (
        {without_overlap(checked.config): checked for checked in group} for group in (plain.fitting, plain.rejected)
    )
    searched = [config for config in candidates if config.recomputation == "block"]
    bases = list(dict.fromkeys(map(without_overlap, searched)))
    whole = {base: _whole(base) for base in bases if without_recomputation(base) not in fitting}
    # Where all layers are recomputed, the number does not matter: full recomputation has the same memory.
    found = {base: rejected[full].of(_all_layers(base)) for base, full in whole.items() if full in rejected}
    hopeful = [base for base in whole if base not in found]
    for base, result in _with_fewest(instance, hopeful, predictor, max_oom_risk):
        if whole[base] not in fitting or result.config.recompute_num_layers < _most_layers(base):
            found[base] = result
    checked = {result.config: result for result in (*plain.fitting, *plain.rejected)}
    spared = []
    for config in searched:
        base = without_overlap(config)
        if base in found:
            number = found[base].config.recompute_num_layers
            checked[config] = found[base].of(with_whole_layers(config, "block", number))
        else:
            spared.append(config)
    ordered = [checked[config] for config in candidates if config in checked]
    return replace(
        plain,
        fitting=tuple(result for result in ordered if not result.short_bytes),
        rejected=tuple(result for result in ordered if result.short_bytes),
        spared=tuple(spared),
    )


@dataclass(slots=True)
class _Range:
    """
    Bisection interval of one configuration: the largest number of layers that does not fit, and the smallest
    that does.
    """

    base: ParallelConfig
    low: int
    high: int
    at_high: CheckedConfig


def _with_fewest(
    instance: Instance, bases: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> Iterator[tuple[ParallelConfig, CheckedConfig]]:
    """Yield each configuration with the smallest number of layers that fits, by bisection, or with all layers."""

    def checked(configs: Sequence[ParallelConfig]) -> list[CheckedConfig]:
        memory = keep_fitting(instance, configs, predictor, max_oom_risk)
        of_config = {result.config: result for result in (*memory.fitting, *memory.rejected)}
        return [of_config[config] for config in configs]

    ranges = [
        _Range(base, 0, _most_layers(base), result)
        for base, result in zip(bases, checked([_all_layers(base) for base in bases]), strict=True)
    ]
    while True:
        halved = [each for each in ranges if each.at_high.short_bytes == 0 and each.high - each.low > 1]
        if not halved:
            break
        tries = [with_whole_layers(each.base, "block", (each.low + each.high) // 2) for each in halved]
        for each, result in zip(halved, checked(tries), strict=True):
            if result.short_bytes:
                each.low = result.config.recompute_num_layers
            else:
                each.high, each.at_high = result.config.recompute_num_layers, result
    yield from ((each.base, each.at_high) for each in ranges)


def _most_layers(config: ParallelConfig) -> int:
    """Number of layers of the largest chunk, from which on all layers are recomputed."""
    return max(map(max, config.layers_per_chunk))


def _all_layers(config: ParallelConfig) -> ParallelConfig:
    return with_whole_layers(config, "block", _most_layers(config))


def _whole(config: ParallelConfig) -> ParallelConfig:
    """Return the configuration with all layers recomputed, one at a time, as searched without block recomputation."""
    return with_whole_layers(config, "uniform", 1)
