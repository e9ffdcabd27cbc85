"""Units: base units inside (bytes, seconds, bytes/s, FLOP/s), people's units at the edges."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
TFLOP = 10**12
US = 1e-6


def gib(num_bytes: float) -> float:
    """Bytes as GiB."""
    return num_bytes / GIB


def counted(number: int, word: str) -> str:
    """``1 flow``, ``1,024 flows``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer quotient, rounded up."""
    return -(-numerator // denominator)
