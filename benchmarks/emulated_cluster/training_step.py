"""
Pipeline- and data-parallel training step over gloo, run by a process of the emulated cluster.

Messages, their order and the gradient reduction are those of Megatron-Core's 1F1B without interleaving. Real tensors of
the real size go through autograd, sent and received in Megatron-Core's order. Each send is waited for together with its
counterpart. Compute takes the plan's time: a tiny forward and backward, then sleep, since few cores serve all stages.

The process starts in one of two ways. With ``serve``, it reads jobs as JSON lines and answers each with a line. Started
by torchrun (from an exported launch script), it reads one job from the file in ``EMULATED_JOB`` and writes
``rank<N>.json`` beside that file.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    Job of the processes.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of each stage for one micro-batch.
    message_bytes
        Bytes of one activation between stages.
    gradient_bytes
        Bytes of the gradients of each stage.
    iterations
        Number of timed iterations, after one untimed.
    """

    pipeline_parallel: int
    data_parallel: int
    num_microbatches: int
    forward_s: list[float]
    backward_s: list[float]
    message_bytes: int
    gradient_bytes: list[int]
    iterations: int


class Stage:
    """Rank of the training step."""

    def __init__(self, job: Job, rank: int, data_group: Any) -> None:
        self.job, self.data_group = job, data_group
        self.stage, self.replica = divmod(rank, job.data_parallel)
        self.forward_s, self.backward_s = job.forward_s[self.stage], job.backward_s[self.stage]
        self.is_first, self.is_last = self.stage == 0, self.stage == job.pipeline_parallel - 1
        self.before, self.after = rank - job.data_parallel, rank + job.data_parallel
        self.weight = torch.ones(1, requires_grad=True)
        self.gradient = torch.zeros(job.gradient_bytes[self.stage] // 4)
        self.held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def iterate(self) -> None:
        """Run an iteration: warm-up forwards, 1F1B, remaining backwards, gradient reduction."""
        m = self.job.num_microbatches
        warm_up = min(self.job.pipeline_parallel - self.stage - 1, m)
        for _ in range(warm_up):
            self.exchange(forward=self.forward(self.receive_forward()))
        x = self.receive_forward() if warm_up < m else None
        for number in range(m - warm_up):
            assert x is not None
            grad = self.exchange(forward=self.forward(x), wants_backward=True)
            grad_x = self.backward(grad)
            is_final = number == m - warm_up - 1
            x = self.exchange(backward=grad_x, wants_forward=not is_final)
        for _ in range(warm_up):
            grad = self.exchange(wants_backward=True)
            self.exchange(backward=self.backward(grad))
        if self.job.data_parallel > 1:
            dist.all_reduce(self.gradient, group=self.data_group)

    def receive_forward(self) -> torch.Tensor:
        """Return the activation from the stage before; on the first stage, zeros."""
        received = self.exchange(wants_forward=True)
        assert received is not None
        return received

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a forward pass that takes the plan's time."""
        end = time.perf_counter() + self.forward_s
        x.requires_grad_()
        y = x * self.weight
        self.held.append((x, y))
        _sleep_until(end)
        return y.detach()

    def backward(self, grad: torch.Tensor | None) -> torch.Tensor:
        """Run the backward pass of the oldest micro-batch held; return the gradient of its input."""
        end = time.perf_counter() + self.backward_s
        x, y = self.held.pop(0)
        y.backward(torch.ones_like(y) if grad is None else grad)
        assert x.grad is not None
        _sleep_until(end)
        return x.grad

    def exchange(
        self,
        *,
        forward: torch.Tensor | None = None,
        backward: torch.Tensor | None = None,
        wants_forward: bool = False,
        wants_backward: bool = False,
    ) -> torch.Tensor | None:
        """Send to and receive from the neighbours, wait for all messages, and return the received tensor."""
        works, received = [], None
        if forward is not None and not self.is_last:
            works.append(dist.isend(forward, self.after))
        if backward is not None and not self.is_first:
            works.append(dist.isend(backward, self.before))
        if wants_forward:
            received = torch.zeros(self.job.message_bytes // 4)
            if not self.is_first:
                works.append(dist.irecv(received, self.before))
        if wants_backward and not self.is_last:
            received = torch.zeros(self.job.message_bytes // 4)
            works.append(dist.irecv(received, self.after))
        for work in works:
            if work is not None:
                work.wait()
        return received


def run(job: Job, rank: int, init_method: str) -> list[float]:
    """Return the seconds of each iteration on this rank, from a barrier to its own end."""
    world = job.pipeline_parallel * job.data_parallel
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        groups = [
            dist.new_group([stage * job.data_parallel + replica for replica in range(job.data_parallel)])
            for stage in range(job.pipeline_parallel)
        ]
        stage = Stage(job, rank, groups[rank // job.data_parallel])
        seconds = []
        for _ in range(1 + job.iterations):
            dist.barrier()
            start = time.perf_counter()
            stage.iterate()
            seconds.append(time.perf_counter() - start)
        dist.barrier()
        return seconds[1:]
    finally:
        dist.destroy_process_group()


def _sleep_until(end: float) -> None:
    left = end - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _serve() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        job = Job(**command["job"])
        address = f"tcp://{command['master_addr']}:{command['master_port']}"
        print(json.dumps(run(job, command["rank"], address)), flush=True)


def _launched() -> None:
    path, rank = Path(os.environ["EMULATED_JOB"]), int(os.environ["RANK"])
    job = Job(**json.loads(path.read_text()))
    seconds = run(job, rank, "env://")  # torchrun's agents hold the store
    path.with_name(f"rank{rank}.json").write_text(json.dumps({"host": os.environ["EMULATED_HOST"], "seconds": seconds}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        _launched()
