"""Direct sums over the counts of independent binary variables, in compiled loops; imported only where numba is.

Variables are divided into blocks. The trees of blocks are alike, so that those of many blocks and rows are computed
side by side in memory. Above them, a row has a tree of its own, whose messages are cut off where probabilities are
tiny.
"""

__all__ = ["count_trees", "direct_passes", "solve_directly", "split_counts", "weigh_counts"]

import math

import numpy as np

from pyro_structured.counts.ops.compiled_cells import child_messages, level_starts, message_width, num_nodes
from pyro_structured.counts.ops.convolution_tree import UNDERFLOW, UNIT_ROUNDOFF
from pyro_structured.counts.ops.direct_counts import (
    LARGEST_EXPONENT,
    LARGEST_SHARE,
    LOG_PARTITION_TOLERANCE,
    TILT_STEPS,
    rounding_error,
)
from pyro_structured.foundation.ops.compiled import compiled, compiled_in_any_order
from pyro_structured.foundation.ops.compiled_exponentials import exponentials, logarithms

# Largest number of variables of a block; number down to which blocks are halved while there are few of them; largest
# number of blocks that are computed side by side.
BLOCK, SMALL_BLOCK, FEW_BLOCKS, LANES = 32, 16, 8, 64
# Probabilities of counts are cut off that are so much smaller than the least probability of a value of a variable, or
# as small as that; smaller products of probabilities have lost digits.
CUT, TINY = 2.0**-60, 1e-290
# Variables whose weights are multiplied before a logarithm is taken.
TOGETHER = 64
# Entries of the shorter message up to which products are simple loops, entries from which they are dot products, and
# number of these that are computed together.
SHORT, LONG, DOTS = 6, 24, 8

_rounding_error = compiled(rounding_error)


