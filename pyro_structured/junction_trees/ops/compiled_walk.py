"""Sums over the states of junction trees that agree with evidence, row by row, in compiled loops; imported only where
numba is.

Of each table, only the entries are touched that agree with a row's evidence. Messages are divided by their largest
number, and what was divided is kept as a logarithm.
"""

__all__ = ["choose_rows", "draw_rows", "largest_and_least", "send_rows", "solve_rows"]

import math
from typing import NamedTuple

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled, compiled_in_place
from pyro_structured.junction_trees.ops.clique_walk import CliqueWalk, WeightedWalk

# Where products of numbers that are not zero could be smaller, they may lose digits.
LEAST_PRODUCT = 1e-290
# Number of entries from which inner loops are long enough.
INNER = 24
# What the evidence of a row is.
POSSIBLE, IMPOSSIBLE, WEIGHTED = range(3)


class _Row(NamedTuple):
    """What is known of a row, and room for its numbers.

    :ivar np.ndarray counts: Numbers of states of the variables that agree with the evidence, shape ``(n,)``.
    :ivar np.ndarray states: These states, from each variable's first place on, shape ``(num_states,)``.
    :ivar np.ndarray steps: Strides of messages along the axes of the parents.
    :ivar np.ndarray entries: Weights of the states of cliques, or numbers in proportion to them.
    :ivar np.ndarray messages: Messages of all cliques, the largest of each is 1.
    :ivar np.ndarray least: Least message of each clique that is not zero.
    :ivar np.ndarray divisors: Numbers by which the messages of each clique were divided.
    :ivar np.ndarray outer: Offsets of the outer loop over a clique's states.
    :ivar np.ndarray inner: Offsets of the inner loop.
    :ivar np.ndarray sums: Sums over the states of a separator, or over those of the other variables.
    """

    counts: np.ndarray
    states: np.ndarray
    steps: np.ndarray
    entries: np.ndarray
    messages: np.ndarray
    least: np.ndarray
    divisors: np.ndarray
    outer: np.ndarray
    inner: np.ndarray
    sums: np.ndarray


@compiled
def largest_and_least(walk: CliqueWalk, tables: np.ndarray, least: np.ndarray) -> float:
    """Fills in the least finite log-weights of the cliques, 0 if there is none below, and returns the largest one, NaN
    if there is one.

    :param np.ndarray tables: Shape ``(rows, table_size)``.
    :param np.ndarray least: Shape ``(P,)``, zeros before.
    """
    largest, are_numbers = 0.0, True
    for row in range(len(tables)):
        for clique in range(len(least)):
            low, high = least[clique], largest
            table = tables[row, walk.tables[clique] : walk.tables[clique] + walk.sizes[clique]]
            for weight in table:
                low = min(low, weight if weight > -math.inf else 0.0)
                high = max(high, weight)
                are_numbers &= weight == weight
            least[clique], largest = low, high
    return largest if are_numbers else math.nan


@compiled
def solve_rows(
    given: WeightedWalk, log_z: np.ndarray, single: np.ndarray, joint: np.ndarray, unsolved: np.ndarray
) -> None:
    """Fills in log Z, and marginals where there are columns for them; all arrays are contiguous.

    :param np.ndarray log_z: Shape ``(rows,)``.
    :param np.ndarray single: Probabilities of the states of all variables, shape ``(rows, num_states)``, zeros before,
        or without columns.
    :param np.ndarray joint: Probabilities of the entries of all tables, shape ``(rows, table_size)``, zeros before, or
        without columns.
    :param np.ndarray unsolved: Whether rows were left out, shape ``(rows,)``: where there is finite evidence besides 0,
        or small numbers could have been lost.
    """
    walk = given.walk
    is_whole = single.shape[1] > 0 or joint.shape[1] > 0
    room = _make_room(walk, is_whole)
    outside = np.empty_like(room.messages)
    for row in range(len(log_z)):
        weights, evidence = _of_row(given.weights, row), _of_row(given.evidence, row)
        kind, is_exact = _read_evidence(walk, evidence, room), True
        log_z[row] = -math.inf
        if kind == POSSIBLE:
            log_z[row], is_exact = _send_upward(given, weights, room, is_whole, False)
            if is_whole and is_exact and log_z[row] > -math.inf:
                _send_downward(walk, room, outside, single[row], joint[row])
        unsolved[row] = kind == WEIGHTED or not is_exact


