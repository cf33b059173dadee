"""Binary constraint networks over small domains: arc consistency, then search.

Domains are bit masks. A relation between two variables is a table from a mask of the first to the
mask of all values that the second may then take. Source: AC-3 (Mackworth 1977) with the smallest
domain first.
"""

import functools
from collections.abc import Callable

Table = tuple[int, ...]  # index: mask of the first variable; entry: values left to the second
MAX_NODES = 20_000


class SearchLimit(Exception):
    """The search took more nodes than it may; the generator draws another problem."""


@functools.cache
def table(holds: Callable[[int, int], bool], size: int, is_turned: bool = False) -> Table:
    """The table of `holds(first, second)`, or turned (second, first), over values 0..size-1."""
    supports = [
        sum(1 << b for b in range(size) if (holds(b, a) if is_turned else holds(a, b)))
        for a in range(size)
    ]
    found = [0]
    for mask in range(1, 1 << size):
        lowest = (mask & -mask).bit_length() - 1
        found.append(found[mask & (mask - 1)] | supports[lowest])
    return tuple(found)


class Network:
    """Variables 0..n-1 and relations between pairs of them."""

    def __init__(self, num_variables: int, size: int):
        self.size = size
        self._arcs: list[list[tuple[int, Table]]] = [[] for _ in range(num_variables)]

    def relate(self, first: int, second: int, holds: Callable[[int, int], bool]) -> None:
        """Demands `holds(value of first, value of second)`, such as `operator.ne`."""
        self._arcs[first].append((second, table(holds, self.size)))
        self._arcs[second].append((first, table(holds, self.size, True)))

    def solutions(self, domains: list[int], limit: int) -> list[list[int]]:
        """Up to `limit` solutions as lists of values; raises SearchLimit."""
        found: list[list[int]] = []
        stack = [list(domains)]
        if not self._propagate(stack[0], list(range(len(domains)))):
            return found
        nodes = 0
        while stack:
            current = stack.pop()
            nodes += 1
            if nodes > MAX_NODES:
                raise SearchLimit(f"more than {MAX_NODES} nodes")
            open_ = [(mask.bit_count(), i) for i, mask in enumerate(current) if mask & (mask - 1)]
            if not open_:
                found.append([mask.bit_length() - 1 for mask in current])
                if len(found) == limit:
                    return found
                continue
            _, chosen = min(open_)
            mask = current[chosen]
            while mask:
                bit = 1 << (mask.bit_length() - 1)
                mask ^= bit
                child = list(current)
                child[chosen] = bit
                if self._propagate(child, [chosen]):
                    stack.append(child)
        return found

    def _propagate(self, domains: list[int], queue: list[int]) -> bool:
        while queue:
            first = queue.pop()
            mask = domains[first]
            for second, allowed in self._arcs[first]:
                before = domains[second]
                after = before & allowed[mask]
                if after != before:
                    if not after:
                        return False
                    domains[second] = after
                    queue.append(second)
        return True
