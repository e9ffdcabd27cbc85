"""
Facts that files show on the links of a cluster: a row for each measurement, and a few plain facts beside them.

The parser of a format (:mod:`.link_formats`) yields facts in any order. :mod:`.evidence` answers questions on all of
them.
"""

from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.read.inside_node import InsideNode
from pipette_opt.read.matrices import MAX_GB_PER_S, MIN_GB_PER_S

NoteKind = Literal["used", "method", "remark", "not used", "unused"]


class Fact(Struct, frozen=True, kw_only=True):
    """
    Fact that a file shows.

    Parameters
    ----------
    file
        Name of the file; empty for a conclusion from several files. Parsers leave this and the other fields out.
    snapshot
        Number of the source: a file or folder that the user gives, measured at one moment in time.
    campaign
        Number of the folder, or one number for all files that are given one by one. A failed test may be repeated
        within its campaign.
    """

    file: str = ""
    snapshot: int = 0
    campaign: int = 0

    def read_from(self, file: str, snapshot: int, campaign: int) -> Self:
        """Return the fact with the place that it was read from."""
        return replace(self, file=file, snapshot=snapshot, campaign=campaign)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts that count because of the fact."""
        return ()


class Host(Fact, frozen=True, kw_only=True):
    """
    Host that a file names.

    Parameters
    ----------
    gpus
        Number of GPUs of the host that the file shows; 0 if it shows none.
    device_names
        Driver's names of these GPUs.
    is_in_table
        Whether the file is a table, whose order of hosts is kept.
    """

    name: str
    gpus: int = 0
    device_names: frozenset[str] = frozenset()
    is_in_table: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name of the host."""
        return (self.name,)


class Measurement(Fact, frozen=True, kw_only=True):
    """
    Row of the evidence: result of a test of the link from one host to another.

    Parameters
    ----------
    program
        Name of the test. Two rows with the same hosts and the same program are repetitions.
    """

    sender: str
    receiver: str
    program: str

    @property
    def hosts(self) -> tuple[str, str]:
        """Sender and receiver."""
        return self.sender, self.receiver


class Rate(Measurement, frozen=True, kw_only=True):
    """
    Measured bandwidth.

    Parameters
    ----------
    flows
        Number of concurrent flows from the sender to the receiver.
    bytes_per_s
        Aggregate bandwidth of all flows, bytes/s.
    is_one_way
        Whether only this direction carried traffic. If nothing measures the other one, the rate counts for both.
    """

    bytes_per_s: float
    flows: int = 1
    is_one_way: bool = False

    def __post_init__(self) -> None:
        rate = self.bytes_per_s / GB
        if not MIN_GB_PER_S <= rate <= MAX_GB_PER_S:
            limits = f"from {MIN_GB_PER_S:g} to {MAX_GB_PER_S:g}"
            place = f"{self.sender} to {self.receiver}"
            raise InputError(place, f"a rate must be {limits} GB/s, got {rate:g} GB/s.")


class Latency(Measurement, frozen=True, kw_only=True):
    """Measured latency of a small message, seconds."""

    latency_s: float


class Failure(Measurement, frozen=True, kw_only=True):
    """
    Test that failed.

    Parameters
    ----------
    flows
        Number of concurrent flows from the sender to the receiver.
    problem
        Text that names the test and says why it failed.
    is_wrong
        Whether the test ended with wrong results, so that the link is not trusted whatever other tests measure.
    """

    problem: str
    flows: int = 1
    is_wrong: bool = False


class InsideRate(Fact, frozen=True, kw_only=True):
    """Measured bandwidth from GPU to GPU inside a host, bytes/s."""

    bytes_per_s: float


class Topology(Fact, frozen=True, kw_only=True):
    """GPUs, NVLinks and NICs inside a host."""

    node: InsideNode


class Note(Fact, frozen=True, kw_only=True):
    """
    Text about a file, for the notes of an import.

    Parameters
    ----------
    kind
        ``used``: name of a program whose output counts. ``method``: sentence on how a program measures. ``remark``:
        assumption, a sentence without its stop. ``not used``: reason why a test or the file does not count.
        ``unused``: sentence on lines or keys that nothing reads.
    about
        Test that is not used; empty for the whole file.
    """

    kind: NoteKind
    text: str
    about: str = ""
