"""Bounds of models with pairwise potentials that counts and a forest cannot express."""

__all__ = ["EnergyBounds"]

import torch
from torch import Tensor

from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.ops.pair_bounds import PairBound, plan_pairs, tightest_bound
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.distributions.discrete_vector import result_dtype
from pyro_structured.foundation.ops.requirements import any_true, require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_size, checked_undirected_edges
from pyro_structured.foundation.structures.immutable import Immutable
from pyro_structured.foundation.structures.representation import Represented

# Probabilities that variables count, and expected numbers of pairs in the groups, without edges, of which both do.
Moments = tuple[Tensor, Tensor]
# Steps towards the next bound that are tried at once.
STEPS = (0.0, *(0.4**power for power in range(7)))
# Points from which the lower bound ascends.
NUM_STARTS = 4
# An optimisation ends when a step gains no row more than this share of its bound.
TOLERANCE = 1e-8


class EnergyBounds(Represented, Immutable):
    r"""Two :class:`RecursiveCardinality` between which a model lies that has any further pairwise potentials.

    .. math::
        p(y) \propto \exp\Big(s(y) + \sum_{(a, b)} \theta_{ab}(y_a, y_b)\Big), \qquad
        \ell(y) \le s(y) + \sum_{(a, b)} \theta_{ab}(y_a, y_b) \le u(y) \quad \text{for all } y \in \{0, 1\}^D,

    where s is the exponent of ``distribution``, with counts, edges and links of its own, and the pairs (a, b) are those
    of any graph. The exponents :math:`\ell` of :attr:`lower` and u of :attr:`upper` have the same subsets, edges and
    links as s, so that their log Z, which are exact, are bounds of the log Z that nobody can sum; bounds of
    probabilities follow.

    Of a pair's weight :math:`w = \theta(1, 1) - \theta(1, 0) - \theta(0, 1) + \theta(0, 0)` a part :math:`\lambda` is
    put on counts: the same for all pairs of a *group*, those of which a subset is the smallest that has both variables,
    as the number of pairs in a subset that are both 1 is c(c - 1)/2. The rest :math:`r = w - \lambda` is bounded by
    single variables,

    .. math::
        r\,(y_a + y_b - 1)\,\mu \;\le\; r\, y_a y_b \;\le\; r\,(\nu y_a + (1 - \nu) y_b) \qquad (r \ge 0,\
        \mu, \nu \in [0, 1]),

    the other way round for negative r, and nothing is lost on pairs that are edges of the subsets. All :math:`\lambda,
    \mu, \nu` are optimised: the upper bound by conditional gradients, to its global optimum in the limit; the lower
    one by ascent from the four best of some starts, to a local optimum.

    **Exact**: that these are bounds, whatever the number of steps. They meet where the model is representable: all
    pairs of a group have the same weight, or are edges, or one of two is clamped. They are narrow where weights vary
    little within groups, and wide where these are large and of both signs, or where few of the pairs of a large group
    have any. Pairs that are in no subset are bounded by single variables only.
    **Cost**: of a step, some ten passes of ``distribution``, and O(P log P) for the P pairs of groups in which any pair
    has a potential; before, O(D^2), also in memory.

    :param RecursiveCardinality distribution: The part of the model that is representable; for a graph alone, its
        tables are zeros, and edges are a spanning tree, with tables of zeros, too.
    :param pairs: Pairs of variables, shape ``(E, 2)``; pairs may be edges of the distribution, and repeated.
    :param Tensor pair_logits: Log-potentials of the pairs, a table of both states each, finite, shape ``(..., E, 2,
        2)``.
    :param int num_steps: Largest number of steps of each optimisation.
    :ivar RecursiveCardinality lower: The bound from below, of the model's batch shape.
    :ivar RecursiveCardinality upper: The bound from above.
    :raises ValueError: if a shape is wrong, a pair is a loop or out of range, a potential is not finite, or the
        distribution has no support.

    Bounds are differentiable along all parameters, with the optimised choices held fixed. ``lower`` and ``upper`` are
    in double precision, whatever the dtype of the model. With references, counts are of the variables that differ from
    them, and so are the products that are bounded.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Appendix,
    "Representational power". Frank, Wolfe (1956): An algorithm for quadratic programming. Naval Research Logistics
    Quarterly 3.

    Example::

        >>> from pyro_structured.distributions import KSubset
        >>> a, b = torch.triu_indices(6, 6, 1)
        >>> tables = torch.zeros(15, 2, 2)
        >>> tables[:, 1, 1] = -1 - 0.1 * torch.arange(15) / 15
        >>> bounds = EnergyBounds(KSubset(torch.zeros(6), 3), torch.stack([a, b], -1), tables)
        >>> torch.stack(bounds.log_partition_bounds()).round(decimals=3)
        tensor([-0.2280, -0.0540])

    Bounds of the probability that a variable is 1::

        >>> torch.stack(bounds.marginal_bounds())
        tensor([[0.5124, 0.4892, 0.4787, 0.4743, 0.4710, 0.4683],
                [0.5369, 0.5270, 0.5178, 0.5107, 0.5061, 0.5008]])
    """

    def __init__(
        self,
        distribution: RecursiveCardinality,
        pairs: Tensor,
        pair_logits: Tensor,
        num_steps: int = 20,
    ) -> None:
        if not isinstance(distribution, RecursiveCardinality):
            raise ValueError(f"distribution: expected a RecursiveCardinality, got {type(distribution).__name__}")
        subsets, device = distribution.subsets, distribution.logits.device
        self.pairs = checked_undirected_edges("pairs", pairs, subsets.num_variables)
        batch = joined_batch("pair_logits", pair_logits, (len(self.pairs), 2, 2), distribution.batch_shape)
        require(~pair_logits.isfinite(), "pair_logits: expected finite numbers, got others")
        check_size("num_steps", num_steps, 0)
        self.distribution, self.pair_logits, self.num_steps = distribution, pair_logits, num_steps
        self.batch_shape = batch
        # An empty support is an error of the distribution.
        _ = distribution.log_partition_function
        self._plan = plan_pairs(subsets.subsets, subsets.edges, self.pairs.numpy(), subsets.num_variables, device)
        self._read_subsets(device)
        self._base = RecursiveCardinality(
            distribution.logits.double(),
            distribution.count_logits.double(),
            subsets,
            None if distribution.edge_logits is None else distribution.edge_logits.double(),
            None if distribution.link_logits is None else distribution.link_logits.double(),
            validate_args=False,
        ).expand(batch)
        none, second, first, both = self._turned(pair_logits.double(), self.pairs).unbind(-1)
        unary = none.new_zeros((*none.shape[:-1], subsets.num_variables))
        unary = unary.index_add(-1, self.pairs[:, 0].to(device), first - none)
        self._unary = unary.index_add(-1, self.pairs[:, 1].to(device), second - none)
        self._constant = none.sum(-1) + distribution.log_weight.double()
        weights = none.new_zeros((*none.shape[:-1], self._plan.ends.shape[1] + len(subsets.edges)))
        self._weights = weights.index_add(-1, self._plan.places, both - first - second + none)
        with torch.no_grad():
            moments, steps = self._descend()
            best = self._ascend([*moments, self._moments(self._bound(1, self._average(moments, steps)))])
        # The same bounds once more, with derivatives.
        self.lower = self._bound(-1, self._tightest(-1, best))
        self.upper = self._bound(1, self._average(moments, steps))

    def _read_subsets(self, device: torch.device) -> None:
        """What the counts of subsets say of the variables and of the pairs that are counted."""
        subsets = self.distribution.subsets
        plain = [False] * subsets.num_variables, [False] * len(subsets.sizes)
        flipped, is_reversed = plain if subsets.complemented is None else subsets.complemented
        # Variables that count if they are 0.
        self._flipped = torch.tensor(flipped, device=device)
        counts = [range(size + 1)[:: -1 if turn else 1] for size, turn in zip(subsets.sizes, is_reversed, strict=True)]
        ones = torch.tensor([count for table in counts for count in table], dtype=torch.double, device=device)
        # Number of pairs, and subset, of each entry of the tables.
        self._pairs_in_count = ones * (ones - 1) / 2
        sizes = torch.tensor(subsets.sizes, dtype=torch.long, device=device)
        self._subset = torch.repeat_interleave(sizes + 1)
        self._edges = torch.tensor(subsets.edges, dtype=torch.long).reshape(-1, 2)

    def _turned(self, tables: Tensor, pairs: Tensor) -> Tensor:
        """Tables of pairs of variables, ``(..., E, 2, 2)``, from and to those of variables that count, ``(..., E,
        4)``.
        """
        turns = self._flipped[pairs.to(tables.device)].long() @ torch.tensor([2, 1], device=tables.device)
        order = torch.arange(4, device=tables.device) ^ turns.unsqueeze(-1)
        return tables.flatten(-2).gather(-1, order.expand(*tables.shape[:-2], 4))

    def _bound(self, sign: int, bound: PairBound) -> RecursiveCardinality:
        """The bound from above (1), or from below (-1), with minus a bound of minus the weights."""
        base = self._base
        of_subset = sign * (bound.levels @ self._plan.of_subsets.mT)
        edges = None
        if base.edge_logits is not None:
            kept = torch.nn.functional.pad((sign * bound.kept).unsqueeze(-1), (3, 0)).unflatten(-1, (2, 2))
            edges = base.edge_logits + self._turned(kept, self._edges).unflatten(-1, (2, 2))
        tables = base.count_logits + of_subset[..., self._subset] * self._pairs_in_count
        plain = RecursiveCardinality(base.logits, tables, base.subsets, edges, base.link_logits, validate_args=False)
        unary = self._unary + sign * bound.unary
        constant = torch.nn.functional.pad(
            (self._constant + sign * bound.constant).unsqueeze(-1), (0, unary.shape[-1] - 1)
        )
        off, on = unary.where(self._flipped, 0.0), unary.where(~self._flipped, 0.0)
        return plain.reweight(off + constant, on + constant)

    def _moments(self, bound: RecursiveCardinality) -> Moments:
        """Probabilities that variables count, and expected counts of pairs in the groups, without edges."""
        means = torch.where(self._flipped, -bound.marginal_logits, bound.marginal_logits).sigmoid()
        pairs = bound.count_marginals * self._pairs_in_count
        of_subset = pairs.new_zeros((*pairs.shape[:-1], len(bound.subsets.sizes))).index_add(-1, self._subset, pairs)
        counts = of_subset @ self._plan.of_subsets
        if bound.edge_logits is None:
            return means, counts
        on_edges = self._turned(bound.edge_marginals, self._edges)[..., 3]
        padded = torch.nn.functional.pad(counts, (0, 1)).index_add(-1, self._plan.edge_group, -on_edges)
        return means, padded[..., :-1]

    def _tightest(self, sign: int, moments: Moments) -> PairBound:
        return tightest_bound(self._plan, sign * self._weights, *moments)

    def _average(self, moments: list[Moments], steps: list[Tensor]) -> PairBound:
        """Upper bound that is tightest for the first moments, after steps towards those that are for the others."""
        bound = self._tightest(1, moments[0])
        for target, step in zip(moments[1:], steps, strict=True):
            bound = _towards(bound, self._tightest(1, target), step)
        return bound

    def _descend(self) -> tuple[list[Moments], list[Tensor]]:
        """Upper bound, in the form of :meth:`_average`, by conditional gradients; no step makes it worse."""
        lengths = self._constant.new_tensor(STEPS)
        moments, steps = [self._moments(self._base)], []
        bound = self._tightest(1, moments[0])
        for _ in range(self.num_steps):
            present = self._moments(self._bound(1, bound))
            target = self._tightest(1, present)
            tried = _towards(bound, target, lengths.reshape(-1, *(1,) * len(self.batch_shape)))
            values = self._bound(1, tried).unchecked_log_partition
            if not _gains(-values.amin(0), -values[0]):
                break
            moments.append(present)
            steps.append(lengths[values.argmin(0)])
            bound = _towards(bound, target, steps[-1])
        return moments, steps

    def _ascend(self, starts: list[Moments]) -> Moments:
        """Moments for which the lower bound is tightest: those of the present one, again and again.

        Log Z is convex, so that no step makes it worse.

        :param starts: Moments of which the best are starts; all zeros, and all ones, are two more.
        """
        zeros = [torch.zeros_like(moment) for moment in starts[0]]
        ones = [zeros[0] + 1, zeros[1] + self._plan.sizes]
        means, counts = map(torch.stack, zip(*starts, zeros, ones, strict=True))
        moments = self._best(NUM_STARTS, (means, counts))
        bound = self._bound(-1, self._tightest(-1, moments))
        for _ in range(self.num_steps):
            present = self._moments(bound)
            better = self._bound(-1, self._tightest(-1, present))
            if not _gains(better.unchecked_log_partition, bound.unchecked_log_partition):
                break
            bound, moments = better, present
        means, counts = self._best(1, moments)
        return means.squeeze(0), counts.squeeze(0)

    def _best(self, number: int, moments: Moments) -> Moments:
        """Entries of the first axis, in each element of the batch those whose lower bounds are largest."""
        values = self._bound(-1, self._tightest(-1, moments)).unchecked_log_partition
        best = values.topk(min(number, len(values)), 0).indices.unsqueeze(-1)
        means, counts = (moment.take_along_dim(best, 0) for moment in moments)
        return means, counts

    def log_partition_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bound of log Z, both of shape ``batch_shape``."""
        low, high = self._log_z_bounds
        return self._cast(low), self._cast(high)

    @property
    def _log_z_bounds(self) -> tuple[Tensor, Tensor]:
        low, high = self.lower.log_partition_function, self.upper.log_partition_function
        # Where they meet, rounding must not change their order.
        return torch.minimum(low, high), high

    def unnormalized_log_prob(self, value: Tensor) -> Tensor:
        """Exponent of the model at a value, -inf where it is impossible.

        :param Tensor value: Zeros and ones, shape ``(..., D)``; the result has the shape of ``(...)`` broadcast with
            ``batch_shape``.
        """
        return self._cast(self._score(value))

    def _score(self, value: Tensor) -> Tensor:
        score = self._base.unnormalized_log_prob(value) + self.distribution.log_weight.double()
        state = (value[..., self.pairs.to(value.device)] == 1).long() @ torch.tensor([2, 1], device=value.device)
        tables = self.pair_logits.double().flatten(-2)
        batch = broadcast_shapes(state.shape, tables.shape[:-1])
        chosen = tables.expand(*batch, 4).gather(-1, state.expand(batch).unsqueeze(-1))
        return score + chosen.squeeze(-1).sum(-1)

    def log_prob_bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bound of the log-probability of a value; arguments and shape as for
        :meth:`unnormalized_log_prob`.
        """
        score, (low, high) = self._score(value), self._log_z_bounds
        return self._cast(score - high), self._cast((score - low).clamp(max=0.0))

    def condition(self, value: Tensor, observed: Tensor) -> "EnergyBounds":
        """Bounds of the model in which some variables are fixed, optimised for it.

        :param Tensor value: Zeros and ones where ``observed``, anything elsewhere; shape broadcasts to ``(..., D)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: Its log Z keeps the weight of the evidence. ``lower.condition`` and ``upper.condition`` are wider, but
            cost no steps.
        """
        given = self.distribution.condition(value, observed)
        return EnergyBounds(given, self.pairs, self.pair_logits, self.num_steps)

    def marginal_log_prob_bounds(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the log-probability of the observed entries, all others summed out; arguments as for
        :meth:`condition`, whose bounds have those of conditional probabilities.

        :return: Two tensors of the shape of ``batch_shape`` broadcast with the leading axes of the arguments, -inf for
            impossible evidence.
        """
        low, high = self._log_z_given(value, observed)
        least, most = self._log_z_bounds
        return self._cast(low - most), self._cast((high - least).clamp(max=0.0))

    def marginal_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the probabilities that a variable is 1, both of shape ``batch_shape + (D,)``.

        Bounds of log Z are optimised for both states of each variable, at 2 D times the cost; they are narrower than
        those of :meth:`marginal_log_prob_bounds`.
        """
        size = self.distribution.event_shape[0]
        places = (1,) * len(self.batch_shape)
        observed = torch.eye(size, dtype=torch.bool, device=self._flipped.device).reshape(size, *places, size)
        value = torch.arange(2, device=self._flipped.device).reshape(2, 1, *places, 1)
        low, high = self._log_z_given(value, observed)
        least, most = (torch.sigmoid(on - off).movedim(0, -1) for on, off in ((low[1], high[0]), (high[1], low[0])))
        return self._cast(least), self._cast(most)

    def _log_z_given(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        # What the distribution excludes is excluded by the model, and has no bounds of its own.
        possible = self.distribution.marginal_log_prob(value, observed) > -torch.inf
        given = self.condition(value, observed & possible.unsqueeze(-1))
        low, high = (bound.masked_fill(~possible, -torch.inf) for bound in given._log_z_bounds)
        return low, high

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(result_dtype(self.distribution.logits, self.pair_logits))


def _towards(start: PairBound, end: PairBound, step: Tensor) -> PairBound:
    """Bounds on the way from one to another, at shares of it that broadcast with the batch."""
    steps = (step.unsqueeze(-1), step, step.unsqueeze(-1), step.unsqueeze(-1))
    return PairBound(*(old + part * (new - old) for old, new, part in zip(start, end, steps, strict=True)))


def _gains(new: Tensor, old: Tensor) -> bool:
    return any_true(new - old > TOLERANCE * (1 + old.abs()))
