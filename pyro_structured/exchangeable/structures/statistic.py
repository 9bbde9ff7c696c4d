"""Sufficient statistics of partially exchangeable variables."""

__all__ = ["Statistic"]

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.structures.representation import Represented


class Statistic(Represented, ABC):
    r"""A function :math:`T` of n discrete variables with few values, whose level sets
    :math:`S_t = \{x : T(x) = t\}` can be counted, completed and sampled.

    Variables whose probability depends on :math:`T(x)` alone are partially exchangeable. This class is their interface
    to the statistic: the conditions (1) and (2) of Proposition 3.1, and uniform samples. A statistic of your own
    defines the four abstract methods, and gains from its own :meth:`log_marginals`; one
    that a finite automaton computes needs no code at all:
    :class:`~pyro_structured.structures.AutomatonStatistic`.

    Values are tensors of shape ``(..., num_variables)`` with integers in ``range(num_categories)``, of any dtype.
    Levels are integers in ``range(num_levels)``. Evidence is a pair ``(value, observed)``: entries of ``value``
    count where the boolean ``observed`` is True; shapes broadcast.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 2.2, Proposition 3.1.

    :cvar num_variables: Number of variables n, at least 1.
    :cvar num_levels: Number of levels.
    :cvar num_categories: Number of values of a variable, 2 for binary variables.
    """

    num_variables: int
    num_levels: int
    num_categories: int = 2

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Levels of values, integers of shape ``(...)``."""

    @abstractmethod
    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        r"""Logarithms of the numbers of values in every level set that agree with the evidence.

        :return: :math:`\log|S_{t,e}|` in float64, -inf where there are none, shape ``(..., num_levels)``.
        """

    @abstractmethod
    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Draws uniformly from level sets, given evidence.

        :param Tensor level: Integers of shape ``(...)``. Where no value of the level agrees with the evidence, the
            result is arbitrary.
        :return: Integers of shape ``(..., num_variables)``.
        """

    @abstractmethod
    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """One value of the level set that agrees with the evidence, always the same; arguments as for :meth:`sample`.

        All are equally probable, so that this completes a most probable one.
        """

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        r"""Log-probabilities of the single variables' values if levels have weights, :math:`p(x) \propto w_{T(x)}`.

        :param Tensor log_weights: Logarithms of :math:`w`, shape ``(..., num_levels)``: weights of single values, not
            of whole level sets.
        :return: Shape ``(..., num_variables, num_categories)``, in float64.
        """
        fixed_value, fixed = self._clamped(value, observed)
        joint = logsumexp(self.log_completions(fixed_value, fixed) + log_weights[..., None, None, :].double())
        # An observed variable that is clamped to another value contradicts the evidence.
        wrong = observed.unsqueeze(-1) & (value.unsqueeze(-1) != torch.arange(self.num_categories, device=value.device))
        return normalize(joint.masked_fill(wrong, -torch.inf))

    def _clamped(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """The evidence with every variable fixed in turn at every value: shapes ``(..., n, categories, n)``."""
        fixed = torch.eye(self.num_variables, dtype=torch.bool, device=value.device).unsqueeze(1)
        category = torch.arange(self.num_categories, device=value.device).unsqueeze(-1)
        fixed_value = torch.where(fixed, category.to(value.dtype), value[..., None, None, :])
        return fixed_value, observed[..., None, None, :] | fixed

    @cached_property
    def log_sizes(self) -> Tensor:
        r"""Logarithms of the sizes of all level sets, :math:`\log|S_t|`, shape ``(num_levels,)``."""
        nothing = torch.zeros(self.num_variables, dtype=torch.long)
        return self.log_completions(nothing, nothing.bool())
