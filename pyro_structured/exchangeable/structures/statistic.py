"""Sufficient statistics of partially exchangeable variables."""

__all__ = ["Statistic"]

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.automaton import Automaton
from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP, enumerate_values, is_enumerable
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

    Where every variable has weights of its own, as after ``reweight`` of a distribution, level sets are summed by
    :meth:`log_mass`, searched by :meth:`log_peaks` and :meth:`weighted_mode`, and sampled by :meth:`weighted_sample`;
    :meth:`weighted_log_marginals` takes weights of the levels, too. Of a statistic of your own they enumerate up to
    ``2 ** 12`` values; larger ones need these five methods, or an automaton.

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

    def log_mass(self, log_weights: Tensor) -> Tensor:
        r"""Logarithms of the sums over all level sets of products of the variables' weights,
        :math:`\log \sum_{x \in S_t} \prod_d w_d(x_d)`.

        :param Tensor log_weights: Logarithms of all :math:`w_d`, shape ``(..., num_variables, num_categories)``, less
            than +inf; -inf is allowed.
        :return: Shape ``(..., num_levels)``, in float64; -inf where nothing in a level set has a positive weight.
        :raises NotImplementedError: if a statistic that has no method of its own has more than ``2 ** 12`` values; so
            do the following four.

        Example::

            >>> from pyro_structured.structures import Count
            >>> Count(2).log_mass(torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()).exp()
            tensor([0.4500, 0.5000, 0.0500], dtype=torch.float64)
        """
        return self._automaton.log_mass(log_weights.double())

    def log_peaks(self, log_weights: Tensor) -> Tensor:
        """Largest log-weights in all level sets; argument and shape as for :meth:`log_mass`."""
        return self._automaton.log_peaks(log_weights.double())

    def weighted_sample(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Draws from level sets in proportion to the products of the variables' weights.

        :param Tensor level: Integers of shape ``(...)``. Where no value of the level has a positive weight, the result
            is arbitrary.
        :param Tensor log_weights: As for :meth:`log_mass`; leading axes broadcast with ``level``.
        :return: Integers of shape ``(..., num_variables)``.
        """
        return self._automaton.sample(level, log_weights.double())

    def weighted_mode(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """A value of largest weight in each level set, always the same; arguments as for :meth:`weighted_sample`."""
        return self._automaton.find(level, log_weights.double())

    def weighted_log_marginals(self, level_weights: Tensor, log_weights: Tensor) -> Tensor:
        r"""Log-probabilities of the single variables' values under :math:`p(x) \propto w_{T(x)} \prod_d w_d(x_d)`.

        :param Tensor level_weights: Logarithms of :math:`w_t`, shape ``(..., num_levels)``.
        :param Tensor log_weights: As for :meth:`log_mass`; leading axes broadcast.
        :return: Shape ``(..., num_variables, num_categories)``, in float64.
        """
        return self._automaton.log_marginals(level_weights.double(), log_weights.double())

    @cached_property
    def _automaton(self) -> Automaton:
        """An automaton that reads values and ends at their levels; here, one that remembers all that it has read."""
        n, categories = self.num_variables, self.num_categories
        if not is_enumerable(n, categories):
            raise NotImplementedError(
                f"statistic: expected at most {ENUMERATION_CAP} values of a {type(self).__name__} beside weights of "
                f"variables, got {categories}**{n}; define log_mass, log_peaks, weighted_sample, weighted_mode and "
                "weighted_log_marginals, or use an AutomatonStatistic"
            )
        values = enumerate_values(n, categories, torch.Size(), False, like=torch.zeros((), dtype=torch.long))
        # The first letters, as a number in base r.
        states = (categories * torch.arange(len(values)).unsqueeze(-1) + torch.arange(categories)) % len(values)
        return Automaton(n, states.unsqueeze(0), self.value(values), self.num_levels)

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
