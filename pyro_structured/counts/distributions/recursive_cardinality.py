"""Binary vectors with potentials on the counts of nested subsets."""

__all__ = ["RecursiveCardinality"]

import math
from functools import lru_cache, partial
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Independent, constraints, kl_divergence
from torch.distributions.kl import register_kl
from torch.distributions.utils import lazy_property

from pyro_structured.counts.ops.centred_counts import CentredCounts, centre_counts
from pyro_structured.counts.ops.certified_counts import Beliefs, Certificate, certify_centred, infer_excess
from pyro_structured.counts.ops.compensated_sum import compensated_sum
from pyro_structured.counts.ops.count_sampling import CountDraws, most_probable
from pyro_structured.counts.ops.count_support import reaches
from pyro_structured.counts.ops.coupled_forest import AnyForest
from pyro_structured.counts.ops.poisson_binomial import probs_to_logits
from pyro_structured.counts.ops.table_cells import table_cells
from pyro_structured.counts.structures.nested_subsets import NestedSubsets
from pyro_structured.foundation.distributions.argument_checks import (
    check_entries,
    check_vector,
    joined_batch,
)
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, DiscreteVector, result_dtype
from pyro_structured.foundation.ops.draws import KeptDraws
from pyro_structured.foundation.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.foundation.ops.evidence import reweight
from pyro_structured.foundation.ops.private_members import (
    bernoulli_is_given_by_logits,
    constant_in_graphs,
    is_in_graph,
)
from pyro_structured.foundation.ops.requirements import any_true, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_rows, broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_last_axis

EMPTY_SUPPORT = (
    "count_logits: expected at least one vector of positive probability in every batch element, but the support is "
    "empty"
)


# Subsets of all variables that graphs of torch.compile read, by the number of variables.
_IN_GRAPHS: dict[int, NestedSubsets] = {}


def _whole(num_variables: int) -> NestedSubsets:
    if torch.compiler.is_compiling():
        # A graph is one of a fixed number of variables.
        num_variables = index(num_variables)
        _keep_for_graphs(num_variables)
        return _IN_GRAPHS[num_variables]
    return _make_whole(num_variables)


@lru_cache(maxsize=8)
def _make_whole(num_variables: int) -> NestedSubsets:
    return NestedSubsets([range(num_variables)], num_variables)


@constant_in_graphs
def _keep_for_graphs(num_variables: int) -> None:
    _IN_GRAPHS[num_variables] = _make_whole(num_variables)


