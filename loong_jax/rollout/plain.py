"""Records as plain values: JSON for what is small, flat arrays for what is long; never a pickle.

`to_plain` and `from_plain` turn groups into nested dicts that keep token arrays by reference;
`to_arrays` and `from_arrays` turn any such nest into a few one-dimensional arrays, whatever the
number of groups, for `numpy.savez` or Orbax.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from loong_jax.environments.problem import Problem
from loong_jax.errors import CheckpointError
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket, Turn
from loong_jax.verifiers.verdict import Verdict

Plain = dict[str, Any]

ALIGNMENT = 8  # bytes, of every array of `group_to_bytes`

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


def to_arrays(snapshot: Plain) -> dict[str, np.ndarray]:
    """A nest of JSON values and one-dimensional arrays as a flat dict of arrays, without copies
    of the nest: one array per dtype, and the rest as the bytes of its JSON under "json".
    """
    pieces: dict[str, list[np.ndarray]] = {}
    lengths: dict[str, int] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.ndim != 1:
                raise ValueError(f"an array of shape {value.shape} in a snapshot. Flatten it.")
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

    text = json.dumps(strip(snapshot), allow_nan=True)
    arrays = {dtype: np.concatenate(parts) for dtype, parts in pieces.items()}
    return {_JSON: np.frombuffer(text.encode(), np.uint8), **arrays}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Plain:
    """Inverse of `to_arrays`. Raises CheckpointError where the arrays do not fit together."""
    if _JSON not in arrays:
        raise CheckpointError(f"no array {_JSON!r} among {sorted(arrays)}. This is no snapshot.")

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {_REFERENCE}:
                dtype, first, last = value[_REFERENCE]
                if dtype not in arrays or len(arrays[dtype]) < last:
                    raise CheckpointError(
                        f"array {dtype!r} is missing or shorter than {last}. The snapshot is "
                        "damaged; go back to an earlier checkpoint."
                    )
                return np.asarray(arrays[dtype][first:last])
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return fill(json.loads(bytes(np.asarray(arrays[_JSON], np.uint8)).decode()))


def group_to_bytes(group: Group) -> bytes:
    """A line of JSON with dtype and length of each array, then the arrays, each aligned."""
    arrays = to_arrays(group_to_plain(group))
    header = json.dumps({name: [a.dtype.str, len(a)] for name, a in arrays.items()}).encode()
    parts = [header.ljust(len(header) + -(len(header) + 1) % ALIGNMENT) + b"\n"]
    parts += [a.tobytes().ljust(a.nbytes + -a.nbytes % ALIGNMENT, b"\0") for a in arrays.values()]
    return b"".join(parts)


def group_from_bytes(blob: memoryview) -> Group:
    """The group of `group_to_bytes`; its arrays are views of `blob`."""
    end = bytes(blob[:4096]).index(b"\n") + 1  # the header names one array per dtype
    arrays = {}
    for name, (dtype, length) in json.loads(bytes(blob[:end])).items():
        arrays[name] = np.frombuffer(blob, dtype, length, end)
        num_bytes = arrays[name].nbytes
        end += num_bytes + -num_bytes % ALIGNMENT
    return group_from_plain(from_arrays(arrays))
