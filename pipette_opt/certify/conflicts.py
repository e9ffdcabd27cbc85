"""
Explanation why no plan exists: smallest sets of requirements that cannot be met together.

A deletion filter (Chinneck and Dravnieks, ORSA Journal on Computing 3, 1991) drops requirements one after the other. A
requirement stays dropped if no plan exists without it either. The remaining set is irreducible: without any one of its
requirements, some configuration is legal and fits. Other orders find other such sets; the shortest are reported first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.units import counted, gib
from pipette_opt.candidates import SearchSpace, legal_candidates
from pipette_opt.candidates.enumeration import has_any
from pipette_opt.candidates.pins import given_text
from pipette_opt.candidates.space import PINNABLE
from pipette_opt.memory.fewest import check_memory
from pipette_opt.options.names import option_name
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import load_predictor
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, TrainingSpec
from pipette_opt.specs.stack import ON_MEGATRON_CORE

SHORT_SEQUENCE = 4096
"""Sequences of at most this many tokens are never reported as the reason why no plan exists. Chosen."""

UNPINNED = SearchSpace()
"""Search space without pins."""

TRIED_UNPINNED = (
    *("num_gpus", "max_gpus", "tensor_parallel", "pipeline_parallel", "data_parallel"),
    *("context_a2a", "expert_parallel"),
)
"""Fields of a search space of which every legal value is tried if they are not pinned."""

MORE_HOSTS = (1, 2, 3, 4, 5, 8, 16, 32)
"""Multiples of the number of hosts that are tried to find out whether more hosts would help. Chosen."""

MAX_HOSTS = 512
"""Largest number of hosts tried; more take long to enumerate. Chosen."""

EVERY_NUMBER_OF_HOSTS = 16
"""Up to this number of hosts, every smaller number is tried; of more hosts, divisors and powers of two too. Chosen."""

ODD_PARTS = 3 * 5 * 7
"""Odd factor of the batch size tried as a relaxation, so that many numbers of stages and replicas divide it. Chosen."""

PREDICTED_AT_ONCE = 256
"""Number of configurations whose memory is predicted together, smallest need first. Chosen."""

MORE_ORDERS_S = 4.0
"""Seconds after which no further order of requirements is tried. Chosen."""


NARROW_STATES = {
    "use_precision_aware_optimizer": True,
    "exp_avg_dtype": "bf16",
    "exp_avg_sq_dtype": "bf16",
    "accumulate_allreduce_grads_in_fp32": False,
}
"""Training settings with moments and gradients in 16 bits."""

NARROW_OPTIONS = (
    "bf16: --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-grads-dtype bf16 "
    "--grad-reduce-in-bf16 in a launch given as --model"
)
"""Options of Megatron-LM for :data:`NARROW_STATES`."""

MANY_CHUNKS = 8
"""Parts of a micro-batch's logits that a fused or chunked loss has; torchtitan's default (``ChunkedLossWrapper``)."""

FP32_STATES = TrainingSpec(global_batch_size=1, seq_length=1).optimizer_bytes
"""Bytes of optimizer states per parameter in bf16 training, with the master copy and both moments in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    Job, search space and accepted out-of-memory risk for which a plan is asked.

    Parameters
    ----------
    training
        Training settings instead of the job's; ``None`` for the job's.
    times
        Multiple of the job's hosts.
    """

    instance: Instance
    space: SearchSpace
    risk: float
    training: TrainingSpec | None = None
    times: int = 1

    @property
    def job(self) -> Instance:
        """The job with these training settings on as many hosts."""
        given = self.instance
        cluster = given.cluster if self.times == 1 else _like(given.cluster, self.times * given.cluster.num_nodes)
        return replace(given, training=self.training or given.training, cluster=cluster.relaxed())

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """
        Numbers of GPUs to try: the pinned number, or whole hosts and parts of a host; of more hosts, all GPUs.

        They do not depend on what is legal, so that a relaxed question has all numbers of the stricter one. Of many
        hosts, some numbers are left out (:data:`EVERY_NUMBER_OF_HOSTS`), as each has a space of its own.
        """
        space, per_host = self.space, self.instance.cluster.gpus_per_node
        num_hosts = self.instance.cluster.num_nodes
        if space.num_gpus is not None:
            return (space.num_gpus,)
        if self.times > 1:
            sizes = [self.times * num_hosts * per_host]
        else:
            few, doubled = range(1, EVERY_NUMBER_OF_HOSTS + 1), [2**power for power in range(num_hosts.bit_length())]
            divisors = [number for number in range(1, num_hosts + 1) if num_hosts % number == 0]
            hosts = {number for number in (*few, *doubled, *divisors) if number <= num_hosts}
            sizes = [*(number * per_host for number in sorted(hosts, reverse=True)), *range(per_host - 1, 0, -1)]
        return tuple(size for size in sizes if space.max_gpus is None or size <= space.max_gpus)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requirement:
    """
    Requirement of a job, with the questions that drop it.

    Parameters
    ----------
    name
        Short text for people.
    relaxed
        Function from a question to questions without the requirement. Dropping it helps if any of them has a plan.
        Every plan of the original question answers one of them; it is itself among them where no other contains it.
    """

    name: str
    relaxed: Callable[[Question], Sequence[Question]]


def conflicts(
    instance: Instance, space: SearchSpace, max_oom_risk: float, more_orders_s: float = MORE_ORDERS_S
) -> list[tuple[str, ...]]:
    """
    Return irreducible sets of requirements that cannot be met together, shortest first; no set if a plan may exist.

    An empty set means that no configuration is legal even without any requirement.
    """
    asked = Question(instance=instance, space=space, risk=max_oom_risk)
    required, clock = requirements(asked), Clock().after(more_orders_s)
    answers = Answers(asked, required)
    if answers.is_possible(required):
        return []
    if not answers.is_possible(()):
        return [()]
    found: dict[frozenset[str], tuple[str, ...]] = {}
    turned = [[*required[turn:], *required[:turn]] for turn in range(1, len(required))]
    for order in (required, required[::-1], *turned):
        kept = list(required)
        for requirement in order:
            fewer = [other for other in kept if other is not requirement]
            if not answers.is_possible(fewer):
                kept = fewer
        names = tuple(requirement.name for requirement in kept)
        found[frozenset(names)] = names
        if clock.is_over:
            break
    least = [names for key, names in found.items() if not any(other < key for other in found)]
    return sorted(least, key=lambda names: (len(names), sum(map(len, names))))


def in_words(sets: Sequence[tuple[str, ...]]) -> str:
    """Return a line of text for each set of requirements; empty without any set."""
    return "\n".join(map(_sentence, sets))


def _sentence(names: tuple[str, ...]) -> str:
    if not names:
        return "No configuration is legal, whichever requirement is dropped."
    head = "These requirements cannot be met together" if len(names) > 1 else "This requirement cannot be met"
    return f"{head}: {', '.join(names)}."


def requirements(asked: Question) -> list[Requirement]:
    """Return the requirements of a job: pins, batch size, sequence length, hosts and their memory."""
    instance, space = asked.instance, asked.space
    training, cluster = instance.training, instance.cluster
    found = []
    for name in PINNABLE:
        option, value = option_name(name), getattr(space, name)
        if value != getattr(UNPINNED, name):
            found.append(Requirement(name=f"{option} {given_text(value)}", relaxed=partial(_unpinned, name)))
    if not training.unequal_microbatches:
        found.append(Requirement(name="equal micro-batches", relaxed=_with_unequal_microbatches))
    size = cluster.num_nodes * cluster.gpus_per_node * space.max_micro_batch_size
    batch = -(-training.global_batch_size // size) * size * ODD_PARTS
    if batch != training.global_batch_size:
        word = f"a batch of {training.global_batch_size:,}"
        found.append(Requirement(name=word, relaxed=_or_trained(global_batch_size=batch)))
    if training.seq_length > SHORT_SEQUENCE:
        word = f"sequences of {training.seq_length:,} tokens"
        found.append(Requirement(name=word, relaxed=_or_trained(seq_length=SHORT_SEQUENCE)))
    hosts = f"{counted(cluster.num_nodes, 'host')} of {counted(cluster.gpus_per_node, 'GPU')}"
    found.append(Requirement(name=hosts, relaxed=_with_more_hosts))
    if asked.risk < IGNORED_RISK:
        room = max(load_predictor(asked.risk, instance).usable_bytes(gpu) for gpu in cluster.gpu_kinds)
        word = f"{gib(room):.1f} GiB of memory per GPU at a risk of {100 * asked.risk:.3g} %"
        found.append(Requirement(name=word, relaxed=lambda question: [replace(question, risk=IGNORED_RISK)]))
        if space.offload is None and training.offload.is_nothing:
            word = "nothing in the hosts' memory (--offload)"
            found.append(Requirement(name=word, relaxed=_with_offload))
        if (training.precision, training.optimizer) == ("bf16", "adam") and training.optimizer_bytes == FP32_STATES:
            relaxed = _or_trained(**NARROW_STATES)
            found.append(Requirement(name=f"moments and gradients in fp32 ({NARROW_OPTIONS})", relaxed=relaxed))
        adapters = instance.model.adapters
        if adapters is not None and not adapters.is_quantised:
            found.append(Requirement(name="frozen weights in 16 bits (--finetune qlora)", relaxed=_with_narrow_base))
        has_chunks = instance.stack.family not in ON_MEGATRON_CORE and training.loss_chunks < MANY_CHUNKS
        if has_chunks and training.seq_length > SHORT_SEQUENCE:
            name = f"logits of {training.seq_length:,} tokens at once (loss_chunks: {MANY_CHUNKS} in a job file)"
            found.append(Requirement(name=name, relaxed=_or_trained(loss_chunks=MANY_CHUNKS)))
    return found


def _unpinned(name: str, question: Question) -> Sequence[Question]:
    """Return the question without a pin, and itself unless that loses none of the pinned values."""
    space = question.space
    try:
        free = replace(question, space=replace(space, **{name: getattr(UNPINNED, name)}))
    except InputError:  # another pin needs this one
        return [question]
    return [free] if _is_tried_unpinned(name, space) else [free, question]


def _is_tried_unpinned(name: str, space: SearchSpace) -> bool:
    """Return whether a search without this pin tries all of its legal values."""
    value, free = getattr(space, name), getattr(UNPINNED, name)
    if name in ("max_micro_batch_size", "max_virtual_pipeline"):
        return bool(value <= free)
    if name in ("micro_batch_size", "virtual_pipeline"):
        return bool(max(value) <= getattr(space, f"max_{name}"))
    return name in TRIED_UNPINNED or (name == "recompute" and set(value) <= set(free))


def _trained(question: Question, **changes: Any) -> Question:
    return replace(question, training=(question.training or question.instance.training).changed(**changes))


def _or_trained(**changes: Any) -> Callable[[Question], Sequence[Question]]:
    """Return a function from a question to the question with these changes, and the question itself."""
    return lambda question: [_trained(question, **changes), question]


def _with_narrow_base(question: Question) -> Sequence[Question]:
    """Return the question with frozen weights in 4 bits, which no configuration needs more memory for, and itself."""
    model = question.instance.model
    assert model.adapters is not None
    narrow = replace(model, adapters=replace(model.adapters, base="nf4-double"))
    return [replace(question, instance=replace(question.instance, model=narrow)), question]


def _with_unequal_microbatches(question: Question) -> Sequence[Question]:
    """Return the question with equal or unequal numbers of micro-batches."""
    return [_trained(question, unequal_microbatches=True)]


def _with_offload(question: Question) -> Sequence[Question]:
    """Return the question with all that the job's software can keep in the hosts' memory there, or on the GPUs."""
    shards = () if question.instance.stack.family in ON_MEGATRON_CORE else ("parameters",)
    return [replace(question, space=replace(question.space, offload=(None, "optimizer", *shards)))]


def _with_more_hosts(question: Question) -> Sequence[Question]:
    """Return the question on the given hosts and on multiples of them."""
    num_hosts = question.instance.cluster.num_nodes
    return [replace(question, times=times) for times in MORE_HOSTS if times == 1 or times * num_hosts <= MAX_HOSTS]


def _like(cluster: ClusterSpec, num_hosts: int) -> ClusterSpec:
    """Return a cluster of ``num_hosts`` hosts of the given types; links do not matter for legality and memory."""
    nodes = tuple(replace(cluster.nodes[index % cluster.num_nodes], host=f"host{index}") for index in range(num_hosts))
    links = LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((num_hosts, num_hosts), cluster.intra_node_bytes_per_s))
    return replace(cluster, nodes=nodes, link_matrices=(links,), known_latency_s=None, levels=(), gpu_links=None)


class Answers:
    """
    Answers to a question with fewer requirements, each worked out once.

    Fewer requirements never rule out a plan, so an answer also holds for more or for fewer requirements.
    """

    def __init__(self, asked: Question, required: Sequence[Requirement]) -> None:
        self._asked, self._required = asked, required
        self._possible: list[frozenset[str]] = []
        self._impossible: list[frozenset[str]] = []
        self._has_candidate = cache(_has_candidate)

    def is_possible(self, kept: Sequence[Requirement]) -> bool:
        """Return whether a configuration is legal and fits with these requirements alone."""
        names = frozenset(requirement.name for requirement in kept)
        if any(names <= more for more in self._possible):
            return True
        if any(names >= fewer for fewer in self._impossible):
            return False
        questions = [self._asked]
        for requirement in self._required:
            if requirement.name not in names:
                questions = [other for question in questions for other in requirement.relaxed(question)]
        found = any(map(self._has_candidate, questions))
        (self._possible if found else self._impossible).append(names)
        return found


def _has_candidate(asked: Question) -> bool:
    """Return whether a configuration is legal and fits; those that need the least memory are tried first."""
    instance, sizes = asked.job, asked.world_sizes
    predictor = load_predictor(asked.risk, instance)
    if asked.risk < IGNORED_RISK:
        room, states = max(map(predictor.usable_bytes, instance.cluster.gpu_kinds)), _state_bytes(asked)
        sizes = tuple(size for size in sizes if states <= size * room)
    if not sizes:
        return False
    # Neither legality nor memory depends on overlap.
    plain = replace(
        asked.space,
        world_sizes=sizes,
        overlap_grad_reduce=False,
        overlap_param_gather=None,
        ddp_bucket_size=None,
    )
    try:
        if asked.risk >= IGNORED_RISK:
            return has_any(instance, plain)
        candidates = legal_candidates(instance, plain)
    except InputError:  # more GPUs than the cluster has
        return False
    order = sorted(candidates, key=_need)
    return any(
        check_memory(instance, order[first : first + PREDICTED_AT_ONCE], predictor, asked.risk).fitting
        for first in range(0, len(order), PREDICTED_AT_ONCE)
    )


def _state_bytes(asked: Question) -> float:
    """
    Return a lower bound on the bytes that all GPUs hold together: each weight and optimizer state once.

    Only weights count if the optimizer states may be in the hosts' memory; nothing if weights may be there, too.
    """
    training = asked.training or asked.instance.training
    if "parameters" in (asked.space.offload or ()) or training.offload.parameters:
        return 0.0
    on_hosts = asked.space.offload is not None or not training.offload.is_nothing
    model = asked.instance.model
    if model.adapters is not None:
        return model.num_parameters * min(model.adapters.base_bytes, training.parameter_bytes)
    return model.num_parameters * (training.parameter_bytes + (0 if on_hosts else training.optimizer_bytes))


def _need(config: ParallelConfig) -> tuple[bool, int, int, bool]:
    """Return a sort key that puts configurations that need little memory first."""
    parts = config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
    return (
        config.recomputation != "full",
        -parts * config.expert_model_parallel_size,
        config.micro_batch_size,
        not config.use_distributed_optimizer,
    )


def explained(error: InfeasibleError, instance: Instance, space: SearchSpace, max_oom_risk: float) -> InfeasibleError:
    """Return the error with a text in front that names requirements that cannot be met together, if any are found."""
    reasons = in_words(conflicts(instance, space, max_oom_risk))
    return InfeasibleError(f"{reasons}\n{error}") if reasons else error
