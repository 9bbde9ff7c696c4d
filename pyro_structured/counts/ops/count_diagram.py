"""Decision diagrams of counts: exact sums over binary vectors whose counted subsets overlap, one variable at a time."""

__all__ = ["MOST_STATES", "Counter", "CountDiagram", "DiagramChoices", "DiagramPlan", "order_variables"]

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.marginal_inference import MarginalPlan
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Largest number of states of all variables together.
MOST_STATES = 2**26
# Numbers of states that are processed together, those of all rows of a batch counted.
STATES_AT_ONCE = 2**26
LARGEST_CODE = 2**62
# Logarithm of the number of states, as if counts were independent, for each one that sums of several counts may leave.
LARGEST_SAVING = math.log(64.0)
# Differences of logarithms that count as none.
TIE = 1e-9


class Counter(NamedTuple):
    """A weighted count of variables, and the place of its table.

    :ivar members: Numbers of the variables, shape ``(n,)``.
    :ivar off: What each adds if it is 0, integers of at least 0, shape ``(n,)``.
    :ivar on: What each adds if it is 1.
    :ivar start: Place of the table's first entry, that of a count of 0.
    :ivar size: Number of the table's entries.
    """

    members: np.ndarray
    off: np.ndarray
    on: np.ndarray
    start: int
    size: int


def order_variables(counters: Sequence[Counter], num_variables: int) -> list[int]:
    """An order of the variables in which few counters are under way at a time, found greedily.

    Next is the variable after which the product of the sizes of these counters' tables is smallest; of several, the
    first one of those that bring counters nearest to their ends.

    :param counters: All counters.
    :param int num_variables: Number of variables, n; cost :math:`O(n)` times the number of counters.

    Example::

        >>> rows, columns = ([[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]])
        >>> ones = [np.ones(len(m), dtype=np.int64) for m in rows + columns]
        >>> counters = [Counter(np.array(m), 0 * one, one, 0, len(m) + 1) for m, one in zip(rows + columns, ones)]
        >>> order_variables(counters, 6)
        [0, 3, 1, 4, 2, 5]
    """
    member = np.zeros((len(counters), num_variables), dtype=bool)
    for index, counter in enumerate(counters):
        member[index, counter.members] = True
    sizes = np.log([counter.size for counter in counters]) if counters else np.zeros(0)
    left = member.sum(-1)
    is_open = np.zeros(len(counters), dtype=bool)
    free = np.ones(num_variables, dtype=bool)
    order = []
    for _ in range(num_variables):
        change = sizes * ~is_open - sizes * (left == 1)
        cost = np.where(free, change @ member, np.inf)
        progress = (is_open / np.maximum(left, 1)) @ member
        best = np.flatnonzero(cost <= cost.min() + TIE)
        chosen = int(best[np.argmax(progress[best])])
        order.append(chosen)
        free[chosen] = False
        is_open |= member[:, chosen]
        left = left - member[:, chosen]
    return order


def _estimated_states(counters: Sequence[Counter], order: Sequence[int], possible: np.ndarray) -> float:
    """Logarithm of the number of states if counts were independent of each other."""
    place = np.empty(len(order), dtype=np.int64)
    place[list(order)] = np.arange(len(order))
    log_widths = np.zeros(len(order) + 1)
    for counter in counters:
        values = np.flatnonzero(possible[counter.start : counter.start + counter.size])
        if not len(values) or not len(counter.members):
            continue
        sequence = np.argsort(place[counter.members])
        least = np.minimum(counter.off, counter.on)[sequence].cumsum()
        most = np.maximum(counter.off, counter.on)[sequence].cumsum()
        low = np.maximum(least, values[0] - (most[-1] - most))
        high = np.minimum(most, values[-1] - (least[-1] - least))
        widths = np.log(np.maximum(high - low + 1, 1))
        widths[-1] = 0.0
        np.add.at(log_widths, place[counter.members][sequence], np.diff(widths, prepend=0.0))
    return float(np.logaddexp.reduce(log_widths.cumsum()))


