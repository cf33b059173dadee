"""LoongBench: answers compared by the rules of their domain, and rationales executed.

    domains                rules of equality in each domain
    literals, quantities   values, read and not evaluated; numbers with units
    verifier               an answer and its gold, by the rules of a domain
    rationales             the data set's programs, run in the sandbox

Source: Loong, arXiv 2509.03059, section 2.
"""

from loong_jax.verifiers.loongbench.verifier import LoongBenchVerifier

__all__ = ["LoongBenchVerifier"]
