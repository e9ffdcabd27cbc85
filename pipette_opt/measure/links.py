"""
Measurement of the link between any two hosts, with torch.distributed over NCCL or gloo.

Pairs of hosts are measured in rounds, as in a tournament. One process per host measures single flows. With several
processes per host, those of equal local rank measure at once, and their sum is the total rate of that many flows. Each
result is written to the log at once, so an interrupted run continues where it stopped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import note_continued, write_atomically
from pipette_opt.base.units import MIB
from pipette_opt.measure.tournament import rounds
from pipette_opt.measure.world import World
from pipette_opt.read.files import read_text
from pipette_opt.read.link_formats.link_log import LinkLog, link_line, parse_link_log

Backend = Literal["auto", "nccl", "gloo"]
"""Communication backend of torch.distributed; ``auto`` chooses by the device."""

PING_BYTES, PINGS = 8, 20
"""Bytes of a ping, and number of pings whose mean is the latency. Chosen."""

MAX_REPEATS = 1000
"""Most messages of each size and direction. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParams:
    """
    Settings for measuring links.

    Parameters
    ----------
    sizes
        Message sizes, bytes.
    seconds
        Shortest measurement for each size and direction, seconds; at most a thousand messages are sent.
    flows
        Numbers of processes per host that measure at once; each is at most the number of processes on a host.
    together
        Whether all pairs of a round measure at once, as in training, or one pair after the other.
    timeout_s
        Seconds without an answer after which the run ends with an error; the log is kept.
    """

    sizes: tuple[int, ...] = (4 * MIB, 32 * MIB)
    seconds: float = 0.3
    flows: tuple[int, ...] = (1,)
    together: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes must be bytes >= 1, got {self.sizes}.")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be > 0, got {self.seconds}.")
        if not self.flows or min(self.flows) < 1:
            raise ValueError(f"flows must be >= 1, got {self.flows}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Results of a sending process: seconds per message by size in bytes, and one-way seconds of a ping."""

    seconds: Mapping[int, float]
    ping_s: float


def profile_links(
    world: World,
    log_path: Path,
    params: LinkParams,
    *,
    backend: Backend = "auto",
    on_round: Callable[[int, int], None] = lambda done, total: None,
) -> LinkLog | None:
    """
    Measure all links; every process of the job calls this function.

    Parameters
    ----------
    backend
        ``auto``: NCCL if there is a GPU, else gloo.
    on_round
        Progress callback in rank 0: rounds done, and rounds in total.

    Returns
    -------
    LinkLog or None
        Complete log in rank 0, ``None`` in other ranks.

    Raises
    ------
    InputError
        If hosts have different numbers of processes, or fewer than ``flows``, or if the log has other hosts.
    """
    import torch
    import torch.distributed as dist

    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = torch.device("cuda", world.local_rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"tcp://{world.master_addr}:{world.master_port}",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=params.timeout_s),
    )
    try:
        name = torch.cuda.get_device_name(device) if backend == "nccl" else ""
        gathered: list[Any] = [None] * world.size
        dist.all_gather_object(gathered, (world.host, world.local_rank, name))
        ranks = ranks_of_hosts([(host, local) for host, local, _ in gathered], params.flows)
        log = _open_log(world, log_path, list(ranks), len(next(iter(ranks.values()))), name, params)
        return _measure_missing(world, device, ranks, log, log_path, params, on_round)
    finally:
        dist.destroy_process_group()


def ranks_of_hosts(processes: Sequence[tuple[str, int]], flows: Sequence[int]) -> dict[str, list[int]]:
    """
    Return the ranks of each host by local rank, hosts in rank order.

    ``processes`` has (host, local rank) for each rank. Raises ``InputError`` for hosts with different numbers of
    processes.
    """
    found: dict[str, dict[int, int]] = {}
    for rank, (host, local_rank) in enumerate(processes):
        if local_rank in found.setdefault(host, {}):
            raise InputError("profile links", f"two processes of host {host!r} have local rank {local_rank}.")
        found[host][local_rank] = rank
    counts = {host: len(of_host) for host, of_host in found.items()}
    if len(set(counts.values())) > 1:
        raise InputError("profile links", f"hosts must have equally many processes, got {counts}.")
    if len(found) < 2:
        raise InputError("profile links", f"needs at least two hosts, got {', '.join(found)} only.")
    for count in flows:
        if count > next(iter(counts.values())):
            raise InputError(
                "--flows", f"{count} needs {count} processes a host, there are {counts[next(iter(counts))]}."
            )
    return {host: [of_host[local] for local in sorted(of_host)] for host, of_host in found.items()}


def _open_log(world: World, path: Path, hosts: list[str], gpus: int, device: str, params: LinkParams) -> LinkLog:
    """Return the log so far in every process; rank 0 reads it, or starts a new log."""
    import torch.distributed as dist

    shared: list[Any] = [None]
    if world.rank == 0:
        fresh = LinkLog(hosts=tuple(hosts), gpus_per_node=gpus, device_name=device, together=params.together)
        try:
            shared = [_continue_log(path, fresh)]
        except InputError as error:
            shared = [error]
    dist.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], InputError):
        raise shared[0]
    log: LinkLog = shared[0]
    return log


