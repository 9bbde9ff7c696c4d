"""Most probable vectors under potentials of counts of several families, as flows or by constraint programming."""

__all__ = ["CountOptimum", "conflicting_counts", "is_flow", "maximize_by_constraints", "maximize_by_flow"]

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pyro_structured.counts.ops.count_diagram import Counter

# Relative to the largest absolute entry of a table: second differences up to which it counts as concave.
CONCAVE = 1e-12
# Relative to a bound: differences up to which a vector counts as proved to be best.
PROVED = 1e-12
# Costs of a flow are integers below 2 ** (56 - b) for less than 2 ** b nodes, half as many bits as for two of them.
FLOW_BITS = 56
# Weights of a program of constraints are integers below 2 ** 34.
PROGRAM_BITS = 34


class CountOptimum(NamedTuple):
    """A vector, and what is known of better ones.

    :ivar numpy.ndarray value: Booleans of shape ``(n,)``, or ``None`` where no vector is possible, or none was found in
        time.
    :ivar float gap: Largest log-weight by which another vector can be better, 0 up to the rounding of weights to 34
        bits or more; infinite where no vector was found.
    :ivar bool is_possible: Whether a vector is possible, as far as is known.
    """

    value: np.ndarray | None
    gap: float
    is_possible: bool


def is_flow(families: Sequence[Sequence[Counter]], tables: np.ndarray) -> bool:
    """Whether a best vector is a flow of least cost: at most two families, nested, with concave tables without gaps.

    :param families: Counters of each family, whose subsets are nested.
    :param numpy.ndarray tables: Log-potentials, shape ``(table_size,)``.
    """
    laws = (_law(counter, tables) for family in families for counter in family)
    return _are_networks(families) and all(_is_concave(law) for law in laws)


def _are_networks(families: Sequence[Sequence[Counter]]) -> bool:
    """Whether there are at most two families, and all their counts are of ones."""
    counters = [counter for family in families for counter in family]
    return len(families) <= 2 and all(not counter.off.any() and (counter.on == 1).all() for counter in counters)


def _law(counter: Counter, tables: np.ndarray) -> np.ndarray:
    return tables[counter.start : counter.start + counter.size]


def _is_concave(law: np.ndarray) -> bool:
    finite = np.flatnonzero(np.isfinite(law))
    if not len(finite):
        return True
    inside = law[finite[0] : finite[-1] + 1]
    if len(inside) > len(finite):
        return False
    return bool((np.diff(inside, 2) <= CONCAVE * np.abs(inside).max()).all())


def _concave_majorant(law: np.ndarray) -> np.ndarray:
    """The smallest concave law above a law between its first and its last possible count."""
    finite = np.flatnonzero(np.isfinite(law))
    corners: list[int] = []
    for count in finite.tolist():
        while len(corners) > 1 and _slope(law, corners[-2], count) >= _slope(law, corners[-2], corners[-1]):
            corners.pop()
        corners.append(count)
    inside = np.arange(finite[0], finite[-1] + 1)
    majorant = np.full_like(law, -math.inf)
    majorant[inside] = np.interp(inside, corners, law[corners])
    return majorant


def _slope(law: np.ndarray, first: int, last: int) -> float:
    return float((law[last] - law[first]) / (last - first))


class _Network:
    """Arcs of a flow of one unit for each variable that is 1."""

    def __init__(self, families: Sequence[Sequence[Counter]], num_variables: int) -> None:
        self.num_nodes = 2
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.capacities: list[int] = []
        self.gains: list[float] = []
        self.required: list[int] = []
        # Where the flow of a variable comes from, and where it goes.
        self.ends = np.stack([np.zeros(num_variables, dtype=np.int64), np.ones(num_variables, dtype=np.int64)])
        self._families = families

    def add(self, tail: int, head: int, required: int, gains: np.ndarray) -> None:
        """Arcs that carry so many units, and one more for each gain."""
        self.tails += [tail] * (1 + len(gains))
        self.heads += [head] * (1 + len(gains))
        self.capacities += [0, *[1] * len(gains)]
        self.required += [required, *[0] * len(gains)]
        self.gains += [0.0, *gains.tolist()]

    def add_counters(self, tables: np.ndarray) -> None:
        """A node for each subset, whose unit flows are the slopes of its table, the larger ones first."""
        for side, family in enumerate(self._families):
            for counter in sorted(family, key=lambda counter: -len(counter.members)):
                if not len(counter.members):
                    continue
                law = _law(counter, tables)
                finite = np.flatnonzero(np.isfinite(law))
                slopes = np.minimum.accumulate(np.diff(law[finite]))
                outer, node = int(self.ends[side, counter.members[0]]), self.num_nodes
                self.add(*((outer, node) if side == 0 else (node, outer)), int(finite[0]), slopes)
                self.ends[side, counter.members] = node
                self.num_nodes += 1


