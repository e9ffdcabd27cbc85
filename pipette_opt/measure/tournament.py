"""Rounds of a tournament: every pair of hosts meets once, and no host has two partners in a round."""


def rounds(num_nodes: int) -> list[list[tuple[int, int]]]:
    """
    Return rounds by the circle method: ``n - 1`` of ``n / 2`` pairs (``n`` of ``(n - 1) / 2`` if ``n`` is odd).

    In each pair the first is smaller. One host stays, the others move on by a place after each round.
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
