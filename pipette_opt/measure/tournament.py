"""Rounds of measurements: every pair of hosts is measured once, and no host is in two pairs of a round."""


def rounds(num_nodes: int) -> list[list[tuple[int, int]]]:
    """
    Return rounds of host pairs by the circle method: ``n - 1`` rounds of ``n / 2`` pairs (``n`` of ``(n - 1) / 2`` if
    odd).

    Each pair has the smaller index first. One host keeps its place, and the others move one place after each round.
    """
    if num_nodes < 2:
        return []
    circle: list[int | None] = list(range(num_nodes)) + ([None] if num_nodes % 2 else [])
    half = len(circle) // 2
    found = []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append(sorted((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
