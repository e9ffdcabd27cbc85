"""Which process this is."""

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.measure.links import ranks_of_hosts
from pipette_opt.measure.world import find_world

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
    "SLURMD_NODENAME": "gpu04",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


def test_launchers() -> None:
    """Each by its own variables."""
    torchrun = find_world({**TORCHRUN, "MASTER_PORT": "4242"})
    assert (torchrun.rank, torchrun.size, torchrun.local_rank, torchrun.local_size) == (5, 8, 1, 4)
    assert (torchrun.master_addr, torchrun.master_port) == ("a", 4242)
    slurm = find_world(SLURM)
    assert (slurm.rank, slurm.local_size, slurm.master_addr, slurm.host) == (3, 2, "gpu03", "gpu04")
    mpi = find_world(MPI, master_addr="10.0.0.1", host="n1")
    assert (mpi.rank, mpi.size, mpi.local_size, mpi.host) == (1, 2, 1, "n1")


def test_no_launcher() -> None:
    """Says how to start it, or what is missing."""
    with pytest.raises(InputError, match="must be started on every host by torchrun, srun or mpirun"):
        find_world({})
    with pytest.raises(InputError, match="--master-addr: is needed"):
        find_world(MPI)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "x", "RANK: must be a whole number >= 0, got 'x'"),
        ("RANK", "8", "RANK: must be below WORLD_SIZE = 8, got 8"),
        ("MASTER_PORT", "http", "MASTER_PORT: must be a whole number >= 0, got 'http'"),
    ],
)
def test_variables_that_make_no_sense(name: str, value: str, message: str) -> None:
    """Refused, where a process would wait for others that never come."""
    with pytest.raises(InputError, match=message):
        find_world({**TORCHRUN, name: value})


def test_ranks_by_host() -> None:
    """Equally many processes a host, and enough for the flows."""
    processes = [("b", 0), ("b", 1), ("a", 1), ("a", 0)]
    assert ranks_of_hosts(processes, (1, 2)) == {"b": [0, 1], "a": [3, 2]}
    for wrong, flows, message in [
        ([("a", 0), ("a", 1), ("b", 0)], (1,), "equally many processes"),
        ([("a", 0), ("a", 0)], (1,), "two processes of host 'a' have local rank 0"),
        ([("a", 0), ("a", 1)], (1,), "at least two hosts"),
        (processes, (4,), "--flows: 4 needs 4 processes a host, there are 2"),
    ]:
        with pytest.raises(InputError, match=message):
            ranks_of_hosts(wrong, flows)
