"""Our engine under JetStream's own Driver. Extra: `jetstream`.

    contract  an engine of the contract of 0.3.0 around one of ours
    adapter   the same under that of `google-jetstream` 0.2.2

For acceptance and for those who have JetStream running: its Driver cannot cancel, returns no
log-probabilities and ends the process on any error. `loong serve` speaks its protocol without it.
Importing the package itself imports nothing.
"""
