"""
How few layers block recomputation has to recompute, how little the host has to keep, and where tensor overlap has to be
given up, for what fits otherwise.

Megatron-Core has one number ``N`` for all stages: each chunk recomputes its first ``min(N, layers)`` layers.

On given hosts an iteration's time never falls when ``N`` grows. A recomputed layer's backward has a whole forward pass
more. What it sends is never less; what hides its communication grows by the forward's waits for the host and by the
attention beside the ring, both parts of that forward pass. So no layer takes less time, and the simulator never falls
when a time grows. Of configurations that differ in ``N`` alone the smallest that fits is therefore the fastest, and the
others need not be searched: none of them if the configuration fits without recomputation.

What the host keeps makes nothing faster either. Its optimizer streams less than the GPU's memory does, and a layer
whose inputs travel takes the longer of its pass and the way: what it waits for the host is less by no more than that.
So of configurations that differ in what the host keeps alone, only those are searched that fit while none with less
there does; with block recomputation also those that recompute fewer layers for it.

Tensor overlap hides a part of what tensor-parallel ranks send, and takes memory for its buffers
(:mod:`~pipette_opt.specs.user_buffers`): no layer takes longer with it. So a configuration without it is searched where
it does not fit with it, or recomputes fewer layers.

Two things are outside of this proof, and certificates say that they were not searched: where GPUs have unequal memory,
a larger ``N``, more on the host, or no tensor overlap may let a stage onto other hosts; and a stack may know what is
lost where memory is nearly full.
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
    As :func:`~pipette_opt.memory.filter.keep_fitting`, with the least given up and the fewest recomputed layers.

    Candidates that give up less for memory come first: less on the host, tensor overlap. One that gives up more is
    predicted only where what differs from it in that alone does not fit; with block recomputation also where that
    recomputes layers, and is left out again if it recomputes as many.
    """
    savers = sorted(dict.fromkeys(map(_Saver.of, candidates)), key=_Saver.amount)
    if len(savers) <= 1:
        return _with_fewest_layers(instance, candidates, predictor, max_oom_risk)
    fewest, parts, needless = dict[ParallelConfig, int](), list[MemoryCheck](), list[ParallelConfig]()
    for saver in savers:
        lesser = [one for one in savers if one != saver and saver.gives_up_all_of(one)]
        asked = [one for one in candidates if _Saver.of(one) == saver]
        listed = {one: _as_listed(one) for one in asked}
        enough = {base: _fewest_with(base, lesser, fewest) for base in dict.fromkeys(listed.values())}
        tried = [one for one in asked if enough[listed[one]] > 0]
        part = _with_fewest_layers(instance, tried, predictor, max_oom_risk)
        fitting, more = list[CheckedConfig](), list[ParallelConfig]()
        for one in part.fitting:
            base, number = _as_listed(one.config), _num_recomputed(one.config)
            if number < enough[base]:
                fitting.append(one)
                fewest[base] = number
            else:
                more.append(one.config)
        needless += [*(one for one in asked if enough[listed[one]] == 0), *more]
        parts.append(replace(part, fitting=tuple(fitting)))
    return replace(
        parts[0],
        fitting=tuple(one for part in parts for one in part.fitting),
        rejected=tuple(one for part in parts for one in part.rejected),
        spared=tuple(one for part in parts for one in part.spared),
        kept_on_gpu=tuple(one for one in needless if one.offload is not None),
        not_overlapped=tuple(one for one in needless if one.offload is None),
    )


class _Saver(NamedTuple):
    """
    What a configuration gives up for memory beside recomputation.

    Parameters
    ----------
    offload
        What the host has; its way there takes time.
    overlaps
        Whether tensor-parallel ranks send beside products, for which they have buffers.
    """

    offload: str | None
    overlaps: bool

    @classmethod
    def of(cls, config: ParallelConfig) -> Self:
        """Return the choices of a configuration."""
        return cls(config.offload, config.tp_comm_overlap)

    def amount(self) -> float:
        """Return a number that is larger for what gives up all that another does, and more."""
        on_host = offload_of(self.offload)
        parts = on_host.optimizer_offload_fraction + on_host.cpu_offloading_num_layers + len(on_host.offload_modules)
        return parts + (not self.overlaps)

    def gives_up_all_of(self, other: "_Saver") -> bool:
        """Whether nothing that another gives up is kept here."""
        return self.overlaps <= other.overlaps and offload_of(self.offload).has_all_of(offload_of(other.offload))

    def in_place(self, config: ParallelConfig) -> ParallelConfig:
        """Return a configuration with these choices in place of its own."""
        return with_tensor_overlap(with_offload(config, self.offload), self.overlaps)