class _Layer(NamedTuple):
    """Transitions at a variable from the states before it.

    :ivar int variable: Number of the variable.
    :ivar children: States after it if it is 0, and if it is 1, shape ``(states, 2)``; one more than the last one where
        this is impossible.
    :ivar entries: For each counter that ends at this variable, entries of its table, of the same shape; 0 where a
        transition is impossible.
    """

    variable: int
    children: Tensor
    entries: tuple[Tensor, ...]


class CountDiagram:
    r"""The states that counters can have after each variable: those of the counters that are under way.

    :param counters: All counters.
    :param order: Order of the variables.
    :param numpy.ndarray allowed: Whether a variable may be 0, and 1, booleans of shape ``(n, 2)``.
    :param numpy.ndarray possible: Whether entries of the tables are possible, booleans of shape ``(table_size,)``.
    :raises OverflowError: if there are more than ``MOST_STATES`` states in all.

    Cost of construction: :math:`O(S \log S)` for S states.
    """

    def __init__(
        self,
        counters: Sequence[Counter],
        order: Sequence[int],
        allowed: np.ndarray,
        possible: np.ndarray,
    ) -> None:
        states = _States(counters, order, allowed, possible)
        layers, total = [], 0
        for variable in order:
            layer = states.advance(variable)
            total += len(layer.children)
            if total > MOST_STATES or states.is_too_wide:
                raise OverflowError(f"more than {MOST_STATES} states")
            layers.append(layer)
        # Behind the last variable there is one state, or none.
        self._num_ends = states.number
        self.layers = _without_dead_ends(layers, states.number)
        self.num_states = sum(len(layer.children) for layer in self.layers)

    def backward(self, weights: Tensor, tables: Tensor, add: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Log-sums over the variables from each one on, by state.

        :param Tensor weights: Log-weights of both values of the variables, shape ``(rows, n, 2)``, less than +inf.
        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``, less than +inf.
        :param add: Function that sums over the last axis, in log space, or takes the maximum.
        :return: For each variable in its order, and the end, shape ``(rows, states)``.
        """
        message = weights.new_zeros(len(weights), self._num_ends)
        messages = [message]
        for layer in reversed(self.layers):
            message = add(self._branches(layer, weights, tables, message))
            messages.append(message)
        return messages[::-1]

    def _branches(self, layer: _Layer, weights: Tensor, tables: Tensor, after: Tensor) -> Tensor:
        """Log-weights of both values and all that follows, shape ``(rows, states, 2)``."""
        children = layer.children.to(after.device)
        padded = torch.nn.functional.pad(after, (0, 1), value=-math.inf)
        branches = padded[:, children] + weights[:, layer.variable].unsqueeze(1)
        for entries in layer.entries:
            branches = branches + tables[:, entries.to(after.device)]
        return branches

    def marginals(self, weights: Tensor, tables: Tensor, messages: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Probabilities of the values of the variables, and of the entries of the tables.

        :param messages: Those of :meth:`backward`.
        :return: Shapes ``(rows, n, 2)`` and ``(rows, table_size)``; 0 in impossible rows.
        """
        of_state = torch.ones_like(messages[0])
        of_values: list[Tensor] = [of_state] * len(self.layers)
        of_tables = torch.zeros_like(tables)
        for layer, here, after in zip(self.layers, messages, messages[1:], strict=False):
            never = here == -math.inf
            branches = self._branches(layer, weights, tables, after) - here.masked_fill(never, 0.0).unsqueeze(-1)
            flow = of_state.unsqueeze(-1) * branches.exp()
            of_values[layer.variable] = flow.sum(1)
            flat = flow.flatten(1)
            for entries in layer.entries:
                of_tables = of_tables.index_add(1, entries.flatten().to(flat.device), flat)
            size = after.shape[1]
            children = layer.children.flatten().to(flat.device)
            of_state = flat.new_zeros(len(flat), size + 1).index_add(1, children, flat)[:, :size]
        if not of_values:
            return torch.zeros_like(weights), of_tables
        return torch.stack(of_values, 1), of_tables


class _States:
    """States of the counters under way, as integers in a mixed base, the least significant digit that opened last."""

    def __init__(
        self, counters: Sequence[Counter], order: Sequence[int], allowed: np.ndarray, possible: np.ndarray
    ) -> None:
        self._allowed = allowed
        place = np.empty(len(order), dtype=np.int64)
        place[list(order)] = np.arange(len(order))
        self._opening: list[list[int]] = [[] for _ in order]
        self._members: list[list[tuple[int, int, int]]] = [[] for _ in order]
        self._closing: list[list[int]] = [[] for _ in order]
        self._starts = [counter.start for counter in counters]
        # Whether a value of a counter can still end at a possible entry, after each of its members.
        self._live: list[list[np.ndarray]] = []
        self._bases: list[int] = []
        ends = [place[counter.members].max(initial=-1) for counter in counters]
        for index, counter in enumerate(counters):
            sequence = np.argsort(place[counter.members])
            members = counter.members[sequence]
            off, on = counter.off[sequence], counter.on[sequence]
            live = [possible[counter.start : counter.start + counter.size].copy()]
            for variable, zero, one in zip(members[::-1], off[::-1], on[::-1], strict=True):
                before = np.zeros_like(live[-1])
                for value, added in ((0, zero), (1, one)):
                    if allowed[variable, value]:
                        before[: len(before) - added] |= live[-1][added:]
                live.append(before)
            self._live.append(live[::-1])
            self._bases.append(1 + max((int(np.flatnonzero(row)[-1]) for row in live if row.any()), default=0))
            for number, (variable, zero, one) in enumerate(zip(members, off, on, strict=True)):
                self._members[variable].append((index, int(zero), int(one)))
                if number == 0:
                    self._opening[variable].append(index)
            if len(members):
                self._closing[members[-1]].append(index)
        for opened in self._opening:
            opened.sort(key=lambda index: -ends[index])
        self._seen = [0] * len(counters)
        self._open: list[int] = []
        self._codes = np.zeros(1, dtype=np.int64)
        self.is_too_wide = False

    @property
    def number(self) -> int:
        """Number of states."""
        return len(self._codes)

    def _strides(self) -> dict[int, int]:
        strides, stride = {}, 1
        for index in reversed(self._open):
            strides[index] = stride
            stride *= self._bases[index]
        self.is_too_wide |= stride > LARGEST_CODE
        return strides

    def advance(self, variable: int) -> _Layer:
        """Goes on to the states after a variable."""
        codes = self._codes
        for index in self._opening[variable]:
            self._open.append(index)
            codes = codes * self._bases[index]
        strides = self._strides()
        if self.is_too_wide:
            return _Layer(variable, torch.empty(0, 2), ())
        members, closing = self._members[variable], self._closing[variable]
        digits = {index: codes // strides[index] % self._bases[index] for index, _, _ in members}
        for index, _, _ in members:
            self._seen[index] += 1
        reached, kept, ended = [], [], []
        for value in (0, 1):
            live = np.full(len(codes), bool(self._allowed[variable, value]))
            moved, totals = codes, {}
            for index, *added in members:
                table = self._live[index][self._seen[index]]
                total = digits[index] + added[value]
                live &= table[np.minimum(total, len(table) - 1)] & (total < len(table))
                moved = moved + added[value] * strides[index]
                totals[index] = total
            ended.append([np.where(live, self._starts[index] + totals[index], 0) for index in closing])
            moved = moved[live]
            for index in closing:
                moved = moved - totals[index][live] * strides[index]
            reached.append(moved)
            kept.append(live)
        for index in closing:
            # Digits behind the one that is removed move up.
            stride, base = strides[index], self._bases[index]
            reached = [moved // (stride * base) * stride + moved % stride for moved in reached]
            strides = {i: s if s <= stride else s // base for i, s in strides.items() if i != index}
            self._open.remove(index)
        # Both are sorted, or nearly so, which a stable sort makes use of.
        joined = np.sort(np.concatenate(reached), kind="stable")
        self._codes = joined[np.concatenate([[True], joined[1:] != joined[:-1]])] if len(joined) else joined
        children = np.full((len(codes), 2), len(self._codes), dtype=np.int64)
        for value in (0, 1):
            children[kept[value], value] = np.searchsorted(self._codes, reached[value])
        entries = tuple(torch.from_numpy(np.stack(both, -1)) for both in zip(*ended, strict=True))
        return _Layer(variable, torch.from_numpy(children), entries)


def _without_dead_ends(layers: list[_Layer], number: int) -> list[_Layer]:
    """The layers without states from which no end is reached; the first one keeps its only state."""
    alive = torch.ones(number, dtype=torch.bool, device="cpu")
    kept = []
    for layer in reversed(layers):
        renumbered = torch.cat([alive.cumsum(0) - 1, torch.zeros(1, dtype=torch.long, device="cpu")])
        last = int(alive.sum())
        renumbered[:-1][~alive], renumbered[-1] = last, last
        children = renumbered[layer.children]
        before = (children < last).any(-1)
        if layer is layers[0]:
            before = torch.ones_like(before)
        dead = children[before] == last
        entries = tuple(cells[before].masked_fill(dead, 0) for cells in layer.entries)
        kept.append(_Layer(layer.variable, children[before], entries))
        alive = before
    return kept[::-1]


class DiagramPlan(MarginalPlan):
    """Sums over all binary vectors, with derivatives along log-weights and tables.

    Its parameters are log-weights of both values of all variables, shape ``(rows, 2 n)``, and tables, shape ``(rows,
    table_size)``.

    :param counters: All counters.
    :param orders: Orders of the variables, of which the one with the fewest states is taken, as far as these can be
        estimated.
    :param str remedy: What to do instead if there are too many states, for the error.
    """

    def __init__(self, counters: Sequence[Counter], orders: Sequence[Sequence[int]], remedy: str) -> None:
        self._counters, self._orders, self._remedy = counters, orders, remedy
        self._num_variables = len(orders[0])
        self._constants = np.array([c.start for c in counters if not len(c.members)], dtype=np.int64)
        self._cached = lru_cache(maxsize=2)(self._make)

    def _make(self, allowed: bytes, possible: bytes) -> CountDiagram | None:
        entries = np.frombuffer(possible, dtype=bool)
        estimates = [_estimated_states(self._counters, order, entries) for order in self._orders]
        best = int(np.argmin(estimates))
        if estimates[best] > math.log(MOST_STATES) + LARGEST_SAVING:
            return None
        choices = np.frombuffer(allowed, dtype=bool).reshape(self._num_variables, 2)
        try:
            return CountDiagram(self._counters, self._orders[best], choices, entries)
        except OverflowError:
            return None

    def __reduce__(self) -> tuple[type["DiagramPlan"], tuple[object, ...]]:
        return type(self), (self._counters, self._orders, self._remedy)

    def has_states(self, weights: Tensor, tables: Tensor, limit: int) -> bool:
        """Whether there are at most so many states that are possible in any row.

        :param Tensor weights: Log-weights of both values of the variables, shape ``(rows, 2 n)``.
        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
        :param int limit: Number of states.
        """
        possible = (tables.detach() > -math.inf).any(0).cpu().numpy()
        estimate = min(_estimated_states(self._counters, order, possible) for order in self._orders)
        if estimate > math.log(limit) + LARGEST_SAVING:
            return False
        try:
            return self.diagram(weights.unflatten(-1, (-1, 2)), tables).num_states <= limit
        except NotImplementedError:
            return False

    def diagram(self, weights: Tensor, tables: Tensor) -> CountDiagram:
        """States that are possible in any row; arguments as for :meth:`CountDiagram.backward`.

        :raises NotImplementedError: if there are more than ``MOST_STATES``.
        """
        allowed = (weights.detach() > -math.inf).any(0).cpu().numpy()
        possible = (tables.detach() > -math.inf).any(0).cpu().numpy()
        found = self._cached(allowed.tobytes(), possible.tobytes())
        if found is None:
            raise NotImplementedError(
                f"exact sums: expected at most {MOST_STATES} states of counts that are under way, got more; "
                f"{self._remedy}"
            )
        return found

    def constants(self, tables: Tensor) -> Tensor:
        """Sum of the tables of counters without members, shape ``(rows,)``."""
        return tables[:, torch.from_numpy(self._constants).to(tables.device)].sum(-1)

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        """Implements :meth:`MarginalPlan.solve`."""
        rows = broadcast_shapes(*(parameter.shape[:1] for parameter in parameters))[0]
        weights, tables = (parameter.expand(rows, -1) for parameter in parameters)
        weights = weights.unflatten(-1, (self._num_variables, 2))
        diagram = self.diagram(weights, tables)
        at_once = max(1, STATES_AT_ONCE // max(1, diagram.num_states))
        parts = [
            self._solve_rows(diagram, *part, marginals)
            for part in zip(weights.split(at_once), tables.split(at_once), strict=True)
        ]
        return parts[0] if len(parts) == 1 else tuple(torch.cat(results) for results in zip(*parts, strict=True))

    def _solve_rows(
        self, diagram: CountDiagram, weights: Tensor, tables: Tensor, marginals: bool
    ) -> tuple[Tensor, ...]:
        messages = diagram.backward(weights, tables, add_branches)
        log_z = messages[0].squeeze(-1) + self.constants(tables)
        if not marginals:
            return (log_z,)
        of_values, of_tables = diagram.marginals(weights, tables, messages)
        of_tables = of_tables.index_fill(1, torch.from_numpy(self._constants).to(tables.device), 1.0)
        never = (log_z == -math.inf).unsqueeze(-1)
        return log_z, of_values.flatten(1).masked_fill(never, 0.0), of_tables.masked_fill(never, 0.0)


def add_branches(branches: Tensor) -> Tensor:
    """Log-sum over a last axis of two entries; :func:`logsumexp` where derivatives are wanted."""
    if torch.is_grad_enabled() and branches.requires_grad:
        return logsumexp(branches)
    return torch.logaddexp(branches[..., 0], branches[..., 1])


class DiagramChoices:
    """Draws, or best vectors, of rows, from kept messages.

    :param DiagramPlan plan: The counters.
    :param Tensor weights: Log-weights of both values of the variables, shape ``(rows, n, 2)``.
    :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
    :param bool largest: Whether most probable vectors are wanted.
    """

    def __init__(self, plan: DiagramPlan, weights: Tensor, tables: Tensor, largest: bool = False) -> None:
        self._weights, self._tables, self._largest = weights, tables, largest
        self._diagram = plan.diagram(weights, tables)
        add: Callable[[Tensor], Tensor] = (lambda branches: branches.amax(-1)) if largest else add_branches
        self._messages = self._diagram.backward(weights, tables, add)
        #: Whether every row has a vector of positive probability.
        self.possible = bool((self._messages[0] + plan.constants(tables).unsqueeze(-1) > -math.inf).all())

    def __call__(self, num_samples: int) -> Tensor:
        """Vectors of zeros and ones, shape ``(num_samples, rows, n)``."""
        rows = len(self._weights)
        row = torch.arange(rows, device=self._weights.device)
        state = row.new_zeros(num_samples, rows)
        values = self._weights.new_zeros(num_samples, *self._weights.shape[:-1])
        for layer, after in zip(self._diagram.layers, self._messages[1:], strict=True):
            children = layer.children.to(state.device)[state]
            padded = torch.nn.functional.pad(after, (0, 1), value=-math.inf)
            branches = padded[row.unsqueeze(-1), children] + self._weights[:, layer.variable]
            for entries in layer.entries:
                branches = branches + self._tables[row.unsqueeze(-1), entries.to(state.device)[state]]
            chosen = branches.argmax(-1) if self._largest else draw_log(branches)
            values[..., layer.variable] = chosen.to(values)
            state = children.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        return values
