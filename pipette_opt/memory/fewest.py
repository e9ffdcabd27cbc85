"""
Memory filter that keeps the least memory saving with which a configuration fits.

Savings are recomputed layers, offload, and the absence of tensor overlap.

Megatron-Core has one number ``N`` for all stages: each chunk recomputes its first ``min(N, layers)`` layers. On given
hosts, an iteration's time never falls when ``N`` grows. A recomputed layer's backward pass has an additional forward
pass and never less traffic. The time that can hide its communication grows by parts of this forward pass only: waits
for the host, and attention that overlaps with the ring. So no layer gets faster, and the simulated time never falls
when a layer's time grows. Of configurations that differ only in ``N``, the smallest ``N`` that fits is the fastest. No
``N`` need be searched if the configuration fits without recomputation.

Offload makes no layer faster either. The host's optimizer has less memory bandwidth than the GPU's. A layer whose
inputs travel takes the longer of its pass and the transfer; its wait for the host shrinks by no more than that. So a
configuration with offload is only searched if none with less offload fits. With block recomputation, it is also
searched if offload lets it recompute fewer layers.

Tensor overlap hides a part of the tensor-parallel traffic, and takes memory for its buffers
(:mod:`~pipette_opt.specs.user_buffers`). No layer gets slower with overlap. So a configuration without overlap is only
searched if the one with overlap does not fit or recomputes more layers.

One case is outside this proof, and certificates list it as not searched. Where GPUs have unequal memory, a larger
``N``, more offload, or no tensor overlap may let a stage onto other hosts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple, Self

from pipette_opt.base.offload import offload_of
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck, keep_fitting
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import (
    ParallelConfig,
    with_offload,
    with_overlap,
    with_tensor_overlap,
    with_whole_layers,
    without_overlap,
    without_recomputation,
)
from pipette_opt.specs import Instance, ModelSpec

_LAYERS = attrgetter("layers_per_stage", "pipeline_model_parallel_layout")
"""Fields that are equal for configurations that are compared with each other."""


def check_memory(
    instance: Instance,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float = USUAL_RISK,
) -> MemoryCheck:
    """
    Check the memory of candidates and keep only those with the least memory saving that fits.

    The check of each candidate is that of :func:`~pipette_opt.memory.filter.keep_fitting`. Candidates with less offload
    and with tensor overlap come first. A candidate that saves more is predicted only if its counterparts that save less
    do not fit. With block recomputation, it is also predicted if they recompute layers, and dropped if it recomputes as
    many. Candidates that differ only in communication overlap need equal memory and are checked once.
    """
    variants = dict[ParallelConfig, list[ParallelConfig]]()
    for config in candidates:
        variants.setdefault(_as_listed(config), []).append(config)
    check = _checked(instance, list(variants), predictor, max_oom_risk)

    def of_all(results: Sequence[CheckedConfig]) -> tuple[CheckedConfig, ...]:
        return tuple(result.of(config) for result in results for config in with_variants([result.config]))

    def with_variants(configs: Sequence[ParallelConfig]) -> tuple[ParallelConfig, ...]:
        return tuple(_overlapping_as(config, other) for config in configs for other in variants[_as_listed(config)])

    return replace(
        check,
        fitting=of_all(check.fitting),
        rejected=of_all(check.rejected),
        spared=with_variants(check.spared),
        kept_on_gpu=with_variants(check.kept_on_gpu),
        not_overlapped=with_variants(check.not_overlapped),
    )


def check_more(
    instance: Instance,
    check: MemoryCheck,
    known: Sequence[ParallelConfig],
    more: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
) -> MemoryCheck:
    """
    Return the check of the candidates ``known`` and ``more`` together.

    Parameters
    ----------
    check
        Check of ``known``. Of these, only candidates with the layers of one in ``more`` are compared anew.
    """
    splits = set(map(_LAYERS, more))
    again = [config for config in known if _LAYERS(config) in splits]
    others = check.kept(lambda config: _LAYERS(config) not in splits)
    return others.joined(check_memory(instance, [*again, *more], predictor, check.max_oom_risk))


def needing_no_more(config: ParallelConfig, model: ModelSpec) -> list[ParallelConfig]:
    """
    Return a configuration, and with block recomputation those that recompute more layers: none needs more memory.

    All layers recomputed count as full recomputation, too, where both are equal.
    """
    if config.recomputation != "block":
        return [config]
    numbers = range(config.recompute_num_layers + 1, _most_layers(config) + 1)
    more = [with_whole_layers(config, "block", number) for number in numbers]
    return [config, *more, *([_whole(config)] if _is_full_with_all(model) else [])]


def _checked(
    instance: Instance, candidates: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> MemoryCheck:
    """Check candidates in the form of :func:`_as_listed`."""
    of_saver = dict[_Saver, list[ParallelConfig]]()
    for config in candidates:
        of_saver.setdefault(_Saver.of(config), []).append(config)
    savers = sorted(of_saver, key=_Saver.amount)
    if len(savers) <= 1:
        return _with_fewest_layers(instance, candidates, predictor, max_oom_risk)
    fewest, parts, needless = dict[ParallelConfig, int](), list[MemoryCheck](), list[ParallelConfig]()
    for saver in savers:
        lesser = [other for other in savers if other != saver and saver.gives_up_all_of(other)]
        enough = {config: _fewest_with(instance.model, config, lesser, fewest) for config in of_saver[saver]}
        tried = [config for config, number in enough.items() if number > 0]
        part = _with_fewest_layers(instance, tried, predictor, max_oom_risk)
        fitting, more = list[CheckedConfig](), list[ParallelConfig]()
        for checked in part.fitting:
            listed, in_blocks = _as_listed(checked.config), checked.config.recomputation == "block"
            number = checked.config.recompute_num_layers if in_blocks else 0
            if number < enough[listed]:
                fitting.append(checked)
                fewest[listed] = number
            else:
                more.append(checked.config)
        needless += [*(config for config, number in enough.items() if number == 0), *more]
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
    Choices of a configuration that save memory, other than recomputation.

    Parameters
    ----------
    offload
        Tensors that are kept in the host's memory; transferring them takes time.
    overlaps
        Whether tensor overlap is on, which needs buffers.
    """

    offload: str | None
    overlaps: bool

    @classmethod
    def of(cls, config: ParallelConfig) -> Self:
        """Return the offload and tensor overlap of a configuration."""
        return cls(config.offload, config.tp_comm_overlap)

    def amount(self) -> float:
        """Return a sort key that is larger the more memory is saved."""
        on_host = offload_of(self.offload)
        parts = (
            on_host.optimizer_offload_fraction
            + on_host.parameters
            + on_host.cpu_offloading_num_layers
            + len(on_host.offload_modules)
        )
        return parts + (not self.overlaps)

    def gives_up_all_of(self, other: "_Saver") -> bool:
        """Return whether these choices save at least as much memory as those of ``other``, choice by choice."""
        return self.overlaps <= other.overlaps and offload_of(self.offload).has_all_of(offload_of(other.offload))

    def in_place(self, config: ParallelConfig) -> ParallelConfig:
        """Return a copy of the configuration with this offload and tensor overlap."""
        return with_tensor_overlap(with_offload(config, self.offload), self.overlaps)


