"""Sum-product networks whose leaves are forests and blocks of exchangeable variables."""

__all__ = ["SumProductNetwork"]

from typing import Any

import torch
from pyro.distributions import Categorical
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.nn.functional import logsigmoid

from pyro_structured.densities.ops.region_passes import region_inward, region_outward
from pyro_structured.densities.structures.region_tree import RegionTree
from pyro_structured.exchangeable.distributions.exchangeable_partition import (
    ExchangeablePartition,
    block_log_partitions,
    block_log_weights,
)
from pyro_structured.exchangeable.distributions.exchangeable_vector import EMPTY_SUPPORT, ExchangeableVector
from pyro_structured.exchangeable.ops.forest_passes import forest_downward, forest_sample, forest_score, forest_upward
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.draws import refuse_mapped_draws
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.log_space import centre_tables, logsumexp
from pyro_structured.foundation.ops.requirements import require, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Axes of the parameters after those of the batch: networks M, regions G, states K, variables n.
AXES = {
    "network_logits": ("M",),
    "transition_logits": ("M", "G", "K", "K"),
    "leaf_logits": ("M", "G", "K", "2"),
    "conditional_logits": ("M", "K", "n", "2"),
    "statistic_logits": ("M", "K", "2n"),
}


class SumProductNetwork(ExchangeableVector):
    r"""Mixture of networks: trees of latent states, one for each region of binary variables, above exchangeable leaves.

    .. math::
        p(x) = \sum_m \pi_m \sum_{z} \prod_g p_m(z_g \mid z_{\mathrm{parent}(g)}) \Big( \lambda_{mgz_g}
        \prod_{d \in g} p_{mz_g}(x_d \mid x_{\mathrm{parent}(d)}) + (1 - \lambda_{mgz_g})
        \prod_{b \subseteq g} \frac{w_{mz_gb}(t_b)}{\binom{n_b}{t_b}} \Big)

    A region's variables depend on its state z in one of two ways: as a forest of variables, or in blocks that are
    independent, and exchangeable inside. With one region it is a mixture of such leaves. Networks, states and leaves
    are summed out. Values are zeros and ones of shape ``(..., n)`` in the parameters' dtype.

    **Exact**: ``log_prob`` of a value in :math:`O(M (K n + G K^2))` for M networks of G regions with K states;
    ``sample``, ``marginals``, ``condition`` and ``marginal_log_prob``, in as much time for every level of the forests;
    after ``reweight``, blocks of up to m variables take O(m) times as long.
    ``mode`` and ``entropy`` have no closed form: they are found by enumeration, up to ``2 ** 12`` vectors, and refused
    above.

    :param Tensor network_logits: Log-weights of the networks, shape ``(..., M)``, less than +inf.
    :param Tensor transition_logits: Log-weights of a region's states (last axis) given its parent's, shape
        ``(..., M, G, K, K)``, less than +inf; for the root, region 0, only the first row is used.
    :param Tensor leaf_logits: Log-weights of the forest and of the blocks, shape ``(..., M, G, K, 2)``, less than +inf.
    :param Tensor conditional_logits: Log-odds of a variable in a state's forest when its parent is 0, and is 1, shape
        ``(..., M, K, n, 2)``, finite; for roots, only the first is used.
    :param Tensor statistic_logits: Log-weights of the counts of all blocks of every state, shape ``(..., M, K, 2 n)``;
        see :class:`ExchangeablePartition`.
    :param RegionTree structure: Regions, forests and blocks.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf.

    **References**

    Poon, Domingos (2011): Sum-product networks: a new deep architecture. UAI.
    Niepert, Domingos (2014): Exchangeable variable models. ICML. Section 6.

    Example::

        >>> pair = Partition(torch.zeros(1, 1, 2, dtype=torch.long))
        >>> one = torch.zeros(1, 1, dtype=torch.long)
        >>> structure = RegionTree(one.expand(1, 2), one, torch.tensor([[[0, 1]]]), pair)
        >>> equal = torch.tensor([0.0, -torch.inf, 0.0, 0.0]).expand(1, 1, 4)
        >>> zeros = torch.zeros(1, 1, 1, 2)
        >>> d = SumProductNetwork(torch.zeros(1), zeros[..., :1], zeros, zeros.expand(1, 1, 2, 2), equal, structure)
        >>> d.log_prob(torch.tensor([1.0, 1.0])).exp()  # independent or equal
        tensor(0.3750)
        >>> d.condition(torch.ones(2), torch.tensor([True, False])).marginals
        tensor([1.0000, 0.7500])
    """

    arg_constraints = {
        name: constraints.independent(
            constraints.real if name == "conditional_logits" else constraints.less_than(torch.inf), len(axes)
        )
        for name, axes in AXES.items()
    }

    _derived = ("_tables", "_forest", "_leaf_scores", "_inward", "_free_blocks", "_blocks")

    def __init__(
        self,
        network_logits: Tensor,
        transition_logits: Tensor,
        leaf_logits: Tensor,
        conditional_logits: Tensor,
        statistic_logits: Tensor,
        structure: RegionTree,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(structure, RegionTree):
            raise ValueError(f"structure: expected a RegionTree, got {type(structure).__name__}")
        n = structure.num_variables
        sizes = {"M": structure.num_networks, "G": structure.num_regions, "K": structure.num_states}
        sizes |= {"n": n, "2": 2, "2n": 2 * n}
        given = network_logits, transition_logits, leaf_logits, conditional_logits, statistic_logits
        batch_shape = torch.Size()
        for (name, axes), tensor in zip(AXES.items(), given, strict=True):
            batch_shape = joined_batch(name, tensor, [sizes[axis] for axis in axes], batch_shape)
            setattr(self, name, tensor)
        require(~conditional_logits.isfinite(), "conditional_logits: expected finite numbers, got others")
        self.structure = structure
        self._evidence = no_evidence(n, network_logits.device)
        self._empty = "network_logits: expected a network of positive probability, but the support is empty"
        super().__init__(batch_shape, torch.Size([n]), validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        network_logits: torch.Size,
        transition_logits: torch.Size,
        leaf_logits: torch.Size,
        conditional_logits: torch.Size,
        statistic_logits: torch.Size,
        structure: RegionTree,
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the structure itself."""
        shapes = network_logits, transition_logits, leaf_logits, conditional_logits, statistic_logits
        batches = (shape[: len(shape) - len(axes)] for shape, axes in zip(shapes, AXES.values(), strict=True))
        return broadcast_shapes(*batches), torch.Size([structure.num_variables])

    @lazy_property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of states given the parents' states, ``(..., M, G, K, K)``, of leaves, ``(..., M, G, K,
        2)``, and of values given the parents' values, ``(..., M, K, n, 2, 2)``.
        """
        tables = []
        for name in ("transition_logits", "leaf_logits"):
            logits = getattr(self, name).double()
            require((logits == -torch.inf).all(-1), f"{name}: expected a number larger than -inf in every last axis")
            tables.append(logits.log_softmax(-1))
        odds = self.conditional_logits.double()
        return tables[0], tables[1], torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)

    @lazy_property
    def _free_blocks(self) -> ExchangeablePartition:
        """Blocks of all networks and states, without evidence."""
        blocks = ExchangeablePartition(self.statistic_logits, self.structure.partition, validate_args=False)
        require_support(block_log_partitions(blocks).sum(-1), EMPTY_SUPPORT)
        return blocks

    @lazy_property
    def _blocks(self) -> ExchangeablePartition:
        """Blocks of all networks and states, given the evidence."""
        value, observed, _ = self._evidence
        blocks = self._free_blocks.condition(value[..., None, None, :], observed[..., None, None, :])
        if self._weighting is None:
            return blocks
        return blocks.reweight(*(side[..., None, None, :] for side in self._weighting[0].unbind(-1)))

    @lazy_property
    def _forest(self) -> tuple[Tensor, Tensor]:
        """Results of the upward passes in the forests, given the evidence."""
        value, observed, _ = self._evidence
        excluded = torch.stack([observed & (value != 0), observed & (value != 1)], -1)
        weights = self._tables[2].new_zeros(excluded.shape) if self._weighting is None else self._weighting[0]
        weights = weights.masked_fill(excluded, -torch.inf)
        return forest_upward(self._tables[2], *self.structure.forests, weights[..., None, None, :, :])

    @lazy_property
    def _leaf_scores(self) -> Tensor:
        """Log-weights of the evidence under both leaves of every state, shape ``(..., M, G, K, 2)``."""
        forest = self._forest[1][..., 0].masked_fill(self.structure.levels > 0, 0.0)
        return self._by_region(forest, block_log_partitions(self._blocks))

    def _by_region(self, forest: Tensor, blocks: Tensor) -> Tensor:
        """Log-probabilities in the forest and in the blocks of every region, shape ``(..., M, G, K, 2)``.

        :param Tensor forest: Terms of the variables, shape ``(..., M, K, n)``.
        :param Tensor blocks: Log-weights of the blocks, at their smallest variables, shape ``(..., M, K, n)``.
        """
        relative = blocks - block_log_partitions(self._free_blocks)
        sides = (self.structure.sum_by_region(terms) for terms in (forest, relative))
        return torch.stack(torch.broadcast_tensors(*sides), -1)

    @lazy_property
    def _inward(self) -> tuple[Tensor, Tensor]:
        return self._sum_out(self._leaf_scores)

    def _sum_out(self, leaf_scores: Tensor) -> tuple[Tensor, Tensor]:
        transitions, leaves, _ = self._tables
        return region_inward(transitions, logsumexp(leaves + leaf_scores), self.structure.region_parents)

    @property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Logits of the networks less their largest, next to which their digits could be lost, and that largest one."""
        return centre_tables(self.network_logits, [self.structure.num_networks - 1])

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].squeeze(-1) + self._weighting_constant

    @property
    def _network_weights(self) -> Tensor:
        """Log-weights of the networks with the evidence, up to a constant, shape ``(..., M)``."""
        weights = self._leveled[0] + self._inward[1][..., 0, 0]
        return weights.masked_fill(~self._evidence[2].unsqueeze(-1), -torch.inf)

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._network_weights).expand(self.batch_shape)

    def _score(self, value: Tensor) -> Tensor:
        given, observed, consistent = self._evidence
        spread = value[..., None, None, :]
        forest = forest_score(self._tables[2], self.structure.variable_parents, spread == 1)
        scores = self._by_region(forest, block_log_weights(self._blocks, spread))
        total = logsumexp(self._leveled[0] + self._sum_out(scores)[1][..., 0, 0])
        total = self._weighted_score(total, value == 1)
        possible = ((value == 0) | (value == 1)) & (~observed | (value == given))
        return total.masked_fill(~(possible.all(-1) & consistent), -torch.inf)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws networks, states, leaves, then vectors; shape ``sample_shape + batch_shape + (n,)``."""
        refuse_mapped_draws()
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape)).to(self.network_logits.dtype)

    def _draw(self, sample_shape: torch.Size) -> Tensor:
        structure = self.structure
        weights = self._flat(self._network_weights - self._supported_log_z.unsqueeze(-1), 1)
        network = _categorical(weights.expand(sample_shape.numel(), -1, -1))
        states = self._draw_states(network)
        batch, places, variables = (
            torch.arange(number, device=network.device)
            for number in (len(weights), structure.num_regions, structure.num_variables)
        )
        row, network = batch.unsqueeze(-1), network.unsqueeze(-1)
        leaf = _categorical(self._flat(self._tables[1] + self._leaf_scores, 4)[row, network, places, states])
        region = structure.regions[network.squeeze(-1)]
        which = row, network, states.gather(-1, region), variables
        forest, blocks = self._draw_forests(which), self._draw_blocks(which)
        drawn = torch.where(leaf.gather(-1, region) == 0, forest.to(blocks.dtype), blocks)
        return drawn.reshape(sample_shape + self.batch_shape + self.event_shape)

    def _flat(self, tensor: Tensor, trailing: int) -> Tensor:
        """Tensor with the axes of the batch as one, and ``trailing`` further axes."""
        size = tensor.shape[tensor.dim() - trailing :]
        return tensor.expand(self.batch_shape + size).reshape(self.batch_shape.numel(), *size)

    def _draw_states(self, network: Tensor) -> Tensor:
        """States of all regions, drawn from the root on, shape ``(samples, batch, G)``.

        :param Tensor network: Numbers of networks, shape ``(samples, batch)``.
        """
        transitions, beliefs = self._flat(self._tables[0], 4), self._flat(self._inward[0], 3)
        row = torch.arange(len(beliefs), device=network.device)
        parents = self.structure.region_parents[network]
        states = torch.zeros_like(parents)
        for region in range(self.structure.num_regions):
            above = states.gather(-1, parents[..., region, None]).squeeze(-1)
            logits = transitions[row, network, region, above] + beliefs[row, network, region]
            states[..., region] = _categorical(logits)
        return states

    def _draw_forests(self, which: tuple[Tensor, ...]) -> Tensor:
        """Vectors drawn from forests, each variable from the forest of its own state, shape ``(samples, batch, n)``.

        :param which: Indices of batch elements, networks, states and variables, shapes broadcast to ``(samples, batch,
            n)``.
        """
        parents, levels, num_levels = self.structure.forests
        conditionals, beliefs = self._flat(self._tables[2], 5)[which], self._flat(self._forest[0], 4)[which]
        return forest_sample(conditionals, parents[which[1:]], levels[which[1:]], num_levels, beliefs)

    def _draw_blocks(self, which: tuple[Tensor, ...]) -> Tensor:
        """Vectors drawn from blocks, each variable from the blocks of its own state; argument and shape as for
        :meth:`_draw_forests`.
        """
        partition, (row, network, state, _) = self.structure.partition, which
        (given, observed), weights = self._block_evidence
        given, observed = (self._flat(tensor, 3)[which] for tensor in (given, observed))
        # The cells of the joined blocks are those of the tables of the networks and states that they come from.
        joined = Partition(partition.labels[which[1:]])
        names = joined.cell_blocks
        state = state.gather(-1, names)
        cells = (partition.starts[network, state, names] + joined.cell_counts).clamp(max=joined.table_size - 1)
        logits = self._flat(self.statistic_logits, 3)[row, network, state, cells]
        blocks = ExchangeablePartition(logits, joined, validate_args=False).condition(given, observed)
        if weights is not None:
            blocks = blocks.reweight(*(self._flat(side, 3)[which] for side in weights))
        return blocks.sample()

    @property
    def _block_evidence(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """Evidence about the blocks of all networks and states, except in regions where it is impossible, whose blocks
        keep their distribution.

        :return: Values and booleans that mark observed ones; log-weights of zeros and of ones, or ``None``; all of
            shape ``(..., M, K, n)``.
        """
        value, observed, _ = self._evidence
        possible = self.structure.at_variables(self._leaf_scores[..., 1] > -torch.inf)
        value, kept = torch.broadcast_tensors(value[..., None, None, :], observed[..., None, None, :] & possible)
        if self._weighting is None:
            return (value, kept), None
        off, on = (torch.where(possible, side[..., None, None, :], 0.0) for side in self._weighting[0].unbind(-1))
        return (value, kept), (off, on)

    @property
    def _log_marginals(self) -> Tensor:
        """Log-probabilities of the values of all variables, shape ``batch_shape + (n, 2)``."""
        structure, (transitions, leaves, conditionals) = self.structure, self._tables
        states = region_outward(transitions, *self._inward, structure.region_parents)
        states = states + (self._network_weights - self._supported_log_z.unsqueeze(-1))[..., None, None]
        of_leaves = leaves + self._leaf_scores
        total = logsumexp(of_leaves)
        chosen = (states - total.masked_fill(total == -torch.inf, 0.0)).unsqueeze(-1) + of_leaves
        forest = forest_downward(conditionals, *structure.forests, *self._forest)
        observations, weights = self._block_evidence
        blocks = self._free_blocks.condition(*observations)
        blocks = blocks if weights is None else blocks.reweight(*weights)
        sides = (
            structure.at_variables(weights).unsqueeze(-1) + given
            for weights, given in zip(chosen.unbind(-1), (forest, blocks._log_marginals), strict=True)
        )
        joint = torch.stack(torch.broadcast_tensors(*sides), -3)
        log_marginals = logsumexp(joint.flatten(-5, -3), -3)
        return log_marginals.expand(self.batch_shape + log_marginals.shape[-2:])


def _categorical(logits: Tensor) -> Tensor:
    drawn: Tensor = Categorical(logits=logits, validate_args=False).sample()
    return drawn
