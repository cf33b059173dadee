"""The formal loop: problems in words become statements, are filtered, proved, and learnt from.

formulas, statement, proof_term (the propositional language) -> backends (Metamath, Coq, Lean: one
protocol) -> expert_iteration (the loop, of any prover and backend). The prover that trains is
handed in; `loong_jax.run.tiny_prover` has one.
"""
