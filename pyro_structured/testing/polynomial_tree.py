"""Generating polynomials of nested counts in ball arithmetic, upward and downward."""

__all__ = ["Numbers", "PolynomialTree", "ball", "exponential", "total"]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Balls of python-flint (arb), or floats where they are infinite.
Numbers = Sequence[Any]


def ball(number: float) -> Any:
    """The exact ball of a finite number.

    Example::

        >>> ball(0.5)
        0.500000000000000
    """
    from flint import arb

    return arb(number)


def exponential(number: Any) -> Any:
    """The exponential of a ball, or of -inf.

    Example::

        >>> exponential(-math.inf)
        0
    """
    return ball(0.0) if isinstance(number, float) and number == -math.inf else ball(number).exp()


def total(numbers: Numbers) -> Any:
    """The sum of balls.

    Example::

        >>> total([ball(1.0), ball(2.0)])
        3.00000000000000
    """
    result = ball(0.0)
    for number in numbers:
        result = result + number
    return result


def _product(left: Numbers, right: Numbers) -> Numbers:
    """Convolves two vectors of non-negative balls.

    Whether a coefficient is exactly zero is found out apart: fast multiplication leaves balls around zero.
    """
    from flint import arb_poly

    coefficients = (arb_poly(left) * arb_poly(right)).coeffs()
    coefficients += [ball(0.0)] * (len(left) + len(right) - 1 - len(coefficients))
    present = [np.array([not x.is_zero() for x in factor], dtype=np.float64) for factor in (left, right)]
    possible = np.convolve(present[0], present[1]) > 0.5
    return [x if p else ball(0.0) for x, p in zip(coefficients, possible.tolist(), strict=True)]


def _correlation(whole: Numbers, other: Numbers) -> Numbers:
    """Correlation of two vectors of balls: for every i the sum over j of ``whole[i + j] * other[j]``."""
    return _product(whole, other[::-1])[len(other) - 1 : len(whole)]


@dataclass
class _Node:
    """A leaf (no children), a product of two polynomials, or a polynomial weighted by a table (one child)."""

    inside: Numbers
    children: tuple[int, ...] = ()
    weights: Numbers = ()
    outside: Numbers = field(default_factory=list)


class PolynomialTree:
    """The polynomials whose coefficient k is the weight of the vectors in which a set of variables has the count k.

    :param logits: Log-odds of the variables, as balls; infinite floats clamp their variables.
    :param count_logits: Entries of all tables, as balls or -inf.
    :param subsets: Integers of each subset, nested; ``None`` is one subset of all variables.

    Example::

        >>> tree = PolynomialTree([ball(0.0), ball(0.0)], [ball(0.0), ball(0.0), -math.inf], None)
        >>> tree.root_weights()
        [1.00000000000000, 2.00000000000000, 0]
    """

    def __init__(self, logits: Numbers, count_logits: Numbers, subsets: Iterable[Iterable[int]] | None) -> None:
        one, zero = ball(1.0), ball(0.0)
        self.logits = logits
        self.nodes: list[_Node] = []
        for logit in logits:
            clamped = isinstance(logit, float)
            self.nodes.append(_Node([zero, one] if clamped and logit > 0 else [one, zero if clamped else logit.exp()]))
        families = [range(len(logits))] if subsets is None else [[int(d) for d in s] for s in subsets]
        ends = np.cumsum([len(s) + 1 for s in families], dtype=int).tolist()
        if len(count_logits) != ([0] + ends)[-1]:
            raise ValueError(f"count_logits: expected {([0] + ends)[-1]} numbers, got {len(count_logits)}")
        tables = [
            [exponential(f) for f in count_logits[end - len(s) - 1 : end]]
            for s, end in zip(families, ends, strict=True)
        ]
        self._node_of = self._build(families, tables)

    def _build(self, families: Sequence[Sequence[int]], tables: Sequence[Numbers]) -> list[int]:
        """Adds the subsets from the smallest to the largest, and the root."""
        top = list(range(len(self.logits)))
        node_of = [-1] * len(families)
        self.constant = ball(1.0)
        for index in sorted(range(len(families)), key=lambda i: len(families[i])):
            if not families[index]:
                self.constant = self.constant * tables[index][0]
                continue
            child = self._multiply(dict.fromkeys(top[d] for d in families[index]))
            weighted = [w * x for w, x in zip(tables[index], self.nodes[child].inside, strict=True)]
            self.nodes.append(_Node(weighted, (child,), tables[index]))
            node_of[index] = len(self.nodes) - 1
            for d in families[index]:
                top[d] = node_of[index]
        self._roots = list(dict.fromkeys(top))
        return node_of

    def _multiply(self, parts: Iterable[int]) -> int:
        """Multiplies the polynomials of several nodes, neighbours first; returns the node of the product."""
        level = list(parts)
        while len(level) > 1:
            following = []
            for left, right in zip(level[::2], level[1::2], strict=False):
                self.nodes.append(_Node(_product(self.nodes[left].inside, self.nodes[right].inside), (left, right)))
                following.append(len(self.nodes) - 1)
            level = following + (level[-1:] if len(level) % 2 else [])
        return level[0]

    def root_weights(self) -> Numbers:
        """Weights of the counts of the only root."""
        (root,) = self._roots
        return self.nodes[root].inside

    def log_partition(self) -> Any:
        """Logarithm of the sum of all weights, or ``None`` where this is zero."""
        result = self.constant
        for root in self._roots:
            result = result * total(self.nodes[root].inside)
        return None if result.is_zero() else result.log()

    def pass_down(self) -> None:
        """Computes for every node and count the weight of everything outside the node."""
        for root in self._roots:
            self.nodes[root].outside = [ball(1.0)] * len(self.nodes[root].inside)
        for node in reversed(self.nodes):
            if len(node.children) == 1:
                child = self.nodes[node.children[0]]
                child.outside = [w * x for w, x in zip(node.weights, node.outside, strict=True)]
            elif node.children:
                left, right = (self.nodes[child] for child in node.children)
                left.outside = _correlation(node.outside, right.inside)
                right.outside = _correlation(node.outside, left.inside)

    def marginal_logits(self) -> Numbers:
        """Posterior log-odds of the variables; a float where infinite."""
        result = []
        for logit, leaf in zip(self.logits, self.nodes, strict=False):
            off, on = (i * o for i, o in zip(leaf.inside, leaf.outside, strict=True))
            if on.is_zero() or off.is_zero():
                result.append(-math.inf if on.is_zero() else math.inf)
            else:
                result.append(logit + (leaf.outside[1] / leaf.outside[0]).log())
        return result

    def marginals(self) -> Numbers:
        """Posterior probabilities of the variables being 1."""
        leaves = self.nodes[: len(self.logits)]
        return [_normalised([i * o for i, o in zip(leaf.inside, leaf.outside, strict=True)])[1] for leaf in leaves]

    def count_marginals(self) -> Sequence[Numbers]:
        """Posterior probabilities of the counts of every subset."""
        nodes = [self.nodes[n] if n >= 0 else _Node([ball(1.0)], outside=[ball(1.0)]) for n in self._node_of]
        return [_normalised([i * o for i, o in zip(node.inside, node.outside, strict=True)]) for node in nodes]


def _normalised(weights: Numbers) -> Numbers:
    whole = total(weights)
    return [w / whole for w in weights]
