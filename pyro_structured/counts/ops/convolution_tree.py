"""Counts of independent binary variables by a balanced tree of linear-space convolutions (fast Fourier transform).

This is the convolution tree of Tarlow et al. (2012), Section 5, for a potential at the root alone. Each message is the
probability mass function of a count, so that nothing over- or underflows; every convolution has a small *absolute*
error, which is bounded on the way and decides (in :mod:`pyro_structured.counts.ops.count_potential`) whether the result
is good enough. Short messages are convolved directly, and so are all where there are few variables: no relative
accuracy is lost there.
"""

__all__ = ["ConvolutionTree", "downward", "upward"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Variables up to which messages are convolved directly: in a tree of no more than SMALL_TREE variables, and in others.
SMALL_TREE = 128
DIRECT_SIZE = 32
UNIT_ROUNDOFF = 2.0**-53
UNDERFLOW = 1e-300


class ConvolutionTree(NamedTuple):
    """The upward messages of a convolution tree: level ``l`` has nodes of ``2**l`` variables each.

    ``direct`` holds the levels that were convolved directly, with counts first, ``(n + 1, nodes, rows)``; ``messages``,
    the last of them and those that were transformed, with counts last, ``(nodes, rows, n + 1)``. The children of
    node ``j`` are the nodes ``j`` and ``j + nodes // 2`` of the level below. ``max_count`` truncates all messages to
    counts up to it.
    """

    num_variables: int
    max_count: int
    direct: list[Tensor]
    messages: list[Tensor]
    spectra: list[Tensor]
    norms: list[Tensor]
    errors: list[Tensor]

    @property
    def root(self) -> Tensor:
        """Probability mass function of the total count, shape ``(rows, max_count + 1)``."""
        return self.messages[-1][0, :, : self.max_count + 1]

    @property
    def root_error(self) -> Tensor:
        """Bounds on the absolute errors of ``root``, of the same shape."""
        if not self.spectra:
            return 4 * self.direct_size * UNIT_ROUNDOFF * self.root.detach() + UNDERFLOW
        return self.errors[-1][0].unsqueeze(-1).expand(self.root.shape)

    @property
    def direct_size(self) -> int:
        """Number of variables of the largest nodes that were convolved directly."""
        return int(2 ** (len(self.direct) - 1))


def fourier_error(size: int) -> float:
    """Bound on the relative error, in the 2-norm, of a transform of ``size`` points (Higham 2002, Theorem 24.2)."""
    return 7.0 * UNIT_ROUNDOFF * math.log2(size)


def _norm_bound(message: Tensor) -> Tensor:
    """Upper bound of the 2-norm, whose squares could underflow: the geometric mean of 1-norm and maximum norm."""
    message = message.detach()
    return message.sum(-1).sqrt() * message.amax(-1).sqrt()


def _direct_convolve(left: Tensor, right: Tensor, width: int) -> Tensor:
    out = left.new_zeros((width,) + left.shape[1:])
    for i in range(left.shape[0]):
        target = out[i : i + right.shape[0]]
        target.addcmul_(left[i], right[: target.shape[0]])
    return out


def _fourier_size(width: int, full: bool) -> int:
    """Points of the transform: a full convolution of two vectors of n + 1 entries wraps just one coefficient at 2n."""
    return 2 * (width - 1) if full else 2 ** math.ceil(math.log2(2 * width - 1))


def upward(on: Tensor, off: Tensor, max_count: int | None = None) -> ConvolutionTree:
    r"""Computes the mass functions of the counts of independent binary variables, for each node of a balanced tree.

    :param Tensor on: Probabilities of 1, shape ``(rows, num_variables)``, float64.
    :param Tensor off: Probabilities of 0; given apart from ``on`` because ``1 - on`` loses relative accuracy.
    :param int max_count: Counts above it are not computed; defaults to ``num_variables``.
    :return: All messages, with bounds on their errors. Cost :math:`O(D\log^2 D)`, or :math:`O(D\log^2 K)` for
        ``max_count`` K.
    """
    num_variables = on.shape[-1]
    max_count = num_variables if max_count is None else max(1, min(max_count, num_variables))
    leaves = 2 ** math.ceil(math.log2(max(num_variables, 1)))
    # Padding with variables that are never on keeps the tree perfectly balanced and changes no count.
    message = torch.zeros(2, leaves, on.shape[0], dtype=on.dtype, device=on.device)
    message[0, num_variables:] = 1.0
    message[0, :num_variables] = off.T
    message[1, :num_variables] = on.T
    direct, size = [message], 1
    while size < (leaves if leaves <= SMALL_TREE else DIRECT_SIZE):
        left, right = message.chunk(2, 1)
        message = _direct_convolve(left, right, min(2 * size, max_count) + 1)
        direct.append(message)
        size *= 2
    message = message.permute(1, 2, 0).contiguous()
    # A direct convolution of n + 1 non-negative terms has componentwise relative error below 2n u.
    norm = _norm_bound(message)
    error = norm * (4 * size * UNIT_ROUNDOFF)
    messages, spectra, norms, errors = [message], [], [norm], [error]
    while message.shape[0] > 1:
        message, spectrum, norm, error = _fourier_merge(message, norm, error, size <= max_count, max_count)
        messages.append(message)
        spectra.append(spectrum)
        norms.append(norm)
        errors.append(error)
        size *= 2
    return ConvolutionTree(num_variables, max_count, direct, messages, spectra, norms, errors)


def _fourier_merge(
    message: Tensor, norm: Tensor, error: Tensor, full: bool, max_count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    width = message.shape[-1]
    points = _fourier_size(width, full)
    spectrum = torch.fft.rfft(message, n=points)
    left, right = spectrum.chunk(2)
    merged = torch.fft.irfft(left * right, n=points)
    if full:
        a, b = message.chunk(2)
        last = a[..., -1:] * b[..., -1:]
        merged = torch.cat([merged, last], -1)
        merged[..., 0] = a[..., 0] * b[..., 0]
    merged = merged[..., : max_count + 1].clamp_(min=0.0)
    # With masses of one: |e * b|_2 <= |e|_2 |b|_1 and |e * b|_inf <= |e|_2 |b|_2 (Young); transforms of children and
    # of the product round. The errors of different nodes are taken to be independent: they add in quadrature
    # (Higham and Mary 2019), each at its worst.
    rounding = fourier_error(points)
    (norm_l, norm_r), (error_l, error_r) = norm.chunk(2), error.chunk(2)
    merged_norm = _norm_bound(merged)
    if merged.shape[0] == 1:
        merged_error = torch.hypot(error_l * norm_r, error_r * norm_l)
        merged_error = merged_error + rounding * (2 * norm_l * norm_r + merged_norm)
    else:
        merged_error = torch.hypot(torch.hypot(error_l, error_r), rounding * (norm_l + norm_r + merged_norm))
    return merged, spectrum, merged_norm, merged_error + UNDERFLOW


def downward(tree: ConvolutionTree, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Computes, for every variable, the expected weight of the total count given that the variable is 0, or 1.

    :param ConvolutionTree tree: Result of :func:`upward`.
    :param Tensor weights: Non-negative weights of the total counts, shape ``(rows, max_count + 1)``.
    :return: ``(given_off, given_on, error)``: two tensors of shape ``(rows, num_variables)`` and a bound on their
        absolute errors, of the same shape.
    """
    # Messages are reversed on the way down: the correlation with a sibling is then a convolution, and the sibling's
    # transform is used as it is.
    message = weights.flip(-1).unsqueeze(0)
    norm = torch.linalg.vector_norm(message.detach(), dim=-1)
    error = torch.zeros_like(norm)
    size = 2 ** (len(tree.direct) + len(tree.messages) - 2)
    for level in reversed(range(len(tree.spectra))):
        size //= 2
        message, norm, error = _fourier_split(tree, level, size, message, norm, error)
    message = message.permute(2, 0, 1).contiguous()
    for children in reversed(tree.direct[:-1]):
        message = _direct_split(children, message)
    given_on, given_off = message[0].T.contiguous(), message[1].T.contiguous()
    error = error.repeat(tree.direct[0].shape[1] // error.shape[0], 1).T
    # Direct convolutions upward and downward have relative errors.
    rounding = 8 * tree.direct_size * UNIT_ROUNDOFF
    largest = torch.maximum(given_off, given_on).detach()
    error = torch.add(error, largest, alpha=rounding) + UNDERFLOW * weights.detach().amax(-1, keepdim=True)
    keep = tree.num_variables
    return given_off[:, :keep], given_on[:, :keep], error[:, :keep]


def _fourier_split(
    tree: ConvolutionTree, level: int, size: int, message: Tensor, norm: Tensor, error: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    children, spectrum = tree.messages[level], tree.spectra[level]
    nodes, rows, width = children.shape
    pairs = (2, nodes // 2, rows)
    full = size <= tree.max_count
    points = _fourier_size(width, full)
    has_top = message.shape[-1] > points
    inside = message[..., 1:] if has_top else message
    start = inside.shape[-1] - width
    outside = torch.fft.rfft(inside, n=points)
    split = torch.fft.irfft(_exchange(outside, spectrum), n=points)
    split = split[..., start : start + width].view(*pairs, width)
    if full:
        # One coefficient wraps around: the weight of no count arrives in place of that of the largest one.
        top = message[..., 0] - message[..., -1] if has_top else -message[..., -1]
        split[..., 0] += top * children[..., -1].view(pairs).flip(0)
    split = split.clamp_(min=0.0)
    split_norm = torch.linalg.vector_norm(split.detach(), dim=-1)
    sibling_norm = tree.norms[level].view(pairs).flip(0)
    sibling_error = tree.errors[level].view(pairs).flip(0)
    rounding = fourier_error(points)
    split_error = error + norm * (sibling_error + 2 * rounding * sibling_norm) + rounding * split_norm
    return split.flatten(0, 1), split_norm.flatten(0, 1), split_error.flatten(0, 1)


def _exchange(outside: Tensor, spectrum: Tensor) -> Tensor:
    """Products of a parent's spectrum with those of the siblings: right ones for left children, and vice versa."""
    left, right = spectrum.chunk(2)
    if torch.is_grad_enabled():
        return torch.cat([outside * right, outside * left])
    product = torch.empty_like(spectrum)
    for target, sibling in zip(product.chunk(2), (right, left), strict=True):
        torch.mul(outside, sibling, out=target)
    return product


def _direct_split(children: Tensor, message: Tensor) -> Tensor:
    width, nodes, rows = children.shape
    siblings = children.view(width, 2, nodes // 2, rows).flip(1)
    length = message.shape[0]
    message = message.unsqueeze(1)
    out = children.new_zeros(width, 2, nodes // 2, rows)
    for j in range(width):
        start = length - width - j
        out[max(-start, 0) :].addcmul_(message[max(start, 0) : length - j], siblings[j])
    return out.view(width, nodes, rows)
