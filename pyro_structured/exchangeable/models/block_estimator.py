"""What estimators of mixtures of exchangeable variable models have in common."""

__all__ = ["BlockEstimator"]

from numbers import Real

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pyro_structured.exchangeable.distributions.exchangeable_mixture import ExchangeableMixture
from pyro_structured.exchangeable.models.binary_estimator import BinaryEstimator
from pyro_structured.exchangeable.models.block_mixture import BlockMixture
from pyro_structured.exchangeable.models.structural_em import STRUCTURES, StructuralEM
from pyro_structured.exchangeable.models.welch_partition import check_options
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.foundation.models.argument_checks import check_count
from pyro_structured.foundation.structures.argument_checks import check_choice


class BlockEstimator(BinaryEstimator):
    """Has the parameters of :class:`StructuralEM`, and a mixture once it is fitted."""

    structure: str
    smoothing: float
    tol: float
    max_iter: int
    level: float
    linkage: str
    correction: str
    _mixture: BlockMixture

    def _check_parameters(self) -> None:
        """Raises ValueError for a parameter that no fit can use."""
        check_count("max_iter", self.max_iter)
        for name in ("smoothing", "tol"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"{name}: expected a number larger than 0, got {value!r}")
        check_choice("structure", self.structure, STRUCTURES)
        check_options(self.level, self.linkage, self.correction)

    def _learner(self, rows: BinaryRows, allowed: np.ndarray | None = None) -> StructuralEM:
        options = {name: getattr(self, name) for name in ("level", "linkage", "correction")}
        smoothing, tol = float(self.smoothing), float(self.tol)
        return StructuralEM(rows, self.structure, smoothing, tol, self.max_iter, allowed, **options)

    def to_pyro(self) -> ExchangeableMixture:
        """What was learned as a Pyro distribution, with all its queries.

        It is in double precision: samples are to be cast for models in float32.
        """
        check_is_fitted(self)
        return self._mixture.to_pyro()
