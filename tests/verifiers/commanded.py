"""Verdicts of `loong verify` on a file of lines."""

import json

from loong_jax import cli


def verdicts(name, lines, directory):
    """`lines` are records, or texts that stand in the file as they are."""
    source, destination = directory / "in.jsonl", directory / "out.jsonl"
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    source.write_bytes(b"\n".join(texts) + b"\n")
    words = ["verify", name, "--input", str(source), "--output", str(destination)]
    assert cli.main(words) == 0
    return [json.loads(line) for line in destination.read_text().splitlines()]
