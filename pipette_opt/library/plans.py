"""Plans read from files, with the jobs they were made for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InputError, made_at
from pipette_opt.job.inputs import is_file_record
from pipette_opt.read.fields import did_you_mean
from pipette_opt.specs.host_names import compress_hosts

if TYPE_CHECKING:
    from pipette_opt.base.types import Collective
    from pipette_opt.plans.plan import Plan
    from pipette_opt.simulate.paying import PayingOption
    from pipette_opt.specs import ClusterSpec, ComputeProfile, Instance


IN_MEMORY = Path("plan")
"""Place in error messages for a plan that was not read from a file."""


def opened(plan: "Plan | Path") -> "tuple[Plan, Path]":
    """Return a plan, and the place that errors name: its file or the argument."""
    from pipette_opt.plans.plan import Plan
    from pipette_opt.report.plan_file import read_plan

    return (plan, IN_MEMORY) if isinstance(plan, Plan) else (read_plan(plan), plan)


def plan_and_instance(given: "Plan | Path", cluster: Path | None) -> "tuple[Plan, Instance]":
    """
    Read a plan and the job it was made for.

    The cluster file and its matrices must have the hashes that the plan records. ``cluster`` is their path today, if
    the file was moved.
    """
    plan, path = opened(given)
    return plan, job_of(plan, path, cluster)


def job_of(plan: "Plan", path: Path, cluster: Path | None = None) -> "Instance":
    """Return the job that a plan was made for; ``path`` is the plan's file, ``cluster`` its cluster file if moved."""
    from pipette_opt.job.inputs import cluster_of
    from pipette_opt.read.cluster import exclude_hosts
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.read.prices import recorded_prices, with_prices
    from pipette_opt.read.reserved import with_reserved
    from pipette_opt.read.speeds import recorded_speeds, with_speeds

    spec, _ = cluster_of(plan, path, cluster)
    spec = with_speeds(spec, recorded_speeds(plan.inputs.get("speed"), f"{path}, inputs.speed"))
    spec = with_prices(spec, recorded_prices(plan.inputs.get("gpu_price"), f"{path}, inputs.gpu_price"))
    excluded = plan.inputs.get("exclude_hosts")
    if excluded:
        spec = exclude_hosts(spec, expand_hosts(excluded, "exclude_hosts"))
    spec = with_reserved(spec, plan.inputs.get("reserve_memory"), f"{path}, inputs.reserve_memory")
    if spec.hosts != plan.hosts:
        raise InputError(str(path), f"the plan's hosts differ from the hosts of its cluster, {spec.name}; solve again.")
    return instance_of(plan, spec, path)


def plan_of_job(given: "Plan | Path", instance: "Instance") -> "Plan":
    """Read a plan, and raise ``InputError`` unless its hosts, model and training are those of ``instance``."""
    from pipette_opt.specs.host_names import compress_hosts

    plan, path = opened(given)
    hosts = instance.cluster.hosts
    if plan.hosts != hosts:
        problem = f"is a plan for the hosts {compress_hosts(plan.hosts)}, but the job has {compress_hosts(hosts)}."
        raise InputError(str(path), problem)
    planned = instance_of(plan, instance.cluster, path)
    for name in ("model", "training"):
        if getattr(planned, name) != getattr(instance, name):
            raise InputError(
                str(path), f"was made for another {name} than this job's; give the same job options as for the plan."
            )
    return plan


