"""Benches: what `loong bench NAME` measures. Their names are one table."""

BENCHES: dict[str, str] = {  # name on the command line -> module with `main(arguments)`
    "model": "loong_jax.bench.model",
}
