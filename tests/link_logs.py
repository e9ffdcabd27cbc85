"""Logs of links, each written as a line: ``@sendrecv n1:8 n2:8 15`` is a test of two hosts of 8 GPUs at 15 GB/s."""

import json
from collections.abc import Sequence
from pathlib import Path

MIB = 2**20

OSU_BW = """# OSU MPI-CUDA Bandwidth Test v7.3
# Size      Bandwidth (MB/s)
# Datatype: MPI_CHAR.
1                       1.50
65536               9000.00
1048576            20000.00
4194304            22000.00
"""

OSU_LATENCY = """# OSU MPI Latency Test v5.9
# Size          Latency (us)
0                       1.40
8                       1.60
4096                    4.00
"""

IB_WRITE = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 ibv_wr* API     : ON
 WARNING: BW peak won't be measured in this run.
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0x24 QPN 0x0174 PSN 0x300138
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 65536      5000             {peak}            {average}		   0.185273
---------------------------------------------------------------------------------------
"""

MPIGRAPH = """\
START mpiGraph v1.5
Send\ta1:0\ta2:1\t
a1:0 to\t0.000\t14000.0\t
a2:1 to\t11000.0\t0.000\t

Recv\ta1:0\ta2:1\t
a1:0 from\t0.000\t11500.0\t
a2:1 from\t13000.0\t0.000\t
END mpiGraph
"""

TOPOLOGY = """\
$ nvidia-smi topo -m

\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPXB\tNODE\tSYS\t0-47\t0
GPU1\tNV18\t X \tNODE\tPXB\tSYS\t0-47\t0
NIC0\tPXB\tNODE\t X \tNODE\tSYS
NIC1\tNODE\tPXB\tNODE\t X \tSYS
NIC2\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
"""


def nccl_text(
    kind: str,
    gpus_of_host: dict[str, int],
    rate_gb_per_s: float,
    *,
    sizes: Sequence[int] = (32 * MIB, 64 * MIB),
    latency_us: float = 0.0,
    device: str = "NVIDIA H100 80GB HBM3",
    ends: bool = True,
    wrong: int = 0,
) -> str:
    """Text of a test whose algbw is ``rate_gb_per_s`` once the latency is gone."""
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {kind}_perf",
        "# nThread 1 nGpus 1 minBytes 33554432 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20",
        "# Using devices",
    ]
    ranks = [(host, index) for host, gpus in gpus_of_host.items() for index in range(gpus)]
    for rank, (host, index) in enumerate(ranks):
        lines.append(f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on {host} device {index:2d} [0000:1b:00] {device}")
    for size in sizes:
        micros = latency_us + size / rate_gb_per_s / 1e3
        cells = f"{micros:9.2f} {size / micros / 1e3:7.2f} {size / micros / 1e3:7.2f}"
        lines.append(f"{size:12d} {size // 8:12d} double none -1 {cells} {wrong:6d} {cells}    N/A")
    if ends:
        lines += [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}", "# Avg bus bandwidth    : 1.0"]
        lines.append(f"# Collective test concluded: {kind}_perf")
    return "\n".join(lines) + "\n"


def nccl_json(kind: str, gpus_of_host: dict[str, int], rate: float, *, ngpus: int = 1, groups: int = 1) -> str:
    """What ``-J`` writes: one device for each process, even with several GPUs in it; processes in turn in groups."""
    micros = 2**30 / rate / 1e3
    side = {"time": micros, "alg_bw": rate, "bus_bw": rate, "nwrong": 0.0}
    device = {"device": 0, "device_info": "NVIDIA A100-SXM4-80GB"}
    hosts = [host for host, count in gpus_of_host.items() for _ in range(count)]
    data = {
        "version": 1,
        "args": [f"/x/build/{kind}_perf", "-J", "out.json"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": ngpus,
            "devices": [
                {"rank": i, "pid": i, "hostname": host, "group": i % groups, **device} for i, host in enumerate(hosts)
            ],
        },
        "results": [{"size": 2**30, "out_of_place": side, "in_place": side | {"nwrong": None}}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": rate},
        "errors": [],
    }
    return json.dumps(data)


TEXTS = {"osu_bw": OSU_BW, "osu_latency": OSU_LATENCY, "mpigraph": MPIGRAPH, "topology": TOPOLOGY}


def log_text(written: str) -> str:
    """
    Text of a log: the text itself, or what a line with ``@`` describes; several parts are joined at ``+++``.

    A line has the program, its hosts with their GPUs, the rate in GB/s (MB/s of ``ib_write_bw``) and options. Changes
    follow, each behind `` | ``: ``OLD -> NEW`` everywhere; ``drop WORDS``, lines with these words; ``tag TAG`` before
    each line; ``doubled``, each line of two processes; ``from N``, without the first lines; ``first N`` and ``cut N``,
    the first characters, or all but the last; ``modulo N`` and ``blocks N``, groups of ranks (NCCL_TESTS_SPLIT).
    """
    return "".join(_part(part) for part in written.split("+++"))


def _part(written: str) -> str:
    if not written.startswith("@"):
        return written
    made, *changes = written[1:].split(" | ")
    text = _made(*made.split())
    for change in changes:
        text = _changed(text, change)
    return text


def _made(program: str, *words: str) -> str:
    if program in TEXTS:
        return TEXTS[program]
    hosts = {host: int(count) for host, mark, count in (word.partition(":") for word in words) if mark}
    given = dict(word.split("=") for word in words if "=" in word)
    (rate,) = (float(word) for word in words if word.replace(".", "").isdigit())
    if program == "ib_write_bw":
        return IB_WRITE.format(unit=given.get("unit", "MB/sec"), peak=rate + 1, average=rate)
    if program.startswith("json:"):
        return nccl_json(program.removeprefix("json:"), hosts, rate, **_whole(given))
    sizes = [_size(size) for size in given.pop("sizes", "25,26").split(",") if size]
    device = f"NVIDIA {given.pop('device', 'H100 80GB HBM3')}"
    return nccl_text(program, hosts, rate, sizes=sizes, device=device, **_whole(given))  # type: ignore[arg-type]


def _whole(given: dict[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in given.items()}


def _size(text: str) -> int:
    """Bytes of a power of two, and more: ``25`` and ``25+10``."""
    power, _, more = text.partition("+")
    return 2 ** int(power) + int(more or 0)


def _changed(text: str, change: str) -> str:
    verb, _, words = change.partition(" ")
    lines = text.splitlines(keepends=True)
    if verb == "drop":
        return "".join(line for line in lines if words not in line)
    if verb == "tag":
        return "".join(f"{words}{line}" for line in lines)
    if verb == "doubled":
        return "".join(f"0: {line}1: {line}" for line in lines)
    if verb == "from":
        return "".join(lines[int(words) :])
    if verb in ("first", "cut"):
        return text[: int(words) if verb == "first" else -int(words)]
    if verb in ("modulo", "blocks"):
        for rank in range(text.count("#  Rank ")):
            group = rank % int(words) if verb == "modulo" else rank // int(words)
            text = text.replace(f"Rank {rank:2d} Group  0", f"Rank {rank:2d} Group {group:2d}")
        return text
    old, new = change.split(" -> ")
    assert old in text, f"{old!r} is not in the log"
    return text.replace(old, new)


def write_logs(folder: Path, texts: dict[str, str]) -> Path:
    """Write the logs of a folder, described by :func:`log_text`; a name that ends in ``/`` is an empty folder."""
    for name, written in texts.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(log_text(written))
    return folder
