"""Lower bounds on the iteration time by number of GPUs, to choose that number by time."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.combinations import combinations
from pipette_opt.candidates.coverage import layers_are_free
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


class LeastTimes:
    """
    Lower bounds on the iteration time of every plan of a space, by number of GPUs; cached.

    Parameters
    ----------
    space
        Search space. Memory and single hosts do not count. If layers per stage are free, every partition into equal
        chunks counts, as in the joint model.
    """

    def __init__(self, instance: Instance, space: SearchSpace, work: WorkBounds | None = None) -> None:
        self.instance, self._space, self._work = instance, _without_dearer_choices(space), work or WorkBounds(instance)
        self._gpu_seconds = least_gpu_seconds(instance)
        self._found: dict[int, float] = {}
        self.not_below_s: dict[int, float] = {}
        """Lower bound of each number of GPUs on which no plan may beat the time asked for, seconds."""
        per_host = instance.cluster.gpus_per_node
        most = instance.cluster.num_nodes * per_host
        most = most if space.max_gpus is None else min(most, space.max_gpus)
        self.numbers: tuple[int, ...] = tuple(range(most // per_host * per_host, 0, -per_host))
        """Numbers of GPUs of whole hosts that the space allows, descending."""

    def __call__(self, num_gpus: int) -> float:
        """Return a lower bound, seconds; infinite if no configuration is legal."""
        if num_gpus not in self._found:
            self._found[num_gpus] = max(self.at_peak_s(num_gpus), self._least_s(num_gpus))
        return self._found[num_gpus]

    def may_beat(self, num_gpus: int, seconds: float) -> bool:
        """
        Return whether a plan on this number of GPUs may take less than ``seconds``.

        If none may, :attr:`not_below_s` has the bound that shows it.
        """
        least_s = max(self.at_peak_s(num_gpus), self.not_below_s.get(num_gpus, 0.0))
        if least_s < seconds:
            least_s = float("inf")
            for config in self._configs(num_gpus):
                bound_s = self._enough_s(config, seconds)
                if bound_s < seconds:
                    return True
                least_s = min(least_s, bound_s)
        self.not_below_s[num_gpus] = least_s
        return False

    def at_peak_s(self, num_gpus: int) -> float:
        """Return a lower bound by the peak rate of the fastest GPU, seconds."""
        return self._gpu_seconds / num_gpus

    def _least_s(self, num_gpus: int) -> float:
        """Return a lower bound by the compute of every legal configuration, seconds."""
        return min(map(self._work_s, self._configs(num_gpus)), default=float("inf"))

    def _configs(self, num_gpus: int) -> Iterator[ParallelConfig]:
        """Yield a configuration of every legal combination."""
        found = combinations(self.instance, self._space, num_gpus)
        return (combination.configs[0] for combination in found if combination.configs)

    def may_take_less(self, config: ParallelConfig, seconds: float) -> bool:
        """Return whether the compute-only bound of a configuration is below ``seconds``."""
        return self._enough_s(config, seconds) < seconds

    def _enough_s(self, config: ParallelConfig, seconds: float) -> float:
        """Return the compute-only bound of a configuration, or a weaker one that is at least ``seconds``."""
        bound_s = self._work.at_full_rate(config)
        return bound_s if bound_s >= seconds else self._work_s(config)

    def _work_s(self, config: ParallelConfig) -> float:
        """Return the compute-only bound, seconds: of every layer partition if these are free and its chunks equal."""
        is_any_split = layers_are_free(self.instance, self._space) and config.has_equal_chunks
        return self._work.of_any_split(config) if is_any_split else self._work(config)


def may_win(work: WorkBounds, space: SearchSpace) -> Callable[[ParallelConfig], bool]:
    """
    Return a predicate of the configurations that a search space has by ``others_below_s``.

    Parameters
    ----------
    work
        Cache of compute-only bounds of the job, extended by calls of the predicate.
    """
    least, own, below_s = LeastTimes(work.instance, space, work), space.world_sizes[:1], space.others_below_s

    def is_kept(config: ParallelConfig) -> bool:
        if below_s is None or config.world_size in own or config in space.more_configs:
            return True
        return least.may_take_less(config, below_s)

    return is_kept


def least_gpu_seconds(instance: Instance) -> float:
    """Return a lower bound on the GPU-seconds of an iteration: the model's FLOPs at the highest peak of any GPU."""
    training = instance.training
    peak = max(rate for gpu in instance.cluster.gpu_kinds for rate in gpu.peak_flops.values())
    return training.tokens * instance.model.flops_per_token(training.attended_length) / peak


def peak_gpu_seconds(instance: Instance) -> float:
    """Return GPU-seconds that no run goes below: the model's FLOPs at the fastest GPU's peak in the job's precision."""
    training = instance.training
    precision = training.precision if training.recipe is None else training.recipe.peak
    peak = max(gpu.peak_flops.get(precision, max(gpu.peak_flops.values())) for gpu in instance.cluster.gpu_kinds)
    return training.tokens * instance.model.flops_per_token(training.attended_length) / peak


def _without_dearer_choices(space: SearchSpace) -> SearchSpace:
    """
    Return the space without choices that only add time.

    These are recomputation and offload, where they are optional. Of overlap, a single choice is left.
    """
    return replace(
        space,
        recompute=(None,) if None in space.recompute else space.recompute,
        more_recompute=() if None in space.recompute else space.more_recompute,
        offload=(None,) if None in (space.offload or ()) else space.offload,
        overlap_grad_reduce=False,
        overlap_param_gather=None,
        ddp_bucket_size=None,
    )
