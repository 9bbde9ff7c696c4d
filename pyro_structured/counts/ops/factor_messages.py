"""Messages between families of count potentials that share their variables, and what they say of log Z."""

__all__ = [
    "Extrapolation",
    "Factor",
    "FactorGraph",
    "FixedPoint",
    "Schedule",
    "differentiable_messages",
    "first_order",
    "propagate",
]

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.log_space import logsumexp

# Residuals, as differences of probabilities, of which rounding alone leaves about as much.
ROUNDING = 1e-13
# Factor by which the residual may exceed the least one before the extrapolation starts anew.
MOST_GROWTH = 10.0
DAMPING = 0.5
# Longest extrapolation, in units of the largest change of a message in the last step; at least 1.
LONGEST = 10.0
# Relative change of a log-odds that counts as none.
SETTLED = 1e-6
# Relative to the squared lengths of the differences of steps.
RIDGE = 1e-12


class Factor(Protocol):
    """Sums over all binary vectors with the potentials of a family."""

    def __call__(self, logits: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sums and posterior log-odds, differentiable.

        :param Tensor logits: Log-odds, shape ``(rows, n)``; infinite ones are clamps without a weight of their own.
        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
        :return: Shapes ``(rows,)`` and ``(rows, n)``.
        """


class FactorGraph(NamedTuple):
    r"""Binary variables with log-odds of their own, and factors that all of them may be in.

    .. math::
        p(y) \propto \exp\Bigl(\sum_d x_d y_d + \sum_{f=1}^F \log\psi_f(y)\Bigr).

    Methods work with a share w of each factor: they take :math:`\psi_f^{1/w}`, whose posterior is compared with
    beliefs. With w = 1, messages are those of belief propagation; with :math:`w = 1/F`, of the bound that follows from
    Hölder's inequality. A factor adds a message :math:`m_f` to the log-odds; beliefs are :math:`b = x + w \sum_f m_f`,
    and a factor receives :math:`b - m_f`.

    :ivar factors: The factors.
    :ivar Tensor logits: Log-odds x, shape ``(rows, n)``; infinite ones are clamps without a weight of their own.
    :ivar tables: Log-potentials of each factor, shape ``(rows, table_size)``, those of :math:`\psi_f^{1/w}`.
    :ivar crossing: For each factor, whether under it alone the variables of each count of the others are independent.
    :ivar float share: w.
    """

    factors: tuple[Factor, ...]
    logits: Tensor
    tables: tuple[Tensor, ...]
    crossing: tuple[bool, ...]
    share: float = 1.0

    def rows(self, index: Tensor) -> "FactorGraph":
        """Some of the rows."""
        tables = tuple(table[index] for table in self.tables)
        return self._replace(logits=self.logits[index], tables=tables)

    def detach(self) -> "FactorGraph":
        """The same numbers without derivatives."""
        tables = tuple(table.detach() for table in self.tables)
        return self._replace(logits=self.logits.detach(), tables=tables)

    def with_share(self, share: float) -> "FactorGraph":
        """The same variables and factors, from those of a share of 1."""
        return self._replace(tables=tuple(table / share for table in self.tables), share=share)

    @property
    def no_messages(self) -> Tensor:
        """Messages that say nothing, shape ``(F, rows, n)``."""
        return self.logits.new_zeros(len(self.factors), *self.logits.shape)

    def inputs(self, messages: Tensor, factor: int) -> tuple[Tensor, Tensor]:
        """Log-odds that a factor receives, shape ``(rows, n)``: finite parts, and infinite ones, with zeros elsewhere.

        :param Tensor messages: Messages of all factors, shape ``(F, rows, n)``, infinite where a factor decides.
        """
        terms = [self.share * message for g, message in enumerate(messages) if g != factor]
        if self.share != 1.0:
            terms.append((self.share - 1.0) * messages[factor])
        return _joined([self.logits, *terms])

    def beliefs(self, messages: Tensor) -> Tensor:
        """Log-odds of the variables, shape ``(rows, n)``; NaN where factors decide differently."""
        return _combined(*_joined([self.logits, *(self.share * message for message in messages)]))

    def sweep(self, messages: Tensor, limit: float = math.inf) -> tuple[Tensor, Tensor, Tensor]:
        """A plain step: new messages of one factor after the other.

        :param Tensor messages: Shape ``(F, rows, n)``; those of the first factor do not matter with a share of 1.
        :param float limit: Largest absolute value of messages.
        :return: The messages, the largest difference between a factor's posterior probability and the belief after the
            step, and whether a row is impossible, shapes ``(rows,)``.
        """
        posteriors = []
        impossible = torch.zeros(len(self.logits), dtype=torch.bool, device=self.logits.device)
        for number, factor in enumerate(self.factors):
            finite, deciding = self.inputs(messages, number)
            impossible = impossible | deciding.isnan().any(-1)
            deciding = deciding.nan_to_num(0.0, math.inf, -math.inf)
            log_z, odds = factor(_combined(finite, deciding), self.tables[number])
            impossible = impossible | (log_z == -math.inf) | odds.isnan().any(-1)
            unknown = odds.isnan()
            message = (odds - finite).masked_fill((deciding != 0) | unknown, 0.0).clamp(-limit, limit)
            posteriors.append(odds.detach().masked_fill(unknown, 0.0))
            messages = torch.stack([message if g == number else old for g, old in enumerate(messages)])
        probs = self.beliefs(messages.detach()).sigmoid()
        differences = torch.stack([(odds.sigmoid() - probs).abs().amax(-1) for odds in posteriors])
        return messages, differences.amax(0).nan_to_num(1.0), impossible

    def log_partition(self, messages: Tensor) -> Tensor:
        r"""Log Z as the messages have it, shape ``(rows,)``.

        .. math::
            \sum_f w \log Z_f(b - m_f) - (F w - 1) \sum_d \log(1 + e^{b_d}).

        With w = 1 it is Bethe's approximation, which is stationary at a fixed point, so that its gradient along
        log-odds is the beliefs' probabilities; with :math:`w = 1/F`, an upper bound whatever the messages are.

        :param Tensor messages: Shape ``(F, rows, n)``, constants.
        """
        total = self.logits.new_zeros(len(self.logits))
        for number, factor in enumerate(self.factors):
            finite, deciding = self.inputs(messages, number)
            log_z, _ = factor(_combined(finite, deciding), self.tables[number])
            # A decided value has no weight of its own in a factor's sum.
            total = total + self.share * (log_z + finite.where(deciding > 0, 0.0).sum(-1))
        excess = len(self.factors) * self.share - 1.0
        if not excess:
            return total
        finite, deciding = _joined([self.logits, *(self.share * message for message in messages)])
        both = logsumexp(torch.stack([torch.zeros_like(finite), finite], -1))
        of_variables = torch.where(deciding == 0, both, finite.where(deciding > 0, 0.0))
        return total - excess * of_variables.sum(-1)


def _joined(terms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sum of the finite terms, and of the infinite ones, NaN where these are opposite; zeros elsewhere."""
    masks = [term.detach().isinf() for term in terms]
    finite = torch.stack([term.masked_fill(mask, 0.0) for term, mask in zip(terms, masks, strict=True)]).sum(0)
    deciding = torch.stack([term.detach().where(mask, 0.0) for term, mask in zip(terms, masks, strict=True)]).sum(0)
    return finite, deciding


def _combined(finite: Tensor, deciding: Tensor) -> Tensor:
    return torch.where(deciding == 0, finite, deciding)


class Schedule(NamedTuple):
    """How long steps are made, and how.

    :ivar float tolerance: Largest estimated error of a probability.
    :ivar int max_iterations: Largest number of steps of each of the three kinds: extrapolated, plain, damped.
    :ivar int memory: Number of earlier steps that are extrapolated from.
    :ivar float limit: Largest absolute value of messages.
    """

    tolerance: float
    max_iterations: int
    memory: int = 5
    limit: float = math.inf


class FixedPoint(NamedTuple):
    """Messages after the last step.

    :ivar Tensor messages: Shape ``(F, rows, n)``.
    :ivar Tensor residual: Largest difference between a factor's posterior probability and the belief after a plain
        step, shape ``(rows,)``.
    :ivar Tensor error: The residual, divided by one minus the rate at which plain steps reduce it; infinite where no
        rate is known.
    :ivar Tensor num_iterations: Numbers of steps, shape ``(rows,)``.
    :ivar Tensor converged: Whether the error is within the tolerance, shape ``(rows,)``.
    :ivar Tensor impossible: Whether factors decided differently at the end, so that no vector is possible, unless
        messages were too large for numbers; shape ``(rows,)``.
    """

    messages: Tensor
    residual: Tensor
    error: Tensor
    num_iterations: Tensor
    converged: Tensor
    impossible: Tensor


@torch.no_grad()
def propagate(graph: FactorGraph, messages: Tensor, schedule: Schedule) -> FixedPoint:
    """Steps until the posteriors of all factors agree, row by row.

    Steps are extrapolated from the last ones at first; rows that have not converged after ``max_iterations`` go on with
    plain steps, and then with steps that are damped by one half. A small residual is no convergence where steps crawl,
    or where beliefs are as good as certain and about to turn: rows leave after two plain steps whose residual over one
    minus its rate is small, or as small as rounding while no belief goes back.

    :param FactorGraph graph: Variables and factors.
    :param Tensor messages: Where to begin, shape ``(F, rows, n)``.
    :param Schedule schedule: How long, and how.
    """
    tolerance, max_iterations, memory, limit = schedule
    start, messages, number = messages, messages.clone(), len(graph.logits)
    residual = graph.logits.new_full((number,), math.inf)
    error = residual.clone()
    num_iterations = torch.zeros(number, dtype=torch.long, device=residual.device)
    impossible = num_iterations.bool()
    active = torch.arange(number, device=residual.device)
    for extrapolation, step in ((Extrapolation(memory), 1.0), (Extrapolation(0), 1.0), (Extrapolation(0), DAMPING)):
        # Rows whose messages have become impossible begin anew.
        messages[:, active] = messages[:, active].where(~impossible[active].unsqueeze(-1), start[:, active])
        impossible[active] = False
        given_up = active[:0]
        # Residual after the step before, NaN unless that was a plain one; least residual so far.
        before, least = residual.new_full((len(active),), math.nan), residual.new_full((len(active),), math.inf)
        for _ in range(max_iterations):
            if not len(active):
                break
            here, part = messages[:, active], graph.rows(active)
            there, remaining, wrong = part.sweep(here, limit)
            rate = (remaining / before).clamp(max=1.0).nan_to_num(1.0)
            distance = remaining / (1.0 - rate)
            if len(here) == 1:
                distance = remaining
            else:
                # Rounding makes rates of the smallest residuals meaningless.
                is_settled = ~before.isnan() & _goes_on(part.beliefs(here), part.beliefs(there))
                by_sign = torch.where(is_settled, remaining, math.inf)
                distance = torch.where(remaining <= ROUNDING, by_sign, distance)
            residual[active], error[active], impossible[active] = remaining, distance, wrong
            num_iterations[active] += 1
            done = (distance <= tolerance) & ~wrong
            point, image = (tensor[1:].movedim(0, -2).flatten(-2) for tensor in (here, there))
            following = extrapolation(point, image, remaining > MOST_GROWTH * least)
            if step < 1.0:
                following = torch.where(image.isfinite() & point.isfinite(), point + step * (image - point), image)
            # A residual within the tolerance is followed by a plain step, which tells the rate.
            plain = done | (remaining <= tolerance) & before.isnan() | (following == image).all(-1)
            following = torch.where(plain.unsqueeze(-1), image, following)
            least, before = torch.minimum(least, remaining), torch.where(plain, remaining, math.nan)
            messages[:1, active] = there[:1]
            messages[1:, active] = following.unflatten(-1, (-1, there.shape[-1])).movedim(-2, 0)
            leaves = done | wrong
            if bool(leaves.any()):
                given_up = torch.cat([given_up, active[wrong]])
                active, before, least = active[~leaves], before[~leaves], least[~leaves]
                extrapolation.keep(~leaves)
        active = torch.cat([active, given_up])
    return FixedPoint(messages, residual, error, num_iterations, (error <= tolerance) & ~impossible, impossible)


def _goes_on(before: Tensor, after: Tensor) -> Tensor:
    """Whether beliefs have settled, or become more certain still, shape ``(rows,)``."""
    change = _finite(after - before)
    return ((change.abs() <= SETTLED * (1 + _finite(after).abs())) | (change * _finite(before) > 0)).all(-1)


def differentiable_messages(graph: FactorGraph, messages: Tensor, schedule: Schedule) -> Tensor:
    """The messages of a fixed point with their derivatives along log-odds and tables, by the implicit function theorem.

    With J the derivative of a plain step along the messages, a gradient g goes back through one step as the solution of
    :math:`u = g + J^T u`, found by the same extrapolated steps. Derivatives of the first order.

    :param FactorGraph graph: Variables and factors, with derivatives.
    :param Tensor messages: The fixed point, shape ``(F, rows, n)``.
    :param Schedule schedule: That of the fixed point; the tolerance is that of u, relative to the largest entry of g.
    """
    tolerance, max_iterations, memory, limit = schedule
    attached = graph.sweep(messages, limit)[0]
    if not attached.requires_grad:
        return messages
    constant = graph.detach()

    def adjoint(gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            start = messages.detach().requires_grad_()
            step = constant.sweep(start, limit)[0]
        extrapolation, solution = Extrapolation(memory), gradient
        smallest = tolerance * gradient.abs().amax()
        never = torch.zeros(gradient.shape[1], dtype=torch.bool, device=gradient.device)
        for _ in range(max_iterations):
            (pulled,) = torch.autograd.grad(step, start, solution, retain_graph=True)
            image = gradient + pulled
            if bool((image - solution).abs().amax() <= smallest):
                return image
            before, after = (tensor.movedim(0, -2).flatten(-2) for tensor in (solution, image))
            solution = extrapolation(before, after, never).unflatten(-1, (len(gradient), -1)).movedim(-2, 0)
        return solution

    fixed: Tensor = _Backward.apply(attached, adjoint)  # type: ignore[no-untyped-call]
    return fixed


def first_order(tensor: Tensor) -> Tensor:
    """The tensor, whose second derivatives, which would leave out that a fixed point moves, are refused."""
    refused: Tensor = _Backward.apply(tensor, lambda gradient: gradient)  # type: ignore[no-untyped-call]
    return refused


class _Backward(DifferentiableFunction):
    """The same numbers, with gradients that go through a function that has no derivatives."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.function = function
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Gradients have a graph of their own where they are to be differentiated.
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "approximate marginals, log_partition and bounds have derivatives of the first order, got "
                "create_graph=True; exact queries can be differentiated twice"
            )
        return ctx.function(gradient), None


class Extrapolation:
    """Anderson's acceleration: the combination of the last steps whose residuals cancel best, for each row.

    :param int memory: Number of earlier steps; 0 for plain ones.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._points: list[Tensor] = []
        self._images: list[Tensor] = []

    def keep(self, rows: Tensor) -> None:
        """Goes on with some of the rows."""
        self._points = [point[rows] for point in self._points]
        self._images = [image[rows] for image in self._images]

    def __call__(self, point: Tensor, image: Tensor, restarts: Tensor) -> Tensor:
        """Where to go on.

        :param Tensor point: Last point, shape ``(rows, m)``.
        :param Tensor image: Point after a plain step from it.
        :param Tensor restarts: Rows whose earlier steps are forgotten, shape ``(rows,)``.
        """
        again = restarts.unsqueeze(-1)
        # A step that is forgotten is like the present one: its differences are zeros.
        self._points = [torch.where(again, point, old) for old in self._points]
        self._images = [torch.where(again, image, old) for old in self._images]
        following = image
        if self._points and point.shape[-1]:
            moves = _finite(image - point)
            shifts = torch.stack([_finite(image - old) for old in self._images], -1)
            pairs = zip(self._points, self._images, strict=True)
            turns = torch.stack([moves - _finite(after - before) for before, after in pairs], -1)
            sizes = turns.square().sum(-2).sqrt()
            used = sizes > 0
            turns = turns / sizes.where(used, 1.0).unsqueeze(-2)
            gram = turns.mT @ turns + RIDGE * torch.eye(turns.shape[-1], dtype=turns.dtype, device=turns.device)
            weights = torch.linalg.solve(gram, turns.mT @ moves.unsqueeze(-1)).squeeze(-1)
            weights = (weights / sizes.where(used, 1.0)).where(used, 0.0)
            turn = -(shifts @ weights.unsqueeze(-1)).squeeze(-1)
            # Where beliefs become certain, steps do not, and would be extrapolated without end.
            largest = (LONGEST * moves.abs().amax(-1, keepdim=True)).clamp(min=1.0)
            following = image + turn.clamp(-largest, largest)
        if self._memory:
            self._points = [*self._points, point][-self._memory :]
            self._images = [*self._images, image][-self._memory :]
        return following


def _finite(tensor: Tensor) -> Tensor:
    """The tensor, zero where it is infinite or NaN."""
    return tensor.nan_to_num(0.0, 0.0, 0.0)
