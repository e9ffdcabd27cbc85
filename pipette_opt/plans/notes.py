"""Notes on a plan: sentences about assumptions, risks and unused hosts."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.units import counted, gib, three_digits
from pipette_opt.costs.compute import owned_parameters
from pipette_opt.costs.replicas import replica_waits
from pipette_opt.memory.filter import MemoryCheck
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import StageMemory
from pipette_opt.plans.provenance import provenance
from pipette_opt.plans.releases import release_words
from pipette_opt.specs import Instance
from pipette_opt.specs.activations import host_keeps

ENDED_EARLY = "The search ended early with a gap: "
"""First words of a note that says why a search had no more work although its gap was open."""


DOCUMENTS = "Documents: "
"""First words of the note on lengths of documents."""


def plan_notes(
    instance: Instance,
    config: ParallelConfig,
    memory: MemoryCheck,
    stages: Sequence[StageMemory],
) -> tuple[str, ...]:
    """
    Return the notes on a plan that follow from the job and the plan, as sentences.

    Parameters
    ----------
    memory
        Memory check of all legal configurations.
    stages
        Memory of the plan's stages.
    """
    cluster, training = instance.cluster, instance.training
    notes = [*cluster.assumed, *provenance(instance)]
    missing = int((~cluster.usable_links).sum()) - cluster.num_nodes
    if missing:
        were = "was not measured and is" if missing == 1 else "were not measured and are"
        notes.append(f"{counted(missing, 'directed host pair')} {were} not used.")
    if memory.rejected:
        of_all = counted(len(memory.fitting) + len(memory.rejected), "candidate")
        fit = "does not fit" if len(memory.rejected) == 1 else "do not fit"
        notes.append(f"{len(memory.rejected):,} of {of_all} {fit} in memory.")
    if any(stage.extrapolates for stage in stages):
        notes.append("The memory of this plan is predicted outside of the predictor's training data.")
    notes += _host_notes(instance, config)
    notes += document_notes(instance, config)
    if release := release_words(config, instance.model.num_query_groups):
        notes.append(f"The plan needs {release}.")
    if config.tp_comm_overlap:
        notes.append(
            "The plan has --tp-comm-overlap, which needs Transformer Engine: half of the tensor-parallel communication "
            "beside products counts as hidden, as in public runs. Without it: --no-tp-comm-overlap."
        )
    uneven = training.imbalance(config.expert_model_parallel_size)
    if instance.model.num_experts is not None and uneven > 1:
        notes.append(f"Times and memory count {uneven:.3g} times the mean tokens on the busiest rank of experts.")
    shares = config.microbatches_of_replicas(training.global_batch_size) if training.unequal_microbatches else (1,)
    if shares[0] > shares[-1]:
        most = shares.count(shares[0])
        notes.append(
            f"Planned only: {most} of {len(shares)} replicas run {shares[0]} micro-batches, the others {shares[-1]}; "
            f"no launcher deals them so. The time counts {shares[0]} for every replica, as with a global batch that "
            f"is padded to {len(shares) * shares[0] * config.micro_batch_size} sequences whose padding has no loss."
        )
    used = config.world_size // cluster.gpus_per_node
    if 0 < used < cluster.num_nodes:
        are = "is" if used == 1 else "are"
        notes.append(f"{used} of {counted(cluster.num_nodes, 'host')} {are} used; the placement chooses which.")
    return tuple(notes)


def document_notes(instance: Instance, config: ParallelConfig) -> list[str]:
    """Return the note on packed or padded documents, with the work of the replica that others wait for."""
    training, documents = instance.training, instance.training.documents
    if documents is None:
        whole = "a packed sequence counts as one document; --lengths FILE counts each."
        return [DOCUMENTS + whole] if training.packed else []
    padded = float(training.sequence_tokens(config.micro_batch_size))
    how = f"packed into {padded:,.0f}" if training.packed else f"padded to {padded:,.0f}"
    waits = 100 * (replica_waits(instance, config) - 1)
    low, high = np.quantile(waits, (0.05, 0.95))
    more, least, most = (three_digits(value) for value in (waits.mean(), low, high))
    order = " A better order: pipette-opt pack." if training.packed else ""
    return [
        f"{DOCUMENTS}{documents.mean_length:,.0f} tokens on average, {how}. In random order, the replica that the "
        f"others wait for has {more} % more work than the mean ({least} to {most} % in nine of ten iterations). "
        f"Memory is that of {training.seq_length:,} tokens.{order}"
    ]


def _host_notes(instance: Instance, config: ParallelConfig) -> list[str]:
    """Return the note on host memory: offloaded parts and least size in GiB; empty without offload."""
    offload = host_keeps(instance.training, config)
    if offload.is_nothing:
        return []
    states = offload.optimizer_offload_fraction * float(owned_parameters(instance.model, config).max())
    least = gib(instance.training.optimizer_bytes * states)
    return [
        f"In the host's memory: {offload.word}. Optimizer states take {least:.1f} GiB of host memory for each GPU; "
        "whether hosts have it is not checked, and the times of transfers and of the step there are assumed."
    ]
