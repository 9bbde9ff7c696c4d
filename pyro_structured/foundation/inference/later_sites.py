"""Sites of a model that may depend on another one."""

__all__ = ["later_sites"]

from collections.abc import Iterator
from typing import Any

from pyro.poutine.subsample_messenger import _Subsample


def later_sites(trace: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Names and nodes of all random sites after a site, deterministic ones and plates left out."""
    nodes = list(trace.nodes.items())
    for other, node in nodes[1 + [other for other, _ in nodes].index(name) :]:
        is_random = node["type"] == "sample" and not isinstance(node["fn"], _Subsample)
        if is_random and not node["infer"].get("_deterministic"):
            yield other, node