def _is_hopeless(families: Sequence[Sequence[Counter]], log_weights: np.ndarray, tables: np.ndarray) -> bool:
    """Whether a variable or a count has no possible value at all."""
    laws = [_law(counter, tables) for family in families for counter in family]
    return not (np.isfinite(log_weights).any(-1).all() and all(np.isfinite(law).any() for law in laws))


def maximize_by_flow(
    families: Sequence[Sequence[Counter]], log_weights: np.ndarray, tables: np.ndarray
) -> CountOptimum:
    """A vector of zeros and ones of largest weight, where :func:`is_flow`.

    :param families: Counters of each family.
    :param numpy.ndarray log_weights: Log-weights of both values of the variables, less than +inf, shape ``(n, 2)``.
    :param numpy.ndarray tables: Log-potentials, shape ``(table_size,)``.
    """
    if _is_hopeless(families, log_weights, tables):
        return CountOptimum(None, math.inf, False)
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    number = len(log_weights)
    network = _Network(families, number)
    network.add_counters(tables)
    arcs = []
    for variable, (off, on) in enumerate(log_weights.tolist()):
        tail, head = network.ends[:, variable].tolist()
        arcs.append(len(network.tails))
        free = np.array([on - off]) if math.isfinite(on) and math.isfinite(off) else np.zeros(0)
        network.add(tail, head, int(off == -math.inf), free)
    network.add(1, 0, 0, np.zeros(0))
    network.capacities[-1] = number
    gains, required = np.array(network.gains), np.array(network.required)
    scale = 2.0 ** (FLOW_BITS - network.num_nodes.bit_length() - math.frexp(np.abs(gains).max())[1])
    flow = SimpleMinCostFlow()
    tails, heads = (np.array(ends, dtype=np.int32) for ends in (network.tails, network.heads))
    costs = -np.rint(gains * scale).astype(np.int64)
    names = flow.add_arcs_with_capacity_and_unit_cost(tails, heads, np.array(network.capacities, dtype=np.int64), costs)
    supplies = np.zeros(network.num_nodes, dtype=np.int64)
    np.add.at(supplies, heads, required)
    np.add.at(supplies, tails, -required)
    flow.set_nodes_supplies(np.arange(network.num_nodes, dtype=np.int32), supplies)
    status = flow.solve()
    if status == flow.INFEASIBLE:
        return CountOptimum(None, math.inf, False)
    if status != flow.OPTIMAL:
        raise RuntimeError(f"no flow was found: {status.name}")
    flows = required + flow.flows(names)
    first = np.array(arcs)
    has_free = np.append(first[1:], len(tails) - 1) - first > 1
    value = (flows[first] > 0) | (has_free & (flows[np.minimum(first + 1, len(flows) - 1)] > 0))
    return CountOptimum(value, 0.0, True)


