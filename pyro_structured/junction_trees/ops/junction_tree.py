"""Partition functions and marginals of junction trees: exact, differentiable, batched."""

__all__ = ["TreeBeliefs", "TreeDraws", "infer_tree", "log_partition_of_tree", "maximize_tree"]

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.ops.marginal_inference import MarginalPlan, infer_marginals
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.junction_trees.ops.chain_passes import Chain, infer_chain, multiply_chain, sample_chain
from pyro_structured.junction_trees.ops.clique_plan import CliqueBlock, CliqueLevel, CliquePlan, split_runs
from pyro_structured.junction_trees.ops.clique_walk import WeightedWalk
from pyro_structured.junction_trees.ops.table_budget import check_table_entries

# Largest logarithm of sums of products of weights; these, and the squares of their inverses, are far from overflow.
LARGEST_LOGARITHM = 300.0
# Numbers in one batch of samples.
DRAWN_AT_ONCE = 2**22
# Messages of all rows that are kept for further samples.
MOST_MESSAGES = 2**22
# Entries of a tree up to which more than a few rows take less time level by level than one after the other.
SMALL_TREE, FEW_ROWS = 64, 128


class _UpwardPass(NamedTuple):
    """Results of the upward pass, from the leaves to the roots.

    :ivar Tensor log_partition: Log Z, shape ``(rows,)``.
    :ivar list shares: For all levels, from the roots, numbers in proportion to the probabilities of a clique's other
        variables given its separator's state, shape ``(E, rows)``.
    :ivar list totals: Sums of the shares for all separators' states, shape ``(M, rows)``; zeros where a state is
        impossible.
    """

    log_partition: Tensor
    shares: list[Tensor]
    totals: list[Tensor]


def _upward(plan: CliquePlan, tables: Tensor, evidence: Tensor | None) -> _UpwardPass:
    """Sums variables out, from the leaves to the roots.

    Weights are multiplied where that is safe, and else their logarithms are added, which takes several times as long.

    :param CliquePlan plan: The tree.
    :param Tensor tables: Log-weights, shape ``(table_size, rows)`` or ``(table_size, 1)``.
    :param Tensor evidence: Log-weights of single states, shape ``(num_states, rows)`` or ``(num_states, 1)``.
    """
    logarithms = any_true(_magnitude(plan, tables, evidence) > LARGEST_LOGARITHM)
    if not logarithms:
        tables, evidence = tables.exp(), None if evidence is None else evidence.exp()
    evidence = None if evidence is None else _with_neutral(evidence, logarithms)
    shares: list[Tensor] = []
    totals: list[Tensor] = []
    messages = None
    for level in reversed(plan.levels(tables.device)):
        met = None if messages is None else _with_neutral(messages, logarithms)
        weights = _weights(level, tables, evidence, met, logarithms)
        if logarithms:
            peaks = _joined([run_weights.amax(1) for run_weights in split_runs(weights.detach(), level.sums)])
            peaks = peaks.masked_fill(peaks == -torch.inf, 0.0)
            weights = (weights - peaks.index_select(0, level.owners)).exp()
        total = _joined([run_weights.sum(1) for run_weights in split_runs(weights, level.sums)])
        messages = safe_log(total) + peaks if logarithms else total
        shares.append(weights)
        totals.append(total)
    assert messages is not None
    return _UpwardPass((messages if logarithms else safe_log(messages)).sum(0), shares[::-1], totals[::-1])


def _magnitude(plan: CliquePlan, tables: Tensor, evidence: Tensor | None) -> Tensor:
    """Upper bound of the absolute logarithms of all numbers that occur when weights are multiplied."""
    bound = plan.magnitude(_largest(tables))
    return bound if evidence is None else bound + _largest(evidence).sum()


def _largest(numbers: Tensor) -> Tensor:
    """Largest absolute values over the rows, infinite ones left out."""
    sizes = numbers.detach().abs()
    return sizes.masked_fill(sizes == torch.inf, 0.0).amax(-1) if numbers.shape[-1] else sizes.sum(-1)


