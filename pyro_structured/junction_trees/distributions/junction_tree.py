"""Distributions of discrete variables with the potentials of a junction tree."""

__all__ = ["JunctionTree"]

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.kl import register_kl
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.argument_checks import check_data, check_vector
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, result_dtype
from pyro_structured.foundation.ops.draws import KeptDraws
from pyro_structured.foundation.ops.evidence import no_evidence, state_weights
from pyro_structured.foundation.ops.log_space import centre_tables
from pyro_structured.foundation.ops.requirements import require, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes, narrow_repeated
from pyro_structured.junction_trees.ops.clique_tables import (
    count_cliques,
    log_conditionals,
    spread_state_weights,
    sum_table,
    total_score,
)
from pyro_structured.junction_trees.ops.junction_tree import (
    TreeBeliefs,
    TreeDraws,
    infer_tree,
    log_partition_of_tree,
    maximize_tree,
)
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree, check_tree
from pyro_structured.junction_trees.structures.factors import conditional_factors, multiply_factors

EMPTY_SUPPORT = (
    "clique_logits: expected at least one value of positive probability in every batch element, but the support is "
    "empty"
)


class JunctionTree(CategoricalVector):
    r"""Discrete variables whose joint log-weight is a sum of tables, one for each clique of a junction tree.

    .. math::
        p(x) = \frac{1}{Z} \exp\Bigl(\sum_C \theta_C(x_C)\Bigr).

    Values have shape ``(..., n)``, long integers: variable d has the states ``0, ..., cardinalities[d] - 1``.
    :meth:`log_prob` accepts booleans, integers and floating point numbers.

    **Exact**: every query, in float64, at a cost of O(``tree.table_size``) for each element of the batch; probabilities
    below 1e-300 count as zero in marginals. Nothing depends on the number of joint states. On the processor and with
    numba, each element costs O(entries of the tables that agree with its evidence), and results are the same. Without,
    steps that wait for each other are as many as the tree is deep; on a path of variables with at most eight states,
    few rows take only as many as the logarithm of its length.

    :param Tensor clique_logits: Log-weights of the joint states of all cliques, shape ``(..., tree.table_size)``,
        packed as by :meth:`~pyro_structured.structures.CliqueTree.pack`; less than +inf; -inf where a state is
        impossible.
    :param CliqueTree tree: The cliques.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf. Where no value has a positive probability, the
        first query raises.

    **References**

    Lauritzen, Spiegelhalter (1988): Local computations with probabilities on graphical structures and their application
    to expert systems. JRSS B 50(2).

    Example::

        >>> tree = CliqueTree.chain(3, 2)
        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> d = JunctionTree(tree.pack([same, same]), tree)
        >>> d.condition(torch.tensor([1, 0, 0]), torch.tensor([True, False, False])).marginals
        tensor([[0.0000, 1.0000],
                [0.2689, 0.7311],
                [0.3932, 0.6068]])
    """

    arg_constraints = {"clique_logits": constraints.independent(constraints.less_than(torch.inf), 1)}
    _derived = ("_leveled", "_beliefs", "_single_beliefs", "_draws")

    def __init__(self, clique_logits: Tensor, tree: CliqueTree, validate_args: bool | None = None) -> None:
        check_vector("clique_logits", clique_logits)
        check_tree(tree)
        if clique_logits.shape[-1] != tree.table_size:
            raise ValueError(
                f"clique_logits: expected a last axis of {tree.table_size} numbers, one for each joint state of the "
                f"cliques, got shape {tuple(clique_logits.shape)}"
            )
        self.clique_logits, self.tree = clique_logits, tree
        self._evidence = no_evidence(tree.num_variables, clique_logits.device)
        self._empty = EMPTY_SUPPORT
        event_shape = torch.Size([tree.num_variables])
        super().__init__(clique_logits.shape[:-1], event_shape, validate_args=validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, tree: CliqueTree, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> "JunctionTree":
        r"""Maximises the likelihood of data, or the posterior density under a Dirichlet prior on all joint states.

        The prior has ``smoothing`` pseudo-observations, spread evenly over the joint states: tables of cliques that
        overlap agree, and the product :math:`\prod_C p(x_C) / \prod_S p(x_S)` is normalised.

        :param Tensor values: States, shape ``(N, n)``.
        :param CliqueTree tree: The cliques.
        :param float smoothing: Number of pseudo-observations, at least 0. With 0, states that are not in the data are
            impossible.
        :param Tensor weights: Weights of the rows, at least 0, shape ``(..., N)``, which makes a batch of
            distributions; ``None``: all are 1.

        Example::

            >>> x = torch.tensor([[0, 0], [0, 0], [1, 1], [1, 0]])
            >>> JunctionTree.from_data(x, CliqueTree.chain(2, 2)).marginals_of([0, 1])
            tensor([[0.5000, 0.0000],
                    [0.2500, 0.2500]], dtype=torch.float64)
        """
        check_tree(tree)
        weights = check_data(values, tree.num_variables, max(tree.cardinalities), smoothing, weights)
        sizes = torch.tensor(tree.cardinalities, device=values.device)
        require(values >= sizes, f"values: expected integers below {tree.cardinalities}, got larger ones")
        counts = count_cliques(tree.plan, values.long(), weights)
        prior = [torch.full((size,), smoothing / size, dtype=torch.double) for size in tree.table_sizes]
        return cls(log_conditionals(tree.plan, counts + torch.cat(prior).to(counts.device)), tree)

    @classmethod
    def from_factors(
        cls,
        factors: Iterable[tuple[Iterable[int], Tensor]],
        cardinalities: Iterable[int],
        tree: CliqueTree | None = None,
    ) -> "JunctionTree":
        """Product of factors.

        :param factors: Pairs of variables and of a tensor with the log-weights of their joint states, whose last axes
            are those of the variables, in their order; leading axes broadcast.
        :param cardinalities: Numbers of states of all variables.
        :param CliqueTree tree: Cliques that contain the factors' variables; ``None``: those of
            ``CliqueTree.from_cliques``.

        Example::

            >>> one, both = torch.tensor([0.0, 1.0]), torch.eye(2)
            >>> JunctionTree.from_factors([([1], one), ([2, 0], both)], [2, 2, 2]).tree.cliques
            ((1,), (0, 2))
        """
        return cls(*multiply_factors(factors, cardinalities, tree))

    @classmethod
    def from_bayesian_network(
        cls, parents: Sequence[Sequence[int]], tables: Sequence[Tensor], tree: CliqueTree | None = None
    ) -> "JunctionTree":
        """Product of the probabilities of variables given their parents.

        :param parents: For every variable its parents.
        :param tables: For every variable the probabilities of its states given its parents', shape ``(..., states of
            the first parent, ..., states of the variable)``, at least 0; they are normalised.
        :param CliqueTree tree: As for :meth:`from_factors`.

        Example::

            >>> rain, wet = torch.tensor([0.8, 0.2]), torch.tensor([[0.9, 0.1], [0.0, 1.0]])
            >>> JunctionTree.from_bayesian_network([[], [0]], [rain, wet]).marginals_of([1])
            tensor([0.7200, 0.2800])
        """
        factors = conditional_factors(parents, tables)
        return cls.from_factors(factors, [table.shape[-1] for _, table in factors], tree)

    @staticmethod
    def infer_shapes(clique_logits: torch.Size, tree: CliqueTree) -> tuple[torch.Size, torch.Size]:  # type: ignore[override]
        """Batch and event shape from the shape of ``clique_logits``, and the tree itself."""
        return torch.Size(clique_logits[:-1]), torch.Size([tree.num_variables])

    @lazy_property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Tables less their largest entries, next to which digits could be lost, and these largest entries."""
        return centre_tables(
            narrow_repeated(self._parameter("clique_logits")), [size - 1 for size in self.tree.table_sizes]
        )

    @property
    def _arguments(self) -> tuple[Tensor, Tensor]:
        """Tables and evidence as matrices, with a single row where all rows are the same."""
        tables = self._leveled[0]
        weights = state_weights(self._evidence, self.tree.cardinalities, tables)
        return self._rows(tables), self._rows(weights)

    @lazy_property
    def _beliefs(self) -> TreeBeliefs:
        return self._infer(clique_marginals=True)

    @lazy_property
    def _single_beliefs(self) -> TreeBeliefs:
        """Log Z and marginals of single variables, in less time than with marginals of cliques."""
        return self._beliefs if "_beliefs" in self.__dict__ else self._infer(clique_marginals=False)

    def _infer(self, clique_marginals: bool) -> TreeBeliefs:
        return TreeBeliefs(*map(self._unflatten, infer_tree(*self._arguments, self.tree.plan, clique_marginals)))

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.tree.cardinalities

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].sum(-1)

    @property
    def _log_z(self) -> Tensor:
        for name in ("_beliefs", "_single_beliefs"):
            if name in self.__dict__:
                log_z: Tensor = self.__dict__[name].log_partition
                return log_z
        return self._unflatten(log_partition_of_tree(*self._arguments, self.tree.plan))

    @property
    def _supported_beliefs(self) -> TreeBeliefs:
        require_support(self._beliefs.log_partition, self._empty)
        return self._beliefs

    def _score(self, value: Tensor) -> Tensor:
        """Log-weights of values without the tables' constants."""
        states, agrees = self._read(value)
        score = total_score(self.tree.plan, self._leveled[0], states)
        return score.masked_fill(~agrees, -torch.inf)

    @lazy_property
    def _draws(self) -> KeptDraws:
        with torch.no_grad():
            return KeptDraws(partial(TreeDraws, plan=self.tree.plan), *self._arguments)

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

    def reweight(self, log_weights: Tensor) -> "JunctionTree":
        """Multiplies in independent evidence about every variable: the posterior, up to its constant.

        :param Tensor log_weights: Log-likelihoods of the evidence in each state, shape ``(..., n, K)`` for at most K
            states, less than +inf; numbers past a variable's own states are not looked at.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight. Queries
            raise where the evidence is impossible.
        :raises ValueError: if the shape is another one, or there is a NaN or +inf.

        Example::

            >>> d = JunctionTree(torch.zeros(4), CliqueTree.chain(2, 2))
            >>> d.reweight(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()).marginals
            tensor([[0.9000, 0.1000],
                    [0.5000, 0.5000]])
        """
        log_weights = self._checked_weights(log_weights)
        logits = self._parameter("clique_logits") + spread_state_weights(log_weights, self.tree.state_places)
        batch = broadcast_shapes(log_weights.shape[:-2], self.batch_shape)
        new = type(self).__new__(type(self))
        return self._copy(new, self._evidence, batch, IMPOSSIBLE_EVIDENCE, {"clique_logits": logits})

    @property
    def _single_marginals(self) -> Tensor:
        beliefs = self._single_beliefs
        require_support(beliefs.log_partition, self._empty)
        return beliefs.marginals

    @property
    def clique_marginals(self) -> Tensor:
        """Probabilities of the joint states of all cliques, packed, shape ``batch_shape + (table_size,)``."""
        return self._cast(self._supported_beliefs.clique_marginals)

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
        return self._unflatten(maximize_tree(*self._arguments, self.tree.plan))

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        return self._cast(self._exact_entropy)

    @property
    def _exact_entropy(self) -> Tensor:
        """Entropy in double precision."""
        log_z, _, probs = self._supported_beliefs
        weights = self._leveled[0].masked_fill(probs == 0, 0.0)
        return log_z - (probs * weights).sum(-1)


@register_kl(JunctionTree, JunctionTree)  # type: ignore[untyped-decorator]
def _kl_junction_tree(p: JunctionTree, q: JunctionTree) -> Tensor:
    if p.tree.cardinalities != q.tree.cardinalities:
        raise NotImplementedError(
            f"kl_divergence: expected variables with as many states, got {p.tree.cardinalities} and "
            f"{q.tree.cardinalities}"
        )
    log_q, log_z = q._leveled[0], require_support(q._log_z, q._empty)
    beliefs = p._supported_beliefs
    if p.tree == q.tree:
        # Both exponents are subtracted before they are summed.
        probs, log_p, constant = beliefs.clique_marginals, p._leveled[0], -require_support(p._log_z, p._empty)
    else:
        probs = q.tree.pack([p._probabilities_of(clique) for clique in q.tree.cliques])
        log_p, constant = torch.zeros_like(log_q), -p._exact_entropy
    energy = (probs * (log_p.masked_fill(probs == 0, 0.0) - log_q.masked_fill(log_q == -math.inf, 0.0))).sum(-1)
    divergence = energy + constant + log_z
    missing = ((probs > 0) & (log_q == -math.inf)).any(-1)
    allowed = state_weights(q._evidence, q.tree.cardinalities, log_q)
    if allowed.shape[-1]:
        missing = missing | ((beliefs.marginals > 0) & (allowed == -math.inf)).any(-1)
    return divergence.masked_fill(missing, math.inf).to(result_dtype(p.clique_logits, q.clique_logits))
