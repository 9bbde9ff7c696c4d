"""Junction trees with potentials on the numbers of variables that are in certain states."""

__all__ = ["CountedJunctionTree", "counted_plan"]

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.kl import register_kl
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.argument_checks import check_vector, joined_batch
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, result_dtype
from pyro_structured.foundation.ops.draws import KeptDraws
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.log_space import centre_tables
from pyro_structured.foundation.ops.requirements import any_true, require, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes, narrow_repeated
from pyro_structured.foundation.structures.argument_checks import checked_sequence
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.ops.clique_tables import spread_state_weights, sum_table, total_score
from pyro_structured.junction_trees.ops.counted_passes import (
    CountedBeliefs,
    CountedDraws,
    infer_counted,
    log_partition_of_counted,
    maximize_counted,
)
from pyro_structured.junction_trees.ops.counted_plan import CountedPlan
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree, check_tree

Pairs = tuple[tuple[int, int], ...]
EMPTY_SUPPORT = (
    "count_logits: expected at least one value of positive probability in every batch element, but the support is empty"
)

OTHER_STRUCTURE = (
    "kl_divergence: expected two distributions with the same tree and the same counts, or none; others can be "
    "estimated from samples of p"
)


class CountedJunctionTree(CategoricalVector):
    r"""Discrete variables of a junction tree, with preferences for the numbers of variables in certain states.

    .. math::
        p(x) = \frac{1}{Z} \exp\Bigl(\sum_C \theta_C(x_C) + \sum_{s \in \mathcal{S}} f_s\bigl(\#\{(d, k) \in s : x_d =
        k\}\bigr)\Bigr).

    Values have shape ``(..., n)``, long integers, as those of :class:`JunctionTree`. ``counted`` says what is counted:
    a list of pairs ``(variable, state)``, or several such lists, with a table :math:`f_s` each, of as many numbers as
    the list has variables, and one more. A variable may be counted in several of its states; it adds at most one.

    Several lists are a *compatible nested family*: of any two, their variables are disjoint, or those of one contain
    those of the other; a variable counts in the same states in all lists that have it; and the variables of one clique
    lie on all edges (pairs of variables in one clique) that cross the boundary of a list's variables. The variables at
    or below a clique (:meth:`~pyro_structured.structures.CliqueTree.subtrees`) are such a family, and so is a list of
    all variables.

    **Exact**: every query, in float64; probabilities below 1e-300 count as zero in marginals. **Cost**: messages are
    functions of a separator's states and of a count; with r states and cliques of w + 1 variables, at most
    :math:`O(r^{w+1} D^2)` for D counted variables, less where counts are truncated by -inf at their upper end. Without
    cliques of more than two binary variables, :class:`RecursiveCardinality` with edges is faster, and has more queries.

    :param Tensor clique_logits: Log-weights of the joint states of all cliques, shape ``(..., tree.table_size)``, as
        for :class:`JunctionTree`; less than +inf.
    :param CliqueTree tree: The cliques.
    :param Tensor count_logits: Tables of all lists, one after the other, shape ``(..., sum of the lists' numbers of
        variables, and one more each)``; less than +inf; -inf where a count is impossible.
    :param counted: Pairs ``(variable, state)``, or a list of lists of pairs.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf; if lists cross, count different states of a
        variable, or are not compatible with the cliques; the message names what conflicts. Where no value has a
        positive probability, the first query raises.
    :raises NotImplementedError: at the first query, if sums have more terms than the setting
        ``pyro_structured_max_table_entries``.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Section 5.4,
    and the last section of the appendix.

    Example::

        >>> tree = CliqueTree.chain(3, 2)
        >>> alike = torch.eye(2).flatten().repeat(2)
        >>> two = torch.tensor([-math.inf, -math.inf, 0.0, -math.inf])  # exactly two of the three are 1
        >>> d = CountedJunctionTree(alike, tree, two, [(0, 1), (1, 1), (2, 1)])
        >>> d.marginals[:, 1]
        tensor([0.5777, 0.8446, 0.5777])
    """

    arg_constraints = {
        "clique_logits": constraints.independent(constraints.less_than(math.inf), 1),
        "count_logits": constraints.independent(constraints.less_than(math.inf), 1),
    }
    _derived = ("_leveled", "_tables", "_beliefs", "_draws")

    def __init__(
        self,
        clique_logits: Tensor,
        tree: CliqueTree,
        count_logits: Tensor,
        counted: Iterable[tuple[int, int]] | Iterable[Iterable[tuple[int, int]]],
        validate_args: bool | None = None,
    ) -> None:
        check_vector("clique_logits", clique_logits)
        check_tree(tree)
        check_vector("count_logits", count_logits, smallest=0)
        if clique_logits.shape[-1] != tree.table_size:
            raise ValueError(
                f"clique_logits: expected a last axis of {tree.table_size} numbers, one for each joint state of the "
                f"cliques, got shape {tuple(clique_logits.shape)}"
            )
        self.tree, (self.counted, self._plan) = tree, counted_plan(tree, counted)
        if count_logits.shape[-1] != self._plan.count_size:
            raise ValueError(
                f"count_logits: expected a last axis of {self._plan.count_size} numbers, one for each count of each "
                f"list in counted, got shape {tuple(count_logits.shape)}"
            )
        self._evidence = no_evidence(tree.num_variables, clique_logits.device)
        self._empty = EMPTY_SUPPORT
        batch = joined_batch("count_logits", count_logits, [self._plan.count_size], clique_logits.shape[:-1])
        self._assign({"clique_logits": clique_logits, "count_logits": count_logits}, batch)
        super().__init__(batch, torch.Size([tree.num_variables]), validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        clique_logits: torch.Size, tree: CliqueTree, count_logits: torch.Size, counted: Any = None
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the tree itself."""
        batch = broadcast_shapes(clique_logits[:-1], count_logits[:-1])
        return torch.Size(batch), torch.Size([tree.num_variables])

    def counts(self, value: Tensor) -> Tensor:
        """Number of each list's variables that are in a counted state, integers of shape ``(..., number of lists)``.

        :param Tensor value: Values, shape ``(..., n)``.
        :raises ValueError: if there are others than states of the variables.
        """
        number = self.tree.num_variables
        if not isinstance(value, Tensor) or value.shape[-1:] != (number,):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"value: expected a tensor of shape (..., {number}), got {got}")
        sizes = torch.tensor(self.tree.cardinalities, device=value.device)
        wrong = ~((value >= 0) & (value < sizes) & (value == value.long()))
        require(wrong, f"value: expected integers from 0 to below {self.tree.cardinalities}, got others")
        return self._plan.counts(value.long())

    @lazy_property
    def _leveled(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tables of cliques and of counts less their largest entries, next to which digits could be lost, and the sum
        of these.
        """
        tables, peaks = centre_tables(
            narrow_repeated(self._parameter("clique_logits")), [size - 1 for size in self.tree.table_sizes]
        )
        numbers, levels = centre_tables(
            narrow_repeated(self._parameter("count_logits")), [size - 1 for size in self._plan.count_sizes]
        )
        return tables, numbers, peaks.sum(-1) + levels.sum(-1)

    @lazy_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """Tables of cliques, with the evidence, and of counts."""
        tables, numbers, _ = self._leveled
        value, observed, consistent = self._evidence
        if not any_true(observed) and not any_true(~consistent):
            return tables, numbers
        states = torch.arange(max(self.tree.cardinalities), device=value.device)
        excluded = observed.unsqueeze(-1) & (value.unsqueeze(-1) != states) | ~consistent[..., None, None]
        excluding = torch.zeros(excluded.shape, dtype=tables.dtype, device=value.device)
        excluding = excluding.masked_fill(excluded, -math.inf)
        return tables + spread_state_weights(excluding, self.tree.state_places), numbers

    @property
    def _arguments(self) -> tuple[Tensor, Tensor]:
        """These tables as matrices, with a single row where all rows are the same."""
        tables, numbers = self._tables
        return self._rows(tables), self._rows(numbers)

    @lazy_property
    def _beliefs(self) -> CountedBeliefs:
        return CountedBeliefs(*map(self._unflatten, infer_counted(*self._arguments, self._plan)))

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.tree.cardinalities

    @property
    def _constant(self) -> Tensor:
        return self._leveled[2]

    @property
    def _log_z(self) -> Tensor:
        if "_beliefs" in self.__dict__:
            return self._beliefs.log_partition
        return self._unflatten(log_partition_of_counted(*self._arguments, self._plan))

    @property
    def _supported_beliefs(self) -> CountedBeliefs:
        require_support(self._beliefs.log_partition, self._empty)
        return self._beliefs

    def _score(self, value: Tensor) -> Tensor:
        states, agrees = self._read(value)
        tables, numbers, _ = self._leveled
        weights = self._plan.count_entries(states)
        batch = broadcast_shapes(weights.shape[:-1], numbers.shape[:-1])
        chosen = numbers.expand(batch + numbers.shape[-1:]).gather(-1, weights.expand(batch + weights.shape[-1:]))
        score = total_score(self.tree.plan, tables, states) + chosen.sum(-1)
        return score.masked_fill(~agrees, -math.inf)

    @lazy_property
    def _draws(self) -> KeptDraws:
        with torch.no_grad():
            return KeptDraws(partial(CountedDraws, plan=self._plan), *self._arguments)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + (n,)``; further ones repeat no upward pass."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            if not self._draws.possible:
                require_support(self._log_z, self._empty)
            # Samples of equal rows are further samples of one row.
            copies = self.batch_shape.numel() if self._draws.num_rows == 1 else 1
            drawn = self._draws(shape.numel() * copies)
        return drawn.reshape(shape + self.batch_shape + self.event_shape)

    def _multiplied(self, log_weights: Tensor) -> "CountedJunctionTree":
        numbers = spread_state_weights(log_weights, self.tree.state_places)
        batch = broadcast_shapes(log_weights.shape[:-2], self.batch_shape)
        changed = {"clique_logits": self._parameter("clique_logits") + numbers}
        return self._copy(type(self).__new__(type(self)), self._evidence, batch, IMPOSSIBLE_EVIDENCE, changed)

    @property
    def _single_marginals(self) -> Tensor:
        probs = self._supported_beliefs.clique_marginals
        most, places = max(self.tree.cardinalities), self.tree.state_places.to(probs.device)
        total = probs.new_zeros(probs.shape[:-1] + (self.tree.num_variables * most + 1,))
        for place in places.unbind(-1):
            total = total.index_add(-1, place, probs)
        own = [d * most + state for d, size in enumerate(self.tree.cardinalities) for state in range(size)]
        return total[..., own]

    @property
    def clique_marginals(self) -> Tensor:
        """Probabilities of the joint states of all cliques, packed, shape ``batch_shape + (table_size,)``."""
        return self._cast(self._supported_beliefs.clique_marginals)

    @property
    def count_marginals(self) -> Tensor:
        """Probabilities of the counts of all lists, packed as ``count_logits``, shape ``batch_shape + (...,)``."""
        return self._cast(self._supported_beliefs.count_marginals)

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        owner = self.tree.find(wanted)
        if owner is None:
            return self._enumerated_marginals(wanted)
        table = self.tree.split(self._supported_beliefs.clique_marginals)[owner]
        return sum_table(table, self.tree.cliques[owner], wanted)

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (n,)``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
        return self._unflatten(maximize_counted(*self._arguments, self._plan))

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z, probs, numbers = self._supported_beliefs
        tables, weights, _ = self._leveled
        energy = (probs * tables.masked_fill(probs == 0, 0.0)).sum(-1)
        return self._cast(log_z - energy - (numbers * weights.masked_fill(numbers == 0, 0.0)).sum(-1))


def _divergence(p: CountedJunctionTree, q: CountedJunctionTree) -> Tensor:
    if p.tree != q.tree or p.counted != q.counted:
        raise NotImplementedError(OTHER_STRUCTURE)
    log_z, *beliefs = p._supported_beliefs
    divergence = require_support(q._log_z, q._empty) - log_z
    missing = torch.zeros_like(divergence, dtype=torch.bool)
    for probs, own, other in zip(beliefs, p._tables, q._tables, strict=True):
        # Both exponents are subtracted before they are summed.
        change = own.masked_fill(probs == 0, 0.0) - other.masked_fill(other == -math.inf, 0.0)
        divergence = divergence + (probs * change.masked_fill(probs == 0, 0.0)).sum(-1)
        missing = missing | ((probs > 0) & (other == -math.inf)).any(-1)
    dtype = result_dtype(p.clique_logits, p.count_logits, q.clique_logits, q.count_logits)
    return divergence.masked_fill(missing, math.inf).to(dtype)


def _with_counts(plain: JunctionTree, other: CountedJunctionTree) -> CountedJunctionTree:
    """The same distribution with the counts of another one, whose tables are 0."""
    if plain.tree != other.tree:
        raise NotImplementedError(OTHER_STRUCTURE)
    zeros = plain.clique_logits.new_zeros(other.count_logits.shape[-1:])
    counted = CountedJunctionTree(plain.clique_logits, plain.tree, zeros, other.counted, validate_args=False)
    counted._evidence, counted._empty = plain._evidence, plain._empty
    return counted


register_kl(CountedJunctionTree, CountedJunctionTree)(_divergence)
register_kl(JunctionTree, CountedJunctionTree)(lambda p, q: _divergence(_with_counts(p, q), q))
register_kl(CountedJunctionTree, JunctionTree)(lambda p, q: _divergence(p, _with_counts(q, p)))


def counted_plan(tree: CliqueTree, counted: Any) -> tuple[tuple[Pairs, ...], CountedPlan]:
    """Lists of counted pairs, in the order of the variables, and the plan of the passes, after checks."""
    family = _checked_family(counted)
    return family, _plan_of(tree, family)


def _checked_family(counted: Any) -> tuple[Pairs, ...]:
    """Lists of pairs, in the order of the variables, from one list or several."""
    given = checked_sequence("counted", counted)
    lists = [given] if given and all(_is_pair(entry) for entry in given) else given
    family = []
    for pairs in lists:
        pairs = list(pairs) if isinstance(pairs, Iterable) and not isinstance(pairs, (str, bytes)) else [pairs]
        wrong = [pair for pair in pairs if not _is_pair(pair)]
        if wrong:
            raise ValueError(
                f"counted: expected pairs (variable, state) of integers, or lists of them, got {wrong[0]!r}"
            )
        family.append(tuple(sorted((int(d), int(state)) for d, state in pairs)))
    return tuple(family)


def _is_pair(entry: Any) -> bool:
    try:
        d, state = entry
        return bool(int(d) == d and int(state) == state)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


@lru_cache(maxsize=16)
def _plan_of(tree: CliqueTree, family: tuple[Pairs, ...]) -> CountedPlan:
    marks = [[False] * size for size in tree.cardinalities]
    owner: dict[int, int] = {}
    subsets = []
    for index, pairs in enumerate(family):
        for d, state in pairs:
            if not 0 <= d < tree.num_variables or not 0 <= state < tree.cardinalities[d]:
                raise ValueError(
                    f"counted: expected variables in range({tree.num_variables}) and their states, below "
                    f"{tree.cardinalities}, got {(d, state)} in counted[{index}]"
                )
        if len(set(pairs)) < len(pairs):
            raise ValueError(f"counted: expected different pairs, got some twice in counted[{index}], {list(pairs)}")
        subsets.append(frozenset(d for d, _ in pairs))
        for d in subsets[-1]:
            states = {state for other, state in pairs if other == d}
            first = owner.setdefault(d, index)
            known = {state for other, state in family[first] if other == d}
            if states != known:
                raise ValueError(
                    f"counted: expected the same states of a variable in all lists, got {sorted(known)} of variable "
                    f"{d} in counted[{first}] and {sorted(states)} in counted[{index}]"
                )
            for state in states:
                marks[d][state] = True
    _check_nested(subsets)
    return CountedPlan(tree.cliques, tree.cardinalities, subsets, [tuple(row) for row in marks])


def _check_nested(subsets: list[frozenset[int]]) -> None:
    owner: dict[int, int] = {}
    for index in sorted(range(len(subsets)), key=lambda i: len(subsets[i])):
        for other in sorted({owner[d] for d in subsets[index] if d in owner}):
            if not subsets[other] <= subsets[index]:
                first, second = sorted((other, index))
                raise ValueError(
                    f"counted: expected nested lists, but counted[{first}] and counted[{second}] cross: variable "
                    f"{min(subsets[first] & subsets[second])} is in both, {min(subsets[first] - subsets[second])} only "
                    f"in the first, {min(subsets[second] - subsets[first])} only in the second"
                )
        owner.update(dict.fromkeys(subsets[index], index))