def _with_neutral(numbers: Tensor, logarithms: bool) -> Tensor:
    """Numbers with a neutral element, 0 or 1, in a last row, for entries that lack a message or a state."""
    return torch.cat([numbers, numbers.new_full((1, numbers.shape[-1]), 0.0 if logarithms else 1.0)])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _weights(
    level: CliqueLevel, tables: Tensor, evidence: Tensor | None, messages: Tensor | None, logarithms: bool
) -> Tensor:
    """Weights of a level's entries times the messages from below, or their logarithms, shape ``(E, rows)``."""
    weights = tables.index_select(0, level.entries)
    for numbers, places in ((messages, level.messages), (evidence, level.states)):
        if numbers is None:
            continue
        for place in places:
            factor = numbers.index_select(0, place)
            weights = weights + factor if logarithms else weights * factor
    # Cliques that add no variable have no evidence of their own.
    return weights if evidence is None or weights.shape[-1] != 1 else weights.expand(-1, evidence.shape[-1])


def _joint_marginals(plan: CliquePlan, found: _UpwardPass) -> list[Tensor]:
    """Probabilities of the entries of all levels, shape ``(E, rows)``, from the roots to the leaves."""
    marginals: list[Tensor] = []
    for level, share, total in zip(plan.levels(found.log_partition.device), found.shares, found.totals, strict=True):
        factor = total.masked_fill(total == 0, 1.0).reciprocal()
        if marginals:
            sources = marginals[-1].index_select(0, level.sources)
            factor = factor * _joined(
                [run_marginals.sum(1) for run_marginals in split_runs(sources, level.source_sums)]
            )
        else:
            factor = factor.masked_fill(found.log_partition == -torch.inf, 0.0)
        marginals.append(share * factor.index_select(0, level.owners))
    return marginals


def _single_marginals(plan: CliquePlan, marginals: list[Tensor]) -> Tensor:
    """Probabilities of the states of all variables, shape ``(num_states, rows)``, from those of the cliques."""
    first = marginals[0]
    total = first.new_zeros(plan.num_states + 1, first.shape[-1])
    for level, entries in zip(plan.levels(first.device), marginals, strict=True):
        for states in level.states:
            total = total.index_add(0, states, entries)
    return total[:-1]


