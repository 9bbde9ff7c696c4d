"""States of processes that learn together, as one that any number of processes goes on from."""

__all__ = ["own_state", "united_state"]

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.inference.distributed_optim import DistributedOptim
from pyro_structured.foundation.inference.peer_processes import present_peers
from pyro_structured.foundation.inference.random_state import (
    load_random_state,
    random_state,
    same_random_state,
    spread_random_state,
)
from pyro_structured.foundation.inference.row_state import rows_of_process


def united_state(optim: Any, own: dict[str, Any]) -> dict[str, Any]:
    """State of process 0, with what is different in others as ``"others"``; of a single process its own state.

    :param optim: Optimiser of the learner.
    :param own: State of this process.
    """
    peers = present_peers()
    if peers is None or not isinstance(optim, DistributedOptim):
        return own
    peers.agree("state_dict")
    with peers.exchange():
        first, *others = peers.gather(own)
    return {**first, "others": [_difference(first, other) for other in others]}


def own_state(optim: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """State from which this process goes on.

    As many processes as had the state have their own ones again. With another number, rows go to the processes that
    have them now, all take buffers from process 0, and its generators, moved to different states.

    :param optim: Optimiser of the learner.
    :param state: What :func:`united_state` returned in any process.
    """
    first = {key: value for key, value in state.items() if key != "others"}
    parts = [first, *(_put_together(first, difference) for difference in state.get("others", []))]
    peers, rows = present_peers(), None
    rank, size, number = 0, 1, 0
    if isinstance(optim, DistributedOptim):
        rows = optim.rows
        if peers is not None:
            rank, size = peers.rank, peers.size
            number = int(peers.agree("load_state_dict", num_rows=len(rows)).num_rows.sum())
    return parts[rank] if len(parts) == size else _shared_out(parts, rows, number, rank)


def _shared_out(parts: list[dict[str, Any]], rows: Tensor | None, number: int, rank: int) -> dict[str, Any]:
    shared = dict(parts[0])
    if "chains" in shared:
        shared["chains"] = rows_of_process([part["chains"] for part in parts], rows, number, rank)
    if "random" in shared:
        with same_random_state():
            load_random_state(shared["random"])
            spread_random_state(rank)
            shared["random"] = random_state()
    if isinstance(shared.get("learner"), dict):
        shared["learner"] = _shared_out([part["learner"] for part in parts], rows, number, rank)
    return shared


def _difference(first: Any, other: Any) -> dict[str, Any]:
    """What has to be known of plain data beside similar data."""
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() == other.keys():
        return {
            "changes": {key: _difference(first[key], other[key]) for key in first if not _same(first[key], other[key])}
        }
    return {"whole": other}


def _put_together(first: Any, difference: dict[str, Any]) -> Any:
    if "whole" in difference:
        return difference["whole"]
    return {**first, **{key: _put_together(first[key], part) for key, part in difference["changes"].items()}}


def _same(first: Any, other: Any) -> bool:
    if type(first) is not type(other):
        return False
    if isinstance(first, Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(_same(value, other[key]) for key, value in first.items())
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(_same, first, other))
    return bool(first == other)