@compiled
def send_rows(given: WeightedWalk, is_largest: bool, log_z: np.ndarray, messages: np.ndarray) -> bool:
    """Fills in log Z, shape ``(rows,)``, and the messages to all parents, shape ``(rows, messages)``.

    :param bool is_largest: Whether the largest weights take the place of sums.
    :return: Whether all rows were solved, which :func:`solve_rows` would not leave out.
    """
    room = _make_room(given.walk, False)
    for row in range(len(log_z)):
        weights, evidence = _of_row(given.weights, row), _of_row(given.evidence, row)
        kind, is_exact = _read_evidence(given.walk, evidence, room), True
        log_z[row] = -math.inf
        if kind == POSSIBLE:
            log_z[row], is_exact = _send_upward(given, weights, room, False, is_largest)
            messages[row] = room.messages
        if kind == WEIGHTED or not is_exact:
            return False
    return True


@compiled
def draw_rows(given: WeightedWalk, messages: np.ndarray, uniforms: np.ndarray, values: np.ndarray) -> None:
    """Draws all variables, from the roots to the leaves; rows in which nothing is possible are left as they are.

    :param np.ndarray messages: Messages that :func:`send_rows` filled in.
    :param np.ndarray uniforms: Uniform variables, shape ``(P, samples, rows)``.
    :param np.ndarray values: Shape ``(samples, rows, n)``, integers, which are filled in.
    """
    walk = given.walk
    room = _make_room(walk, False)
    # Places of the states that were drawn among those that agree with the evidence.
    places = np.zeros((len(values), values.shape[2]), np.int64)
    for row in range(len(messages)):
        weights = _of_row(given.weights, row)
        if _read_evidence(walk, _of_row(given.evidence, row), room) != POSSIBLE:
            continue
        for clique in range(len(walk.parents)):
            first, middle, last = walk.axes[clique], walk.separators[clique], walk.axes[clique + 1]
            rests, above = _count(walk, room, first, middle), _count(walk, room, middle, last)
            # Where separators have few states, what follows on each of them is computed once.
            is_shared = above <= len(values)
            if is_shared:
                _multiply(given, weights, messages[row], room, clique, 0, places[0], False)
                _accumulate(room.entries[: rests * above], above)
            for sample in range(len(values)):
                start, step = 0, above
                if is_shared:
                    for axis in range(middle, last):
                        start = start * room.counts[walk.variables[axis]] + places[sample, walk.variables[axis]]
                else:
                    _multiply(given, weights, messages[row], room, clique, 0, places[sample], True)
                    step = 1
                    _accumulate(room.entries[:rests], step)
                cumulative = room.entries[start : start + (rests - 1) * step + 1 : step]
                rest = _find(cumulative, uniforms[clique, sample, row])
                _set_states(walk, room, clique, rest, places[sample], values[sample, row])


@compiled
def choose_rows(given: WeightedWalk, messages: np.ndarray, values: np.ndarray) -> None:
    """Fills in values of the largest weight, integers of shape ``(rows, n)``, from the roots to the leaves; arguments
    are those of :func:`draw_rows`, with messages that are largest weights.
    """
    walk = given.walk
    room = _make_room(walk, False)
    places = np.zeros(values.shape[1], np.int64)
    for row in range(len(messages)):
        weights = _of_row(given.weights, row)
        if _read_evidence(walk, _of_row(given.evidence, row), room) != POSSIBLE:
            continue
        for clique in range(len(walk.parents)):
            _multiply(given, weights, messages[row], room, clique, 0, places, True)
            rests = _count(walk, room, walk.axes[clique], walk.separators[clique])
            _set_states(walk, room, clique, int(np.argmax(room.entries[:rests])), places, values[row])


@compiled_in_place
def _set_states(walk: CliqueWalk, room: _Row, clique: int, rest: int, places: np.ndarray, values: np.ndarray) -> None:
    """Writes a joint state of a clique's other variables, as places and as values, both of shape ``(n,)``."""
    for axis in range(walk.separators[clique] - 1, walk.axes[clique] - 1, -1):
        variable = walk.variables[axis]
        places[variable] = rest % room.counts[variable]
        rest //= room.counts[variable]
        values[variable] = room.states[walk.states[variable] + places[variable]]


@compiled_in_place
def _find(cumulative: np.ndarray, uniform: float) -> int:
    """First place at which sums are above a uniform variable times the last one."""
    # Rounding must not carry the threshold to the total itself.
    threshold = uniform * (cumulative[-1] * (1 - 2.0**-52))
    low, high = 0, len(cumulative) - 1
    while low < high:
        half = (low + high) // 2
        if cumulative[half] <= threshold:
            low = half + 1
        else:
            high = half
    return low