class RecursiveCardinality(DiscreteVector):
    r"""Binary variables with log-odds of their own, and preferences for the counts in nested subsets.

    .. math::
        p(y) = \frac{1}{Z} \exp\Big(\sum_{d=1}^{D} x_d y_d + \sum_{s \in \mathcal{S}} f_s\big(\sum_{d \in s}
        y_d\big)\Big), \qquad y \in \{0, 1\}^D,

    where ``logits`` holds :math:`x`, and ``count_logits`` the tables :math:`f_s`, of :math:`|s| + 1` numbers each,
    in the order of the subsets. Subsets may have references, edges and links
    (:class:`~pyro_structured.structures.NestedSubsets`): then :math:`f_s` weighs the number of variables that differ
    from the reference, every edge adds :math:`\theta_{ab}(y_a, y_b)` (``edge_logits``) and every link
    :math:`g_{st}(c_s, c_t)` (``link_logits``). Values are vectors of zeros and ones in the parameters'
    dtype, ``event_shape`` is ``(D,)``; :meth:`log_prob` accepts booleans and integers too.

    **Exact**: every query. Results are computed in float64 and carry a certificate (:attr:`certificate`).
    **Cost**: :math:`O(D\log^2 D)` time and :math:`O(D \log D)` memory for one potential over all variables; for
    nested ones
    :math:`O(\sum_v n_{l(v)} n_{r(v)})` over the nodes v of the binary tree, at most :math:`O(D^2)`. Where large
    counts are impossible, messages are truncated: at most k ones cost :math:`O(Dk)`. With edges, there are up to eight
    times as many products, and O(log D) steps that wait for each other for each level of nested subsets, however
    unbalanced the tree is; a link costs the product of its subsets' sizes. The mode, and derivatives of
    marginals, of variables with edges or links take :math:`O(D^2)`.

    ``logits`` may be infinite: such a variable is clamped, to 1 (``+inf``) or 0 (``-inf``), and its logit has no
    weight of its own. ``count_logits`` may be ``-inf`` (the count is impossible). Derivatives are then still finite.
    Where no vector has a positive probability, the first query raises a ``ValueError``.

    Two things to know when learning or enumerating: adding :math:`a c` to the table of a subset is the same as
    adding a to the logits of its variables, so that tables are determined only up to a straight line; and Pyro's
    ``infer_discrete`` and ``compute_marginals`` do not support sites with event axes: use :attr:`marginals`,
    :meth:`condition` and
    :meth:`reweight`.

    Results are cached with their autograd graph: make a new instance in every step, as Pyro models do.

    :param Tensor logits: Log-odds, shape ``(..., D)``. No NaN.
    :param Tensor count_logits: Log-potentials, shape ``(..., subsets.table_size)``, less than +inf. See
        :meth:`~pyro_structured.structures.NestedSubsets.pack` and
        :mod:`~pyro_structured.counts.distributions.cardinality_potentials`.
    :param NestedSubsets subsets: ``None`` means one potential on the count of all variables, a table of ``D + 1``.
    :param Tensor edge_logits: Log-potentials of the edges of ``subsets``, a table of both states each, shape
        ``(..., E, 2, 2)``, less than +inf; ``None`` where there are no edges.
    :param Tensor link_logits: Log-potentials of the links of the kinds ``None`` and ``"difference"``, shape ``(...,
        subsets.link_table_size)``, less than +inf, see :meth:`~pyro_structured.structures.NestedSubsets.pack_links`;
        ``None`` where there are no such links.
    :raises ValueError: if a shape, a NaN or +inf is wrong, with the name of the argument.

    **References**

    Daniel Tarlow, Kevin Swersky, Richard S. Zemel, Ryan P. Adams, Brendan J. Frey (2012): *Fast exact inference for
    recursive cardinality models.* UAI. Equations (4) and (7); Section 5.

    Example::

        >>> d = RecursiveCardinality(torch.zeros(3), torch.tensor([0.0, 0.0, -math.inf, -math.inf]))  # at most one
        >>> d.log_prob(torch.tensor([0.0, 1.0, 0.0])).exp()
        tensor(0.2500)
        >>> d.marginals
        tensor([0.2500, 0.2500, 0.2500])

    A chain of three variables that prefer to be alike, with at most one 1::

        >>> subsets = NestedSubsets([range(3)], num_variables=3, edges=[(0, 1), (1, 2)])
        >>> alike = torch.eye(2).expand(2, 2, 2)
        >>> chain = RecursiveCardinality(d.logits, d.count_logits, subsets, edge_logits=alike)
        >>> chain.marginals
        tensor([0.1966, 0.0723, 0.1966])
    """

    arg_constraints = {
        "logits": constraints.real_vector,
        "count_logits": constraints.independent(constraints.less_than(math.inf), 1),
    }
    # Log-odds with the evidence, in full precision, shape (..., D), and the evidence's log weight, shape (...).
    _evidence: tuple[Tensor, Tensor]
    _event_dims = {"logits": 1, "count_logits": 1}
    _derived: tuple[str, ...] = ("_centred", "_log_z", "_solution", "_draws")
    _num_states = (2,)

    def __init__(
        self,
        logits: Tensor,
        count_logits: Tensor,
        subsets: NestedSubsets | None = None,
        edge_logits: Tensor | None = None,
        link_logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_vector("logits", logits)
        if subsets is not None and not isinstance(subsets, NestedSubsets):
            raise ValueError(f"subsets: expected a NestedSubsets or None, got {type(subsets).__name__}")
        check_vector("count_logits", count_logits, smallest=0)
        num_variables = logits.shape[-1]
        self.subsets = _whole(num_variables) if subsets is None else subsets
        if self.subsets.num_variables != num_variables:
            raise ValueError(
                f"logits: expected a last axis of {self.subsets.num_variables} variables, as in subsets, got shape "
                f"{tuple(logits.shape)}"
            )
        if count_logits.shape[-1] != self.subsets.table_size:
            raise ValueError(
                f"count_logits: expected a last axis of {self.subsets.table_size} numbers, a table of |s| + 1 for each "
                f"subset, got shape {tuple(count_logits.shape)}"
            )
        self._evidence, self._empty = (logits, logits.new_zeros(())), EMPTY_SUPPORT
        batch = joined_batch("count_logits", count_logits, [self.subsets.table_size], logits.shape[:-1])
        given = {"logits": logits, "count_logits": count_logits}
        self.edge_logits, self.link_logits = edge_logits, link_logits
        for name, table, shape in (
            ("edge_logits", edge_logits, (len(self.subsets.edges), 2, 2)),
            ("link_logits", link_logits, (self.subsets.link_table_size,)),
        ):
            if (table is not None) != bool(shape[0]):
                what = f"a tensor of shape (..., {', '.join(map(str, shape))})" if shape[0] else "None"
                raise ValueError(f"{name}: expected {what}, as in subsets, got {type(table).__name__}")
            if table is not None:
                batch = joined_batch(name, table, shape, batch)
                given[name] = table
                constraint = constraints.independent(constraints.less_than(math.inf), len(shape))
                self.arg_constraints = {**self.arg_constraints, name: constraint}
                self._event_dims = {**self._event_dims, name: len(shape)}
        self._assign(given, batch)
        super().__init__(batch, logits.shape[-1:], validate_args=validate_args)

    @staticmethod
    def infer_shapes(**arg_shapes: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of ``logits``, ``count_logits`` and the other tables."""
        logits = torch.Size(arg_shapes["logits"])
        dims = {"logits": 1, "count_logits": 1, "edge_logits": 3, "link_logits": 1}
        batches = (torch.Size(shape)[: -dims[name]] for name, shape in arg_shapes.items() if name in dims)
        return broadcast_shapes(*batches), logits[-1:]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones, also those of probability zero."""
        return constraints.independent(constraints.boolean, 1)

    @lazy_property
    def _draws(self) -> KeptDraws:
        base = self._varied_batch
        with torch.no_grad():
            rows = [
                parameter.expand(base + parameter.shape[-1:]).reshape(math.prod(base), parameter.shape[-1])
                for parameter in self._counted
            ]
            if "_solution" in self.__dict__:
                beliefs, tilts = self._solution
                counts = self._turned(beliefs.marginal_logits, beliefs.count_marginals)[1]
                rows += [tilts.reshape(-1), counts.reshape(len(rows[0]), counts.shape[-1])]
            return KeptDraws(partial(CountDraws, forest=self._forest), *rows)

    @property
    def _varied_batch(self) -> tuple[int, ...]:
        """Batch shape with 1 for axes along which the parameters do not vary."""
        varied = broadcast_shapes(*(parameter.shape[:-1] for parameter in self._counted))
        return (1,) * (len(self.batch_shape) - len(varied)) + tuple(varied)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws exact joint samples, shape ``sample_shape + batch_shape + (D,)``; further ones repeat no pass over the
        counts.
        """
        sample_shape = torch.Size(sample_shape)
        impossible = self._evidence[1] == -math.inf
        if not self._draws.possible or any_true(impossible):
            require_support(self._log_z, self._empty)
        base = self._varied_batch
        # Batch axes along which the parameters do not vary are more samples of the same distribution.
        copies = [full if size == 1 else 1 for full, size in zip(self.batch_shape, base, strict=True)]
        with torch.no_grad():
            drawn = self._draws(sample_shape.numel() * math.prod(copies))
            drawn = self._complemented(drawn).to(self.logits.dtype)
        drawn = drawn.reshape((sample_shape.numel(), *copies, *base) + self.event_shape)
        rank = len(base)
        pairs = [axis for i in range(rank) for axis in (1 + i, 1 + rank + i)]
        return drawn.permute(0, *pairs, 1 + 2 * rank).reshape(sample_shape + self.batch_shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Normalised log-probability; -inf for impossible values, also for those that are not zeros and ones."""
        log_prob = super().log_prob(value)
        # Rounding must not lead above zero; derivatives stay.
        return log_prob - log_prob.detach().clamp(min=0.0)

    def _score(self, value: Tensor) -> Tensor:
        """Log-weights relative to the heaviest vector without tables, in double precision, because log Z is going to be
        subtracted.
        """
        check_last_axis("value", value, self.event_shape[0])
        logits, count_logits = self._counted
        binary = ((value == 0) | (value == 1)).all(-1)
        on = self._complemented(value == 1)
        clamped = logits.isinf()
        forbidden = (clamped & (on != (logits > 0))).any(-1) | ~binary
        score = (logits.masked_fill(clamped, 0.0) * (on.long() - (logits > 0).long())).sum(-1)
        cells = table_cells(on, self._forest)
        batch = broadcast_shapes(cells.shape[:-1], self.batch_shape)
        table = count_logits.expand(batch + count_logits.shape[-1:])
        score = score + table.gather(-1, cells.expand(batch + cells.shape[-1:])).sum(-1)
        return score.masked_fill(forbidden, -math.inf)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` vectors; more are never enumerated."""
        return is_enumerable(self.event_shape[0])

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All ``2 ** D`` vectors in lexicographic order, shape ``(2 ** D,) + batch_shape + (D,)``."""
        return enumerate_values(self.event_shape[0], 2, self.batch_shape, expand, self.logits)

    @property
    def log_partition_function(self) -> Tensor:
        """Logarithm of the normalising constant Z, shape ``batch_shape``; its gradient is the marginals, which the same
        pass computes.
        """
        return self._cast(self._excess_with_beliefs + self._constant)

    @property
    def log_weight(self) -> Tensor:
        """Log weight of the evidence that :meth:`condition` or :meth:`reweight` put in, part of log Z, shape
        ``batch_shape``; zero without evidence.
        """
        return self._cast(self._evidence[1]).expand(self.batch_shape)

    @property
    def unchecked_log_partition(self) -> Tensor:
        """The value of :attr:`log_partition_function`, but -inf where the support is empty."""
        return self._cast(self._log_z + self._constant)

    @property
    def _forest(self) -> AnyForest:
        return self.subsets.forest if self.subsets.coupling is None else self.subsets.coupling

    @property
    def packed_tables(self) -> Tensor:
        """Tables of subsets, edges and links, one after the other, shape ``(..., number of entries)``."""
        tables = [self._parameter("count_logits")]
        if self.edge_logits is not None:
            tables.append(self._parameter("edge_logits").flatten(-3))
        if self.link_logits is not None:
            tables.append(self._parameter("link_logits"))
        sources = self.subsets.entry_sources
        if sources is not None:
            tables.append(tables[0].new_tensor([0.0, -math.inf]))
        joined = torch.cat(broadcast_rows(*tables), -1) if len(tables) > 1 else tables[0]
        return joined if sources is None else joined[..., sources.to(joined.device)]

    @lazy_property
    def _centred(self) -> CentredCounts:
        given = self._evidence[0]
        centred = centre_counts(*self._turned(given, self.packed_tables), self._forest)
        flipped = self.subsets.complemented_variables
        if flipped is None:
            return centred
        logits, tables = self._turned(centred.logits, centred.tables)
        terms = centred.terms
        if centred.is_moved:
            # A line in the count of zeros is a line in the count of ones, and a constant.
            flipped = flipped.to(logits.device) & given.isfinite()
            moved = [given.double().masked_fill(~flipped, 0.0), -logits.masked_fill(~flipped, 0.0)]
            terms = torch.cat(broadcast_rows(terms, *moved), -1)
        return CentredCounts(logits, tables, terms, centred.is_moved)

    def _turned(self, logits: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters of vectors that say which variables differ from the references; from these again those of the
        variables.
        """
        flipped, order = self.subsets.complemented_variables, self.subsets.complemented_entries
        if flipped is None or order is None:
            return logits, tables
        return torch.where(flipped.to(logits.device), -logits, logits), tables[..., order.to(tables.device)]

    def _complemented(self, value: Tensor) -> Tensor:
        """Which variables differ from the references, from booleans or from zeros and ones."""
        flipped = self.subsets.complemented_variables
        return value if flipped is None else value != flipped.to(value.device)

    @property
    def _counted(self) -> tuple[Tensor, Tensor]:
        """Centred parameters of the vectors whose ones are counted."""
        return self._turned(self._centred.logits, self._centred.tables)

    def _infer(self, marginals: bool) -> tuple[Beliefs, Tensor]:
        logits, tables = self._counted
        beliefs, tilts = infer_excess(self._centred._replace(logits=logits, tables=tables), self._forest, marginals)
        odds, counts = self._turned(beliefs.marginal_logits, beliefs.count_marginals)
        return Beliefs(beliefs.log_partition, odds, counts), tilts

    @property
    def _constant(self) -> Tensor:
        """Log-weight of the heaviest vector without tables, and constants; it may be large."""
        return self._centred.offset + self._evidence[1].double()

    @lazy_property
    def _log_z(self) -> Tensor:
        logits, count_logits, *_ = self._centred
        # Gradients are marginals: where they may be asked for, they are computed at once.
        if logits.requires_grad or count_logits.requires_grad or "_solution" in self.__dict__:
            return self._mask_impossible(self._beliefs.log_partition)
        return self._mask_impossible(self._infer(marginals=False)[0].log_partition)

    def _mask_impossible(self, log_z: Tensor) -> Tensor:
        impossible = (self._evidence[1] == -math.inf).expand(self.batch_shape)
        return log_z.expand(self.batch_shape).masked_fill(impossible, -math.inf)

    @property
    def _excess_with_beliefs(self) -> Tensor:
        """Log Z without the constant, from the pass that computes marginals, too."""
        return require_support(self._mask_impossible(self._beliefs.log_partition), self._empty)

    @lazy_property
    def _solution(self) -> tuple[Beliefs, Tensor]:
        return self._infer(marginals=True)

    @property
    def _beliefs(self) -> Beliefs:
        return self._solution[0]

    @property
    def _supported_beliefs(self) -> Beliefs:
        beliefs = self._beliefs
        log_z = require_support(self._log_z, self._empty)
        if not is_in_graph():
            return beliefs
        # Graphs leave out checks on which nothing depends.
        supported = (log_z != -math.inf).unsqueeze(-1)
        odds, counts = (torch.where(supported, part, math.nan) for part in beliefs[1:])
        return Beliefs(beliefs.log_partition, odds, counts)

    @property
    def marginal_logits(self) -> Tensor:
        """Posterior log-odds of every variable, shape ``batch_shape + (D,)``: accurate where a probability is near 0
        or 1.
        """
        odds = self._supported_beliefs.marginal_logits
        return self._cast(odds).expand(self.batch_shape + self.event_shape)

    @property
    def marginals(self) -> Tensor:
        """Probabilities that a variable is 1, shape ``batch_shape + (D,)``."""
        return torch.sigmoid(self.marginal_logits)

    @property
    def mean(self) -> Tensor:
        """Equals :attr:`marginals`."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variances of the single variables, shape ``batch_shape + (D,)``."""
        return torch.sigmoid(self.marginal_logits) * torch.sigmoid(-self.marginal_logits)

    @property
    def count_marginals(self) -> Tensor:
        """Probabilities of all counts of all subsets, shape ``batch_shape + (table_size,)``; see ``subsets.split``."""
        probs = self._supported_beliefs.count_marginals[..., : self.subsets.table_size]
        return self._cast(probs).expand(self.count_logits.shape)

    @property
    def edge_marginals(self) -> Tensor:
        """Probabilities of both states of each edge, shape ``batch_shape + (E, 2, 2)``."""
        start, number = self.subsets.table_size, len(self.subsets.edges)
        probs = self._supported_beliefs.count_marginals[..., start : start + 4 * number]
        probs = probs.reshape(*probs.shape[:-1], number, 2, 2)
        return self._cast(probs).expand(self.batch_shape + (number, 2, 2))

    @property
    def link_marginals(self) -> tuple[Tensor, ...]:
        """Probabilities of both counts of each link, shapes ``batch_shape + (len(i) + 1, len(j) + 1)``."""
        start = self.subsets.table_size + 4 * len(self.subsets.edges)
        shapes = [(self.subsets.sizes[i] + 1, self.subsets.sizes[j] + 1) for i, j, _ in self.subsets.links]
        probs = self._cast(self._supported_beliefs.count_marginals[..., start:])
        tables = probs.split([math.prod(shape) for shape in shapes], -1) if shapes else ()
        return tuple(
            table.unflatten(-1, shape).expand(self.batch_shape + shape)
            for table, shape in zip(tables, shapes, strict=True)
        )

    @property
    def mode(self) -> Tensor:
        r"""A most probable vector, shape ``batch_shape + (D,)``; :math:`O(D\log D)` for one potential."""
        require_support(self._log_z, self._empty)
        batch = self.batch_shape
        with torch.no_grad():
            rows, tables = (
                parameter.expand(batch + parameter.shape[-1:]).reshape(batch.numel(), parameter.shape[-1])
                for parameter in self._counted
            )
            best = self._complemented(most_probable(rows, tables, self._forest))
        return best.to(self.logits.dtype).reshape(batch + self.event_shape)

    @property
    def certificate(self) -> Certificate:
        """Bounds on the errors of ``log_partition_function``, ``marginal_logits`` and ``count_marginals`` before they
        are cast to the parameters' dtype, the number of nodes that fell back to direct convolution, and the bound on
        the error of log Z as it is in :meth:`log_prob`, where constants and the weight of the heaviest vector cancel.

        Where the last one is above 1e-6, or that of a log-odds above 1e-3, a
        :class:`~pyro_structured.distributions.PrecisionWarning` is given (on the CPU, and not under
        ``torch.vmap`` or ``torch.compile``).
        """
        logits, tables = self._counted
        bounds = certify_centred(self._centred._replace(logits=logits, tables=tables), self._forest)._asdict()
        trailing = {"marginal_logits_error": self.event_shape}
        return Certificate(
            **{name: bound.expand(self.batch_shape + trailing.get(name, ())) for name, bound in bounds.items()}
        )

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        of_variables, of_tables = self._energies(self._beliefs)
        energy = of_variables.sum(-1) + of_tables.sum(-1)
        return self._cast(self._excess_with_beliefs - energy).expand(self.batch_shape)

    def _energies(self, beliefs: Beliefs) -> tuple[Tensor, Tensor]:
        """Terms of the expected score under given beliefs: of variables, shape ``(..., D)``, and of the entries of the
        tables, shape ``(..., table_size)``.
        """
        logits, count_logits, *_ = self._centred
        side = torch.where(logits > 0, -1.0, 1.0).to(logits.dtype)
        flipped = side * torch.sigmoid(side * beliefs.marginal_logits)
        impossible = count_logits == -math.inf
        tables = beliefs.count_marginals * count_logits.masked_fill(impossible, 0.0)
        return flipped * logits.masked_fill(logits.isinf(), 0.0), tables

    def condition(self, value: Tensor, observed: Tensor) -> "RecursiveCardinality":
        """Fixes some variables.

        :param Tensor value: Zeros and ones where ``observed``, anything elsewhere; shape broadcasts to ``(..., D)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole vectors given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries of probabilities raise where the evidence is impossible.
        """
        return self.reweight(*self._clamps(value, observed))

    def _clamps(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Log-likelihoods of observations if a variable is 0, and if it is 1; shapes broadcast to ``(..., D)``."""
        known, observed = self._observations(value, observed)
        is_on = known.bool()
        zero = torch.zeros((), dtype=torch.double, device=self.logits.device)
        return zero.masked_fill(is_on, -math.inf), zero.masked_fill(observed ^ is_on, -math.inf)

    def reweight(self, log_off: Tensor, log_on: Tensor) -> "RecursiveCardinality":
        """Multiplies in independent evidence about every variable: the posterior, up to its constant.

        :param Tensor log_off: Log-likelihoods of the evidence if the variable is 0, shape broadcasts to ``(...,
            D)``; -inf is allowed.
        :param Tensor log_on: Log-likelihoods of the evidence if the variable is 1.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight.
        """
        return self._reweight(log_off, log_on)[0]

    def _reweight(self, log_off: Tensor, log_on: Tensor) -> tuple["RecursiveCardinality", Tensor]:
        """The distribution given evidence, and the log weight that this evidence adds."""
        check_entries(self.batch_shape + self.event_shape, log_off=log_off, log_on=log_on)
        self._check_evidence(log_off=log_off, log_on=log_on)
        (logits, log_weight), count_logits = self._evidence, self._parameter("count_logits")
        if self._centred.is_moved:
            # Terms that have cancelled must not come back when evidence changes the heaviest vector.
            logits, count_logits, *_ = self._centred
            log_weight = log_weight + self._centred.constant
        shape = broadcast_shapes(logits.shape, log_off.shape, log_on.shape)
        evidence = (log_off.double().expand(shape), log_on.double().expand(shape))
        new_logits, added = reweight(logits.double().expand(shape), *evidence)
        batch = broadcast_shapes(shape[:-1], self.batch_shape)
        new = RecursiveCardinality.__new__(RecursiveCardinality)
        changed = {"logits": new_logits.to(self.logits.dtype), "count_logits": count_logits}
        return self._copy(new, (new_logits, log_weight + added), batch, IMPOSSIBLE_EVIDENCE, changed), added

    def log_evidence(self, log_off: Tensor, log_on: Tensor) -> Tensor:
        """Log-probability of independent evidence, the vector summed out; arguments as for :meth:`reweight`.

        :return: The change of log Z; -inf for impossible evidence. Shape: the arguments' without their last axis,
            broadcast with ``batch_shape``.
        """
        return self._exact_change(*self._reweight(log_off, log_on))

    def _exact_change(self, updated: "RecursiveCardinality", added: Tensor) -> Tensor:
        """Change of log Z by evidence, shape ``batch_shape``.

        :param updated: The distribution given the evidence.
        :param Tensor added: The log weight that the evidence has added, shape ``(...)``.
        """
        before, after = self._centred, updated._centred
        if before.is_moved or after.is_moved:
            # Evidence was added to centred parameters, or else to the given ones.
            own = before.weights if before.is_moved else torch.cat(broadcast_rows(before.weights, before.terms), -1)
            terms = broadcast_rows(after.weights, after.terms, -own, added.unsqueeze(-1))
            gained = compensated_sum(torch.cat(terms, -1))
        else:
            gained = (after.weights - before.weights).sum(-1) + added
        return self._cast(updated._log_z - require_support(self._log_z, self._empty) + gained)

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed entries, all others summed out; arguments as for :meth:`condition`.

        :return: Shape ``batch_shape`` broadcast with the leading axes of the arguments; -inf for impossible evidence.
        """
        return self.log_evidence(*self._clamps(value, observed))

    def conjugate_update(self, other: Any) -> tuple["RecursiveCardinality", Tensor]:
        """Multiplies with independent evidence about every variable.

        :param other: ``Bernoulli(...).to_event(1)`` with event shape ``(D,)``.
        :return: ``(updated, log_normalizer)`` with ``self.log_prob(y) + other.log_prob(y) == updated.log_prob(y) +
            log_normalizer``.
        """
        base = other.base_dist if isinstance(other, Independent) else other
        if not isinstance(base, Bernoulli) or other.event_shape != self.event_shape:
            raise ValueError(
                f"other: expected Bernoulli(...).to_event(1) with event shape {tuple(self.event_shape)}, got {other}"
            )
        ones = torch.ones_like(base.logits)
        entries = Bernoulli(logits=base.logits, validate_args=False)
        updated, added = self._reweight(entries.log_prob(0 * ones), entries.log_prob(ones))
        return updated, self._exact_change(updated, added)


@register_kl(RecursiveCardinality, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_recursive_cardinality(p: RecursiveCardinality, q: RecursiveCardinality) -> Tensor:
    if p.subsets != q.subsets:
        raise NotImplementedError(
            "kl_divergence: expected two distributions with the same subsets; others can be estimated from samples of p"
        )
    # Both exponents are subtracted before they are summed, in double precision: their common terms cost no
    # digits beyond the rounding of log Z.
    beliefs = p._beliefs
    of_p, of_q = (distribution._energies(beliefs) for distribution in (p, q))
    energy = torch.sum(of_p[0] - of_q[0], -1) + torch.sum(of_p[1] - of_q[1], -1)
    divergence = energy - p._excess_with_beliefs + require_support(q._log_z, q._empty)
    # A value that p allows and q does not makes the divergence infinite, however improbable it is.
    odds, clamps = beliefs.marginal_logits, q._evidence[0]
    wrong = (odds > -math.inf) & (clamps == -math.inf) | (odds < math.inf) & (clamps == math.inf)
    forbidden = (q._centred.tables == -math.inf) & (p._centred.tables != -math.inf)
    if p.subsets.coupling is None:
        logits, forbidden = p._turned(p._evidence[0], forbidden)
        missing = reaches(logits, p._counted[1], forbidden, p.subsets.forest)
    else:
        missing = ((beliefs.count_marginals > 0) & forbidden).any(-1)
    divergence = divergence.masked_fill(wrong.any(-1) | missing, math.inf)
    return divergence.to(result_dtype(p.logits, p.count_logits, q.logits, q.count_logits))


@register_kl(RecursiveCardinality, Independent)  # type: ignore[untyped-decorator]
def _kl_to_independent(p: RecursiveCardinality, q: "Independent[Bernoulli]") -> Tensor:
    return kl_divergence(p, _without_potentials(q, p))


@register_kl(Independent, RecursiveCardinality)  # type: ignore[untyped-decorator]
def _kl_from_independent(p: "Independent[Bernoulli]", q: RecursiveCardinality) -> Tensor:
    return kl_divergence(_without_potentials(p, q), q)


def _without_potentials(independent: "Independent[Bernoulli]", like: RecursiveCardinality) -> RecursiveCardinality:
    """Independent variables as a member of the family with the same subsets."""
    base = independent.base_dist
    if not isinstance(base, Bernoulli) or independent.event_shape != like.event_shape:
        raise NotImplementedError(
            f"kl_divergence: expected Bernoulli(...).to_event(1) with event shape {tuple(like.event_shape)} beside a "
            f"{type(like).__name__}, got {independent}"
        )
    # The parameter that was given is exact.
    logits = base.logits if bernoulli_is_given_by_logits(base) else probs_to_logits(base.probs)
    subsets = like.subsets
    if any(kind not in (None, "difference") for _, _, kind in subsets.links):
        raise NotImplementedError(
            'kl_divergence: expected links of the kinds None and "difference" beside independent variables; give the '
            "others as tables"
        )
    return RecursiveCardinality(
        logits,
        logits.new_zeros(subsets.table_size),
        subsets,
        validate_args=False,
        edge_logits=logits.new_zeros(len(subsets.edges), 2, 2) if subsets.edges else None,
        link_logits=logits.new_zeros(subsets.link_table_size) if subsets.link_table_size else None,
    )