def plan_on_changed_hosts(
    given: "Plan | Path", cluster: "ClusterSpec | Path | None", lost: str | None, joined: str | None
) -> "tuple[Plan, Instance, ClusterSpec, dict[str, Any]]":
    """
    Return a plan, its job on the hosts that are left or joined, all hosts, and the inputs to record in a new plan.

    ``cluster`` may be newer than the plan's own cluster file, and contain the joined hosts.
    """
    from dataclasses import replace

    from pipette_opt.job.inputs import cluster_of, described_cluster
    from pipette_opt.read.cluster import exclude_hosts
    from pipette_opt.read.gpus import gpu_record
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.read.levels import domain_record
    from pipette_opt.read.reserved import with_reserved
    from pipette_opt.read.speeds import recorded_speeds, speed_record, with_speeds
    from pipette_opt.specs.host_names import compress_hosts, with_blocks

    old, path = opened(given)
    spec, record = cluster_of(old, path, None) if cluster is None else described_cluster(cluster)
    listed = recorded_speeds(old.inputs.get("speed"), f"{path}, inputs.speed")
    speeds = {host: speed for host, speed in listed.items() if host in spec.hosts}
    spec = with_speeds(spec, speeds)
    hosts = check_hosts(
        spec.hosts,
        old.hosts,
        with_blocks(expand_hosts(lost, "--lost") if lost else (), old.hosts),
        with_blocks(expand_hosts(joined, "--joined") if joined else (), spec.hosts),
    )
    excluded = tuple(host for host in spec.hosts if host not in hosts)
    if not hosts:
        raise InputError("--lost", "names every host, so that none is left; name fewer hosts.")
    left = exclude_hosts(spec, excluded) if excluded else spec
    left = with_reserved(left, old.inputs.get("reserve_memory"), f"{path}, inputs.reserve_memory")
    instance = instance_of(old, left, path)
    inputs = {
        **{name: value for name, value in old.inputs.items() if name != "domains"},
        "cluster": record,
        "gpus": gpu_record(spec),
        **domain_record(instance.cluster),
        "exclude_hosts": compress_hosts(excluded) if excluded else None,
        "speed": speed_record(speeds),
    }
    return replace(old, inputs=inputs), instance, spec, inputs


def plan_with_band(plan: "Plan", instance: "Instance") -> "Plan":
    """Return a finished plan with the error band of its time, computed on the hosts that the plan may use."""
    from dataclasses import replace

    from pipette_opt.worlds.bands import with_band

    instance = on_hosts_of(plan, instance)
    return replace(plan, estimate=with_band(plan.estimate, instance, plan.config, plan.placement))


def paying_options_of(plan: "Plan", instance: "Instance", max_oom_risk: float) -> "tuple[PayingOption, ...]":
    """Return unsearched options that would make a plan faster; see :mod:`~pipette_opt.simulate.paying`."""
    from pipette_opt.library.advice import lawful
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.paying import paying_options

    instance = on_hosts_of(plan, instance)
    predictor = load_predictor(max_oom_risk, instance)
    return lawful(paying_options(instance, plan.config, plan.placement, predictor, max_oom_risk), instance, plan.config)


def on_hosts_of(plan: "Plan", instance: "Instance") -> "Instance":
    """Return the job restricted to a plan's hosts; with prices, a plan may list fewer hosts than the job."""
    from dataclasses import replace

    from pipette_opt.read.cluster import subset_cluster

    if plan.target is None or plan.hosts == instance.cluster.hosts:
        return instance
    return replace(instance, cluster=subset_cluster(instance.cluster, plan.hosts))


def plan_on_cluster(given: "Plan | Path", cluster: "ClusterSpec | Path | None") -> "tuple[Plan, Instance, list[str]]":
    """
    Return a plan, its job on the cluster as it is today, and sentences on what changed.

    Parameters
    ----------
    cluster
        The cluster as it is today, or its file; ``None`` for the plan's own cluster, without changes.

    Raises
    ------
    InputError
        If the cluster lacks a host of the plan, or a host has fewer GPUs than the plan uses.
    """
    import contextlib
    from dataclasses import replace

    import numpy as np

    from pipette_opt.job.inputs import cluster_of, described_cluster
    from pipette_opt.job.read import check_precision
    from pipette_opt.read.link_changes import changes_in_words
    from pipette_opt.read.prices import recorded_prices, with_prices
    from pipette_opt.read.speeds import recorded_speeds, with_speeds

    plan, path = opened(given)
    before: list[ClusterSpec] = []
    with contextlib.suppress(InputError):
        before.append(cluster_of(plan, path, None)[0])
    if cluster is None or (isinstance(cluster, Path) and _is_own(plan, path, cluster)):
        return plan, job_of(plan, path, cluster), []
    spec, _ = described_cluster(cluster)
    where = str(cluster) if isinstance(cluster, Path) else spec.name
    used = [plan.hosts[node] for node in plan.placement.nodes_used]
    missing = [host for host in used if host not in spec.hosts]
    if missing:
        problem = (
            f"lacks host {missing[0]!r}, on which the plan has ranks; plan again with `pipette-opt replan "
            f"--lost {missing[0]}`."
        )
        raise InputError(where, problem)
    most = int(plan.placement.local_rank.max()) + 1
    if most > spec.gpus_per_node:
        raise InputError(where, f"has {spec.gpus_per_node} GPUs per host, but the plan uses {most} on a host.")
    if before:
        changed = changes_in_words([before[0], spec])
    else:
        changed = ["The plan's own cluster file does not exist, so changes of links are unknown."]
        changed += [f"Host {host} of the plan is not in {where}." for host in plan.hosts if host not in spec.hosts]
    node_of_host = {host: node for node, host in enumerate(spec.hosts)}
    for name, read, put in (
        ("speed", recorded_speeds, with_speeds),
        ("gpu_price", recorded_prices, with_prices),
    ):
        recorded = read(plan.inputs.get(name), f"{path}, inputs.{name}")
        spec = put(spec, {host: value for host, value in recorded.items() if host in node_of_host})
    node = np.array([node_of_host.get(host, -1) for host in plan.hosts])[plan.placement.node]
    instance = instance_of(plan, spec, path)
    check_precision(spec, instance.training)
    return replace(plan, hosts=spec.hosts, placement=replace(plan.placement, node=node)), instance, changed


