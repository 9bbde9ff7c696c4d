"""Several nested families of subsets of the same variables."""

__all__ = ["CountFamily", "SubsetFamilies", "matching_families"]

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.ops.certified_counts import infer_counts
from pyro_structured.counts.ops.count_diagram import Counter, DiagramPlan, order_variables
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.coupled_forest import AnyForest
from pyro_structured.counts.ops.real_roots import real_rooted_below
from pyro_structured.counts.structures.nested_subsets import NestedSubsets
from pyro_structured.foundation.ops.log_space import logsumexp

# Product of the numbers of counts and of variables up to which an order of the variables is searched for.
MOST_MEMBERSHIPS = 2**17
REMEDY = (
    "approximate_marginals(LoopyBP()), log_partition_bounds, log_prob_bounds, map, unnormalized_log_prob, and, for a "
    "GeneralizedMatching, estimator=AnnealedMatching(), sweep and the kernel StructuredGibbs have no limit"
)


class _SubsetsOfOneSize:
    """Disjoint subsets of the same size: their variables, shape ``(k, size)``, and the first entries of their tables,
    shape ``(k,)``.
    """

    def __init__(self, members: list[np.ndarray], starts: list[int]) -> None:
        self.members = torch.from_numpy(np.stack(members))
        self.starts = torch.tensor(starts)
        self.forest = CountForest(self.members.shape[1])

    @property
    def entries(self) -> Tensor:
        """Places of the tables, shape ``(k, size + 1)``."""
        return self.starts.unsqueeze(-1) + torch.arange(self.members.shape[1] + 1)


