"""XLA's flags for programs of tests, of which most are tiny and run once.

Compiling without LLVM's optimizations takes half the time, and half of that with XLA's older
emitters, which jax 0.10 has beside the new ones and 0.12 has not. What they make runs up to ten
times as slowly, too slowly for whole recipes. A program that is not cut into parts, which are
compiled side by side, takes a quarter less of a core; the workers keep the cores busy anyway.
"""

import importlib.metadata

NOT_OPTIMIZED = "--xla_backend_optimization_level=0"
QUICK_TO_COMPILE = NOT_OPTIMIZED
if importlib.metadata.version("jaxlib").startswith("0.10."):
    NOT_OPTIMIZED += " --xla_cpu_parallel_codegen_split_count=1"
    QUICK_TO_COMPILE = f"{NOT_OPTIMIZED} --xla_cpu_use_fusion_emitters=false"