def _continue_log(path: Path, fresh: LinkLog) -> LinkLog:
    """Return the log at ``path``, truncated after its last complete line; a new log if the file does not exist."""
    import json

    note_continued(path)
    text = read_text(path) if path.exists() else ""
    if not text.strip():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(fresh.header) + "\n")
        return fresh
    whole = text[: text.rfind("\n") + 1]
    log = parse_link_log(whole, str(path))
    if set(log.hosts) != set(fresh.hosts) or log.together != fresh.together:
        raise InputError(
            str(path),
            f"is the log of another measurement (hosts {', '.join(log.hosts)}, "
            f"{'together' if log.together else 'alone'}); give another --log, or remove it.",
        )
    if whole != text:
        write_atomically(path, whole)
    return log


def _measure_missing(
    world: World,
    device: Any,
    ranks: Mapping[str, list[int]],
    log: LinkLog,
    path: Path,
    params: LinkParams,
    on_round: Callable[[int, int], None],
) -> LinkLog | None:
    """Measure all rounds that the log lacks; return the log in rank 0, ``None`` in other ranks."""
    hosts = list(ranks)
    pending = [
        (flows, [(hosts[a], hosts[b]) for a, b in pairs if not _is_done(log, flows, hosts[a], hosts[b])])
        for flows in params.flows
        for pairs in rounds(len(hosts))
    ]
    if not params.together:
        pending = [(flows, [pair]) for flows, pairs in pending for pair in pairs]
    for number, (flows, pairs) in enumerate(pending, start=1):
        for turned in (False, True):
            links = [(b, a) if turned else (a, b) for a, b in pairs]
            results = _measure_at_once(world, device, ranks, links, flows, params)
            if world.rank == 0:
                _write(path, log, links, ranks, results, flows)
        if world.rank == 0:
            on_round(number, len(pending))
    return log if world.rank == 0 else None


def _is_done(log: LinkLog, flows: int, a: str, b: str) -> bool:
    return (flows, a, b) in log.rates and (flows, b, a) in log.rates


def _measure_at_once(
    world: World,
    device: Any,
    ranks: Mapping[str, list[int]],
    links: Sequence[tuple[str, str]],
    flows: int,
    params: LinkParams,
) -> list[Measured | None]:
    """Measure all these links at once; return the result of each rank, ``None`` for ranks that did not send."""
    import torch.distributed as dist

    role: tuple[str, int] | None = None
    for sender, receiver in links:
        for source, target in zip(ranks[sender][:flows], ranks[receiver][:flows], strict=True):
            if world.rank == source:
                role = ("send", target)
            elif world.rank == target:
                role = ("receive", source)
    dist.barrier()
    mine: Measured | None = None
    if role is not None and role[0] == "send":
        mine = _send(device, role[1], params)
    elif role is not None:
        _receive(device, role[1], params)
    gathered: list[Measured | None] = [None] * world.size
    dist.all_gather_object(gathered, mine)
    return gathered


def _send(device: Any, peer: int, params: LinkParams) -> Measured:
    """Send messages of every size to a peer, which confirms each series; return the times."""
    import torch
    import torch.distributed as dist

    ping = torch.zeros(PING_BYTES, dtype=torch.uint8, device=device)

    def timed(messages: int, message: Any) -> float:
        _wait_for(device)
        start = time.perf_counter()
        for _ in range(messages):
            dist.send(message, peer)
        dist.recv(ping, peer)
        _wait_for(device)
        return time.perf_counter() - start

    timed(1, ping)
    ping_s = sum(timed(1, ping) for _ in range(PINGS)) / PINGS / 2
    seconds = {}
    for size in params.sizes:
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        once = max(timed(1, message), 1e-9)
        repeats = min(MAX_REPEATS, max(2, int(params.seconds / once)))
        dist.send(torch.tensor([repeats], dtype=torch.int64, device=device), peer)
        seconds[size] = max((timed(repeats, message) - ping_s) / repeats, 1e-9)
    return Measured(seconds=seconds, ping_s=ping_s)


def _receive(device: Any, peer: int, params: LinkParams) -> None:
    """Receive the messages that :func:`_send` sends, and confirm each series."""
    import torch
    import torch.distributed as dist

    ping = torch.zeros(PING_BYTES, dtype=torch.uint8, device=device)
    count = torch.zeros(1, dtype=torch.int64, device=device)
    for _ in range(1 + PINGS):
        dist.recv(ping, peer)
        dist.send(ping, peer)
    for size in params.sizes:
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        dist.recv(message, peer)
        dist.send(ping, peer)
        dist.recv(count, peer)
        for _ in range(int(count.item())):
            dist.recv(message, peer)
        dist.send(ping, peer)


def _wait_for(device: Any) -> None:
    """Wait until kernels and NCCL messages on this device have finished."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _write(
    path: Path,
    log: LinkLog,
    links: Sequence[tuple[str, str]],
    ranks: Mapping[str, list[int]],
    results: Sequence[Measured | None],
    flows: int,
) -> None:
    """Append the results of these links to the log in one write, and flush it to disk."""
    import os

    lines = []
    for sender, receiver in links:
        of_flows = [sent for rank in ranks[sender][:flows] if (sent := results[rank]) is not None]
        sizes = of_flows[0].seconds
        rates = {size: flows * size / max(sent.seconds[size] for sent in of_flows) for size in sizes}
        latency_s = max(sent.ping_s for sent in of_flows)
        log.rates[flows, sender, receiver] = rates
        log.latencies[sender, receiver] = latency_s
        lines.append(link_line(flows, sender, receiver, rates, latency_s))
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(lines))
        file.flush()
        os.fsync(file.fileno())
