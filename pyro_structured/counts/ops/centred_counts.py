r"""Potentials on counts, written without large terms that cancel.

A straight line :math:`a c` in the table of a subset is the same as a in the logits of its variables. Among all ways to
write a distribution, one is best for floating point numbers: at a most probable vector, no table has a slope that the
logits would have to make up for. Then probabilities are sums of terms that are of the size of their result.
"""

__all__ = ["CentredCounts", "centre_counts", "has_large"]

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.compensated_sum import compensated_sum, two_sum
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import most_probable
from pyro_structured.counts.ops.coupled_forest import AnyForest, CoupledForest
from pyro_structured.counts.ops.forest_text import forest_of, forest_text
from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.graph_operator import GraphOperator
from pyro_structured.foundation.ops.log_space import centre_tables
from pyro_structured.foundation.ops.private_members import is_in_graph, is_transformed
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_rows, map_rows, merge_mapped

# Sums of smaller numbers have errors of no more than 1e-10; log-potentials are rarely larger.
LARGE = 2.0**16
# Rounds of moving lines: a round may leave lines, as its sums are rounded, and tables come one at a time.
ROUNDS = 3
LARGEST_SLOPE = 2.0**960


class CentredCounts(NamedTuple):
    """Equivalent parameters of a distribution, in double precision, without large terms that cancel.

    ``logits`` have shape ``(..., D)``, ``tables`` ``(..., table_size)``; the logarithm of the sum of all weights is
    that under these parameters, plus the sum of ``terms``, shape ``(..., n)``. ``is_moved`` says whether lines were
    moved, not only constants.
    """

    logits: Tensor
    tables: Tensor
    terms: Tensor
    is_moved: bool

    @property
    def constant(self) -> Tensor:
        """Constant that adds to log Z and to the logarithm of every weight, shape ``(...)``."""
        return compensated_sum(self.terms) if self.is_moved else self.terms.sum(-1)

    @property
    def weights(self) -> Tensor:
        """Log-weight of each variable in the heaviest vector without tables, max(x_d, 0), shape ``(..., D)``."""
        return torch.relu(self.logits.masked_fill(self.logits == math.inf, 0.0))

    @property
    def offset(self) -> Tensor:
        """Log Z less its excess over the heaviest vector without tables, shape ``(...)``."""
        if not self.is_moved:
            return self.weights.sum(-1) + self.constant
        return compensated_sum(torch.cat(broadcast_rows(self.weights, self.terms), -1))


def centre_counts(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> CentredCounts:
    r"""Moves constants out of the tables and, if numbers are large, straight lines from the tables to the logits.

    Nothing is rounded but the results: products are exact, and sums carry their rounding errors along. Derivatives are
    those of the identity. Beside edges and links, only constants are moved.

    :param Tensor logits: Log-odds, shape ``(..., D)``; infinite ones are clamps.
    :param Tensor count_logits: Log-potentials of all tables, shape ``(..., forest.table_size)``; -inf is allowed.
    :param CountForest forest: The counts that the tables weigh.
    :return: Parameters of the same distribution. Cost O(D) for ordinary numbers; for large ones that of the mode.

    Example::

        >>> counts = torch.arange(3, dtype=torch.float64)
        >>> centred = centre_counts(torch.tensor([0.5, -0.25]).double() - 2**40, 2.0**40 * counts, CountForest(2))
        >>> centred.logits.tolist(), centred.tables.tolist()
        ([0.5, -0.25], [0.0, 0.0, 0.0])
    """
    logits, count_logits = logits.double(), count_logits.double()
    if is_in_graph():
        operator = partial(_centred_in_graph, forest_text(forest))
        logits, count_logits, terms = map_rows(operator, logits, count_logits)
        return CentredCounts(logits, count_logits, terms, True)
    if isinstance(forest, CoupledForest) or not (forest.tables and (has_large(logits) or has_large(count_logits))):
        return CentredCounts(logits, *centre_tables(count_logits, [size for _, size in forest.tables]), False)
    slopes, modes = map_rows(_find_slopes, logits, count_logits, forest)
    return _moved(logits, count_logits, slopes, modes, forest)


def _centre_in_graph(plan: str, logits: Tensor, count_logits: Tensor) -> tuple[Tensor, ...]:
    centred = centre_counts(logits, count_logits, forest_of(plan))
    terms = torch.nn.functional.pad(centred.terms, (0, _num_terms(plan) - centred.terms.shape[-1]))
    return centred.logits, centred.tables, terms


def _num_terms(plan: str) -> int:
    """Number of terms where lines are moved, which graphs always have."""
    return (ROUNDS + 2) * len(forest_of(plan).tables)


_centred_in_graph = GraphOperator(
    "centred_counts",
    _centre_in_graph,
    lambda plan, logits, tables: (
        logits.new_empty(logits.shape),
        tables.new_empty(tables.shape),
        logits.new_empty(logits.shape[0], _num_terms(plan)),
    ),
    lambda plan, inputs, results, cotangents: cotangents[:2],
)


def has_large(numbers: Tensor) -> bool:
    """Whether some finite numbers are so large that their sums lose digits."""
    if numbers.device.type == "cpu" and numbers.numel() and not is_transformed():
        # A fast check, which nearly always suffices.
        low, high = torch.aminmax(numbers.detach())
        if -LARGE <= low.item() and high.item() <= LARGE:
            return False
    return any_true(_are_large(numbers))


def _are_large(numbers: Tensor) -> Tensor:
    return (numbers.detach().abs() > LARGE) & numbers.isfinite()


def _find_slopes(*arguments: Any) -> tuple[Tensor, ...]:
    slopes: tuple[Tensor, ...] = _Slopes.apply(*arguments)  # type: ignore[no-untyped-call]
    return slopes


class _Slopes(DifferentiableFunction):
    """Slopes and modes from concrete numbers, opaque to function transforms."""

    @staticmethod
    def forward(logits: Tensor, count_logits: Tensor, forest: CountForest) -> tuple[Tensor, Tensor]:
        return _slopes(logits, count_logits, forest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], logits: Tensor, count_logits: Tensor, forest: CountForest
    ) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        merged = _find_slopes(*merge_mapped(info.batch_size, in_dims, logits, count_logits), forest)
        return tuple(tensor.unflatten(0, (info.batch_size, -1)) for tensor in merged), (0, 0)


