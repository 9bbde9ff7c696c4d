"""Binary vectors with potentials on the counts of subsets that cross each other."""

__all__ = ["OverlappingCardinality"]

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.counts.distributions.overlapping_counts import OverlappingCounts
from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.structures.nested_subsets import NestedSubsets
from pyro_structured.counts.structures.subset_families import SubsetFamilies
from pyro_structured.foundation.distributions.argument_checks import check_vector
from pyro_structured.foundation.ops.evidence import reweight
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import checked_sequence

EMPTY_SUPPORT = (
    "families: expected at least one vector of positive probability in every batch element, but none meets the counts "
    "of all families"
)


@lru_cache(maxsize=16)
def _joined_families(families: tuple[NestedSubsets, ...]) -> SubsetFamilies:
    return SubsetFamilies(families)


class OverlappingCardinality(OverlappingCounts):
    r"""Binary variables with preferences for counts in several families of nested subsets, which may cross each other.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_{d=1}^D x_d y_d + \sum_{\mathcal S} \sum_{s \in \mathcal S} f_s\bigl(
        \textstyle\sum_{d \in s} y_d\bigr)\Bigr), \qquad y \in \{0, 1\}^D,

    where the subsets of one family :math:`\mathcal S` are nested, as those of :class:`RecursiveCardinality`, and those
    of different families are not: rows and columns, checks of a code, hours and people. A family is a pair of
    :class:`~pyro_structured.structures.NestedSubsets` and a table, or a :class:`RecursiveCardinality`, whose log-odds,
    edges and links count, too. Values are vectors of zeros and ones in the parameters' dtype, ``event_shape`` is
    ``(D,)``.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``mode``, ``entropy`` and evidence, as long as the counts that
    can be under way while going through the variables, in the best of a few orders, take at most :math:`2^{26}` states,
    all variables together; a ``NotImplementedError`` beyond. **At any size**: :meth:`approximate_marginals`,
    :meth:`log_partition_bounds`, :meth:`log_prob_bounds`, :meth:`map`, ``unnormalized_log_prob``. Cost: O(1) for each
    state.

    ``logits`` may be infinite: the variable is clamped. Tables may be -inf where a count is impossible. With one
    family, :class:`RecursiveCardinality` is the same, and faster.

    :param Tensor logits: Log-odds, shape ``(..., D)``, no NaN.
    :param families: Pairs of :class:`~pyro_structured.structures.NestedSubsets` and of a table, shape ``(...,
        subsets.table_size)``, less than +inf; or :class:`RecursiveCardinality`.
    :raises ValueError: if there is no family, one is of another kind, or a shape, a NaN or +inf is wrong, with the name
        of the argument. Where no vector has a positive probability, the first query raises, and says which counts
        conflict, if these can be told.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Section 6.2.

    Example::

        >>> ring = [NestedSubsets([[0, 1], [2, 3]], 4), NestedSubsets([[1, 2], [3, 0]], 4)]
        >>> one = torch.tensor([-math.inf, 0.0, -math.inf]).repeat(2)  # one of each pair of neighbours
        >>> d = OverlappingCardinality(torch.tensor([1.0, 0.0, 0.0, 0.0]), [(subsets, one) for subsets in ring])
        >>> d.marginals
        tensor([0.7311, 0.2689, 0.7311, 0.2689])
    """

    arg_constraints = {"logits": constraints.real_vector}

    def __init__(
        self,
        logits: Tensor,
        families: Iterable[tuple[NestedSubsets, Tensor] | RecursiveCardinality],
        validate_args: bool | None = None,
    ) -> None:
        check_vector("logits", logits)
        given = checked_sequence("families", families)
        if not given:
            raise ValueError("families: expected at least one, got none")
        self._members = tuple(_member(part, f"families[{i}]", logits, validate_args) for i, part in enumerate(given))
        #: Whether each family was given as a distribution.
        self._whole = tuple(isinstance(part, RecursiveCardinality) for part in given)
        try:
            batch = broadcast_shapes(logits.shape[:-1], *(member.batch_shape for member in self._members))
        except RuntimeError:
            shapes = ", ".join(str(tuple(member.batch_shape)) for member in self._members)
            raise ValueError(
                f"families: expected batches that broadcast with {tuple(logits.shape[:-1])}, got {shapes}"
            ) from None
        self._evidence, self._empty = (logits, logits.new_zeros((), dtype=torch.double)), EMPTY_SUPPORT
        self._assign({"logits": logits}, torch.Size(batch))
        super().__init__(batch, logits.shape[-1:], validate_args=validate_args)

    @classmethod
    def from_subsets(
        cls,
        logits: Tensor,
        subsets: Iterable[Iterable[int]],
        tables: Iterable[Tensor],
        validate_args: bool | None = None,
    ) -> "OverlappingCardinality":
        """Finds families for subsets that cross each other in any way, such as the checks of a code.

        Each subset goes to the first family in which it is nested with all others. Fewer families make fewer messages.

        :param Tensor logits: Log-odds, shape ``(..., D)``.
        :param subsets: Integers from 0 to D - 1, each at most once in a subset.
        :param tables: A table for each subset, shapes ``(..., len(subset) + 1)``, less than +inf.
        :raises ValueError: if the numbers of subsets and of tables differ, or a subset or a table is wrong.

        Example, the Hamming code of seven bits, of which one is received wrongly::

            >>> from pyro_structured.distributions.cardinality_potentials import parity
            >>> checks = [[0, 2, 4, 6], [1, 2, 5, 6], [3, 4, 5, 6]]
            >>> received = torch.tensor([2.0, -2, -2, -2, -2, -2, -2])
            >>> OverlappingCardinality.from_subsets(received, checks, [parity(4)] * 3).mode
            tensor([0., 0., 0., 0., 0., 0., 0.])
        """
        check_vector("logits", logits)
        given, laws = checked_sequence("subsets", subsets), checked_sequence("tables", tables)
        if len(given) != len(laws):
            raise ValueError(f"tables: expected {len(given)}, one for each subset, got {len(laws)}")
        for index, law in enumerate(laws):
            check_vector(f"tables[{index}]", law)
            require(~(law < math.inf), f"tables[{index}]: expected numbers less than +inf, got +inf or NaN")
        number = logits.shape[-1]
        families: list[list[int]] = []
        members = [set(NestedSubsets([subset], number).subsets[0].tolist()) for subset in given]
        for index, subset in enumerate(members):
            for family in families:
                crossing = (subset & members[other] not in (set(), subset, members[other]) for other in family)
                if not any(crossing):
                    family.append(index)
                    break
            else:
                families.append([index])
        pairs = []
        for family in families:
            nested = NestedSubsets([given[index] for index in family], number)
            pairs.append((nested, nested.pack([laws[index] for index in family])))
        return cls(logits, pairs, validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        logits: torch.Size, families: Iterable[Any] = ()
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``logits``, and the families themselves."""
        batches = [logits[:-1]]
        for family in families:
            whole = isinstance(family, RecursiveCardinality)
            batches.append(family.batch_shape if whole else family[1].shape[:-1])
        return broadcast_shapes(*batches), torch.Size(logits[-1:])

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones, also those of probability zero."""
        return constraints.independent(constraints.boolean, 1)

    @property
    def families(self) -> tuple[tuple[NestedSubsets, Tensor] | RecursiveCardinality, ...]:
        """The families, expanded to the batch shape."""
        expanded = [member.expand(self.batch_shape) for member in self._members]
        return tuple(
            member if whole else (member.subsets, member.count_logits)
            for member, whole in zip(expanded, self._whole, strict=True)
        )

    @property
    def _families(self) -> SubsetFamilies:
        return _joined_families(tuple(member.subsets for member in self._members))

    @property
    def _names(self) -> list[list[str]]:
        return [
            [
                *(f"the table of families[{number}], subset {index}" for index in range(len(member.subsets.sizes))),
                *(f"the table of families[{number}], edge {index}" for index in range(len(member.subsets.edges))),
                *(f"the table of families[{number}], link {index}" for index in range(len(member.subsets.links))),
                f"the subsets of families[{number}]",
            ]
            for number, member in enumerate(self._members)
        ]

    @property
    def _given_tables(self) -> list[Tensor]:
        pairs = zip(self._families.factors, self._members, strict=True)
        return [factor.turned(member.packed_tables) for factor, member in pairs]

    @property
    def _joint_evidence(self) -> tuple[Tensor, Tensor]:
        logits, log_weight = super()._joint_evidence
        for member, whole in zip(self._members, self._whole, strict=True):
            if whole:
                odds, weight = member._evidence
                odds = odds.double()
                shape = broadcast_shapes(logits.shape, odds.shape)
                zero = torch.zeros_like(odds)
                off = zero.masked_fill(odds == math.inf, -math.inf).expand(shape)
                on = odds.masked_fill(odds == math.inf, 0.0).expand(shape)
                logits, added = reweight(logits.expand(shape), off, on)
                log_weight = log_weight + weight + added
        return logits, log_weight

    def _cast(self, tensor: Tensor) -> Tensor:
        dtype = self.logits.dtype
        for member in self._members:
            dtype = torch.promote_types(dtype, member.count_logits.dtype)
        return tensor.to(torch.promote_types(dtype, torch.float32))

    def table_marginals(self, family: int) -> Tensor:
        """Exact probabilities of all counts of a family's subsets, shape ``batch_shape + (table_size,)``; see
        ``subsets.split``.

        :param int family: Number of the family.
        """
        size = self._members[family].subsets.table_size
        probs = self._families.factors[family].turned(self._table_marginals(family))
        return self._cast(probs[..., :size])


def _member(part: Any, name: str, logits: Tensor, validate_args: bool | None) -> RecursiveCardinality:
    """The distribution of a family by itself."""
    number = logits.shape[-1]
    if isinstance(part, RecursiveCardinality):
        subsets, member = part.subsets, part
    elif isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], NestedSubsets):
        subsets, table = part
        check_vector(f"{name}[1]", table, smallest=0)
        if subsets.edges or subsets.links:
            raise ValueError(
                f"{name}: expected subsets without edges and links, whose tables a RecursiveCardinality has"
            )
        if table.shape[-1] != subsets.table_size:
            raise ValueError(
                f"{name}[1]: expected a last axis of {subsets.table_size} numbers, a table of |s| + 1 for each subset, "
                f"got shape {tuple(table.shape)}"
            )
        require(~(table < math.inf), f"{name}[1]: expected numbers less than +inf, got +inf or NaN")
        zeros = table.new_zeros(subsets.num_variables)
        member = RecursiveCardinality(zeros, table, subsets, validate_args=validate_args)
    else:
        got = type(part).__name__
        raise ValueError(f"{name}: expected a pair of NestedSubsets and a table, or a RecursiveCardinality, got {got}")
    if subsets.num_variables != number:
        raise ValueError(f"{name}: expected {number} variables, as logits have, got {subsets.num_variables}")
    return member
