"""The formal loop: problems in words become statements, are filtered, proved, and learnt from.

    formulas, proofs              the propositional language; theorems drawn at random
    formalise                     problems in words as statements: an author translates, filters
    backends                      Metamath, Coq and Lean under one protocol
    hilbert                       Metamath's database of the language, and proofs in its steps
    expert_iteration              the loop, of any prover and backend

The prover that trains is handed in; `loong_jax.run.tiny_prover` has one.
"""
