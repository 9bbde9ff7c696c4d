"""A model in a few numbers, by which another one can be told from it."""

__all__ = ["model_sums", "other_sites"]

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_structured.foundation.inference.random_state import same_random_state

# Relative: rounding differs between machines. Few of many discrete values may differ with it.
TOLERANCE = 1e-4


def model_sums(model: Callable[..., Any] | None, args: Any, kwargs: Any) -> dict[str, float]:
    """Sums of what all sites draw with a fixed seed, observed ones like others; none if a model cannot draw.

    :param model: A Pyro model; ``None``: there are no sums.
    :param args: Arguments of the model.
    :param kwargs: Keyword arguments of the model.

    O(one run of the model). Random numbers afterwards are those that they would have been.
    """
    if model is None:
        return {}
    with same_random_state(), warnings.catch_warnings(), torch.no_grad(), poutine.block():
        warnings.simplefilter("ignore")
        pyro.set_rng_seed(0)
        try:
            trace: Any = poutine.trace(poutine.uncondition(model)).get_trace(*args, **kwargs)
        # Improper priors, for example: what a model raises is its own.
        except Exception:
            return {}
    values = {name: node["value"] for name, node in trace.nodes.items() if node["type"] == "sample"}
    return {name: float(value.double().sum()) for name, value in values.items() if isinstance(value, Tensor)}


def other_sites(sums: dict[str, float], stored: dict[str, float]) -> list[str]:
    """Names of sites that only one of two models has, or that draw other values in one of them; none if one has no
    sums.
    """
    if not sums or not stored:
        return []
    found = set(sums) ^ set(stored)
    for name in set(sums) & set(stored):
        pair = sums[name], stored[name]
        alike = math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or all(map(math.isnan, pair))
        found |= set() if alike else {name}
    return sorted(found)
