"""Mixtures of distributions of discrete vectors."""

__all__ = ["MixtureVector"]

from typing import Any, TypeVar

import torch
from pyro.distributions import Categorical
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector, exact_log_evidence, exact_log_prob
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import centre_tables, logsumexp
from pyro_structured.foundation.ops.requirements import any_true, require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

Mixture = TypeVar("Mixture", bound="MixtureVector")


class MixtureVector(DiscreteVector):
    """Base class of mixtures: queries as sums over the classes, given those of the components.

    Components stand in a list. Where they are one distribution with a batch axis of classes, the subclass computes with
    it: ``_components``, ``_log_evidence``, ``_possible``, ``_component_scores`` and ``_draw_components`` are its own.
    """

    mixture_logits: Tensor
    _evidence: tuple[Tensor, Tensor, Tensor]
    # The evidence of each class before the last one, as _kept.
    _kept_before: tuple[Tensor, Tensor | None]
    # The components without the evidence, remembered.
    _free: Any

    def _components(self, observed: Tensor, weights: Tensor | None) -> Any:
        """Components given evidence about each; arguments as in :attr:`_kept`."""
        components, number = self._free, len(self._free)
        if any_true(observed):
            each = observed.expand(observed.shape[:-2] + (number,) + self.event_shape).unbind(-2)
            value = self._evidence[0]
            components = [component.condition(value, own) for component, own in zip(components, each, strict=True)]
        if weights is not None:
            each = weights.expand(weights.shape[:-3] + (number,) + weights.shape[-2:]).unbind(-3)
            components = [self._reweighted(component, own) for component, own in zip(components, each, strict=True)]
        return [component.expand(self.batch_shape) for component in components]

    @staticmethod
    def _reweighted(component: Any, log_weights: Tensor) -> Any:
        """Component given log-likelihoods of its variables' states, shape ``(..., n, R)``."""
        return component.reweight(log_weights)

    @lazy_property
    def _given(self) -> Any:
        """Components given the evidence."""
        weights = None if self._weighting is None else self._weighting[0].unsqueeze(-3)
        return self._components(self._evidence[1].unsqueeze(-2), weights)

    @lazy_property
    def _possible(self) -> Any:
        """Components given the evidence; those that it excludes without the excluding evidence."""
        return self._components(*self._kept) if any_true(self._log_evidence == -torch.inf) else self._given

    @lazy_property
    def _log_evidence(self) -> Tensor:
        """Log-probabilities of the evidence given each class, in double precision, shape ``(..., K)``; -inf if
        observations contradict each other.
        """
        log_evidence = torch.stack(list(map(exact_log_evidence, self._given, self._free)), -1)
        return log_evidence.masked_fill(~self._evidence[2].unsqueeze(-1), -torch.inf)

    def _component_scores(self, value: Tensor) -> Tensor:
        """Log-probabilities of a value given each class and the evidence, in double precision, shape ``(..., K)``."""
        return torch.stack([exact_log_prob(component, value) for component in self._possible], -1)

    def _draw_components(self, sample_shape: torch.Size) -> Tensor:
        """Independent draws from all components, shape ``sample_shape + batch_shape + (K, n)``."""
        return torch.stack([component.sample(sample_shape) for component in self._possible], -2)

    def _mixed(self, tables: list[Tensor]) -> Tensor:
        """Mean of the components' probabilities, of shape ``batch_shape + (...)``."""
        weights = self._log_classes.exp().unbind(-1)
        mixed = [
            weight.reshape(weight.shape + (1,) * (table.dim() - weight.dim())) * table
            for weight, table in zip(weights, tables, strict=True)
        ]
        return torch.stack(mixed).sum(0)

    @property
    def _class_weights(self) -> Tensor:
        """Log-weights of the classes with their evidence, up to a constant, in double precision, shape ``batch_shape +
        (K,)``.
        """
        weights = self._leveled[0] + self._log_evidence
        return weights.expand(self.batch_shape + weights.shape[-1:])

    @lazy_property
    def _kept(self) -> tuple[Tensor, Tensor | None]:
        """Evidence about each class but such that excludes it: booleans that mark observed entries, shape ``(..., K,
        n)``, and log-weights of all states, shape ``(..., K, n, states)``, ``None`` without. None are marked where
        observations contradict each other.
        """
        observed = self._evidence[1].unsqueeze(-2)
        if not any_true(observed) and self._weighting is None:
            return observed, None
        possible = (self._log_evidence > -torch.inf).unsqueeze(-1)
        observed_before, weights_before = self._kept_before
        kept = torch.where(possible, observed, observed_before) & self._evidence[2][..., None, None]
        if self._weighting is None:
            return kept, None
        weights = (self._weighting[0] + self._weighting[1].unsqueeze(-1)).unsqueeze(-3)
        before = weights.new_zeros(()) if weights_before is None else weights_before
        return kept, torch.where(possible.unsqueeze(-1), weights, before)

    @property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Logits of the classes less their largest, next to which their digits could be lost, and that largest one."""
        return centre_tables(self.mixture_logits, [self.mixture_logits.shape[-1] - 1])

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].squeeze(-1) + self._weighting_constant

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._class_weights)

    def _score(self, value: Tensor) -> Tensor:
        return logsumexp(self._class_weights + self._component_scores(value))

    @property
    def _log_classes(self) -> Tensor:
        """Log-probabilities of the classes given the evidence, shape ``batch_shape + (K,)``."""
        return self._class_weights - self._supported_log_z.unsqueeze(-1)

    @property
    def class_probs(self) -> Tensor:
        """Probabilities of the classes, shape ``batch_shape + (K,)``."""
        return self._cast(self._log_classes.exp())

    def condition(self: Mixture, value: Tensor, observed: Tensor) -> Mixture:
        """Fixes some variables; the class stays latent.

        :param Tensor value: States where ``observed``, anything elsewhere; shape broadcasts to ``(..., n)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole values given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries raise where the evidence is impossible.
        """
        return self._share(super().condition(value, observed))

    def _multiplied(self: Mixture, log_weights: Tensor) -> Mixture:
        return self._share(super()._multiplied(log_weights))

    def _share(self: Mixture, given: Mixture) -> Mixture:
        """Gives what does not depend on the last evidence to the distribution given that."""
        given._kept_before, given._free = self._kept, self._free
        return given

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities of a value given each class and the evidence, as in :meth:`component`.

        :param Tensor value: Shape ``(..., n)``.
        :return: Shape ``(..., K)``, of batches broadcast with ``batch_shape``. A class that the evidence excludes keeps
            the distribution that it had before.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._cast(self._component_scores(value))

    def posterior(self, value: Tensor, observed: Tensor | None = None) -> Categorical:
        """The class given a value, or some of its entries, as a distribution over ``range(K)``.

        :param Tensor value: States where ``observed``, anything elsewhere, shape ``(..., n)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``; ``None`` for all entries.
        :raises ValueError: where the evidence is impossible.
        """
        if observed is None:
            observed = torch.ones(self.event_shape, dtype=torch.bool, device=self.mixture_logits.device)
        logits = self._cast(self.condition(value, observed)._log_classes)
        # The constraints of torch cannot be checked where there are no rows.
        return Categorical(logits=logits, validate_args=None if logits.numel() else False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws a class, then a value; shape ``sample_shape + batch_shape + (n,)``."""
        sample_shape = torch.Size(sample_shape)
        with torch.no_grad():
            classes = draw_log(self._log_classes.expand(sample_shape + self._log_classes.shape))
            drawn = self._draw_components(sample_shape)
        return drawn.take_along_dim(classes[..., None, None], -2).squeeze(-2)

    def _checked_classes(self, z: Tensor) -> Tensor:
        """Indices of classes, shape: that of ``z`` broadcast with ``batch_shape``; or a ValueError."""
        number = self.mixture_logits.shape[-1]
        if not isinstance(z, Tensor) or z.is_floating_point() or z.dtype == torch.bool:
            raise ValueError(f"z: expected a tensor of integers, got {getattr(z, 'dtype', z)!r}")
        require((z < 0) | (z >= number), f"z: expected integers in range({number}), got others")
        try:
            shape = broadcast_shapes(z.shape, self.batch_shape)
        except RuntimeError:
            raise ValueError(
                f"z: expected a shape that broadcasts with {tuple(self.batch_shape)}, got {tuple(z.shape)}"
            ) from None
        return z.long().expand(shape)

    def _evidence_of(self, z: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Evidence about values of given classes, except evidence that excludes the class.

        :param Tensor z: Indices of classes, a shape to which ``batch_shape`` broadcasts.
        :return: Values, shape ``(..., n)``, and where they are observed, shape ``z.shape + (n,)``; log-weights of all
            states, shape ``z.shape + (n, states)``, or ``None``.
        """
        kept, weights = self._kept
        observed = _of_classes(kept.expand(z.shape + self.mixture_logits.shape[-1:] + self.event_shape), z)
        if weights is None:
            return (self._evidence[0], observed), None
        weights = weights.expand(z.shape + self.mixture_logits.shape[-1:] + weights.shape[-2:])
        return (self._evidence[0], observed), _of_classes(weights, z)


def _of_classes(tensor: Tensor, z: Tensor) -> Tensor:
    """Entries of classes z of a tensor of shape ``z.shape + (K, ...)``."""
    index = z.reshape(z.shape + (1,) * (tensor.dim() - z.dim()))
    return tensor.take_along_dim(index, z.dim()).squeeze(z.dim())
