"""Hypothesis strategies that draw nested subsets and cardinality models, with all their rare cases.

They need `Hypothesis <https://hypothesis.readthedocs.io>`_, which is not installed along with the package; import this
module by its full name.
"""

__all__ = ["CardinalityModel", "cardinality_models", "nested_families"]

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor


class CardinalityModel(NamedTuple):
    """Arguments of :class:`~pyro_structured.distributions.RecursiveCardinality`; ``subsets`` as lists of integers, or
    ``None``. Finite entries of ``logits`` and ``count_logits`` are at most some ten thousand in size.
    """

    logits: Tensor
    count_logits: Tensor
    subsets: list[list[int]] | None


@st.composite
def nested_families(draw: st.DrawFn, num_variables: int) -> list[list[int]]:
    """Draws subsets of which any two are disjoint or nested: empty, single, equal and missing ones, in any order.

    :param int num_variables: Number of variables.
    :return: A strategy for lists of subsets.

    Example::

        >>> from hypothesis import given
        >>> @given(nested_families(5))
        ... def test_elements(family):
        ...     assert all(d in range(5) for subset in family for d in subset)
        >>> test_elements()
    """
    family: list[list[int]] = [[] for _ in range(draw(st.sampled_from([0, 0, 1, 2])))]
    pending = [draw(st.permutations(range(num_variables)))]
    while pending:
        block = pending.pop()
        family += [block] * draw(st.sampled_from([1, 0, 1, 2]))
        cut = draw(st.integers(0, len(block) - 1))
        if cut:
            pending += [block[:cut], block[cut:]]
    return draw(st.permutations(family))


@st.composite
def cardinality_models(
    draw: st.DrawFn, max_variables: int = 8, single: bool | None = None, batched: bool = True
) -> CardinalityModel:
    """Draws models: potentials of -inf, numbers of ten thousand, clamped variables, and batch shapes that broadcast.

    There may be no possible vector. Numbers come from torch's generator, seeded by Hypothesis.

    :param int max_variables: Largest number of variables.
    :param bool single: Whether there is one potential on the count of all variables, or nested ones; ``None``: either.
    :param bool batched: Whether there may be batch axes.
    :return: A strategy for models.

    Example::

        >>> from hypothesis import given
        >>> @given(cardinality_models())
        ... def test_numbers(model):
        ...     assert not model.logits.isnan().any()
        >>> test_numbers()
    """
    num_variables = draw(st.integers(1, max_variables))
    single = draw(st.booleans()) if single is None else single
    subsets = None if single else draw(nested_families(num_variables))
    table_size = num_variables + 1 if subsets is None else sum(len(s) + 1 for s in subsets)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    if batched:
        shapes += [((3,), (3,)), ((2, 3), (2, 3)), ((3,), ()), ((), (2,)), ((2, 1), (3,))]
    batch_of_logits, batch_of_tables = draw(st.sampled_from(shapes))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))

    def numbers(*shape: int) -> Tensor:
        scale = draw(st.sampled_from([1.0, 0.1, 10.0, 1e4]))
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3)

    def chosen(shape: torch.Size) -> Tensor:
        return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.4]))

    logits = numbers(*batch_of_logits, num_variables)
    logits = logits.masked_fill(chosen(logits.shape), math.inf).masked_fill(chosen(logits.shape), -math.inf)
    count_logits = numbers(*batch_of_tables, table_size)
    count_logits = count_logits.masked_fill(chosen(count_logits.shape), -math.inf)
    return CardinalityModel(logits.to(dtype), count_logits.to(dtype), subsets)