@compiled
def solve_directly(
    logits: np.ndarray,
    tables: np.ndarray,
    limit: int,
    sum_error: float,
    odds_tolerance: float,
    is_cut: bool,
    marginals: bool,
    excess: np.ndarray,
    odds: np.ndarray,
    counts: np.ndarray,
    excess_error: np.ndarray,
    odds_error: np.ndarray,
    certified: np.ndarray,
    tilts: np.ndarray,
) -> None:
    """Fills ``excess`` and what follows, ``counts`` up to the limit, as the function of this name in
    :mod:`pyro_structured.counts.ops.direct_counts` does with products of matrices; float64 and contiguous.

    :param limit: Largest count that is possible.
    :param sum_error: Bound on the relative errors of sums of products.
    """
    num_rows, num_variables = logits.shape
    step = max(min(BLOCK * LANES // num_variables, num_rows), 1)
    on, off = np.zeros((step, num_variables)), np.zeros((step, num_variables))
    given_on, given_off = np.zeros((step, num_variables)), np.zeros((step, num_variables))
    weights, root = np.zeros((step, limit + 1)), np.zeros((step, limit + 1))
    lost, sizes, peaks = np.zeros(step), np.zeros(step), np.zeros(step)
    space = np.zeros((2, max(num_variables, limit + 1)))
    for first in range(0, num_rows, step):
        rows = min(step, num_rows - first)
        for place in range(rows):
            row = first + place
            tilts[row] = _find_tilt(logits[row], tables[row], limit)
            sizes[place] = _size(logits[row])
            excess[row] = _probabilities(logits[row], tilts[row], on[place], off[place], space)
            peaks[place] = weigh_counts(tables[row], tilts[row], weights[place], space)
        direct_passes(
            on[:rows],
            off[:rows],
            weights[:rows],
            is_cut,
            marginals,
            root[:rows],
            given_off[:rows],
            given_on[:rows],
            lost[:rows],
        )
        for place in range(rows):
            row = first + place
            steep, size = abs(tilts[row]), sizes[place]
            mass = _count_mass(root[place], weights[place], is_cut, counts[row])
            excess[row] += math.log(mass) + peaks[place]
            share = lost[place] / mass
            error = sum_error + UNDERFLOW * (limit + 1) / mass + share
            rounding = _rounding_error(size, num_variables, steep, limit, excess[row])
            tolerance = min(LOG_PARTITION_TOLERANCE * max(1.0, abs(excess[row]), size), LARGEST_SHARE)
            fine = error <= tolerance and math.isfinite(excess[row]) and rounding <= LARGEST_SHARE
            certified[row] = fine and share <= sum_error
            excess_error[row] = error + rounding
            if marginals:
                given = on[place], off[place], given_on[place], given_off[place]
                own, bounds = (logits[row], tilts[row], odds[row]), (odds_error[row], space)
                failures = _log_odds(own, given, bounds, sum_error, odds_tolerance, lost[place], float(2 * rounding))
                certified[row] = certified[row] and not failures


@compiled
def _log_odds(
    own: tuple[np.ndarray, float, np.ndarray],
    given: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    bounds: tuple[np.ndarray, np.ndarray],
    sum_error: float,
    tolerance: float,
    lost: float,
    rounding: float,
) -> int:
    """Fills posterior log-odds of a row, and bounds on their errors.

    :param own: Log-odds, by which they are tilted, and results.
    :param given: Probabilities of ones and zeros, and weights given these.
    :param bounds: Results, and space of two rows.
    :param sum_error: Bound on the relative errors of sums of products; ``lost``: sum of all probabilities that were
        left out; ``rounding``: bound on the error by rounding of other variables' odds.
    :return: Number of variables whose bounds without rounding are above a tolerance, or whose sums have lost too much.
    """
    (logits, tilt, odds), (on, off, given_on, given_off), (errors, space) = own, given, bounds
    number, failures = len(logits), 0
    ratios, found = space[0, :number], space[1, :number]
    for d in range(number):
        joint_off, joint_on = off[d] * given_off[d], on[d] * given_on[d]
        # Divisions take long.
        zero, one = 1.0 / joint_off, 1.0 / joint_on
        inverse_off, inverse_on = zero * off[d], one * on[d]
        ratios[d] = given_on[d] * inverse_off
        cut = lost * (zero + one) if min(joint_off, joint_on) >= TINY else math.inf
        error = 2 * sum_error + UNDERFLOW * (inverse_off + inverse_on) + cut
        errors[d] = error if cut <= sum_error else math.inf
    logarithms(ratios, found, odds)
    for d in range(number):
        is_clamped = math.isinf(logits[d])
        value = logits[d] if is_clamped else logits[d] + tilt + found[d]
        error = 0.0 if is_clamped else errors[d]
        failures += 0 if error <= tolerance else 1
        size = 4 * min(abs(logits[d]), LARGEST_EXPONENT) + 8 * abs(value)
        odds[d] = value
        errors[d] = 0.0 if is_clamped else error + rounding + UNIT_ROUNDOFF * size
    return failures


@compiled
def _find_tilt(logits: np.ndarray, table: np.ndarray, limit: int) -> float:
    """Tilt under which the mean count is a possible one, as the function ``find_tilts`` finds it."""
    least, most, number = len(logits) + 1, -1, 0
    for count in range(limit + 1):
        if table[count] > -math.inf:
            least, most, number = min(least, count), max(most, count), number + 1
    if number > len(logits):
        return 0.0
    fewest, free, low, high = 0, 0, math.inf, -math.inf
    for logit in logits:
        if math.isinf(logit):
            fewest += logit > 0.0
        else:
            free += 1
            low, high = min(low, logit), max(high, logit)
    reach = math.log(2 * len(logits))
    tilt, target = 0.0, 0.0
    for step in range(TILT_STEPS):
        mean, variance = 0.0, 0.0
        for logit in logits:
            odds = math.exp(-abs(logit + tilt))
            small = odds / (1.0 + odds)
            mean += small if logit + tilt < 0.0 else 1.0 - small
            variance += small * (1.0 - small)
        mean -= fewest
        if step == 0:
            target = min(max(mean + fewest, least), most) - fewest
            if free == 0:
                return 0.0
        gap = math.log(target / (free - target)) - math.log(mean / (free - mean))
        shift = gap * mean * (free - mean) / (free * variance)
        tilt = max(min(tilt if math.isnan(shift) else tilt + shift, reach - low), -high - reach)
    return tilt


@compiled
def _size(logits: np.ndarray) -> float:
    """Sum of the sizes of the logits that are not clamps."""
    size = 0.0
    for logit in logits:
        if not math.isinf(logit):
            size += min(abs(logit), LARGEST_EXPONENT)
    return size


@compiled
def _probabilities(logits: np.ndarray, tilt: float, on: np.ndarray, off: np.ndarray, space: np.ndarray) -> float:
    """Fills the probabilities of ones and zeros under a tilt; ``space`` has two rows.

    :return: The log weight of all vectors relative to the heaviest one without a tilt.
    """
    number = len(logits)
    odds = space[0, :number]
    for d in range(number):
        on[d] = -abs(logits[d] + tilt)
    exponentials(on, odds, off)
    for d in range(number):
        likely = 1.0 / (1.0 + odds[d])
        other = odds[d] * likely
        is_on = logits[d] + tilt > 0.0
        on[d], off[d] = likely if is_on else other, other if is_on else likely
    weight, rest = 0.0, 0.0
    for first in range(0, number, TOGETHER):
        # Products of all 1 + odds, less 1; several, as each waits for the one before.
        one, two, three, four = 0.0, 0.0, 0.0, 0.0
        end = min(first + TOGETHER, number)
        for d in range(first, end - 3, 4):
            one += odds[d] * (1.0 + one)
            two += odds[d + 1] * (1.0 + two)
            three += odds[d + 2] * (1.0 + three)
            four += odds[d + 3] * (1.0 + four)
        for d in range(end - (end - first) % 4, end):
            one += odds[d] * (1.0 + one)
        one += two * (1.0 + one)
        three += four * (1.0 + three)
        rest += math.log1p(one + three * (1.0 + one))
    if tilt != 0.0:
        for logit in logits:
            # With the error of the sum (Knuth 1997).
            term = tilt + max(-logit - tilt, 0.0) if logit > 0.0 else max(logit + tilt, 0.0)
            total = weight + term
            added = total - weight
            rest += (weight - (total - added)) + (term - added)
            weight = total
    return weight + rest


@compiled
def weigh_counts(table: np.ndarray, tilt: float, weights: np.ndarray, space: np.ndarray) -> float:
    """Fills the weights of the counts under a tilt, and returns the logarithm by which they were divided; ``space`` has
    two rows.
    """
    number, peak = len(weights), -math.inf
    tilted = space[0, :number]
    for count in range(number):
        tilted[count] = table[count] - tilt * count
    for weight in tilted:
        peak = max(peak, weight)
    if peak == -math.inf:
        peak = 0.0
    for count in range(number):
        tilted[count] -= peak
    exponentials(tilted, weights, space[1, :number])
    return peak


@compiled
def _count_mass(root: np.ndarray, weights: np.ndarray, is_cut: bool, counts: np.ndarray) -> float:
    """Fills the probabilities of the counts, and returns their sum before they were divided by it."""
    mass = 0.0
    for count in range(len(weights)):
        # Counts that were cut off have a positive mass, too.
        joint = max(root[count], UNDERFLOW) if is_cut else root[count]
        counts[count] = joint * weights[count]
        mass += counts[count]
    for count in range(len(weights)):
        counts[count] /= mass
    return mass


@compiled
def direct_passes(
    on: np.ndarray,
    off: np.ndarray,
    weights: np.ndarray,
    is_cut: bool,
    marginals: bool,
    root: np.ndarray,
    given_off: np.ndarray,
    given_on: np.ndarray,
    lost: np.ndarray,
) -> None:
    """Fills ``root``, ``given_off`` and ``given_on`` as the function of this name in
    :mod:`pyro_structured.counts.ops.direct_counts` does with products of matrices; float64 and contiguous.

    :param is_cut: Whether counts of partial sums are left out whose probabilities are tiny beside the least one of a
        value of a variable.
    :param lost: Sum of all probabilities that were left out, shape ``(rows,)``.
    """
    num_rows, num_variables = on.shape
    limit = weights.shape[1] - 1
    size = BLOCK
    while size > SMALL_BLOCK and num_rows * ((num_variables - 1) // size + 1) < FEW_BLOCKS:
        size //= 2
    size = (num_variables - 1) // ((num_variables - 1) // size + 1) + 1
    num_blocks = (num_variables - 1) // size + 1
    last, width = level_starts(size, 1, limit)[-2], message_width(size, limit)
    together = max(min(LANES // num_blocks, num_rows), 1)
    num_groups = (together * num_blocks - 1) // LANES + 1
    lanes = min(together * num_blocks, LANES)
    inside = np.zeros((num_groups, last + width, lanes))
    outside = np.zeros((num_groups, last + width, lanes))
    tree, nodes = level_starts(num_blocks, size, limit), _first_nodes(num_blocks)
    up, down = np.zeros(tree[-1]), np.zeros(tree[-1])
    lowest, widths = np.zeros(nodes[-1], np.int64), np.zeros(nodes[-1], np.int64)
    space = np.zeros((4, 2 * (limit + size) + 4 * DOTS))
    for first in range(0, num_rows, together):
        number = min(together, num_rows - first) * num_blocks
        rows = slice(first, first + number // num_blocks)
        _fill_blocks(on[rows], off[rows], size, inside)
        for group in range(num_groups):
            _upward(inside[group], size, limit, min(lanes, number - group * LANES))
        for row in range(first, first + number // num_blocks):
            least = _least_probability(on[row], off[row]) if is_cut else TINY
            begin = (row - first) * num_blocks
            lost[row] = 0.0
            for node in range(num_blocks):
                place = begin + node
                for count in range(width):
                    up[node * width + count] = inside[place // LANES, last + count, place % LANES]
                outside[place // LANES, last : last + width, place % LANES] = 0.0
                lowest[node], widths[node], cut = _cut_off(up, node * width, width, least)
                lost[row] += cut
            lost[row] += _tree_upward(up, tree, nodes, size, limit, lowest, widths, least, space)
            root[row] = 0.0
            if math.isinf(lost[row]):
                continue
            top, low, most = tree[-2], lowest[-1], widths[-1]
            root[row, low : low + most] = up[top : top + most]
            if not marginals:
                continue
            down[top : top + most] = weights[row, low : low + most]
            _tree_downward(up, down, tree, nodes, size, limit, lowest, widths, space)
            for node in range(num_blocks):
                place = begin + node
                for count in range(widths[node]):
                    outside[place // LANES, last + lowest[node] + count, place % LANES] = down[node * width + count]
        if not marginals:
            continue
        for group in range(num_groups):
            _downward(inside[group], outside[group], size, limit, min(lanes, number - group * LANES))
        _read_blocks(outside, size, given_on[rows], given_off[rows])


@compiled
def _fill_blocks(on: np.ndarray, off: np.ndarray, size: int, inside: np.ndarray) -> None:
    """Puts the messages of rows of variables into blocks of a size side by side, shape ``(groups, cells, lanes)``."""
    num_rows, num_variables = on.shape
    num_blocks = (num_variables - 1) // size + 1
    for place in range(num_rows * num_blocks):
        row, start = place // num_blocks, (place % num_blocks) * size
        block = inside[place // LANES, :, place % LANES]
        for d in range(size):
            # Variables that are never on change no count.
            is_there = start + d < num_variables
            block[2 * d] = off[row, start + d] if is_there else 1.0
            block[2 * d + 1] = on[row, start + d] if is_there else 0.0


@compiled
def _read_blocks(outside: np.ndarray, size: int, given_on: np.ndarray, given_off: np.ndarray) -> None:
    """Takes expected weights of the variables of rows from blocks; inverse of :func:`_fill_blocks`."""
    num_rows, num_variables = given_on.shape
    num_blocks = (num_variables - 1) // size + 1
    for place in range(num_rows * num_blocks):
        row, start = place // num_blocks, (place % num_blocks) * size
        block = outside[place // LANES, :, place % LANES]
        for d in range(min(size, num_variables - start)):
            given_off[row, start + d], given_on[row, start + d] = block[2 * d], block[2 * d + 1]


@compiled
def _upward(inside: np.ndarray, size: int, limit: int, lanes: int) -> None:
    """Messages of all nodes of blocks side by side, shape ``(cells, lanes)``, from those of the variables."""
    starts = level_starts(size, 1, limit)
    for level in range(len(starts) - 2):
        for node in range(num_nodes(size, level + 1)):
            parent = starts[level + 1] + node * message_width(2 << level, limit)
            left, right = child_messages(size, limit, starts, level, node)
            width = min(left[1] + max(right[1], 1) - 1, limit + 1)
            product = inside[parent : parent + width]
            if not right[1]:
                product[:] = inside[left[0] : left[0] + width]
                continue
            product[:, :lanes] = 0.0
            for i in range(left[1]):
                one = inside[left[0] + i]
                for j in range(min(right[1], width - i)):
                    other, both = inside[right[0] + j], product[i + j]
                    for lane in range(lanes):
                        both[lane] += one[lane] * other[lane]


@compiled
def _downward(inside: np.ndarray, outside: np.ndarray, size: int, limit: int, lanes: int) -> None:
    """Expected weights of all nodes of blocks side by side, shape ``(cells, lanes)``, from those of the last one."""
    starts = level_starts(size, 1, limit)
    for level in range(len(starts) - 3, -1, -1):
        for node in range(num_nodes(size, level + 1)):
            parent = starts[level + 1] + node * message_width(2 << level, limit)
            left, right = child_messages(size, limit, starts, level, node)
            width = min(left[1] + max(right[1], 1) - 1, limit + 1)
            total = outside[parent : parent + width]
            if not right[1]:
                outside[left[0] : left[0] + width] = total
                continue
            for own, other in ((left, right), (right, left)):
                for i in range(own[1]):
                    result = outside[own[0] + i]
                    result[:lanes] = 0.0
                    for j in range(min(other[1], width - i)):
                        weight, message = total[i + j], inside[other[0] + j]
                        for lane in range(lanes):
                            result[lane] += weight[lane] * message[lane]


@compiled
def _cut_off(cells: np.ndarray, start: int, number: int, least: float) -> tuple[int, int, float]:
    """Cuts off the ends of a message, where probabilities are small, and moves the rest to its first cell.

    :return: Number of entries that were cut off before the rest, that of the rest, and the sum of all that was cut off.
    """
    first, end, lost = start, start + number, 0.0
    while first < end - 1 and cells[first] < least:
        lost += cells[first]
        first += 1
    while end > first + 1 and cells[end - 1] < least:
        end -= 1
        lost += cells[end]
    if first > start:
        for place in range(end - first):
            cells[start + place] = cells[first + place]
    return first - start, end - first, lost


@compiled
def _least_probability(on: np.ndarray, off: np.ndarray) -> float:
    """Probability below which counts may be cut off."""
    least = 1.0
    for d in range(len(on)):
        for probability in (on[d], off[d]):
            if 0.0 < probability < least:
                least = probability
    return max(CUT * least, TINY)


@compiled
def _first_nodes(num_leaves: int) -> np.ndarray:
    """First node of each level of a tree, and the number of all nodes."""
    num_levels = 1
    while 1 << (num_levels - 1) < num_leaves:
        num_levels += 1
    nodes = np.zeros(num_levels + 1, np.int64)
    for level in range(num_levels):
        nodes[level + 1] = nodes[level] + num_nodes(num_leaves, level)
    return nodes


@compiled
def _tree_upward(
    up: np.ndarray,
    starts: np.ndarray,
    nodes: np.ndarray,
    size: int,
    limit: int,
    lowest: np.ndarray,
    widths: np.ndarray,
    least: float,
    space: np.ndarray,
) -> float:
    """Messages of all nodes of a row's tree, from those of the leaves, with their lowest counts and their widths.

    :return: The sum of all that was cut off; infinite if nothing is left.
    """
    lost = 0.0
    for level in range(len(starts) - 2):
        width, wide = message_width(size << level, limit), message_width(size << (level + 1), limit)
        for parent in range(nodes[level + 1], nodes[level + 2]):
            place = parent - nodes[level + 1]
            left, start = nodes[level] + 2 * place, starts[level + 1] + place * wide
            begin, low, num_left = starts[level] + 2 * place * width, lowest[left], widths[left]
            if left + 1 == nodes[level + 1]:
                up[start : start + num_left] = up[begin : begin + num_left]
                lowest[parent], widths[parent] = low, num_left
                continue
            middle, num_right = begin + width, widths[left + 1]
            low += lowest[left + 1]
            # Counts beyond the limit have no weight.
            number = min(num_left + num_right - 1, limit + 1 - low)
            if number < 1:
                return math.inf
            if min(num_left, num_right) < SHORT:
                for count in range(number):
                    total = 0.0
                    for share in range(max(count - num_right + 1, 0), min(count + 1, num_left)):
                        total += up[begin + share] * up[middle + count - share]
                    up[start + count] = total
            else:
                one, other = up[begin : begin + num_left], up[middle : middle + num_right]
                if num_left <= num_right:
                    _convolve(one, other, space[1], space[2], space[0])
                else:
                    _convolve(other, one, space[1], space[2], space[0])
                up[start : start + number] = space[0, :number]
            first, widths[parent], cut = _cut_off(up, start, number, least)
            lowest[parent] = low + first
            lost += cut
    return lost


@compiled
def _tree_downward(
    up: np.ndarray,
    down: np.ndarray,
    starts: np.ndarray,
    nodes: np.ndarray,
    size: int,
    limit: int,
    lowest: np.ndarray,
    widths: np.ndarray,
    space: np.ndarray,
) -> None:
    """Expected weights of all nodes of a row's tree, from those of the root."""
    for level in range(len(starts) - 3, -1, -1):
        width, wide = message_width(size << level, limit), message_width(size << (level + 1), limit)
        for parent in range(nodes[level + 1], nodes[level + 2]):
            place = parent - nodes[level + 1]
            left, start = nodes[level] + 2 * place, starts[level + 1] + place * wide
            begin, num_left = starts[level] + 2 * place * width, widths[left]
            if left + 1 == nodes[level + 1]:
                down[begin : begin + num_left] = down[start : start + num_left]
                continue
            num_right = widths[left + 1]
            middle, before = begin + width, lowest[parent] - lowest[left] - lowest[left + 1]
            if min(num_left, num_right) < SHORT:
                # The sums that were not cut off are those from before to after.
                after = before + widths[parent]
                for own, number, sibling, many in (
                    (begin, num_left, middle, num_right),
                    (middle, num_right, begin, num_left),
                ):
                    for count in range(number):
                        total = 0.0
                        for other in range(max(before - count, 0), min(after - count, many)):
                            total += down[start + count + other - before] * up[sibling + other]
                        down[own + count] = total
                continue
            # Of all sums of the children's counts, also those that were cut off.
            sums = space[3][: num_left + num_right - 1 + DOTS]
            sums[:] = 0.0
            sums[before : before + widths[parent]] = down[start : start + widths[parent]]
            _correlate(sums, up[middle : middle + num_right], space[0], num_left)
            down[begin : begin + num_left] = space[0, :num_left]
            _correlate(sums, up[begin : begin + num_left], space[0], num_right)
            down[middle : middle + num_right] = space[0, :num_right]


@compiled
def count_trees(on: np.ndarray, off: np.ndarray, limit: int, is_cut: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Messages of a tree of single variables for each row.

    :param on: Probabilities of 1, shape ``(rows, num_variables)``; ``off``: those of 0.
    :param limit: Largest count that is possible.
    :param is_cut: As for :func:`direct_passes`.
    :return: Messages, shape ``(rows, cells)``; lowest counts, and numbers of counts, of the nodes, ``(rows, nodes)``.
    """
    num_rows, num_variables = on.shape
    starts, nodes = level_starts(num_variables, 1, limit), _first_nodes(num_variables)
    messages = np.zeros((num_rows, starts[-1]))
    lowest, widths = np.zeros((num_rows, nodes[-1]), np.int32), np.zeros((num_rows, nodes[-1]), np.int32)
    space = np.zeros((4, 2 * (limit + 1) + 4 * DOTS))
    for row in range(num_rows):
        least = _least_probability(on[row], off[row]) if is_cut else TINY
        for d in range(num_variables):
            messages[row, 2 * d], messages[row, 2 * d + 1], widths[row, d] = off[row, d], on[row, d], 2
        _tree_upward(messages[row], starts, nodes, 1, limit, lowest[row], widths[row], least, space)
    return messages, lowest, widths


@compiled
def split_counts(
    messages: np.ndarray,
    lowest: np.ndarray,
    widths: np.ndarray,
    limit: int,
    totals: np.ndarray,
    uniforms: np.ndarray,
    samples: np.ndarray,
) -> None:
    """Fills samples of the variables given their sum, of shape ``(num_samples, rows, num_variables)``.

    :param messages: Trees of the rows, as ``lowest`` and ``widths`` from :func:`count_trees`.
    :param totals: Sums of the variables, shape ``(num_samples, rows)``, not beyond ``limit``.
    :param uniforms: Uniform random numbers below 1, shape ``(num_samples, rows, num_variables - 1)``.
    """
    num_samples, num_rows, num_variables = samples.shape
    starts, nodes = level_starts(num_variables, 1, limit), _first_nodes(num_variables)
    counts = np.zeros(nodes[-1], np.int64)
    for row in range(num_rows):
        cells, low, width = messages[row], lowest[row], widths[row]
        for sample in range(num_samples):
            used = 0
            # Sums that were cut off are less likely than a uniform number can tell.
            counts[-1] = min(max(totals[sample, row], low[-1]), low[-1] + width[-1] - 1)
            for level in range(len(starts) - 3, -1, -1):
                cell = starts[level]
                step = message_width(1 << level, limit)
                for parent in range(nodes[level + 1], nodes[level + 2]):
                    left = nodes[level] + 2 * (parent - nodes[level + 1])
                    if left + 1 == nodes[level + 1]:
                        counts[left] = counts[parent]
                        continue
                    one, other = cells[cell : cell + width[left]], cells[cell + step : cell + step + width[left + 1]]
                    rest = counts[parent] - low[left] - low[left + 1]
                    share = _draw_share(one, other, rest, uniforms[sample, row, used])
                    counts[left], counts[left + 1] = low[left] + share, counts[parent] - low[left] - share
                    cell += 2 * step
                    used += 1
            samples[sample, row] = counts[:num_variables]


@compiled
def _draw_share(one: np.ndarray, other: np.ndarray, total: int, uniform: float) -> int:
    """Draws the first of two counts with a given sum, by their weights."""
    first, last = max(total - len(other) + 1, 0), min(total, len(one) - 1)
    if first >= last:
        return first
    weight = 0.0
    for count in range(first, last + 1):
        weight += one[count] * other[total - count]
    # Rounding must not carry the threshold to the total itself.
    threshold, weight = weight * (uniform * (1.0 - 2.0**-52)), 0.0
    for count in range(first, last):
        weight += one[count] * other[total - count]
        if weight > threshold:
            return count
    return last


@compiled_in_any_order
def _dots(left: np.ndarray, right: np.ndarray, results: np.ndarray) -> None:
    """Dot products of a vector with eight windows of another one, which has seven entries more."""
    number = len(left)
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for place in range(number):
        factor = left[place]
        a += factor * right[place]
        b += factor * right[place + 1]
        c += factor * right[place + 2]
        d += factor * right[place + 3]
        e += factor * right[place + 4]
        f += factor * right[place + 5]
        g += factor * right[place + 6]
        h += factor * right[place + 7]
    results[0], results[1], results[2], results[3] = a, b, c, d
    results[4], results[5], results[6], results[7] = e, f, g, h


@compiled_in_any_order
def _convolve(short: np.ndarray, long: np.ndarray, turned: np.ndarray, padded: np.ndarray, product: np.ndarray) -> None:
    """Convolves two messages, the first of which is not the longer one; ``turned`` and ``padded`` are space."""
    number, width = len(short), len(long)
    # Loops instead of slices, which numba copies.
    for i in range(number):
        turned[i] = short[number - 1 - i]
    for i in range(number, number + DOTS):
        turned[i] = 0.0
    for i in range(DOTS - 1):
        padded[i] = 0.0
    for i in range(width):
        padded[DOTS - 1 + i] = long[i]
    for i in range(DOTS - 1 + width, 3 * DOTS + width):
        padded[i] = 0.0
    for count in range(0, number + width - 1, DOTS):
        # Entries of the first message for which the second one has one, for any of the results, and some zeros.
        first, end = max(number - DOTS - count, 0), min(number, number + width - 1 - count)
        begin, terms = DOTS + count - number + first, (end - first + DOTS - 1) // DOTS * DOTS
        _dots(turned[first : first + terms], padded[begin : begin + terms + DOTS - 1], product[count : count + DOTS])


@compiled_in_any_order
def _correlate(total: np.ndarray, sibling: np.ndarray, result: np.ndarray, number: int) -> None:
    """Expected weight of each count, if the sibling's count is added to it, from those of the sums.

    :param total: Weights of the sums, ``number + len(sibling) - 1`` entries and ``DOTS`` zeros.
    """
    width = len(sibling)
    if number < LONG:
        result[:number] = 0.0
        for j in range(width):
            factor, window, target = sibling[j], total[j : j + number], result[:number]
            for i in range(number):
                target[i] += factor * window[i]
        return
    for count in range(0, number, DOTS):
        _dots(sibling, total[count : count + width + DOTS - 1], result[count : count + DOTS])
