"""Graph puzzles: colour a graph with three colours; visit every node once. Any solution counts."""

import itertools
import operator
import random

from loong_jax.environments import answers, csp
from loong_jax.environments.environment import Puzzle, State

NUM_COLOURED = {1: 7, 2: 10, 3: 13, 4: 16, 5: 20}
NUM_VISITED = {1: 7, 2: 9, 3: 11, 4: 13, 5: 16}
COLOURS = ("red", "green", "blue")


def _edge_text(state: State) -> str:
    return ", ".join(f"{a}-{b}" for a, b in state["edges"])


class GraphColouring(Puzzle):
    """State: {"nodes", "edges"}. There are about 2.2 edges for each node."""

    name = "graph_colouring"

    def draw(self, level: int, rng: random.Random) -> State | None:
        nodes = NUM_COLOURED[level]
        colour = [rng.randrange(3) for _ in range(nodes)]
        allowed = [
            [a + 1, b + 1]
            for a, b in itertools.combinations(range(nodes), 2)
            if colour[a] != colour[b]
        ]
        wanted = round(2.2 * nodes)
        if len(allowed) < wanted:
            return None
        edges = sorted(rng.sample(allowed, wanted))
        degrees = [sum(node in edge for edge in edges) for node in range(1, nodes + 1)]
        return {"nodes": nodes, "edges": edges} if min(degrees) >= 2 else None

    def prompt(self, state: State) -> str:
        return (
            f"A graph has the nodes 1 to {state['nodes']} and the edges {_edge_text(state)}. "
            "Colour every node red, green or blue so that no edge joins two nodes of one colour. "
            "Any such colouring is right. Answer with one line in the form 1=red, 2=green, ..."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        nodes = [str(node) for node in range(1, state["nodes"] + 1)]
        colour = answers.assignment(answer, nodes, COLOURS)
        for a, b in state["edges"]:
            if colour[str(a)] == colour[str(b)]:
                return f"{a} and {b} are both {colour[str(a)]}"
        return None

    def answer(self, state: State) -> str:
        network = csp.Network(state["nodes"], 3)
        for a, b in state["edges"]:
            network.relate(a - 1, b - 1, operator.ne)
        colours = network.solutions([7] * state["nodes"], 1)[0]
        return ", ".join(f"{node}={COLOURS[colour]}" for node, colour in enumerate(colours, 1))


class HamiltonianPath(Puzzle):
    """State: {"nodes", "edges"}. There are 1.6 edges for each node."""

    name = "hamiltonian_path"

    def draw(self, level: int, rng: random.Random) -> State | None:
        nodes = NUM_VISITED[level]
        path = rng.sample(range(1, nodes + 1), nodes)
        edges = {(min(pair), max(pair)) for pair in itertools.pairwise(path)}
        while len(edges) < round(1.6 * nodes):
            a, b = sorted(rng.sample(range(1, nodes + 1), 2))
            edges.add((a, b))
        return {"nodes": nodes, "edges": sorted(map(list, edges))}

    def prompt(self, state: State) -> str:
        return (
            f"A graph has the nodes 1 to {state['nodes']} and the edges {_edge_text(state)}. "
            "Find a path along edges that visits every node exactly once; it may start anywhere. "
            "Any such path is right. Answer with one line: the nodes in order, with commas between "
            "them."
        )

    def flaw(self, state: State, answer: str) -> str | None:
        path = answers.integers(answer, state["nodes"])
        if sorted(path) != list(range(1, state["nodes"] + 1)):
            return "not every node once"
        edges = {tuple(edge) for edge in state["edges"]}
        for a, b in itertools.pairwise(path):
            if (min(a, b), max(a, b)) not in edges:
                return f"there is no edge {a}-{b}"
        return None

    def answer(self, state: State) -> str:
        """Depth first, to the neighbour with fewest ways on (Warnsdorff)."""
        neighbours: dict[int, set[int]] = {n: set() for n in range(1, state["nodes"] + 1)}
        for a, b in state["edges"]:
            neighbours[a].add(b)
            neighbours[b].add(a)

        def extend(path: list[int]) -> list[int] | None:
            if len(path) == state["nodes"]:
                return path
            free = neighbours[path[-1]] - set(path)
            for node in sorted(free, key=lambda n: (len(neighbours[n] - set(path)), n)):
                if (found := extend([*path, node])) is not None:
                    return found
            return None

        starts = sorted(neighbours, key=lambda n: (len(neighbours[n]), n))
        path = next(path for start in starts if (path := extend([start])) is not None)
        return ", ".join(map(str, path))