@compiled_in_place
def _of_row(numbers: np.ndarray, row: int) -> np.ndarray:
    """Row of a matrix, or its only one."""
    found: np.ndarray = numbers[row if len(numbers) > 1 else 0]
    return found


@compiled
def _make_room(walk: CliqueWalk, is_whole: bool) -> _Row:
    """Room for one clique's entries at a time, or for those of all cliques."""
    num_cliques, largest = len(walk.parents), walk.sizes.max()
    return _Row(
        np.empty(len(walk.states) - 1, np.int64),
        np.empty(walk.states[-1], np.int64),
        np.empty(walk.steps[-1], np.int64),
        np.empty(walk.sizes.sum() if is_whole else largest),
        np.empty(walk.messages[-1]),
        np.empty(num_cliques),
        np.empty(num_cliques),
        np.empty(largest, np.uint64),
        np.empty(largest, np.uint64),
        np.empty(largest),
    )


@compiled_in_place
def _read_evidence(walk: CliqueWalk, evidence: np.ndarray, room: _Row) -> int:
    """Fills in the states that agree with the evidence, and the strides of all messages."""
    for variable in range(len(room.counts)):
        count, first = 0, walk.states[variable]
        for place in range(first, walk.states[variable + 1]):
            weight = 0.0 if len(evidence) == 0 else evidence[place]
            if weight == 0.0:
                room.states[first + count] = place - first
                count += 1
            elif weight > -math.inf:
                return WEIGHTED
        if count == 0:
            return IMPOSSIBLE
        room.counts[variable] = count
    room.steps[:] = 0
    for clique in range(len(walk.parents)):
        step = 1
        for axis in range(walk.axes[clique + 1] - 1, walk.separators[clique] - 1, -1):
            room.steps[walk.steps[clique] + walk.above[axis]] = step
            step *= room.counts[walk.variables[axis]]
    return POSSIBLE


@compiled_in_place
def _count(walk: CliqueWalk, room: _Row, first: int, last: int) -> int:
    """Number of joint states of some axes."""
    number = 1
    for axis in range(first, last):
        number *= room.counts[walk.variables[axis]]
    return number


@compiled_in_place
def _table_offsets(walk: CliqueWalk, room: _Row, first: int, last: int, offset: int, offsets: np.ndarray) -> int:
    """Fills in the places of entries of a table for the joint states of some axes, and returns their number."""
    size = 1
    offsets[0] = offset
    for axis in range(first, last):
        variable, stride = walk.variables[axis], walk.strides[axis]
        count, start = room.counts[variable], walk.states[variable]
        for place in range(size - 1, -1, -1):
            before = offsets[place]
            for each in range(count - 1, -1, -1):
                offsets[place * count + each] = before + np.uint64(room.states[start + each] * stride)
        size *= count
    return size


@compiled_in_place
def _message_offsets(walk: CliqueWalk, room: _Row, first: int, last: int, steps: int, offsets: np.ndarray) -> int:
    """Fills in the places of messages for the joint states of some axes, and returns their number.

    :param int steps: Place of the message's stride along the first axis.
    """
    size = 1
    offsets[0] = 0
    for axis in range(first, last):
        count, stride = room.counts[walk.variables[axis]], room.steps[steps + axis - first]
        if count == 1:
            continue
        for place in range(size - 1, -1, -1):
            before = offsets[place]
            for each in range(count - 1, -1, -1):
                offsets[place * count + each] = before + np.uint64(each * stride)
        size *= count
    return size


@compiled_in_place
def _split(walk: CliqueWalk, room: _Row, first: int, last: int) -> int:
    """Axis at which the inner loop over a clique's states begins."""
    size, axis = 1, last
    while axis > first and size < INNER:
        axis -= 1
        size *= room.counts[walk.variables[axis]]
    return axis