def maximize_by_constraints(
    families: Sequence[Sequence[Counter]], log_weights: np.ndarray, tables: np.ndarray, max_seconds: float
) -> CountOptimum:
    """A vector of zeros and ones of largest weight by a program of constraints, which branches and bounds.

    Where counts are of ones in at most two families, it begins with a flow for the concave laws above the given ones,
    which bounds the weight, and tells infeasible laws.

    Arguments are those of :func:`maximize_by_flow`.

    :param float max_seconds: Largest time of the search.
    """
    if _is_hopeless(families, log_weights, tables):
        return CountOptimum(None, math.inf, False)
    counters = [counter for family in families for counter in family]
    start = CountOptimum(None, math.inf, True)
    if _are_networks(families):
        above = np.zeros_like(tables)
        for counter in counters:
            above[counter.start : counter.start + counter.size] = _concave_majorant(_law(counter, tables))
        relaxed = maximize_by_flow(families, log_weights, above)
        if relaxed.value is None:
            return relaxed
        bound, weight = (_weight(counters, log_weights, laws, relaxed.value) for laws in (above, tables))
        start = CountOptimum(relaxed.value, bound - weight, True)
        if start.gap <= PROVED * (1 + abs(bound)):
            return start._replace(gap=0.0)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in log_weights]
    terms, weights = [], []
    for variable, (off, on) in zip(variables, log_weights.tolist(), strict=True):
        if on == -math.inf or off == -math.inf:
            model.add(variable == int(off == -math.inf))
        else:
            terms.append(variable)
            weights.append(on - off)
    for counter in counters:
        law = _law(counter, tables)
        possible = np.flatnonzero(np.isfinite(law)).tolist()
        chosen = [model.new_bool_var("") for _ in possible]
        model.add_exactly_one(chosen)
        total = sum(
            int(on - off) * variables[d] + int(off)
            for d, off, on in zip(counter.members, counter.off, counter.on, strict=True)
        )
        model.add(total == sum(count * choice for count, choice in zip(possible, chosen, strict=True)))
        terms += chosen
        weights += (law[possible] - law[possible].max()).tolist()
    largest = max(map(abs, weights), default=0.0)
    scale = 2.0 ** (PROGRAM_BITS - math.frexp(largest)[1]) if largest else 1.0
    model.maximize(sum(round(weight * scale) * term for weight, term in zip(weights, terms, strict=True)))
    if start.value is not None:
        for variable, value in zip(variables, start.value.tolist(), strict=True):
            model.add_hint(variable, value)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max_seconds
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return CountOptimum(None, math.inf, False)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start if start.gap < math.inf else CountOptimum(None, math.inf, True)
    value = np.array([solver.boolean_value(variable) for variable in variables])
    gap = 0.0 if status == cp_model.OPTIMAL else (solver.best_objective_bound - solver.objective_value) / scale
    return CountOptimum(value, gap, True) if gap < start.gap else start


def _weight(counters: Sequence[Counter], log_weights: np.ndarray, tables: np.ndarray, value: np.ndarray) -> float:
    """Log-weight of a vector of zeros and ones."""
    total = float(np.where(value, log_weights[:, 1], log_weights[:, 0]).sum())
    for counter in counters:
        count = np.where(value[counter.members], counter.on, counter.off).sum()
        total += float(tables[counter.start + int(count)])
    return total


def conflicting_counts(
    families: Sequence[Sequence[Counter]], names: Sequence[Sequence[str]], allowed: np.ndarray, tables: np.ndarray
) -> str | None:
    """What makes all vectors impossible, as text, where a single count or the totals of two families tell.

    :param families: Counters of each family.
    :param names: Names of each family's counters, and of the family last.
    :param numpy.ndarray allowed: Whether each variable may be 0, and 1, shape ``(n, 2)``.
    :param numpy.ndarray tables: Log-potentials, shape ``(table_size,)``.
    """
    never = np.flatnonzero(~allowed.any(-1))
    if len(never):
        return f"variable {never[0]} can be neither 0 nor 1"
    totals = []
    for family, texts in zip(families, names, strict=True):
        ranges = []
        for counter, name in zip(family, texts, strict=False):
            law = np.isfinite(_law(counter, tables))
            reached = _sums(counter, allowed)
            both = np.flatnonzero(law & reached)
            if not len(both):
                if not law.any():
                    return f"{name} allows no count"
                wanted, found = (", ".join(map(str, np.flatnonzero(counts))) or "none" for counts in (law, reached))
                return f"{name} allows counts of {wanted}, but its variables can have {found}"
            ranges.append((int(both[0]), int(both[-1])))
        disjoint = sum(len(counter.members) for counter in family)
        joined = np.concatenate([counter.members for counter in family]) if family else np.zeros(0, dtype=np.int64)
        if disjoint == len(allowed) == len(np.unique(joined)) and all((c.on - c.off == 1).all() for c in family):
            totals.append((texts[-1], sum(low for low, _ in ranges), sum(high for _, high in ranges)))
    for first, low, _ in totals:
        for second, _, high in totals:
            if low > high:
                return f"{first} need at least {low} in all, but {second} allow at most {high}"
    return None


def _sums(counter: Counter, allowed: np.ndarray) -> np.ndarray:
    """Values that a counter can have, booleans of shape ``(size,)``."""
    reached = np.zeros(counter.size, dtype=bool)
    reached[0] = True
    for variable, *added in zip(counter.members, counter.off, counter.on, strict=True):
        following = np.zeros_like(reached)
        for value, amount in enumerate(added):
            if allowed[variable, value]:
                following[amount:] |= reached[: len(reached) - amount]
        reached = following
    return reached
