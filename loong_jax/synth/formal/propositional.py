"""The propositional task of the loop: statements as goals, terms as answers, a backend as judge."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from loong_jax.synth.formal import proof_term, statement
from loong_jax.synth.formal.backends import Backend, Claim
from loong_jax.synth.formal.expert_iteration import Goal, Solution
from loong_jax.synth.formal.problems import ATOM_NAMES
from loong_jax.synth.formal.proof_term import LETTERS, Node, NoProof
from loong_jax.synth.formal.statement import Statement
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict


def goal_of(posed: Statement, level: int = 0) -> Goal:
    return Goal(uid=posed.uid, text=proof_term.sequent(posed), kin=posed.kin, level=level)


@dataclasses.dataclass(frozen=True)
class TermChecker:
    """Judges proof terms: read first, then written for the backend, whose verdict counts."""

    backend: Backend

    def __call__(self, claims: Sequence[Solution]) -> list[Verdict]:
        read = [self._claim(claim) for claim in claims]
        judged = iter(self.backend.check_proofs([c for c in read if isinstance(c, Claim)]))
        return [next(judged) if isinstance(c, Claim) else c for c in read]

    def _claim(self, claim: Solution) -> Claim | Verdict:
        posed = proof_term.read_sequent(claim.goal.text)
        try:
            node = proof_term.read(claim.proof, posed)
        except NoProof as error:
            return verdict.wrong("term", str(error)[:200])
        return Claim(self.backend.statement_text(posed), self.backend.proof_text(posed, node))


def cold_start(goals: Iterable[tuple[Statement, Goal]], max_nodes: int) -> list[Solution]:
    """Those of the goals that a search among proofs of at most `max_nodes` nodes solves."""
    found = ((goal, proof_term.search(posed, max_nodes)) for posed, goal in goals)
    return [Solution(goal, proof_term.write(node)) for goal, node in found if node is not None]


def variant(posed: Statement, node: Node, rng: np.random.Generator) -> tuple[Statement, Node]:
    """One of its kin, drawn at random, with its proof: other names, other order of hypotheses."""
    order = [int(i) for i in rng.permutation(len(posed.hypotheses))]
    names = [ATOM_NAMES[i] for i in rng.permutation(len(ATOM_NAMES))]
    name_of = dict(zip(posed.atoms, names, strict=False))
    shuffled = Statement(tuple(posed.hypotheses[i] for i in order), posed.goal)
    letter_of = {LETTERS[old]: LETTERS[new] for new, old in enumerate(order)}
    return statement.renamed(shuffled, name_of), proof_term.moved(node, letter_of, name_of)