def _as_listed(config: ParallelConfig) -> ParallelConfig:
    """Return the configuration without gradient overlap and, with block recomputation, with one recomputed layer."""
    base = without_overlap(config)
    return with_whole_layers(base, "block", 1) if config.recomputation == "block" else base


def _overlapping_as(config: ParallelConfig, other: ParallelConfig) -> ParallelConfig:
    """Return the configuration with the gradient overlap of ``other``, which may differ in recomputed layers, too."""
    if other.recompute_num_layers == config.recompute_num_layers:
        return other
    return with_overlap(
        config,
        grad_reduce=other.overlap_grad_reduce,
        param_gather=other.overlap_param_gather,
        ddp_bucket_size=other.ddp_bucket_size,
    )


def _fewest_with(
    model: ModelSpec, config: ParallelConfig, lesser: Sequence[_Saver], fewest: Mapping[ParallelConfig, int]
) -> float:
    """
    Return the fewest recomputed layers with which a counterpart that saves less memory fits; infinite if none fits.

    Parameters
    ----------
    config
        Configuration in the form of :func:`_as_listed`.
    lesser
        Choices of offload and overlap that save less memory.
    fewest
        Fewest recomputed layers of every configuration known to fit; keys as from :func:`_as_listed`.
    """
    found = [float("inf")]
    for saver in lesser:
        other = saver.in_place(config)
        found.append(fewest.get(other, float("inf")))
        if config.recomputation == "block":
            found.append(fewest.get(without_recomputation(other), float("inf")))
            found += [_most_layers(other)] if _is_full_with_all(model) and _whole(other) in fewest else []
    return min(found)