class CountFamily:
    """Potentials of the counts of one nested family, as a factor: log-sums and posterior log-odds.

    Tables are those of :class:`~pyro_structured.distributions.RecursiveCardinality`, of subsets, edges and links, in
    the order of :meth:`turned`, in which the variables that differ from the references are counted.

    :param NestedSubsets subsets: The family.
    """

    def __init__(self, subsets: NestedSubsets) -> None:
        self.subsets = subsets
        self.forest: AnyForest = subsets.forest if subsets.coupling is None else subsets.coupling
        #: Largest count of each table; products less one for edges and links.
        self.table_sizes = [size for _, size in self.forest.tables]
        starts = np.cumsum([0, *(size + 1 for size in self.table_sizes)])
        self._starts = torch.from_numpy(starts[:-1])
        #: Number of entries of all tables.
        self.table_size = int(starts[-1])
        self.flipped = None if subsets.complemented is None else torch.from_numpy(subsets.complemented[0].copy())
        #: Whether subsets are disjoint, without edges and links.
        self.is_flat = subsets.coupling is None and sum(subsets.sizes) == len(self._covered)
        self._groups: list[_SubsetsOfOneSize] = []
        if self.is_flat:
            for size in sorted(set(subsets.sizes) - {0}):
                chosen = [index for index, other in enumerate(subsets.sizes) if other == size]
                members = [subsets.subsets[index].astype(np.int64) for index in chosen]
                self._groups.append(_SubsetsOfOneSize(members, [int(starts[index]) for index in chosen]))
        self._constants = torch.from_numpy(starts[:-1][np.array(self.table_sizes, dtype=np.int64) == 0])
        free = np.setdiff1d(np.arange(subsets.num_variables), self._covered)
        #: Variables in no subset.
        self.uncovered = torch.from_numpy(free)

    @property
    def _covered(self) -> np.ndarray:
        parts = [np.zeros(0, dtype=np.int64), *self.subsets.subsets]
        return np.unique(np.concatenate(parts)).astype(np.int64)

    def turned(self, tables: Tensor) -> Tensor:
        """Tables in which variables that differ from the references are ones, from those of the variables."""
        order = self.subsets.complemented_entries
        return tables if order is None else tables[..., order.to(tables.device)]

    def _turned_logits(self, logits: Tensor) -> Tensor:
        return logits if self.flipped is None else torch.where(self.flipped.to(logits.device), -logits, logits)

    def cells(self, on: Tensor) -> Tensor:
        """Entries of all tables that vectors meet, shape ``(..., number of tables)``.

        :param Tensor on: Booleans, shape ``(..., n)``.
        """
        turned = on if self.flipped is None else on ^ self.flipped.to(on.device)
        return self.forest.entries(turned) + self._starts.to(on.device)

    def __call__(self, logits: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sums over all vectors, shape ``(rows,)``, and posterior log-odds, shape ``(rows, n)``.

        :param Tensor logits: Log-odds, shape ``(rows, n)``; infinite ones are clamps without a weight of their own.
        :param Tensor tables: Log-potentials, turned, shape ``(rows, table_size)``.
        """
        given = self._turned_logits(logits)
        if self.is_flat:
            log_z, odds = self._solve_flat(given, tables)
        else:
            log_z, odds, _ = infer_counts(given, tables, self.forest)
        if self.flipped is not None:
            mine = self.flipped.to(logits.device) & logits.isfinite()
            log_z = log_z + logits.where(mine, 0.0).sum(-1)
        return log_z, self._turned_logits(odds)

    def _solve_flat(self, logits: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        device = logits.device
        free = logits[:, self.uncovered.to(device)]
        finite = free.masked_fill(free.isinf(), 0.0)
        both = logsumexp(torch.stack([torch.zeros_like(finite), finite], -1))
        log_z = both.masked_fill(free.isinf(), 0.0).sum(-1) + tables[:, self._constants.to(device)].sum(-1)
        odds = logits
        for group in self._groups:
            members = group.members.to(device)
            own = tables[:, group.entries.to(device)]
            solved = infer_counts(logits[:, members], own, group.forest)
            log_z = log_z + solved.log_partition.sum(-1)
            odds = odds.index_copy(-1, members.flatten(), solved.marginal_logits.flatten(-2))
        return log_z, odds

    def with_real_roots(self, tables: Tensor, probs: Tensor, value: Tensor) -> Tensor:
        """Tables that are nowhere larger and whose laws have real roots, of disjoint subsets.

        The counts that no gap separates from those of a value stay possible.

        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
        :param Tensor probs: Probabilities of 1; laws are lowered least near expected counts, shape ``(rows, n)``.
        :param Tensor value: Zeros and ones that the tables allow, shape ``(rows, n)``.
        """
        for group in self._groups:
            members, entries = group.members.to(tables.device), group.entries.to(tables.device)
            laws, counts = tables[:, entries], torch.arange(entries.shape[1], device=tables.device)
            gaps = (laws == -math.inf).cumsum(-1)
            reached = gaps.gather(-1, value[:, members].long().sum(-1, keepdim=True))
            distance = (counts - probs[:, members].sum(-1, keepdim=True)).abs()
            distance = distance.masked_fill((gaps != reached) | (laws == -math.inf), math.inf)
            lowered = real_rooted_below(laws, distance.argmin(-1))
            tables = tables.index_copy(1, entries.flatten(), lowered.flatten(1))
        return tables

    def are_all_one(self, tables: Tensor) -> Tensor:
        """Whether disjoint subsets have all variables, and each exactly a single 1; booleans of shape ``(rows,)``.

        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
        """
        possible = tables > -math.inf
        firsts = self._starts[torch.tensor(self.table_sizes) > 0].to(tables.device) + 1
        return possible[:, firsts].all(-1) & (possible.sum(-1) == len(self._starts)) & (len(self.uncovered) == 0)

    def counters(self, start: int) -> list[Counter]:
        """The counts of all tables, for a diagram.

        :param int start: Place of this family's first table among those of all families.
        """
        subsets, found = self.subsets, []
        flipped = np.zeros(subsets.num_variables, dtype=np.int64) if self.flipped is None else self.flipped.numpy()
        weighted = [(members, np.ones(len(members), dtype=np.int64)) for members in subsets.subsets]
        weighted += [(np.array(edge), np.array([2, 1])) for edge in subsets.edges]
        for i, j, _ in subsets.links:
            first, second = subsets.subsets[i], subsets.subsets[j]
            weights = np.repeat([len(second) + 1, 1], [len(first), len(second)])
            weighted.append((np.concatenate([first, second]), weights))
        for (members, weights), size, place in zip(weighted, self.table_sizes, self._starts.tolist(), strict=True):
            members = members.astype(np.int64)
            turn = flipped[members].astype(np.int64)
            found.append(Counter(members, weights * turn, weights * (1 - turn), start + place, size + 1))
        return found

    @property
    def order(self) -> list[int]:
        """The variables, one subset after the other."""
        joined = np.concatenate([*self.subsets.subsets, np.arange(self.subsets.num_variables)]).astype(np.int64)
        first = np.sort(np.unique(joined, return_index=True)[1])
        return [int(variable) for variable in joined[first]]


class SubsetFamilies:
    """Nested families of subsets of the same variables, which may cross each other.

    :param families: At least one family; all have the same number of variables.
    """

    def __init__(self, families: Sequence[NestedSubsets]) -> None:
        self.factors = tuple(CountFamily(family) for family in families)
        self.num_variables = families[0].num_variables
        #: Whether there are two families of ones in disjoint subsets, as of the rows and columns of a matrix.
        self.is_bipartite = len(families) == 2 and all(f.is_flat and f.flipped is None for f in self.factors)

    @property
    def table_sizes(self) -> list[int]:
        """Numbers of entries of each family's tables."""
        return [factor.table_size for factor in self.factors]

    @cached_property
    def counters(self) -> list[list[Counter]]:
        """The counts of all tables of each family, whose tables stand one after the other."""
        starts = np.cumsum([0, *self.table_sizes]).tolist()
        return [factor.counters(start) for factor, start in zip(self.factors, starts, strict=False)]

    @cached_property
    def plan(self) -> DiagramPlan:
        """Exact sums over all vectors."""
        counters = [counter for family in self.counters for counter in family]
        orders = [factor.order for factor in self.factors]
        if len(counters) * self.num_variables <= MOST_MEMBERSHIPS:
            orders.append(order_variables(counters, self.num_variables))
        return DiagramPlan(counters, orders, REMEDY)

    @cached_property
    def crossing(self) -> tuple[bool, ...]:
        """For each family, whether the others' counts are of variables that are independent under this family alone."""
        crossing = []
        for kept in range(len(self.factors)):
            part = np.arange(self.num_variables)
            for counter in self.counters[kept]:
                joined = np.isin(part, part[counter.members])
                part[joined] = part[joined].min(initial=self.num_variables)
            others = (c for f, family in enumerate(self.counters) if f != kept for c in family)
            crossing.append(all(len(np.unique(part[c.members])) == len(c.members) for c in others))
        return tuple(crossing)


@lru_cache(maxsize=16)
def matching_families(num_rows: int, num_columns: int) -> SubsetFamilies:
    """The rows and the columns of a matrix, whose entries are numbered row by row."""
    number = num_rows * num_columns
    rows = [range(start, start + num_columns) for start in range(0, number, num_columns)]
    columns = [range(start, number, num_columns) for start in range(num_columns)]
    return SubsetFamilies([NestedSubsets(rows, number), NestedSubsets(columns, number)])
