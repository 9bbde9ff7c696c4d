"""Base class of binary variables with potentials on the counts of subsets that cross each other."""

__all__ = ["OverlappingCounts"]

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.counts.distributions.marginal_approximation import ApproximateMarginals, MarginalApproximation
from pyro_structured.counts.ops.count_bounds import bethe_bound, holder_bound, mean_field, mean_field_choices
from pyro_structured.counts.ops.count_diagram import DiagramChoices
from pyro_structured.counts.ops.factor_messages import FactorGraph, Schedule
from pyro_structured.counts.solvers.count_optimum import (
    CountOptimum,
    conflicting_counts,
    is_flow,
    maximize_by_constraints,
    maximize_by_flow,
)
from pyro_structured.counts.structures.subset_families import SubsetFamilies
from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, DiscreteVector
from pyro_structured.foundation.ops.draws import KeptDraws
from pyro_structured.foundation.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.foundation.ops.evidence import log_odds, reweight
from pyro_structured.foundation.ops.log_space import centre_tables, safe_log
from pyro_structured.foundation.ops.marginal_inference import infer_marginals
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.requirements import any_true, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_rows, broadcast_shapes, narrow_repeated
from pyro_structured.foundation.structures.argument_checks import check_positive

# Bethe's log Z is a bound at a fixed point only; others hold for any split, and any mean field.
TO_FIXED_POINT = Schedule(tolerance=1e-10, max_iterations=200)
TO_GOOD_SPLIT = Schedule(tolerance=1e-5, max_iterations=50)
# Largest time of a search for a value of bounds, and for a possible value where messages have not converged.
SEARCH_SECONDS = 10.0

Variables = TypeVar("Variables", bound="OverlappingCounts")


