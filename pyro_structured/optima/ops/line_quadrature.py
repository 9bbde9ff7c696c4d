"""Integrals over the real line of functions that are known by their logarithms."""

__all__ = ["IMPOSSIBLE", "NODES", "Panels", "log_add", "log_of"]

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Stands for the logarithm of zero: sums stay finite, and derivatives are zero and not NaN.
IMPOSSIBLE = -1e300
NODES = 16


class Panels(NamedTuple):
    """Gauss-Legendre rules between neighbouring edges.

    ``x`` has shape ``(panels * 16,) + rows``, ``log_weight`` ``(panels, 16) + rows``, ``log_width``
    ``(panels, 1) + rows``.
    """

    x: Tensor
    log_weight: Tensor
    log_width: Tensor

    @staticmethod
    def between(edges: Tensor) -> "Panels":
        """Panels between sorted edges, shape ``(panels + 1,) + rows``; some may be empty."""
        width = (edges[1:] - edges[:-1]).unsqueeze(1)
        shape = (NODES,) + (1,) * (edges.dim() - 1)
        nodes, weights, _ = (torch.from_numpy(part).to(edges) for part in _legendre())
        x = edges[:-1].unsqueeze(1) + width * nodes.reshape(shape)
        log_width = log_of(width)
        return Panels(x.flatten(0, 1), log_width + weights.log().reshape(shape), log_width)

    def log_total(self, log_values: Tensor) -> Tensor:
        """Logarithm of the integral, from that of the integrand at ``x``."""
        return torch.logsumexp(log_values + self.log_weight.flatten(0, 1), 0)

    def log_above(self, log_values: Tensor) -> Tensor:
        """Logarithm of the integral of everything above each node; the function is a polynomial in every panel."""
        terms = log_values.reshape(self.log_weight.shape)
        peak = terms.detach().amax(1, keepdim=True)
        matrix = torch.from_numpy(_legendre()[2]).to(log_values)
        inside = torch.einsum("qk,pk...->pq...", matrix, (terms - peak).exp())
        own = log_of(inside) + peak + self.log_width
        panels = torch.logsumexp(terms + self.log_weight, 1)
        return log_add(own, _log_after(panels).unsqueeze(1).expand_as(own)).flatten(0, 1)

    def mirrored(self) -> "Panels":
        """The same panels in reverse order, for integrals of everything below each node."""
        return Panels(self.x.flip(0), self.log_weight.flip(0, 1), self.log_width.flip(0))


@cache
def _legendre() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1], and what integrates an interpolated polynomial from every node to 1."""
    s, weights = np.polynomial.legendre.leggauss(NODES)
    values = np.polynomial.legendre.legvander(s, NODES)
    degrees = np.arange(1, NODES)
    rest = np.empty((NODES, NODES))
    rest[:, 0] = 1 - s
    rest[:, 1:] = (values[:, :-2] - values[:, 2:]) / (2 * degrees + 1)
    coefficients = values[:, :-1] * weights[:, None] * (np.arange(NODES) + 0.5)
    return (s + 1) / 2, weights / 2, rest @ coefficients.T / 2


def log_of(numbers: Tensor) -> Tensor:
    """Logarithms, ``IMPOSSIBLE`` with zero derivatives for numbers that are not positive."""
    positive = numbers > 0
    return numbers.where(positive, 1.0).log().masked_fill(~positive, IMPOSSIBLE)


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """As ``torch.logaddexp``, with second derivatives that are finite for terms that are far apart, too."""
    return torch.logsumexp(torch.stack([first, second]), 0)


def _log_after(terms: Tensor) -> Tensor:
    """Logarithms of the sums of all later terms along the first axis, in log2(size) steps without cancellation."""
    nothing = torch.full_like(terms[:1], IMPOSSIBLE)
    total, step = torch.cat([terms[1:], nothing]), 1
    while step < len(terms):
        total = log_add(total, torch.cat([total[step:], nothing.expand(step, *terms.shape[1:])]))
        step *= 2
    return total
