"""What mixtures with a latent class have in common."""

__all__ = ["MixtureVector"]

from abc import abstractmethod

from torch import Tensor

from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector
from pyro_structured.foundation.ops.centred_tables import centre_tables
from pyro_structured.foundation.ops.log_space import logsumexp


class MixtureVector(DiscreteVector):
    """Sums over the classes of a mixture, which come before those of its components."""

    mixture_logits: Tensor

    @property
    @abstractmethod
    def _class_weights(self) -> Tensor:
        """Log-weights of the classes with their evidence, up to a constant, in double precision, shape
        ``batch_shape + (K,)``.
        """

    @property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Logits of the classes without a constant, which would swallow their digits, and the constant."""
        return centre_tables(self.mixture_logits, [self.mixture_logits.shape[-1] - 1])

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].squeeze(-1)

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._class_weights)

    @property
    def _log_classes(self) -> Tensor:
        """Log-probabilities of the classes given the evidence."""
        return self._class_weights - self._supported_log_z.unsqueeze(-1)

    @property
    def class_probs(self) -> Tensor:
        """Probabilities of the classes, shape ``batch_shape + (K,)``."""
        return self._cast(self._log_classes.exp())
