"""Upper bounds of partition functions of binary fields under patterns by Hölder's inequality."""

__all__ = ["holder_bound"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.grid_strips import GridStrips, log_partition_of_units
from pyro_structured.fields.ops.hidden_states import log_worth, unit_powers
from pyro_structured.fields.ops.pattern_potential import pattern_potential

# Size of the first step, as a share of the mean absolute log-odds, penalties and weights; later steps are smaller.
STEP = 0.2


def holder_bound(field: Field, strips: list[GridStrips], num_states: int, num_steps: int = 60) -> Tensor:
    r"""Computes an upper bound of log Z from K parts of the field, each small enough for exact sums.

    The log-odds u, the penalties p and the patterns are dealt out to the parts, :math:`\sum_k u_k = u` and so on. By
    Hölder's inequality

    .. math::
        \log \sum_y \exp \sum_k s_k(y) \le \sum_k \frac{1}{K} \log \sum_y \exp K s_k(y)

    whatever the shares are; a convex function of them, of which some steps of gradient descent are taken. Each part has
    the pairs inside of one of several sets of strips, and some of the patterns, with hidden units that are summed:

    - :math:`f_T \le f_{T'}` where :math:`T' \ge T`, and :math:`\exp K f_{n / K}(a)` is an n-th power of sums over free
      hidden units, for n > 0;
    - :math:`f_T(a) \le f_{n / K}(a - \beta) + f_{T - n / K}(\beta)` where n/K is less than T, for all :math:`\beta`,
      since entropies are added up in :math:`f_T(a) = \max_\mu \mu^\top a + T H(\mu)`; the best :math:`\beta` is looked
      for, too;
    - a table g is at most :math:`\max_k (g_k - \gamma k) + \gamma \sum_j h_j`, for all :math:`\gamma`.

    So it is a bound after any number of steps, at every temperature, with penalties and weights of any signs. It is
    exact where one part has everything, T is an integer, and the composition is ``"sum"``. With chains in place of
    strips, and no patterns, it is the tree-reweighted bound.

    :param Field field: A field with any composition; for ``"min"`` there are better ways.
    :param strips: Sets of strips of which each pair of neighbours is inside one, or the whole grid; the parts take them
        in turn.
    :param int num_states: The largest number of states of hidden units, all parts together; at least 2 for each pattern
        are taken in any case.
    :param int num_steps: Number of steps of gradient descent.
    :return: Shape ``(rows,)``, differentiable, with the shares held fixed. Cost of a step: that of passes over the
        strips for all states, twice.

    **References**

    Wainwright, Jaakkola, Willsky (2005): A new class of upper bounds on the log partition function. IEEE Transactions
    on Information Theory 51. Liu, Ihler (2011): Bounding the partition function using Hölder's inequality. ICML.
    """
    plan = _plan(field, strips, num_states)
    if field.is_paired and not bool(plan.cover.any(0).all()):
        raise ValueError("strips: expected every pair of neighbours inside of one, got pairs that are in none")
    with torch.no_grad():
        shares = _descend(plan, num_steps)
    return plan.bound(*shares)


class _Plan(NamedTuple):
    """Division of a field into K parts.

    :ivar Field field: The whole field.
    :ivar list strips: Sets of strips, which the parts take in turn.
    :ivar int number: Number of parts K.
    :ivar int size: Number of patterns of a part.
    :ivar int power: Number n of replicas of a part's hidden units.
    """

    field: Field
    strips: list[GridStrips]
    number: int
    size: int
    power: int

    @property
    def spare(self) -> float:
        r"""Temperature of the shifts, :math:`\max(0, T - n / K)`."""
        return max(0.0, self.field.temperature - self.power / self.number)

    @property
    def cover(self) -> Tensor:
        """Whether each part has each pair, shape ``(K, E)``."""
        kept = [self.strips[part % len(self.strips)].kept for part in range(self.number)]
        return torch.stack(kept).to(self.field.states.device)

    def start(self) -> list[Tensor]:
        r"""Equal shares, all zeros: deviations of the log-odds, ``(rows, K, (L - 1) D)`` with L labels, deviations of
        the penalties, ``(rows, K, E)``, shifts :math:`\beta`, ``(rows, J)``, and the slope :math:`\gamma`, ``(rows,
        1)``.
        """
        rows, zeros = self.field.num_rows, self.field.states.new_zeros
        pairs = self.field.penalties.shape[-1]
        return [
            zeros(rows, self.number, self.field.states.shape[-1] - self.field.num_pixels),
            zeros(rows, self.number, pairs),
            zeros(rows, self.field.num_patterns),
            zeros(rows, 1),
        ]

    def bound(self, odds: Tensor, penalties: Tensor, shifts: Tensor, slope: Tensor) -> Tensor:
        """Upper bound of log Z, shape ``(rows,)``; arguments as returned by :meth:`start`."""
        field, rows, number = self.field, len(odds), self.number
        odds = odds - odds.mean(1, keepdim=True)
        biases, constant = self._biases(shifts, slope)
        missing = number * self.size - field.num_patterns
        biases = torch.nn.functional.pad(biases, (0, missing), value=-torch.inf).unflatten(-1, (number, self.size))
        weights = torch.nn.functional.pad(field.weights, (0, 0, 0, missing)).unflatten(1, (number, self.size))
        states = field.states.unsqueeze(1) + torch.nn.functional.pad(number * odds, (field.num_pixels, 0))
        part_penalties = self._penalties(penalties) * number if field.is_paired else penalties
        shares, log_numbers = unit_powers(self.size, self.power, odds)
        log_weights = log_worth(number * biases, shares) + log_numbers
        total = constant
        for place, strips in enumerate(self.strips[:number]):
            mine = slice(place, None, len(self.strips))
            log_partitions = log_partition_of_units(
                states[:, mine].flatten(0, 1),
                part_penalties[:, mine].flatten(0, 1),
                number * weights[:, mine].expand(rows, -1, -1, -1).flatten(0, 1),
                log_weights[:, mine].flatten(0, 1),
                shares,
                strips,
            )
            total = total + log_partitions.reshape(rows, -1).sum(-1) / number
        return total

    def _biases(self, shifts: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Shifted biases of the patterns, shape ``(rows, J)``, and the constant that the shifts add to the bound, shape
        ``(rows,)``.
        """
        field = self.field
        biases, constant = field.biases.expand(len(shifts), -1), field.states.new_zeros(len(shifts))
        if isinstance(field.composition, Tensor):
            counts = torch.arange(field.composition.shape[-1], device=slope.device)
            constant = (field.composition - slope * counts).amax(-1)
            biases = biases + slope
        if self.spare:
            spare = shifts.masked_fill(biases == -torch.inf, -torch.inf)
            constant = constant + pattern_potential(spare, "sum", self.spare)
            biases = biases - shifts
        return biases, constant

    def _penalties(self, deviations: Tensor) -> Tensor:
        """Penalties of the parts, shape ``(rows, K, E)``, with sum p over the parts; 0 for pairs that a part lacks."""
        cover = self.cover
        times = cover.sum(0)
        inside = deviations.masked_fill(~cover, 0.0)
        centred = deviations - inside.sum(1, keepdim=True) / times
        return (self.field.penalties.unsqueeze(1) / times + centred).masked_fill(~cover, 0.0)


def _plan(field: Field, strips: list[GridStrips], num_states: int) -> _Plan:
    """Division into the largest parts, and then with the largest power, that ``num_states`` allows."""
    patterns = field.num_patterns

    def parts(size: int) -> int:
        return max(len(strips), -(-patterns // size) if size else 1)

    size = min(patterns, 1)
    while size < patterns and parts(size + 1) * 2 ** (size + 1) <= num_states:
        size += 1
    number, power = parts(size), 1
    size = -(-patterns // number)
    while power < int(field.temperature * number) and number * (power + 2) ** size <= num_states:
        power += 1
    return _Plan(field, strips, number, size, power)


def _descend(plan: _Plan, num_steps: int) -> list[Tensor]:
    """Shares found by Adam, the best of all steps in each row."""
    field = plan.field.detach()
    plan = plan._replace(field=field)
    off, *others = field.states.chunk(field.num_labels, -1)
    odds = torch.cat([label_states - off for label_states in others], -1)
    parts = [odds.masked_fill(~odds.isfinite(), 0.0), field.penalties.nan_to_num(posinf=0.0)]
    parts += [field.weights.flatten(1)]
    scale = off.new_full((field.num_rows,), 0.1)
    for part in parts:
        scale = scale + (part.abs().mean(-1) if part.shape[-1] else 0.0)
    shares = [part.requires_grad_() for part in plan.start()]
    best, value = [share.detach().clone() for share in shares], torch.full_like(scale, torch.inf)
    optimizer = torch.optim.Adam(shares, lr=STEP)
    for step in range(num_steps + 1):
        with torch.enable_grad():
            bounds = plan.bound(*(part * scale.reshape(-1, *(1,) * (part.dim() - 1)) for part in shares))
            gradients = torch.autograd.grad(bounds.sum(), shares, allow_unused=True)
        better = bounds.detach() < value
        value = torch.where(better, bounds.detach(), value)
        best = [
            torch.where(better.reshape(-1, *(1,) * (share.dim() - 1)), share.detach(), old)
            for share, old in zip(shares, best, strict=True)
        ]
        if plan.number == 1 and not plan.spare and isinstance(field.composition, str):
            break
        for part, gradient in zip(shares, gradients, strict=True):
            part.grad = torch.zeros_like(part) if gradient is None else gradient
        for group in optimizer.param_groups:
            group["lr"] = STEP * (1 - step / (num_steps + 1))
        optimizer.step()
    return [part * scale.reshape(-1, *(1,) * (part.dim() - 1)) for part in best]
