"""What a junction tree's passes make of tables and evidence with batches of any shape."""

__all__ = ["CliqueVector"]

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.ops.centred_tables import centre_tables
from pyro_structured.foundation.ops.evidence import state_weights
from pyro_structured.foundation.ops.requirements import require_support
from pyro_structured.foundation.ops.vmap_rows import narrow_repeated
from pyro_structured.junction_trees.ops.clique_tables import total_score
from pyro_structured.junction_trees.ops.junction_tree import TreeBeliefs, infer_tree, log_partition_of_tree
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree


class CliqueVector(CategoricalVector):
    """Beliefs about variables with log-weights on cliques, computed when they are first asked for."""

    clique_logits: Tensor
    tree: CliqueTree
    _derived = ("_leveled", "_beliefs", "_single_beliefs")

    @lazy_property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Tables without constants, which would swallow their digits, and the constants."""
        return centre_tables(
            narrow_repeated(self._parameter("clique_logits")), [size - 1 for size in self.tree.table_sizes]
        )

    @property
    def _arguments(self) -> tuple[Tensor, Tensor]:
        """Tables and evidence as matrices, with one row where all are the same."""
        tables = self._leveled[0]
        weights = state_weights(self._evidence, self.tree.cardinalities, tables)
        return self._rows(tables), self._rows(weights)

    @lazy_property
    def _beliefs(self) -> TreeBeliefs:
        return self._infer(clique_marginals=True)

    @lazy_property
    def _single_beliefs(self) -> TreeBeliefs:
        """Without marginals of cliques, in less time."""
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
        """Log-weights without the tables' constants."""
        given, observed, consistent = self._evidence
        sizes = torch.tensor(self.tree.cardinalities, device=value.device)
        inside = (value >= 0) & (value < sizes) & (value == value.long())
        score = total_score(self.tree.plan, self._leveled[0], torch.where(inside, value, 0).long())
        agrees = (inside & (~observed | (value == given))).all(-1) & consistent
        return score.masked_fill(~agrees, -torch.inf)