class OverlappingCounts(DiscreteVector):
    """Queries by sums over the states of counts under way, and approximations by messages between the families.

    Variables are numbered in the order of the flattened event.
    """

    _derived = ("_centred", "_beliefs", "_log_z", "_draws", "_log_z_bounds")
    _num_states = (2,)
    # Log-odds with the evidence, of the shape of the event, and the evidence's log weight, shape (...).
    _evidence: tuple[Tensor, Tensor]

    @property
    @abstractmethod
    def _families(self) -> SubsetFamilies:
        """The families."""

    @property
    @abstractmethod
    def _names(self) -> Sequence[Sequence[str]]:
        """Names of the counts of each family, and of the family last, for errors."""

    @property
    @abstractmethod
    def _given_tables(self) -> Sequence[Tensor]:
        """Log-potentials of each family, turned, shape ``(..., table_size)``."""

    @lazy_property
    def _centred(self) -> tuple[tuple[Tensor, ...], Tensor]:
        """Tables of each family less their largest entries, and the sum of these, shape ``(...)``."""
        tables, constant = [], torch.zeros((), dtype=torch.double, device=self._evidence[0].device)
        for factor, given in zip(self._families.factors, self._given_tables, strict=True):
            table, levels = centre_tables(narrow_repeated(given), factor.table_sizes)
            tables.append(table)
            constant = constant + levels.sum(-1)
        return tuple(tables), constant

    @property
    def _joint_evidence(self) -> tuple[Tensor, Tensor]:
        """Log-odds with the evidence, in double precision, shape ``(..., D)``, and its log weight, shape ``(...)``."""
        logits, log_weight = self._evidence
        return narrow_repeated(logits.flatten(-len(self.event_shape))).double(), log_weight

    @property
    def _weights(self) -> Tensor:
        """Log-weights of both values of each variable, less the larger one, shape ``(..., 2 D)``."""
        logits, _ = self._joint_evidence
        clamped = logits.isinf()
        finite = logits.masked_fill(clamped, 0.0)
        larger = torch.relu(finite)
        off = (-larger).masked_fill(logits == math.inf, -math.inf)
        on = (finite - larger).masked_fill(logits == -math.inf, -math.inf)
        return torch.stack([off, on], -1).flatten(-2)

    @property
    def _constant(self) -> Tensor:
        logits, log_weight = self._joint_evidence
        larger = torch.relu(logits.masked_fill(logits.isinf(), 0.0)).sum(-1)
        return larger + self._centred[1] + log_weight.masked_fill(log_weight == -math.inf, 0.0)

    @property
    def _arguments(self) -> tuple[Tensor, Tensor]:
        """Log-weights and tables for the diagram, in rows."""
        return self._rows(self._weights), self._rows(torch.cat(broadcast_rows(*self._centred[0]), -1))

    @lazy_property
    def _beliefs(self) -> tuple[Tensor, Tensor, Tensor]:
        log_z, of_values, of_tables = infer_marginals(self._families.plan, *self._arguments)
        return self._unflatten(log_z), self._unflatten(of_values), self._unflatten(of_tables)

    @lazy_property
    def _log_z(self) -> Tensor:
        if "_beliefs" in self.__dict__:
            log_z = self._beliefs[0]
        else:
            log_z = self._unflatten(infer_marginals(self._families.plan, *self._arguments, marginals=False)[0])
        return self._possible(log_z)

    def _possible(self, log_z: Tensor) -> Tensor:
        """The tensor, -inf where the evidence contradicts itself."""
        return log_z.masked_fill((self._joint_evidence[1] == -math.inf).expand(self.batch_shape), -math.inf)

    def _score(self, value: Tensor) -> Tensor:
        check_entries(self.batch_shape + self.event_shape, len(self.event_shape), value=value)
        flat = value.flatten(-len(self.event_shape))
        binary = ((flat == 0) | (flat == 1)).all(-1)
        on = flat == 1
        weights = self._weights.unflatten(-1, (-1, 2))
        score = torch.where(on, weights[..., 1], weights[..., 0])
        impossible = (score == -math.inf).any(-1) | ~binary
        total = score.masked_fill(score == -math.inf, 0.0).sum(-1)
        for factor, tables in zip(self._families.factors, self._centred[0], strict=True):
            cells = factor.cells(on)
            batch = broadcast_shapes(cells.shape[:-1], tables.shape[:-1])
            entries = tables.expand(batch + tables.shape[-1:]).gather(-1, cells.expand(batch + cells.shape[-1:]))
            impossible = impossible | (entries == -math.inf).any(-1)
            total = total + entries.masked_fill(entries == -math.inf, 0.0).sum(-1)
        impossible = impossible | (self._joint_evidence[1] == -math.inf)
        total = total.expand(broadcast_shapes(total.shape, impossible.shape, self.batch_shape))
        return total.masked_fill(impossible, -math.inf)

    def has_states(self, limit: int) -> bool:
        """Whether exact sums need at most so many states of counts that are under way.

        :param int limit: Number of states.
        """
        return self._families.plan.has_states(*self._arguments, limit)

    def log_prob(self, value: Tensor) -> Tensor:
        """Exact log-probability; -inf for impossible values, also for those that are not zeros and ones.

        :raises NotImplementedError: if there are too many states; the message names what has no limit.
        """
        log_prob = super().log_prob(value)
        # Rounding must not lead above zero; derivatives stay.
        return log_prob - log_prob.detach().clamp(min=0.0)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self.event_shape.numel())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + event_shape``."""
        like = self._cast(self._evidence[0].new_zeros(()))
        values = enumerate_values(self.event_shape.numel(), 2, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)

    @property
    def _supported_beliefs(self) -> tuple[Tensor, Tensor, Tensor]:
        beliefs = self._beliefs
        _ = self._supported_log_z
        return beliefs

    @property
    def _single_marginals(self) -> tuple[Tensor, Tensor]:
        """Probabilities of 0, and of 1, shape ``batch_shape + event_shape``."""
        pairs = self._supported_beliefs[1].unflatten(-1, (-1, 2))
        off, on = (pairs[..., value].unflatten(-1, self.event_shape) for value in (0, 1))
        return off, on

    @property
    def marginals(self) -> Tensor:
        """Exact probabilities of 1, shape ``batch_shape + event_shape``."""
        return self._cast(self._single_marginals[1])

    @property
    def marginal_logits(self) -> Tensor:
        """Exact log-odds of the single variables, shape ``batch_shape + event_shape``."""
        off, on = self._single_marginals
        return self._cast(log_odds(safe_log(off), safe_log(on)))

    @property
    def mean(self) -> Tensor:
        """Equals :attr:`marginals`."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Exact variances of the single variables, shape ``batch_shape + event_shape``."""
        off, on = self._single_marginals
        return self._cast(off * on)

    def _table_marginals(self, factor: int) -> Tensor:
        """Probabilities of the entries of a family's tables, turned, shape ``batch_shape + (table_size,)``."""
        tables: Sequence[Tensor] = self._supported_beliefs[2].split(self._families.table_sizes, -1)
        return tables[factor]

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        _, of_values, of_tables = self._supported_beliefs
        energy = self._log_z
        for probs, terms in ((of_values, self._weights), (of_tables, torch.cat(broadcast_rows(*self._centred[0]), -1))):
            energy = energy - (probs * terms.masked_fill(terms == -math.inf, 0.0)).sum(-1)
        return self._cast(energy)

    @lazy_property
    def _draws(self) -> KeptDraws:
        with torch.no_grad():
            return KeptDraws(self._choices, *self._arguments)

    def _choices(self, weights: Tensor, tables: Tensor, largest: bool = False) -> DiagramChoices:
        (rows,) = broadcast_shapes(weights.shape[:1], tables.shape[:1])
        weights = weights.unflatten(-1, (-1, 2)).expand(rows, -1, 2)
        return DiagramChoices(self._families.plan, weights, tables.expand(rows, -1), largest)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + event_shape``; further ones repeat no sums.

        :raises NotImplementedError: if there are too many states; the message names what has no limit.
        """
        shape = torch.Size(sample_shape)
        full = shape + self.batch_shape + self.event_shape
        with torch.no_grad():
            if not self.batch_shape.numel():
                return self._cast(self._evidence[0].new_zeros(full))
            if not self._draws.possible or any_true(self._joint_evidence[1] == -math.inf):
                self._supported(self._log_z)
            # Samples of equal rows are further samples of one row.
            copies = self.batch_shape.numel() if self._draws.num_rows == 1 else 1
            drawn = self._draws(shape.numel() * copies)
        return self._cast(drawn.reshape(full))

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``, as :meth:`map` finds it.

        :raises NotImplementedError: if there are too many states, and a minute's search finds no proof.
        """
        value, gap = self.map()
        if any_true(gap > 0):
            raise NotImplementedError(
                "mode: no vector was proved to be most probable in 60 s; map(max_seconds) returns the best one that "
                "was found, and a bound"
            )
        return value

    def map(self, max_seconds: float = 60.0) -> tuple[Tensor, Tensor]:
        """A most probable value, and by how much others may be better, at any size.

        A flow of least cost, where there are up to two families whose tables are concave, without gaps, up to rounding
        of log-weights to more than 40 bits; by the sums' states, where there are not too many; otherwise by constraint
        programming, which searches.

        :param float max_seconds: Largest time of a search, for each element of the batch.
        :return: The value, shape ``batch_shape + event_shape``, and the gap of log-weights, 0 where it is proved to be
            most probable, shape ``batch_shape``.
        :raises NotImplementedError: if a search found no possible value in time.
        """
        check_positive("max_seconds", max_seconds)
        self._refuse_transforms("map")
        weights, tables = (tensor.detach() for tensor in self._arguments)
        (rows,) = broadcast_shapes(weights.shape[:1], tables.shape[:1])
        weights, tables = weights.expand(rows, -1), tables.expand(rows, -1)
        found = [self._best(*row, max_seconds) for row in zip(weights, tables, strict=True)]
        possible = torch.tensor([best.is_possible for best in found], dtype=torch.bool, device=weights.device)
        self._supported(self._possible(self._unflatten(weights.new_zeros(rows).masked_fill(~possible, -math.inf))))
        if any(best.value is None for best in found):
            raise NotImplementedError(f"map: no possible value was found in {max_seconds:g} s; try max_seconds=")
        values = torch.zeros_like(weights[:, ::2])
        for row, best in zip(values, found, strict=True):
            row.copy_(torch.from_numpy(best.value))
        gap = self._unflatten(weights.new_tensor([best.gap for best in found]))
        return self._cast(self._unflatten(values).unflatten(-1, self.event_shape)), self._cast(gap)

    def _best(self, weights: Tensor, tables: Tensor, max_seconds: float) -> CountOptimum:
        """A best vector of one row."""
        arguments = weights.unflatten(-1, (-1, 2)).cpu().numpy(), tables.cpu().numpy()
        families = self._families.counters
        if is_flow(families, arguments[1]):
            return maximize_by_flow(families, *arguments)
        try:
            with torch.no_grad():
                choices = self._choices(weights.unsqueeze(0), tables.unsqueeze(0), largest=True)
        except NotImplementedError:
            return maximize_by_constraints(families, *arguments, max_seconds)
        if not choices.possible:
            return CountOptimum(None, math.inf, False)
        return CountOptimum(choices(1)[0, 0].bool().cpu().numpy(), 0.0, True)

    @property
    def _supported_log_z(self) -> Tensor:
        return self._supported(self._log_z)

    def _supported(self, log_z: Tensor) -> Tensor:
        """The tensor, or a ValueError that says what conflicts where it is -inf."""
        impossible = log_z.detach() == -math.inf
        if any_true(impossible) and not is_transformed():
            row = int(impossible.flatten().long().argmax())
            weights, tables = (t[min(row, len(t) - 1)].detach().cpu() for t in self._arguments)
            allowed = (weights.unflatten(-1, (-1, 2)) > -math.inf).numpy()
            reason = conflicting_counts(self._families.counters, self._names, allowed, tables.numpy())
            return require_support(log_z, self._empty + (f": {reason}" if reason else ""))
        return require_support(log_z, self._empty)

    @lazy_property
    def _log_z_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of log Z with all constants, in double precision, shape ``batch_shape``."""
        value, _ = self.map(SEARCH_SECONDS)
        graph, on = self.factor_graph, value.reshape(self.batch_shape.numel(), self.event_shape.numel())
        best = (self._score(value) + self._constant).reshape(-1) - self._flat_absolute
        low, high = self._approximate_bounds(graph, on, best)
        # Where they meet, rounding must not change their order.
        high = torch.maximum(high, best)
        low = torch.minimum(torch.maximum(low, best), high)
        shape = self.batch_shape
        return (low + self._flat_absolute).reshape(shape), (high + self._flat_absolute).reshape(shape)

    def _approximate_bounds(self, graph: FactorGraph, value: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of log Z without constants, shape ``(rows,)``; the lower one is -inf where no method applies.

        :param Tensor value: A possible value of each row, a most probable one if it is known, shape ``(rows, D)``.
        :param Tensor best: Its log-weight, shape ``(rows,)``.
        """
        families = self._families
        above = holder_bound(graph, TO_GOOD_SPLIT)
        low, high = torch.full_like(above.bound, -math.inf), above.bound
        if families.is_bipartite:
            probs = above.marginal_logits.sigmoid()
            tables = tuple(
                factor.with_real_roots(table, probs, value)
                for factor, table in zip(families.factors, graph.tables, strict=True)
            )
            low = bethe_bound(graph._replace(tables=tables), TO_FIXED_POINT)
            matched = low + math.log(2.0) / 2 * value.sum(-1)
            is_matching = torch.stack([f.are_all_one(t) for f, t in zip(families.factors, graph.tables, strict=True)])
            # Bethe's log Z is the largest one of all beliefs, those that are certain of the best matching among them.
            is_largest = low >= best - TO_FIXED_POINT.tolerance * (1 + best.abs())
            high = torch.where(is_matching.all(0) & is_largest, torch.minimum(high, matched), high)
        for kept, possible in enumerate(mean_field_choices(graph)):
            rows = possible.nonzero().flatten()
            if len(rows):
                found = mean_field(graph.rows(rows), kept, *TO_GOOD_SPLIT[:2]).bound
                low = low.index_copy(0, rows, torch.maximum(low[rows], found))
        return low, high

    @property
    def _flat_absolute(self) -> Tensor:
        return self._absolute.expand(self.batch_shape).reshape(-1)

    def log_partition_bounds(self) -> tuple[Tensor, Tensor]:
        r"""Lower and upper bounds of log Z, up to rounding in float64, at any size; each of shape ``batch_shape``,
        differentiable.

        Sums that are affordable are not used: ``log_partition_function`` is exact where it is.

        - Below: the weight of a most probable value; Bethe's approximation, where there are two families of disjoint
          subsets, for laws with real roots (exactly k; k or k + 1), of which the given laws are lowered to the nearest
          ones; and the best approximation by one family with other log-odds, if the others' tables are finite and each
          of their subsets has one variable at most of each subset of this one.
        - Above: Hölder's inequality between the families, with the log-odds split between them in the best way; for
          matchings one-to-one of J rows also Bethe's approximation and :math:`\tfrac J2 \log 2`.

        :raises ValueError: where no value is possible.
        :raises NotImplementedError: if a search of ten seconds found no possible value.

        **References**

        Straszak, Vishnoi (2017): Belief propagation, Bethe approximation and polynomials. Allerton. Anari, Rezaei
        (2019): A tight analysis of Bethe approximation for permanent. FOCS.
        """
        low, high = self._log_z_bounds
        return self._cast(low), self._cast(high)

    def log_prob_bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the log-probability, at any size; arguments and shape as for ``log_prob``.

        They are :meth:`unnormalized_log_prob` less the bounds of :meth:`log_partition_bounds`.
        """
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._log_z_bounds
        score = self._score(value) + self._constant
        return self._cast(score - high), self._cast((score - low).clamp(max=0.0))

    def reweight(self: Variables, log_off: Tensor, log_on: Tensor) -> Variables:
        """Multiplies in independent evidence about every variable: the posterior, up to its constant.

        :param Tensor log_off: Log-likelihoods of the evidence if the variable is 0, less than +inf, a shape that
            broadcasts to ``(...) + event_shape``; -inf where the evidence excludes it.
        :param Tensor log_on: Log-likelihoods of the evidence if the variable is 1.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight.
        :raises ValueError: if shapes do not broadcast, or there is a NaN or +inf.
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, log_off=log_off, log_on=log_on)
        self._check_evidence(log_off=log_off, log_on=log_on)
        logits, log_weight = self._evidence
        tensors = torch.broadcast_tensors(logits, log_off, log_on)
        flat, added = reweight(*(tensor.double().flatten(-rank) for tensor in tensors))
        new_logits = flat.unflatten(-1, self.event_shape)
        batch = broadcast_shapes(added.shape, self.batch_shape)
        changed = {"logits": new_logits.to(self._parameter("logits").dtype)}
        evidence = (new_logits, log_weight + added)
        return self._copy(type(self).__new__(type(self)), evidence, batch, IMPOSSIBLE_EVIDENCE, changed)

    def log_evidence(self, log_off: Tensor, log_on: Tensor) -> Tensor:
        """Log-probability of independent evidence, the variables summed out; arguments as for :meth:`reweight`.

        :return: Change of log Z, -inf for impossible evidence; shape: the arguments' without their event axes,
            broadcast with ``batch_shape``.
        """
        return self._change(self.reweight(log_off, log_on))

    def condition(self: Variables, value: Tensor, observed: Tensor) -> Variables:
        """Fixes some variables; everything else stays random.

        :param Tensor value: Zeros and ones where ``observed``, anything elsewhere; shape broadcasts to
            ``batch_shape + event_shape``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole values given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries of probabilities raise where the evidence is impossible.
        """
        known, observed = self._observations(value, observed)
        zero = torch.zeros((), dtype=torch.double, device=self._evidence[0].device)
        off = zero.masked_fill(observed & (known == 1), -math.inf).unflatten(-1, self.event_shape)
        on = zero.masked_fill(observed & (known == 0), -math.inf).unflatten(-1, self.event_shape)
        return self.reweight(off, on)

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed entries, all others summed out; arguments as for :meth:`condition`.

        :return: Shape ``batch_shape`` broadcast with the leading axes of the arguments; -inf for impossible evidence.
        """
        return self._change(self.condition(value, observed))

    @property
    def factor_graph(self) -> FactorGraph:
        """Variables and factors in rows, without constants, for methods that work on them."""
        rows = self.batch_shape.numel()
        logits = self._rows(self._joint_evidence[0])
        tables = [self._rows(table) for table in self._centred[0]]
        expanded = tuple(table.expand(rows, -1) for table in tables)
        return FactorGraph(self._families.factors, logits.expand(rows, -1), expanded, self._families.crossing)

    def approximate_marginals(self, method: MarginalApproximation) -> ApproximateMarginals:
        """Approximate marginals and log Z, at any size.

        :param MarginalApproximation method: Such as :class:`~pyro_structured.inference.LoopyBP`.
        :return: :class:`~pyro_structured.distributions.ApproximateMarginals`: ``marginals``, ``marginal_logits``,
            ``log_partition``, ``converged``, ``num_iterations``, ``residual`` and ``error``, the first three with
            derivatives along the parameters.
        :raises ValueError: where no value is possible; counts with gaps, such as odd ones, may leave none without being
            noticed.
        """
        if not isinstance(method, MarginalApproximation):
            raise ValueError(f"method: expected a MarginalApproximation such as LoopyBP(), got {method!r}")
        self._refuse_transforms("approximate_marginals")
        found = method.approximate(self.factor_graph)
        excess = found.log_partition.reshape(self.batch_shape)
        # Messages of counts that no value meets do not converge, as a rule.
        self._supported(self._possible(self._unmet(~found.converged.reshape(self.batch_shape))))
        shape = self.batch_shape + self.event_shape
        return found._replace(
            marginals=self._cast(found.marginals.reshape(shape)),
            marginal_logits=self._cast(found.marginal_logits.reshape(shape)),
            log_partition=self._cast(excess + self._absolute),
            residual=self._cast(found.residual.reshape(self.batch_shape)),
            error=self._cast(found.error.reshape(self.batch_shape)),
            converged=found.converged.reshape(self.batch_shape),
            num_iterations=found.num_iterations.reshape(self.batch_shape),
        )

    @staticmethod
    def _refuse_transforms(name: str) -> None:
        if is_transformed():
            raise NotImplementedError(
                f"{name}: cannot be called under torch.vmap or transforms of torch.func; parameters with a batch axis, "
                "and torch.autograd.grad, do the same"
            )

    @torch.no_grad()
    def _unmet(self, asked: Tensor) -> Tensor:
        """Zeros, -inf in elements of the batch that are asked for and have no possible value, shape ``batch_shape``.

        Whether there is one depends on what is possible alone, which is the same in many elements.
        """
        rows = asked.flatten().nonzero().flatten()
        unmet = self._evidence[0].new_zeros(self.batch_shape.numel(), dtype=torch.double)
        if not len(rows):
            return unmet.reshape(self.batch_shape)
        weights, tables = (tensor.expand(len(unmet), -1)[rows] > -math.inf for tensor in self._arguments)
        kinds, kind = torch.unique(torch.cat([weights, tables], -1), dim=0, return_inverse=True)
        kinds = torch.zeros(kinds.shape, dtype=torch.double).masked_fill(~kinds.cpu(), -math.inf)
        families, size = self._families.counters, weights.shape[-1]
        met = []
        for possible in kinds:
            arguments = possible[:size].unflatten(-1, (-1, 2)).numpy(), possible[size:].numpy()
            if is_flow(families, arguments[1]):
                met.append(maximize_by_flow(families, *arguments).is_possible)
            else:
                met.append(maximize_by_constraints(families, *arguments, SEARCH_SECONDS).is_possible)
        impossible = ~torch.tensor(met, device=unmet.device)[kind]
        unmet[rows] = unmet[rows].masked_fill(impossible, -math.inf)
        return unmet.reshape(self.batch_shape)

    @property
    def _absolute(self) -> Tensor:
        """Constant of weights that are not relative to the heaviest vector, shape ``(...)``."""
        return self._centred[1] + self._joint_evidence[1]