def _sample_states(plan: CliquePlan, found: _UpwardPass, num_samples: int) -> Tensor:
    """Draws all variables, from the roots to the leaves.

    :return: Integers of shape ``(n, num_samples, rows)``.
    """
    log_z = found.log_partition
    values = log_z.new_zeros(plan.num_variables, num_samples, log_z.shape[-1], dtype=torch.long)
    for level, shares in zip(plan.levels(log_z.device), found.shares, strict=True):
        for block, table in zip(level.blocks, level.split(shares), strict=True):
            numbers_per_sample = len(block.starts) * block.shape[1] * values.shape[-1]
            for batch in values.split(max(1, DRAWN_AT_ONCE // max(1, numbers_per_sample)), 1):
                place = _separator_states(block, batch)
                index = place.flatten(0, 1).unsqueeze(1).expand(-1, block.shape[1], -1)
                cumulative = table.gather(0, index).cumsum(1)
                threshold = torch.rand_like(cumulative[:, :1]) * (cumulative[:, -1:] * (1 - 2.0**-52))
                _write(block, batch, (cumulative <= threshold).sum(1).reshape(place.shape))
    return values


def _most_probable_states(plan: CliquePlan, tables: Tensor, evidence: Tensor | None) -> Tensor:
    """Most probable states of all variables together, shape ``(n, rows)``; arguments as for :func:`_upward`."""
    levels = plan.levels(tables.device)
    best: list[list[Tensor]] = []
    messages = None
    evidence = None if evidence is None else _with_neutral(evidence, True)
    for level in reversed(levels):
        met = None if messages is None else _with_neutral(messages, True)
        maxima = [table_maxima.max(1) for table_maxima in level.split(_weights(level, tables, evidence, met, True))]
        best.append([places for _, places in maxima])
        messages = torch.cat([peaks for peaks, _ in maxima])
    assert messages is not None
    values = messages.new_zeros(plan.num_variables, 1, messages.shape[-1], dtype=torch.long)
    for level, choices in zip(levels, best[::-1], strict=True):
        for block, choice in zip(level.blocks, choices, strict=True):
            place = _separator_states(block, values)
            _write(block, values, choice.gather(0, place.flatten(0, 1)).reshape(place.shape))
    return values.squeeze(1)


def _separator_states(block: CliqueBlock, values: Tensor) -> Tensor:
    """Indices of the values' separator states among those of a block, shape ``(G, samples, rows)``."""
    states = block.starts[:, None, None].expand(-1, *values.shape[1:])
    for variables, strides in zip(block.separators.unbind(1), block.separator_strides.unbind(1), strict=True):
        states = states + values[variables] * strides[:, None, None]
    return states


def _write(block: CliqueBlock, values: Tensor, states: Tensor) -> None:
    """Sets the variables of a block that are not in separators, in place.

    :param Tensor values: Values of all variables, shape ``(n, samples, rows)``.
    :param Tensor states: Joint states of the block's other variables, shape ``(G, samples, rows)``.
    """
    parts = zip(block.variables.unbind(1), block.strides.unbind(1), block.cardinalities.unbind(1), strict=True)
    for variables, strides, sizes in parts:
        values[variables] = states // strides[:, None, None] % sizes[:, None, None]


class _Messages(NamedTuple):
    """Results of the compiled upward pass.

    :ivar Tensor log_partition: Log Z, shape ``(rows,)``.
    :ivar Tensor messages: Sums over all that is below the separators' states, shape ``(rows, messages)``.
    :ivar WeightedWalk given: What was summed.
    """

    log_partition: Tensor
    messages: Tensor
    given: WeightedWalk


def _is_constant(*tensors: Tensor) -> bool:
    """Whether numbers are all that is wanted: no derivatives, and no transform of functions."""
    return not is_transformed() and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def _compiled_weights(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> WeightedWalk | None:
    """Arguments of compiled passes, if these are possible here, and all weights are numbers that do not overflow."""
    least_of = compiled_function("junction_trees.ops.compiled_walk", "largest_and_least")
    if least_of is None or not _is_constant(clique_logits, evidence):
        return None
    if clique_logits.device.type != "cpu" or clique_logits.dtype != torch.double:
        return None
    tables, observed = (tensor.detach().contiguous().numpy() for tensor in (clique_logits, evidence))
    least = np.zeros(len(plan.walk.parents))
    if not least_of(plan.walk, tables, least) <= LARGEST_LOGARITHM:
        return None
    # Exponentials of tables that many rows have in common are found once.
    are_logarithms = len(tables) >= len(observed)
    weights = tables if are_logarithms else torch.from_numpy(tables).exp().numpy()
    return WeightedWalk(plan.walk, weights, are_logarithms, np.exp(least), observed)


def _send_messages(
    clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, is_largest: bool = False
) -> _Messages | None:
    """Compiled upward pass, if one is possible, of sums or of largest weights."""
    given = _compiled_weights(clique_logits, evidence, plan)
    if given is None:
        return None
    send = compiled_function("junction_trees.ops.compiled_walk", "send_rows")
    assert send is not None
    (rows,) = broadcast_shapes(clique_logits.shape[:1], evidence.shape[:1])
    log_z, messages = (
        evidence.new_empty(shape, dtype=torch.double) for shape in (rows, (rows, int(plan.walk.messages[-1])))
    )
    return _Messages(log_z, messages, given) if send(given, is_largest, log_z.numpy(), messages.numpy()) else None


def _draw_from_messages(plan: CliquePlan, passed: _Messages, num_samples: int) -> Tensor:
    """Draws all variables, integers of shape ``(num_samples, rows, n)``."""
    draw = compiled_function("junction_trees.ops.compiled_walk", "draw_rows")
    assert draw is not None
    rows, numbers = len(passed.log_partition), len(plan.walk.parents)
    values = passed.messages.new_empty(num_samples, rows, plan.num_variables, dtype=torch.long)
    for batch in values.split(max(1, DRAWN_AT_ONCE // max(1, rows * numbers))):
        uniforms = torch.rand(numbers, len(batch), rows, dtype=torch.double, device=values.device)
        draw(passed.given, passed.messages.numpy(), uniforms.numpy(), batch.numpy())
    return values


# Queries, each of which includes all before it.
LOG_PARTITION, MARGINALS, CLIQUE_MARGINALS = range(3)
# Numbers in all products of neighbouring tables of chains up to which these take less time than many small steps.
CHAIN_NUMBERS = 2**17
# Numbers in one batch of rows, so that they stay in the cache.
NUMBERS_AT_ONCE = 2**19


class TreeBeliefs(NamedTuple):
    """``log_partition`` of shape ``(rows,)``, ``marginals``, probabilities of all single states, of shape ``(rows,
    num_states)``, and ``clique_marginals``, of all entries of the tables, of shape ``(rows, table_size)``, or ``(rows,
    0)`` where they were not needed.
    """

    log_partition: Tensor
    marginals: Tensor
    clique_marginals: Tensor


def log_partition_of_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_tree`."""
    if _is_constant(clique_logits, evidence):
        return _solve(clique_logits, evidence, plan, LOG_PARTITION).log_partition
    return infer_marginals(_Tree(plan), clique_logits, evidence, marginals=False)[0]


def infer_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, clique_marginals: bool = True) -> TreeBeliefs:
    """Computes the log partition function and all marginals.

    :param Tensor clique_logits: Log-weights of the entries of all tables, shape ``(rows, table_size)``, or ``(1,
        table_size)`` if they are the same in all rows; -inf is allowed.
    :param Tensor evidence: Log-weights of the states of all variables, one after the other, shape ``(rows,
        num_states)`` or ``(1, num_states)``, -inf where a state is excluded; with no columns if there is none.
    :param CliquePlan plan: The tree.
    :param bool clique_marginals: Whether marginals of cliques are needed, which takes longer.
    :return: Differentiable results; marginals are zero in rows where nothing is possible. Cost O(table_size) a row.
    """
    if _is_constant(clique_logits, evidence):
        return _solve(clique_logits, evidence, plan, CLIQUE_MARGINALS if clique_marginals else MARGINALS)
    log_z, joint, single = infer_marginals(_Tree(plan), clique_logits, evidence)
    return TreeBeliefs(log_z, single, joint)


class TreeDraws:
    """Exact samples, for which upward passes are made once, if they fit into one batch of rows; arguments as for
    :func:`infer_tree`.
    """

    def __init__(self, clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> None:
        self._arguments, self._plan = (clique_logits, evidence), plan
        self._chain = _short_chain(clique_logits, evidence, plan)

    @cached_property
    def _levels(self) -> list[tuple[Tensor, Tensor]]:
        assert self._chain is not None
        return multiply_chain(*self._arguments, self._chain)

    @cached_property
    def _passed(self) -> _Messages | _UpwardPass | None:
        """Pass for all rows; ``None`` where there are too many."""
        rows = max(map(len, self._arguments))
        sent = _send_messages(*self._arguments, self._plan) if rows <= _rows_of_messages(self._plan) else None
        if sent is not None or rows > _rows_at_once(self._plan, 1):
            return sent
        (part,) = _parts(*self._arguments, self._plan)
        return _upward(self._plan, *part)

    @property
    def possible(self) -> bool:
        """Whether it is known that all rows have a value of positive probability."""
        if self._chain is not None:
            return bool((self._levels[-1][0].flatten(1) > -torch.inf).any(-1).all())
        return self._passed is not None and bool((self._passed.log_partition > -torch.inf).all())

    @torch.no_grad()
    def __call__(self, num_samples: int) -> Tensor:
        """Integers of shape ``(num_samples, rows, n)``."""
        chain, plan = self._chain, self._plan
        if chain is not None and num_samples * chain.entries.numel() <= CHAIN_NUMBERS:
            return sample_chain(self._levels, chain, num_samples)
        drawn = [
            _draw_from_messages(plan, passed, num_samples)
            if isinstance(passed, _Messages)
            else _sample_states(plan, passed, num_samples).movedim(0, -1)
            for passed in self._passes(num_samples)
        ]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, 1)

    def _passes(self, num_samples: int) -> Iterator[_Messages | _UpwardPass]:
        if isinstance(self._passed, _Messages):
            yield self._passed
            return
        if self._passed is None:
            for tables, evidence in _row_batches(*self._arguments, _rows_of_messages(self._plan)):
                sent = _send_messages(tables, evidence, self._plan)
                if sent is not None:
                    yield sent
                    continue
                for part in _parts(tables, evidence, self._plan, num_samples):
                    yield _upward(self._plan, *part)
            return
        log_z, shares, totals = self._passed
        step = _rows_at_once(self._plan, num_samples)
        for start in range(0, max(1, len(log_z)), step):
            rows = slice(start, start + step)
            yield _UpwardPass(log_z[rows], [s[:, rows] for s in shares], [t[:, rows] for t in totals])


@torch.no_grad()
def maximize_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """A most probable value of every row, integers of shape ``(rows, n)``; arguments as for :func:`infer_tree`."""
    choose = compiled_function("junction_trees.ops.compiled_walk", "choose_rows")
    found = []
    for tables, weights in _row_batches(clique_logits, evidence, _rows_of_messages(plan)):
        sent = _send_messages(tables, weights, plan, is_largest=True)
        if sent is None:
            found += [_most_probable_states(plan, *part).T for part in _parts(tables, weights, plan)]
            continue
        assert choose is not None
        values = sent.messages.new_zeros(len(sent.messages), plan.num_variables, dtype=torch.long)
        choose(sent.given, sent.messages.numpy(), values.numpy())
        found.append(values)
    return torch.cat(found)


def _parts(
    clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, copies: int = 1
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches of rows, which become the last axis."""
    for batch in _row_batches(clique_logits, evidence, _rows_at_once(plan, copies)):
        tables, weights = (tensor.T.contiguous() for tensor in batch)
        yield tables, weights if len(weights) else None


def _row_batches(clique_logits: Tensor, evidence: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    (rows,) = broadcast_shapes(clique_logits.shape[:1], evidence.shape[:1])
    for start in range(0, max(1, rows), step):
        tables, weights = (
            tensor if len(tensor) == 1 else tensor[start : start + step] for tensor in (clique_logits, evidence)
        )
        yield tables, weights


def _rows_at_once(plan: CliquePlan, copies: int) -> int:
    return max(1, NUMBERS_AT_ONCE // (plan.table_size * max(1, copies)))


def _rows_of_messages(plan: CliquePlan) -> int:
    """Number of rows whose messages are kept at once."""
    return max(1, MOST_MESSAGES // int(plan.walk.messages[-1]))


def _short_chain(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Chain | None:
    """The tree as a chain, if it is one, and the rows are so few that the number of steps is what takes time."""
    chain = plan.chain(clique_logits.device)
    if chain is None:
        return None
    products = max(len(clique_logits), len(evidence)) * chain.entries.numel() * chain.entries.shape[-1]
    return chain if products <= CHAIN_NUMBERS else None


def _solve(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, queries: int) -> TreeBeliefs:
    (rows,) = broadcast_shapes(clique_logits.shape[:1], evidence.shape[:1])
    if queries >= CLIQUE_MARGINALS and rows > len(clique_logits):
        what = f"the probabilities of all cliques' states in {rows} rows of evidence, of which fewer may be asked for"
        check_table_entries("value", f"{what} at a time", rows * plan.table_size)
    by_level = rows > FEW_ROWS and plan.table_size <= SMALL_TREE
    given = None if by_level else _compiled_weights(clique_logits, evidence, plan)
    if given is None:
        return _solve_by_level(clique_logits, evidence, plan, queries)
    sizes = plan.num_states if queries >= MARGINALS else 0, plan.table_size if queries >= CLIQUE_MARGINALS else 0
    # Memory of numpy's zeros is not written twice.
    found = TreeBeliefs(*map(torch.from_numpy, (np.zeros(rows), *(np.zeros((rows, size)) for size in sizes))))
    unsolved = evidence.new_zeros(rows, dtype=torch.bool)
    solve = compiled_function("junction_trees.ops.compiled_walk", "solve_rows")
    assert solve is not None
    solve(given, *(tensor.numpy() for tensor in (*found, unsolved)))
    left = unsolved.nonzero().squeeze(-1)
    if len(left):
        tables, observed = (tensor if len(tensor) == 1 else tensor[left] for tensor in (clique_logits, evidence))
        for tensor, numbers in zip(found, _solve_by_level(tables, observed, plan, queries), strict=True):
            tensor[left] = numbers
    return found


def _solve_by_level(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, queries: int) -> TreeBeliefs:
    chain = _short_chain(clique_logits, evidence, plan)
    if chain is not None:
        log_z, single, packed = infer_chain(clique_logits, evidence, chain, queries >= MARGINALS)
        return TreeBeliefs(log_z, single, packed if queries >= CLIQUE_MARGINALS else packed[:, :0])
    results = []
    for tables, weights in _parts(clique_logits, evidence, plan):
        passed = _upward(plan, tables, weights)
        single = packed = passed.log_partition.new_zeros(0, len(passed.log_partition))
        if queries >= MARGINALS:
            joint = _joint_marginals(plan, passed)
            single = _single_marginals(plan, joint)
        if queries >= CLIQUE_MARGINALS:
            packed = torch.cat(joint).index_select(0, plan.order(packed.device))
        results.append((passed.log_partition, single, packed))
    log_z, single, packed = results[0] if len(results) == 1 else (torch.cat(p, -1) for p in zip(*results, strict=True))
    return TreeBeliefs(log_z, single.T, packed.T)


class _Tree(MarginalPlan):
    def __init__(self, plan: CliquePlan) -> None:
        self.plan = plan

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        log_z, single, joint = _solve(
            parameters[0], parameters[1], self.plan, CLIQUE_MARGINALS if marginals else LOG_PARTITION
        )
        return (log_z, joint, single) if marginals else (log_z,)
