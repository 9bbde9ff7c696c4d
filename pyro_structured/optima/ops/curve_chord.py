"""Ray shooting along curves on which costs grow at different rates."""

__all__ = ["curve_chord"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.optima.ops.ray_shooting import MOST_STEPS, ROUNDING, LinearObjective

# Growth, in logarithms, behind which no end is looked for.
LARGEST = 600.0
# Growth from the point where a tangent touches a curve to where it is used: it stays on its side of zero.
LONGEST = 0.9
# Pieces of a curve at first, and at most, on average; and growth along the shortest ones.
PIECES, MOST_PIECES, SHORTEST = 4, 4096, 1e-13
# Relative change of Newton's method in its last step; relative length of the shortest brackets.
NEAR, NEAREST = 1e-8, 1e-15
# Excess over the optimum, relative to the terms of the objective, which the rounding of an end explains.
SLACK = 1e-12


def curve_chord(
    problem: Any, value: Tensor, costs: Tensor, offset: Tensor, growth: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The interval around 0 of all x for which values are optimal for costs :math:`w + (e^{c x} - 1) o`.

    Newton's method on the best value of the last point finds one where the present value is optimal. Pieces of the
    curve tell whether it is so in between: the costs of the value are at most, and all others at least, a chord or a
    tangent, and inverse sets, which are convex, contain these straight lines with both of their ends. Pieces that
    cannot tell are cut in two; where another value is better at one of their ends, Newton's method goes on from there.
    Some ten calls of the solver, for all curves at once.

    :param Problem problem: A problem of 0/1 incidences.
    :param Tensor value: Optima of the costs, shape ``(..., *event_shape)``.
    :param Tensor costs: Costs w in the inverse sets, double precision, shape ``(..., *cost_shape)``.
    :param Tensor offset: o, the same shape.
    :param Tensor growth: Rates c of growth, the same shape.
    :param Tensor low: Numbers of at most 0 where searches end, shape ``(...)``.
    :param Tensor high: Numbers of at least 0 where searches end.
    :return: Both ends, of shape ``(...)``; infinite where searches ended before.
    :raises RuntimeError: if they are not found in 4096 pieces of each curve.
    """
    incidence, growth = problem.incidence(value).expand(costs.shape), torch.stack([-growth, growth])
    # Solvers compute on the CPU. Both searches at once.
    shape, start = (-1, problem.cost_shape.numel()), problem.flatten(low.shape)
    rows = [part.cpu().expand(growth.shape).reshape(shape) for part in (incidence, costs - offset, offset, growth)]
    curves = _Curves(start[torch.arange(low.numel(), device="cpu").repeat(2)], *rows)
    most = torch.stack([-low, high]).cpu().flatten()
    below, above = curves.ends(most).reshape(2, *low.shape).to(low.device)
    return -below, above


class _Curves:
    """Curves :math:`b + e^{c x} o`, x >= 0, of the costs of N problems, whose entries are one axis of length E.

    :param LinearObjective problem: Problems, batch shape ``(N,)``.
    :param Tensor incidence: Coefficients of the present values, shape ``(N, E)``.
    :param Tensor base: b.
    :param Tensor offset: o.
    :param Tensor growth: c.
    """

    def __init__(
        self, problem: LinearObjective, incidence: Tensor, base: Tensor, offset: Tensor, growth: Tensor
    ) -> None:
        self._problem, self._incidence = problem, incidence
        self._base, self._offset, self._growth = base, offset, growth
        self._rate = growth.abs().amax(1).clamp(min=torch.finfo(torch.double).tiny)
        # Costs that grow away from b lie below their chords and above their tangents.
        self._is_chord = ((incidence > 0) ^ problem.maximize) == (offset > 0)

    def ends(self, most: Tensor) -> Tensor:
        """Least x, shape ``(N,)``, where the present values stop to be optimal; infinite from the given x on."""
        most = most.minimum(LARGEST / self._rate)
        rows = torch.arange(len(most), device="cpu")
        end = self._retreated(rows, most)
        shares = torch.linspace(0.0, 1.0, PIECES + 1, dtype=torch.double, device="cpu")
        rows, first, last = (
            rows.repeat(PIECES),
            *((end * part.unsqueeze(1)).flatten() for part in (shares[:-1], shares[1:])),
        )
        while len(rows) <= MOST_PIECES * len(most):
            is_open = (first < end[rows]) & ((last - first) * self._rate[rows] > SHORTEST)
            rows, first, last = rows[is_open], first[is_open], last[is_open].minimum(end[rows[is_open]])
            if not len(rows):
                return end.masked_fill(end >= most, torch.inf)
            is_known, is_passed = self._tell(rows, first, last, end[rows])
            if bool(is_passed.any()):
                places = torch.stack([first, last])[is_passed]
                passed = rows.expand(2, -1)[is_passed]
                end = end.scatter_reduce(0, passed, places, "amin")
                passed = passed.unique()
                end[passed] = self._retreated(passed, end[passed])
            rows, first, last = rows[~is_known].repeat(2), first[~is_known], last[~is_known]
            middle = (first + last) / 2
            first, last = torch.cat([first, middle]), torch.cat([middle, last])
        raise RuntimeError(f"no end of curves was found in {MOST_PIECES} pieces for each")

    def _retreated(self, rows: Tensor, x: Tensor) -> Tensor:
        """Points at most x, but not before the ends, where present values are optimal. Every step finds a better value
        at x, and goes back to where both are equally good.
        """
        x, active = x.clone(), torch.arange(len(rows), device="cpu")
        for _ in range(MOST_STEPS):
            curve, now = rows[active], x[active]
            points = self._at(curve, now)
            better = self._better(curve, points)
            is_passed = self._excess(curve, better, points, ROUNDING)
            if not bool(is_passed.any()):
                return x
            active, now = active[is_passed], now[is_passed]
            crossing = self._crossing(curve[is_passed], better[is_passed], now)
            x[active] = crossing
            # A step that rounding keeps from going back has found the end.
            active = active[crossing < now]
        raise RuntimeError(f"no end of a curve was found in {MOST_STEPS} steps")

    def _crossing(self, rows: Tensor, better: Tensor, x: Tensor) -> Tensor:
        """Points between 0, where other values are not better, and x, where they are, at which they are equally good:
        Newton's method on the logarithm of the ratio of positive and negative terms, which is nearly straight.
        """
        terms = torch.cat([better * self._base[rows], better * self._offset[rows]], 1)
        rates = torch.cat([torch.zeros_like(better), self._growth[rows]], 1)
        least, most = torch.zeros_like(x), x
        for _ in range(MOST_STEPS):
            grown = terms * torch.exp(rates * x.unsqueeze(1))
            gain, loss = grown.clamp(min=0.0), (-grown).clamp(min=0.0)
            total, total_loss = gain.sum(1), loss.sum(1)
            is_better = total > total_loss
            least, most = torch.where(is_better, least, x), torch.where(is_better, x, most)
            slope = (rates * gain).sum(1) / total - (rates * loss).sum(1) / total_loss
            newton = x - (total / total_loss).log() / slope
            is_inside = (newton > least) & (newton < most)
            # Errors become squares of errors.
            is_last = (newton - x).abs() <= NEAR * x
            newton = newton.maximum(least).minimum(most)
            x = torch.where(is_inside | is_last, newton, (least + most) / 2)
            if bool((is_last | (most - least <= NEAREST * most)).all()):
                break
        return x

    def _tell(self, rows: Tensor, first: Tensor, last: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Whether present values are optimal along pieces for certain, shape ``(P,)``, and whether others are better at
        either of their ends, shape ``(2, P)``.
        """
        both, ends = rows.repeat(2), torch.cat([first, last])
        growth, exact = self._growth[both], self._at(both, ends)
        # Lines that touch where others may be next to being better: tight where the curve begins and where it ends.
        touch = torch.where(first == 0, first, torch.where(last >= end, last, (first + last) / 2)).unsqueeze(1)
        reach = LONGEST / self._growth[rows].abs()
        falls = self._growth[rows] < 0
        touch = torch.where(falls, touch.maximum(last.unsqueeze(1) - reach), touch.minimum(first.unsqueeze(1) + reach))
        touch = touch.repeat(2, 1)
        slope = 1 + growth * (ends.unsqueeze(1) - touch)
        tangent = self._base[both] + self._offset[both] * torch.exp(growth * touch) * slope
        points = torch.where(self._is_chord[both], exact, tangent)
        better = self._better(both, points)
        is_known = ~self._excess(both, better, points, SLACK).reshape(2, -1).any(0)
        return is_known, self._excess(both, better, exact, ROUNDING).reshape(2, -1)

    def _at(self, rows: Tensor, x: Tensor) -> Tensor:
        return self._base[rows] + self._offset[rows] * torch.exp(self._growth[rows] * x.unsqueeze(1))

    def _better(self, rows: Tensor, points: Tensor) -> Tensor:
        """Coefficients in what is gained by the best values, shape ``(P, E)``."""
        problem = self._problem[rows]
        best = problem.incidence(problem.solve(points.reshape(-1, *problem.cost_shape)))
        return (self._incidence[rows] - best.flatten(1)) * (-1.0 if problem.maximize else 1.0)

    def _excess(self, rows: Tensor, better: Tensor, points: Tensor, rounding: float) -> Tensor:
        """Whether what is gained is more than rounding."""
        base = self._base[rows]
        error = rounding * (better.abs() * (base.abs() + (points - base).abs())).sum(1)
        return (better * points).sum(1) > error