def _slopes(logits: Tensor, count_logits: Tensor, forest: CountForest) -> tuple[Tensor, Tensor]:
    """Slopes of the lines to move, shape ``(rows, ROUNDS, number of tables)``, and the counts at which tables are to
    be zero, ``(rows, number of tables)``: those of a most probable vector, or of the largest entry in ordinary rows.
    """
    large = (_are_large(logits).any(-1) | _are_large(count_logits).any(-1)).unsqueeze(-1)
    splits = [size + 1 for _, size in forest.tables]
    rounds: list[Tensor] = []
    modes = torch.zeros(len(logits), len(splits), dtype=torch.long, device=logits.device)
    for _ in range(ROUNDS):
        past = torch.stack(rounds, 1) if rounds else logits.new_zeros(len(logits), 0, len(splits))
        x, f, *_ = _moved(logits, count_logits, past, modes, forest)
        mode = most_probable(x, f, forest)
        modes = forest.counts(mode).where(large, modes)
        slopes = torch.zeros_like(modes, dtype=x.dtype)
        tables = f.split(splits, -1)
        for level in forest.levels(logits.device):
            least_on, most_off = (
                x.new_full(slopes.shape, sign * math.inf).scatter_reduce(
                    1,
                    level.owners.expand(len(x), -1),
                    x[:, level.variables].masked_fill(mode[:, level.variables] != value, sign * math.inf),
                    reduce,
                )
                for value, sign, reduce in ((1, 1, "amin"), (0, -1, "amax"))
            )
            for table in level.tables:
                slope = _slope(tables[table], modes[:, table, None], -least_on[:, table], -most_off[:, table])
                slopes[:, table] = slope.masked_fill(~large.squeeze(-1), 0.0)
            x = x.index_add(1, level.variables, slopes[:, level.owners])
        rounds.append(slopes)
    peaks = torch.stack([table.argmax(-1) for table in count_logits.split(splits, -1)], -1)
    return torch.stack(rounds, 1), modes.where(large, peaks)


def _slope(table: Tensor, mode: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Slope of a table at its count in a most probable vector, between bounds by the logits where possible."""
    edged = torch.nn.functional.pad(table, (1, 1), value=-math.inf)
    before, here, after = (edged.gather(-1, mode + shift).squeeze(-1) for shift in range(3))
    falling, rising = (after - here).nan_to_num(nan=0.0), (here - before).nan_to_num(nan=0.0)
    below, above = torch.maximum(falling, low), torch.minimum(rising, high)
    disagree = below > above
    below = torch.where(disagree, torch.minimum(falling, rising), below)
    above = torch.where(disagree, torch.maximum(falling, rising), above)
    slope = torch.maximum(below, above.clamp(max=0.0))
    slope = torch.where(slope.abs() < LARGEST_SLOPE, slope, 0.0)
    # Without its last digits, products with counts are exact (Dekker 1971).
    wide = slope * (2.0 ** (table.shape[-1].bit_length() + 1) + 1)
    return wide - (wide - slope)


def _moved(logits: Tensor, count_logits: Tensor, slopes: Tensor, modes: Tensor, forest: CountForest) -> CentredCounts:
    """Parameters with lines, and the tables' entries at given counts, moved exactly."""
    batch = modes.shape[:-1]
    x, f = (tensor.expand(batch + tensor.shape[-1:]) for tensor in (logits, count_logits))
    x_rest, f_rest = torch.zeros_like(x.detach()), torch.zeros_like(f.detach())
    sizes = torch.tensor([size + 1 for _, size in forest.tables], device=f.device)
    owner = torch.repeat_interleave(sizes)
    first = sizes.cumsum(0) - sizes
    counts = (torch.arange(len(owner), device=f.device) - first[owner]).to(f.dtype)
    always = forest.counts(logits == math.inf).to(f.dtype)
    terms = []
    for slope in slopes.unbind(-2):
        f, rest = two_sum(f, -(slope[..., owner] * counts))
        f_rest = f_rest + rest
        for level in forest.levels(logits.device):
            shift = x.new_zeros(x.shape).index_add(-1, level.variables, slope[..., level.owners])
            x, rest = two_sum(x, shift)
            x_rest = x_rest + rest
        terms.append(slope * always)
    cells = modes + first
    for table in (f.detach(), f_rest):
        level_of = table.gather(-1, cells)
        level_of = level_of.masked_fill(level_of == -math.inf, 0.0)
        terms.append(level_of)
        f, rest = two_sum(f, -level_of[..., owner])
        f_rest = f_rest + rest
    return CentredCounts(x + x_rest, f + f_rest, torch.cat(terms, -1), True)
