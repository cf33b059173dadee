"""The one form of records outside a process's memory: in the journal and in checkpoints.

`group_to_plain` and its like turn records into nested dicts that keep token arrays by reference;
`encode` turns any nest of JSON values and one-dimensional arrays into bytes: a line of JSON with
dtype and length of each array, then the arrays, one for each dtype, every one aligned. The array
named "json" is the JSON of what is small.
"""

import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket, Turn

Plain = dict[str, Any]

ALIGNMENT = 8  # bytes

_JSON = "json"
_REFERENCE = "$array"  # {"$array": [dtype, first, last]}: a part of the array of that dtype


def ticket_to_plain(ticket: Ticket) -> Plain:
    return {
        "number": ticket.number,
        "issue": ticket.issue,
        "problem": ticket.problem.to_json(),
        "max_new_tokens": ticket.max_new_tokens,
    }


def ticket_from_plain(record: Mapping[str, Any]) -> Ticket:
    problem = Problem.from_json(record["problem"])
    return Ticket(
        number=record["number"],
        issue=record["issue"],
        problem=problem,
        max_new_tokens=record.get("max_new_tokens"),
    )


def group_to_plain(group: Group) -> Plain:
    return {
        "ticket": ticket_to_plain(group.ticket),
        "version": group.version,
        "rollouts": [rollout_to_plain(rollout) for rollout in group.rollouts],
    }


def group_from_plain(record: Mapping[str, Any]) -> Group:
    return Group(
        ticket=ticket_from_plain(record["ticket"]),
        version=record["version"],
        rollouts=tuple(rollout_from_plain(rollout) for rollout in record["rollouts"]),
    )


def rollout_to_plain(rollout: Rollout) -> Plain:
    record = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout)}
    record["sampling"] = dataclasses.asdict(rollout.sampling)
    record["versions"] = [list(pair) for pair in rollout.versions]
    record["turns"] = [dataclasses.asdict(turn) for turn in rollout.turns]
    if rollout.routing is not None:
        record["routing"] = {
            "shape": list(rollout.routing.shape),
            "targets": rollout.routing.reshape(-1),
        }
    if rollout.verdict is not None:
        record["verdict"] = dataclasses.asdict(rollout.verdict)
    return record


def rollout_from_plain(record: Mapping[str, Any]) -> Rollout:
    verdict, sampling = record["verdict"], dict(record["sampling"])
    sampling |= {name: tuple(sampling.get(name, ())) for name in ("stop_ids", "stops")}
    routing = record.get("routing")
    if routing is not None:
        routing = np.asarray(routing["targets"]).reshape(routing["shape"])
    turns = (dict(turn, failures=tuple(turn["failures"])) for turn in record.get("turns", ()))
    changes = {
        "turns": tuple(Turn(**turn) for turn in turns),
        "routing": routing,
        "sampling": SamplingSettings(**sampling),
        "versions": tuple((first, version) for first, version in record["versions"]),
        "verdict": None if verdict is None else Verdict(**verdict),
    }
    return Rollout(**{**record, **changes})


def encode(nest: Mapping[str, Any]) -> bytes:
    """Dicts have strings as keys; tuples come back as lists, NumPy's numbers as Python's."""
    pieces: dict[str, list[np.ndarray]] = {}
    lengths: dict[str, int] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            assert value.ndim == 1, f"an array of shape {value.shape} in a record: flatten it"
            dtype = value.dtype.name
            first = lengths.get(dtype, 0)
            lengths[dtype] = first + len(value)
            pieces.setdefault(dtype, []).append(value)
            return {_REFERENCE: [dtype, first, lengths[dtype]]}
        if isinstance(value, Mapping):
            return {str(key): strip(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [strip(item) for item in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps(strip(nest), allow_nan=True)
    arrays = {_JSON: np.frombuffer(text.encode(), np.uint8)}
    arrays |= {dtype: np.concatenate(parts) for dtype, parts in pieces.items()}
    header = json.dumps({name: [a.dtype.str, len(a)] for name, a in arrays.items()}).encode()
    blobs = [header.ljust(len(header) + -(len(header) + 1) % ALIGNMENT) + b"\n"]
    blobs += [a.tobytes().ljust(a.nbytes + -a.nbytes % ALIGNMENT, b"\0") for a in arrays.values()]
    return b"".join(blobs)


def decode(data: bytes | memoryview) -> Plain:
    """Inverse of `encode`; arrays are views of `data`. Whoever stored it has checked the bytes."""
    blob = memoryview(data)
    if blob[:2] == b"PK":
        return _decode_npz(blob)
    end = bytes(blob[:4096]).index(b"\n") + 1  # the header names one array per dtype
    arrays = {}
    for name, (dtype, length) in json.loads(bytes(blob[:end])).items():
        arrays[name] = np.frombuffer(blob, dtype, length, end)
        end += arrays[name].nbytes + -arrays[name].nbytes % ALIGNMENT

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {_REFERENCE}:
                dtype, first, last = value[_REFERENCE]
                return arrays[dtype][first:last]
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return fill(json.loads(arrays[_JSON].tobytes()))


def _decode_npz(blob: memoryview) -> Plain:
    """Decodes a record of earlier releases' checkpoints, tuples and other keys told apart."""
    with np.load(io.BytesIO(blob), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(item) for item in value]
        if isinstance(value, dict):
            ((kind, content),) = value.items()
            if kind == "$array":
                return arrays[content]
            if kind == "$tuple":
                return tuple(fill(item) for item in content)
            return {fill(key): fill(item) for key, item in content}
        return value

    return fill(json.loads(arrays.pop("text").tobytes()))
