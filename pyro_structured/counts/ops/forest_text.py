"""Forests of counts as texts, which the graphs of ``torch.compile`` can hold."""

__all__ = ["forest_of", "forest_text"]

import base64
import pickle
from functools import lru_cache

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.coupled_forest import AnyForest
from pyro_structured.foundation.ops.private_members import constant_in_graphs


def forest_text(forest: AnyForest) -> str:
    """Text that says everything about a forest, whichever process reads it.

    Example::

        >>> forest_of(forest_text(CountForest(3))).num_variables
        3
    """
    return str(forest.num_variables) if forest.is_single else _pickled(forest)


@constant_in_graphs
def _pickled(forest: AnyForest) -> str:
    return base64.b85encode(pickle.dumps(forest)).decode()


@lru_cache(maxsize=64)
def forest_of(text: str) -> AnyForest:
    """The forest of which :func:`forest_text` made a text; it is remembered, and its plans with it."""
    if text.isdecimal():
        return CountForest(int(text))
    forest: AnyForest = pickle.loads(base64.b85decode(text))
    return forest