def _as_listed(config: ParallelConfig) -> ParallelConfig:
    """The same as candidates are listed: for every number of recomputed layers, without what is sent beside compute."""
    base = without_overlap(config)
    return with_whole_layers(base, "block", 1) if config.recomputation == "block" else base


def _num_recomputed(config: ParallelConfig) -> int:
    """Recomputed layers of each chunk where their number is chosen; 0 elsewhere."""
    return config.recompute_num_layers if config.recomputation == "block" else 0


def _fewest_with(config: ParallelConfig, lesser: Sequence[_Saver], fewest: Mapping[ParallelConfig, int]) -> float:
    """
    The fewest recomputed layers with which a configuration fits that only gives up less; infinite without any.

    Parameters
    ----------
    config
        As it is listed.
    fewest
        Of all configurations that are known to fit, as they are listed.
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
    The same of candidates that agree in what the host keeps and in tensor overlap.

    A candidate with block recomputation stands for every number of layers. It becomes the one with the smallest number
    that fits, or with all layers if none does; or it is spared if it fits without recomputation, or not before all
    layers are recomputed, where the candidates have that, too.
    """
    others = [one for one in candidates if one.recomputation != "block"]
    plain = keep_fitting(instance, others, predictor, max_oom_risk)
    if len(others) == len(candidates):
        return plain
    fitting, rejected = (
        {without_overlap(one.config): one for one in group} for group in (plain.fitting, plain.rejected)
    )
    searched = [one for one in candidates if one.recomputation == "block"]
    bases = list(dict.fromkeys(map(without_overlap, searched)))
    whole = {base: _whole(base) for base in bases if without_recomputation(base) not in fitting}
    # Where all layers are recomputed the number does not matter: what is known of that is known of this.
    found = {base: rejected[one].of(_all_layers(base)) for base, one in whole.items() if one in rejected}
    hopeful = [base for base in whole if base not in found]
    for base, one in _with_fewest(instance, hopeful, predictor, max_oom_risk):
        if whole[base] not in fitting or one.config.recompute_num_layers < _most_layers(base):
            found[base] = one
    checked = {one.config: one for one in (*plain.fitting, *plain.rejected)}
    spared = []
    for config in searched:
        base = without_overlap(config)
        if base in found:
            number = found[base].config.recompute_num_layers
            checked[config] = found[base].of(with_whole_layers(config, "block", number))
        else:
            spared.append(config)
    ordered = [checked[one] for one in candidates if one in checked]
    return replace(
        plain,
        fitting=tuple(one for one in ordered if not one.short_bytes),
        rejected=tuple(one for one in ordered if one.short_bytes),
        spared=tuple(spared),
    )


@dataclass(slots=True)
class _Range:
    """Numbers of layers of one configuration: the largest that does not fit, and the smallest that does."""

    base: ParallelConfig
    low: int
    high: int
    at_high: CheckedConfig


def _with_fewest(
    instance: Instance, bases: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> Iterator[tuple[ParallelConfig, CheckedConfig]]:
    """Each with the smallest number that fits, by bisection, as memory falls with the number; or with all layers."""

    def checked(configs: Sequence[ParallelConfig]) -> list[CheckedConfig]:
        memory = keep_fitting(instance, configs, predictor, max_oom_risk)
        of_config = {one.config: one for one in (*memory.fitting, *memory.rejected)}
        return [of_config[one] for one in configs]

    ranges = [
        _Range(base, 0, _most_layers(base), one)
        for base, one in zip(bases, checked([_all_layers(base) for base in bases]), strict=True)
    ]
    while True:
        halved = [one for one in ranges if one.at_high.short_bytes == 0 and one.high - one.low > 1]
        if not halved:
            break
        tries = [with_whole_layers(one.base, "block", (one.low + one.high) // 2) for one in halved]
        for one, result in zip(halved, checked(tries), strict=True):
            if result.short_bytes:
                one.low = result.config.recompute_num_layers
            else:
                one.high, one.at_high = result.config.recompute_num_layers, result
    yield from ((one.base, one.at_high) for one in ranges)


def _most_layers(config: ParallelConfig) -> int:
    """Layers of the largest chunk: from that number on all layers are recomputed."""
    return max(map(max, config.layers_per_chunk))


def _all_layers(config: ParallelConfig) -> ParallelConfig:
    return with_whole_layers(config, "block", _most_layers(config))


def _whole(config: ParallelConfig) -> ParallelConfig:
    """The same with all layers recomputed, one at a time, as searched without block recomputation."""
    return with_whole_layers(config, "uniform", 1)