def _is_own(plan: "Plan", path: Path, cluster: Path) -> bool:
    """Return whether a cluster file and its matrices are those that the plan was made from."""
    from pipette_opt.job.inputs import check_inputs

    try:
        check_inputs(plan, path, cluster)
    except InputError:
        return False
    return True


def instance_of(plan: "Plan", cluster: "ClusterSpec", path: Path) -> "Instance":
    """Return the job of a plan on a cluster; ``path`` is the plan's file, for error messages."""
    from pipette_opt.base.typed import typed
    from pipette_opt.specs import Instance, ModelSpec, StackSpec, TrainingSpec

    where = f"{path}, inputs"
    return made_at(
        where,
        Instance,
        model=typed(ModelSpec, plan.inputs.get("model"), f"{where}.model", closed=True),
        cluster=cluster,
        training=typed(TrainingSpec, plan.inputs.get("training"), f"{where}.training", closed=True),
        p2p=plan.p2p,
        allreduce=_allreduce(plan),
        launcher=plan.launcher,
        profile=_profile(plan, path),
        stack=typed(StackSpec, plan.inputs.get("stack", {}), f"{where}.stack", closed=True),
        not_modelled=plan.not_modelled,
    )


def _allreduce(plan: "Plan") -> "Collective":
    """Return the all-reduce algorithm of a plan's gradients; an unknown name counts as ``ring``."""
    found = plan.nccl_algorithm
    return found if found in ("hierarchical", "tree") else "ring"  # type: ignore[return-value]


def _profile(plan: "Plan", path: Path) -> "ComputeProfile | None":
    recorded = plan.inputs.get("profile")
    if recorded is None:
        return None
    if not is_file_record(recorded):
        raise InputError(str(path), "inputs.profile must contain path and sha256 of a file, or be null.")
    from pipette_opt.read.profile import read_profile

    return read_profile(Path(recorded["path"]))


def check_hosts(known: Sequence[str], old: Sequence[str], lost: Sequence[str], joined: Sequence[str]) -> list[str]:
    """
    Return the hosts that are available now, in the order of ``known``, the hosts of the cluster.

    Raise ``InputError`` for a lost host that is not in the plan, a joined host that is in the plan, a joined host that
    the cluster does not list, and a host of the plan that the cluster lacks but that is not given as lost.
    """
    for host in lost:
        if host not in old:
            hint = did_you_mean(host, old)
            raise InputError(
                "--lost", f"host {host!r} is not among the hosts of the plan: {compress_hosts(tuple(old))}.{hint}"
            )
        if host in joined:
            raise InputError("--lost", f"host {host!r} is also given with --joined.")
    for host in joined:
        if host in old:
            raise InputError("--joined", f"host {host!r} is a host of the plan already; leave it out.")
        if host not in known:
            raise InputError(
                "--joined",
                f"host {host!r} is not in the cluster file, so its links are unknown; give a cluster file that has it "
                "with --cluster.",
            )
    gone = [host for host in old if host not in known and host not in lost]
    if gone:
        raise InputError("--cluster", f"lacks host {gone[0]!r} of the plan; add --lost {gone[0]} if this host is gone.")
    return [host for host in known if (host in old and host not in lost) or host in joined]