def _with_fewest_layers(
    instance: Instance, candidates: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> MemoryCheck:
    """
    Check candidates with equal offload and tensor overlap, with the fewest recomputed layers that fit.

    A candidate with block recomputation stands for every number of layers. It gets the smallest number that fits, or
    all layers if none does. It is spared if it fits without recomputation. It is also spared if it fits only with all
    layers recomputed, and the candidates contain full recomputation that is equal (:func:`_is_full_with_all`).

    Parameters
    ----------
    candidates
        Candidates in the form of :func:`_as_listed`.
    """
    others = [config for config in candidates if config.recomputation != "block"]
    plain = keep_fitting(instance, others, predictor, max_oom_risk)
    if len(others) == len(candidates):
        return plain
    fitting, rejected = ({checked.config: checked for checked in group} for group in (plain.fitting, plain.rejected))
    searched = [config for config in candidates if config.recomputation == "block"]
    whole = {config: _whole(config) for config in searched if without_recomputation(config) not in fitting}
    found = {}
    if is_full := _is_full_with_all(instance.model):
        found = {config: rejected[full].of(_all_layers(config)) for config, full in whole.items() if full in rejected}
    hopeful = [config for config in whole if config not in found]
    for config, result in _with_fewest(instance, hopeful, predictor, max_oom_risk):
        if not is_full or whole[config] not in fitting or result.config.recompute_num_layers < _most_layers(config):
            found[config] = result
    checked = fitting | rejected | found
    ordered = [checked[config] for config in candidates if config in checked]
    return replace(
        plain,
        fitting=tuple(result for result in ordered if not result.short_bytes),
        rejected=tuple(result for result in ordered if result.short_bytes),
        spared=tuple(config for config in searched if config not in found),
    )


@dataclass(slots=True)
class _Range:
    """
    Bisection interval of a configuration's recomputed layers: ``low`` does not fit, ``high`` is the smallest tried
    number that does.
    """

    base: ParallelConfig
    low: int
    high: int
    at_high: CheckedConfig


def _with_fewest(
    instance: Instance, bases: Sequence[ParallelConfig], predictor: MemoryPredictor, max_oom_risk: float
) -> Iterator[tuple[ParallelConfig, CheckedConfig]]:
    """Yield each configuration with its memory at the fewest recomputed layers that fit, otherwise at all."""

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
    """Return the number of layers of the largest chunk; a higher number of recomputed layers changes nothing."""
    return max(map(max, config.layers_per_chunk))


def _all_layers(config: ParallelConfig) -> ParallelConfig:
    return with_whole_layers(config, "block", _most_layers(config))


def _is_full_with_all(model: ModelSpec) -> bool:
    """
    Return whether block recomputation of all layers takes as much time and memory as full recomputation.

    Block recomputation never recomputes multi-token-prediction layers, full recomputation does.
    """
    return model.mtp_num_layers == 0


def _whole(config: ParallelConfig) -> ParallelConfig:
    """Return a copy that recomputes all layers one at a time, the candidate for full recomputation."""
    return with_whole_layers(config, "uniform", 1)
