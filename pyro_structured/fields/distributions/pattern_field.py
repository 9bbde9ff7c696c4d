"""Binary fields under patterns: what follows from sums."""

__all__ = ["PatternField"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.fields.distributions.pattern_bounds import PatternBounds
from pyro_structured.fields.distributions.perfect_draws import MAX_SWEEPS, perfect_draws
from pyro_structured.fields.distributions.units_of_field import joint_field
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import safe_log


class PatternField(PatternBounds):
    """Queries of binary fields."""

    _remedies = (
        "log_prob_bounds, estimate_log_prob(value, AnnealedImportanceSampling()) and unnormalized_log_prob have no "
        "limit"
    )

    @property
    def marginals(self) -> Tensor:
        """Probabilities of 1, shape ``batch_shape + event_shape``."""
        on = self._supported_marginals()[..., self._num_variables :]
        return self._cast(on.reshape(self.batch_shape + self.event_shape))

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of the single variables, shape ``batch_shape + event_shape``."""
        off, on = safe_log(self._supported_marginals()).split(self._num_variables, -1)
        return self._cast(log_odds(off, on).reshape(self.batch_shape + self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Equals :attr:`marginals`."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variances of the single variables, shape ``batch_shape + event_shape``."""
        off, on = self._supported_marginals().split(self._num_variables, -1)
        return self._cast((off * on).reshape(self.batch_shape + self.event_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + event_shape``: from sums, or, where these would take too
        long, as :meth:`perfect_sample`.
        """
        shape = torch.Size(sample_shape)
        try:
            _ = self._hidden
        except NotImplementedError as too_large:
            try:
                return self.perfect_sample(shape)
            except NotImplementedError as error:
                raise NotImplementedError(f"{too_large}; {error}") from None
        return self._exact_draws(shape)

    def perfect_sample(self, sample_shape: Any = (), max_sweeps: int = MAX_SWEEPS) -> Tensor:
        """Exact samples of fields of any size by monotone coupling from the past.

        Penalties and weights have to be balanced: if labels, patterns and their couplings are drawn as a graph, every
        cycle has an even number of negative ones. Penalties of at least 0 are, with patterns whose weights have one
        sign each. Hidden units are drawn as well, so that the composition has to be ``"sum"`` and the temperature a
        positive integer T, if there are patterns.

        A sweep of one sample costs O(T·J·D); how many it takes is random. They are few if couplings are weak, and
        exponentially many in the size of the field if they are so strong that it has several phases. Chains that have
        not met at ``max_sweeps`` raise an error: to try again until they do would prefer samples that meet soon.

        :param sample_shape: As for :meth:`sample`.
        :param int max_sweeps: How many sweeps ago chains may start, at least 1.
        :return: Shape ``sample_shape + batch_shape + event_shape``.
        :raises NotImplementedError: if couplings are not balanced, with a cycle that shows it.
        :raises RuntimeError: if some chains have not met.

        **References**

        Propp, Wilson (1996): Exact sampling with coupled Markov chains and applications to statistical mechanics.
        Random Structures and Algorithms 9.

        Example::

            >>> from pyro_structured.distributions import GridCRF
            >>> from pyro_structured.structures import Grid
            >>> grid = Grid(40, 50)
            >>> GridCRF(torch.zeros(40, 50), torch.full((grid.num_edges,), 0.5), grid).perfect_sample((3,)).shape
            torch.Size([3, 40, 50])
        """
        if isinstance(max_sweeps, bool) or not isinstance(max_sweeps, int) or max_sweeps < 1:
            raise ValueError(f"max_sweeps: expected a positive integer, got {max_sweeps!r}")
        shape = torch.Size(sample_shape)
        if not self.batch_shape.numel():
            return self._cast(self._constant.new_zeros(shape + self.batch_shape + self.event_shape))
        field = joint_field(self)
        copies = self.batch_shape.numel() // field.num_rows
        drawn = perfect_draws(field, shape.numel() * copies, max_sweeps, self.event_shape).transpose(0, 1)
        return self._cast(drawn.reshape(shape + self.batch_shape + self.event_shape))

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``: by looking at all, or, if there are more than 18
        variables, by branch and bound, with a proof.
        """
        if self._num_variables > MOST_PIXELS:
            if self._scheme is None:
                raise NotImplementedError(
                    f"mode: expected composition='sum' or 'min' where there are more than {MOST_PIXELS} variables, got "
                    f"a table and {self._num_variables}; map('em') finds good labels"
                )
            best, found = self.map("branch_and_bound")
            if not bool(found.optimal.all()):
                raise NotImplementedError(
                    f"mode: branch and bound proved no optimum with {int(found.num_cuts.max())} cuts; map returns the "
                    "best labels and a bound"
                )
            return best
        return self._best_labeling()