@compiled_in_place
def _multiply(
    given: WeightedWalk,
    weights: np.ndarray,
    messages: np.ndarray,
    room: _Row,
    clique: int,
    at: int,
    places: np.ndarray,
    is_chosen: bool,
) -> None:
    """Fills in a clique's entries, times the messages of all children, from place ``at`` on.

    :param np.ndarray places: Places of the variables' states among those that agree with the evidence, shape ``(n,)``.
    :param bool is_chosen: Whether only entries with the state of the separator in ``places`` are filled in.
    """
    walk = given.walk
    first, last = walk.axes[clique], walk.axes[clique + 1]
    offset = walk.tables[clique]
    if is_chosen:
        last = walk.separators[clique]
        for axis in range(last, walk.axes[clique + 1]):
            variable = walk.variables[axis]
            offset += room.states[walk.states[variable] + places[variable]] * walk.strides[axis]
    middle = _split(walk, room, first, last)
    num_outer = _table_offsets(walk, room, first, middle, offset, room.outer)
    num_inner = _table_offsets(walk, room, middle, last, 0, room.inner)
    _copy(room.entries, at, weights, room.outer, num_outer, room.inner, num_inner)
    if given.are_logarithms:
        for place in range(at, at + num_outer * num_inner):
            room.entries[place] = math.exp(room.entries[place])
    for index in range(walk.child_starts[clique], walk.child_starts[clique + 1]):
        child = walk.children[index]
        steps = walk.steps[child]
        start = walk.messages[child]
        if is_chosen:
            for axis in range(last, walk.axes[clique + 1]):
                start += places[walk.variables[axis]] * room.steps[steps + axis - first]
        num_outer = _message_offsets(walk, room, first, middle, steps, room.outer)
        num_inner = _message_offsets(walk, room, middle, last, steps + middle - first, room.inner)
        _scale(room.entries, at, messages[start:], room.outer, num_outer, room.inner, num_inner)


@compiled_in_place
def _copy(
    entries: np.ndarray,
    at: int,
    weights: np.ndarray,
    outer: np.ndarray,
    num_outer: int,
    inner: np.ndarray,
    num_inner: int,
) -> None:
    for i in range(num_outer):
        base, part = outer[i], entries[at + i * num_inner : at + (i + 1) * num_inner]
        for j in range(num_inner):
            part[j] = weights[base + inner[j]]


@compiled_in_place
def _scale(
    entries: np.ndarray,
    at: int,
    messages: np.ndarray,
    outer: np.ndarray,
    num_outer: int,
    inner: np.ndarray,
    num_inner: int,
) -> None:
    for i in range(num_outer):
        base, part = outer[i], entries[at + i * num_inner : at + (i + 1) * num_inner]
        for j in range(num_inner):
            part[j] *= messages[base + inner[j]]


@compiled_in_place
def _send_upward(
    given: WeightedWalk, weights: np.ndarray, room: _Row, is_whole: bool, is_largest: bool
) -> tuple[float, bool]:
    """Fills in all messages, and all entries if ``is_whole``; returns log Z, and whether no small numbers were lost."""
    walk, log_z = given.walk, 0.0
    for clique in range(len(walk.parents) - 1, -1, -1):
        at = walk.tables[clique] if is_whole else 0
        bound = given.least[clique]
        for index in range(walk.child_starts[clique], walk.child_starts[clique + 1]):
            bound *= room.least[walk.children[index]]
        if bound < LEAST_PRODUCT:
            return log_z, False
        first, middle, last = walk.axes[clique], walk.separators[clique], walk.axes[clique + 1]
        rests, above = _count(walk, room, first, middle), _count(walk, room, middle, last)
        _multiply(given, weights, room.messages, room, clique, at, room.counts, False)
        start = walk.messages[clique]
        messages = room.messages[start : start + above]
        _sum_out(room.entries[at : at + rests * above], messages, is_largest)
        largest, smallest = 0.0, math.inf
        for message in messages:
            largest = max(largest, message)
            if message > 0.0:
                smallest = min(smallest, message)
        if largest == 0.0:
            return -math.inf, True
        log_z += math.log(largest)
        room.least[clique], room.divisors[clique] = smallest / largest, largest
        for place in range(above):
            messages[place] /= largest
    return log_z, True


@compiled_in_place
def _sum_out(entries: np.ndarray, sums: np.ndarray, is_largest: bool) -> None:
    """Fills in sums over the first axis of entries of shape ``(rests, len(sums))``, or the largest ones."""
    above = len(sums)
    if above == 1 and not is_largest:
        total = 0.0
        for entry in entries:
            total += entry
        sums[0] = total
        return
    for place in range(above):
        sums[place] = entries[place]
    for start in range(above, len(entries), above):
        part = entries[start : start + above]
        if is_largest:
            for place in range(above):
                sums[place] = max(sums[place], part[place])
        else:
            for place in range(above):
                sums[place] += part[place]


