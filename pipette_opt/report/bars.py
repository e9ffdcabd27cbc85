"""Bars in table cells, drawn with block characters, or with ASCII if the output supports nothing else."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """
    A horizontal bar: a filled part, a lighter part, and an empty rest.

    Parameters
    ----------
    filled, reached
        Ends of the filled part and of the lighter part, as shares of the bar in [0, 1].
    width
        Length of the bar in characters.
    """

    filled: float
    reached: float = 0.0
    style: str = "cyan"
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw at most ``options.max_width`` characters."""
        solid, light, empty = ("#", "=", ".") if options.ascii_only else ("█", "▒", "·")
        width = min(self.width, options.max_width)
        first = columns(self.filled, width)
        second = max(0, columns(self.reached, width) - first)
        bar = Text(solid * first, style=self.style)
        bar.append(light * second, style=self.style)
        bar.append(empty * (width - first - second), style="dim")
        yield bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return half of the width as the minimum, and the width as the maximum."""
        return Measurement(min(self.width // 2, options.max_width), min(self.width, options.max_width))


def columns(share: float, width: int) -> int:
    """Return the number of characters that show ``share`` of ``width``: at least 1 above zero, at most ``width``."""
    if share <= 0:
        return 0
    return max(1, min(width, round(share * width)))
