"""Trees of regions of variables, with forests and blocks inside the regions."""

__all__ = ["RegionTree"]

import torch
from torch import Tensor

from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.structures.argument_checks import check_dense
from pyro_structured.foundation.structures.representation import Represented


class RegionTree(Represented):
    r"""Several partitions of variables into trees of regions, each with several leaves.

    It is the structure of :class:`~pyro_structured.distributions.SumProductNetwork`: of a mixture of M networks, each
    with G regions that have K states. A state of a region is a leaf with two models of the region's variables: a
    forest, and blocks of exchangeable variables. Regions may be empty. Forests have the levels 0 (their roots), 1
    (their children) and so on.

    :param Tensor regions: Region of every variable in every network, integers below G of shape ``(M, n)``.
    :param Tensor region_parents: Parents of the regions, integers of shape ``(M, G)``; every parent is smaller than
        its region, except that the root, region 0, is its own parent.
    :param Tensor variable_parents: Parents of the variables in the forests, integers of shape ``(M, K, n)``, in the
        same region; roots are their own parents.
    :param Partition partition: Blocks of variables inside the regions, of batch shape ``(M, K)``.
    :raises ValueError: if shapes do not fit, parents or blocks leave their regions, or parents go in a circle.

    **References**

    Dennis, Ventura (2012): Learning the architecture of sum-product networks using clustering on variables. NeurIPS.
    Niepert, Domingos (2014): Exchangeable variable models. ICML. Section 6.

    Example::

        >>> regions, root_and_child = torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0]])
        >>> chains = torch.tensor([[[0, 0, 2], [0, 1, 2]]])  # state 0 has an arc from variable 0 to 1
        >>> blocks = Partition(torch.tensor([[[0, 1, 2], [0, 0, 2]]]))  # state 1 has a block of the two
        >>> RegionTree(regions, root_and_child, chains, blocks)
        RegionTree(num_networks=1, num_regions=2, num_states=2, num_variables=3)
    """

    def __init__(self, regions: Tensor, region_parents: Tensor, variable_parents: Tensor, partition: Partition) -> None:
        for name, tensor, rank in (
            ("regions", regions, 2),
            ("region_parents", region_parents, 2),
            ("variable_parents", variable_parents, 3),
        ):
            if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise ValueError(f"{name}: expected a tensor of integers, got {getattr(tensor, 'dtype', tensor)!r}")
            check_dense(name, tensor)
            if tensor.dim() != rank or not tensor.numel():
                raise ValueError(f"{name}: expected {rank} axes that are not empty, got shape {tuple(tensor.shape)}")
        if not isinstance(partition, Partition):
            raise ValueError(f"partition: expected a Partition, got {type(partition).__name__}")
        self.regions, self.region_parents = regions.long(), region_parents.long()
        self.variable_parents, self.partition = variable_parents.long(), partition
        self._check()
        self.levels = self._find_levels()
        self.num_levels = int(self.levels.max()) + 1

    @property
    def num_networks(self) -> int:
        """Number of networks M."""
        return self.regions.shape[0]

    @property
    def num_regions(self) -> int:
        """Number of regions G of each network."""
        return self.region_parents.shape[-1]

    @property
    def num_states(self) -> int:
        """Number of states K of each region."""
        return self.variable_parents.shape[-2]

    @property
    def num_variables(self) -> int:
        """Number of variables n."""
        return self.regions.shape[-1]

    @property
    def forests(self) -> tuple[Tensor, Tensor, int]:
        """Parents and levels of the variables, shape ``(M, K, n)``, and the number of levels."""
        return self.variable_parents, self.levels, self.num_levels

    def sum_by_region(self, terms: Tensor) -> Tensor:
        """Sums of the variables' terms over every region: from shape ``(..., M, K, n)`` to ``(..., M, G, K)``."""
        index = self.regions.unsqueeze(-2).expand(terms.shape)
        return terms.new_zeros(terms.shape[:-1] + (self.num_regions,)).scatter_add(-1, index, terms).mT

    def at_variables(self, table: Tensor) -> Tensor:
        """Entries of the regions that the variables are in: from shape ``(..., M, G, K)`` to ``(..., M, K, n)``."""
        index = self.regions.unsqueeze(-2).expand(table.mT.shape[:-1] + self.regions.shape[-1:])
        return table.mT.gather(-1, index)

    def _check(self) -> None:
        networks, number, parents = self.num_networks, self.num_regions, self.region_parents
        places = torch.arange(number, device=parents.device)
        if len(parents) != networks or not bool(((parents >= 0) & (parents < places.clamp(min=1))).all()):
            raise ValueError(
                f"region_parents: expected shape ({networks}, G), a smaller region for each one and 0 for the root, "
                f"got {parents.tolist()}"
            )
        if not bool(((self.regions >= 0) & (self.regions < number)).all()):
            raise ValueError(f"regions: expected integers in range({number}), got others")
        shape = (networks, self.num_states, self.num_variables)
        for name, above in (("variable_parents", self.variable_parents), ("partition", self.partition.labels)):
            if above.shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {tuple(above.shape)}")
            if not bool(((above >= 0) & (above < self.num_variables)).all()):
                raise ValueError(f"{name}: expected integers in range({self.num_variables}), got others")
            regions = self.regions.unsqueeze(1).expand(shape)
            if not torch.equal(regions.gather(-1, above), regions):
                raise ValueError(f"{name}: expected variables of the same region, got others")

    def _find_levels(self) -> Tensor:
        """Distances of the variables from the roots, shape ``(M, K, n)``."""
        parents = self.variable_parents
        levels = torch.zeros_like(parents)
        roots = torch.arange(self.num_variables, device=parents.device)
        above = parents
        for _ in range(self.num_variables):
            below = above != parents.gather(-1, above)
            levels += below
            if not bool(below.any()):
                return levels + (parents != roots)
            above = parents.gather(-1, above)
        raise ValueError("variable_parents: expected forests, got parents that go in a circle")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RegionTree)
            and torch.equal(self.regions, other.regions)
            and torch.equal(self.region_parents, other.region_parents)
            and torch.equal(self.variable_parents, other.variable_parents)
            and self.partition == other.partition
        )

    def __hash__(self) -> int:
        return hash(self.variable_parents.shape)

    def __repr__(self) -> str:
        return (
            f"RegionTree(num_networks={self.num_networks}, num_regions={self.num_regions}, "
            f"num_states={self.num_states}, num_variables={self.num_variables})"
        )