@compiled_in_place
def _accumulate(entries: np.ndarray, above: int) -> None:
    """Adds to all entries of shape ``(rests, above)`` those before them along the first axis."""
    for place in range(above, len(entries)):
        entries[place] += entries[place - above]


@compiled_in_place
def _send_downward(walk: CliqueWalk, room: _Row, outside: np.ndarray, single: np.ndarray, joint: np.ndarray) -> None:
    """Fills in marginals after the upward pass.

    :param np.ndarray outside: Room for the probabilities of the separators' states, shape ``(messages,)``.
    """
    for clique in range(len(walk.parents)):
        first, middle, last = walk.axes[clique], walk.separators[clique], walk.axes[clique + 1]
        rests, above = _count(walk, room, first, middle), _count(walk, room, middle, last)
        at, start = walk.tables[clique], walk.messages[clique]
        entries = room.entries[at : at + rests * above]
        factors = outside[start : start + above]
        if walk.parents[clique] < 0:
            factors[0] = 1.0
        for place in range(above):
            message = room.messages[start + place]
            factors[place] = factors[place] / (message * room.divisors[clique]) if message > 0.0 else 0.0
        _normalise(entries, factors, room.sums[:rests])
        if len(single) > 0:
            _sum_single(walk, room, first, middle, rests, single)
        split = _split(walk, room, first, last)
        if len(joint) > 0:
            num_outer = _table_offsets(walk, room, first, split, at, room.outer)
            num_inner = _table_offsets(walk, room, split, last, 0, room.inner)
            _write(joint, entries, room.outer, num_outer, room.inner, num_inner)
        for index in range(walk.child_starts[clique], walk.child_starts[clique + 1]):
            child = walk.children[index]
            steps = walk.steps[child]
            num_outer = _message_offsets(walk, room, first, split, steps, room.outer)
            num_inner = _message_offsets(walk, room, split, last, steps + split - first, room.inner)
            size = _count(walk, room, walk.separators[child], walk.axes[child + 1])
            sums = outside[walk.messages[child] : walk.messages[child] + size]
            _add_up(sums, entries, room.outer, num_outer, room.inner, num_inner)


@compiled_in_place
def _normalise(entries: np.ndarray, factors: np.ndarray, sums: np.ndarray) -> None:
    """Multiplies entries of shape ``(len(sums), len(factors))`` by factors, and sums them over the second axis."""
    above = len(factors)
    if above == 1:
        for rest in range(len(sums)):
            entries[rest] *= factors[0]
            sums[rest] = entries[rest]
        return
    for rest in range(len(sums)):
        part, total = entries[rest * above : (rest + 1) * above], 0.0
        for place in range(above):
            part[place] *= factors[place]
            total += part[place]
        sums[rest] = total


@compiled_in_place
def _sum_single(walk: CliqueWalk, room: _Row, first: int, last: int, size: int, single: np.ndarray) -> None:
    """Fills in the probabilities of the states of some axes from those of their joint states, which are overwritten."""
    for axis in range(first, last):
        variable = walk.variables[axis]
        count, start = room.counts[variable], walk.states[variable]
        size //= count
        for each in range(count):
            part, total = room.sums[each * size : (each + 1) * size], 0.0
            for place in range(size):
                total += part[place]
            single[start + room.states[start + each]] = total
            if each > 0:
                for place in range(size):
                    room.sums[place] += part[place]


@compiled_in_place
def _write(
    joint: np.ndarray,
    entries: np.ndarray,
    outer: np.ndarray,
    num_outer: int,
    inner: np.ndarray,
    num_inner: int,
) -> None:
    for i in range(num_outer):
        base, part = outer[i], entries[i * num_inner : (i + 1) * num_inner]
        for j in range(num_inner):
            joint[base + inner[j]] = part[j]


@compiled_in_place
def _add_up(
    sums: np.ndarray,
    entries: np.ndarray,
    outer: np.ndarray,
    num_outer: int,
    inner: np.ndarray,
    num_inner: int,
) -> None:
    sums[:] = 0.0
    # Entries that are added to the same sum one after the other would wait for each other in memory.
    run = 1
    while run < num_inner and inner[run] == inner[0]:
        run += 1
    for i in range(num_outer):
        base, part = outer[i], entries[i * num_inner : (i + 1) * num_inner]
        if run == 1:
            for j in range(num_inner):
                sums[base + inner[j]] += part[j]
            continue
        for j in range(0, num_inner, run):
            total = 0.0
            for each in range(j, j + run):
                total += part[each]
            sums[base + inner[j]] += total
