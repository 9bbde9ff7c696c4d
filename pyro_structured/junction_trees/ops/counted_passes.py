"""Sums over the states of junction trees with potentials on counts: exact, differentiable, batched."""

__all__ = ["CountedBeliefs", "CountedDraws", "infer_counted", "log_partition_of_counted", "maximize_counted"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.ops.marginal_inference import MarginalPlan, infer_marginals
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.junction_trees.ops.counted_plan import (
    NEUTRAL,
    CountedPlan,
    CountedSchedule,
    CountedStep,
    CountProduct,
    CountSum,
)

# Terms of sums in one batch of rows, and of draws.
TERMS_AT_ONCE = 2**21


class CountedBeliefs(NamedTuple):
    """``log_partition`` of shape ``(rows,)``, ``clique_marginals``, probabilities of the entries of all cliques'
    tables, of shape ``(rows, table_size)``, and ``count_marginals``, of all counts, of shape ``(rows, count_size)``.
    """

    log_partition: Tensor
    clique_marginals: Tensor
    count_marginals: Tensor


def infer_counted(clique_logits: Tensor, count_logits: Tensor, plan: CountedPlan) -> CountedBeliefs:
    """Computes the log partition function and all marginals.

    :param Tensor clique_logits: Log-weights of the entries of all cliques' tables, shape ``(rows, table_size)``, or
        ``(1, table_size)`` if they are the same in all rows; -inf is allowed.
    :param Tensor count_logits: Log-weights of the counts of all subsets, shape ``(rows, count_size)`` or ``(1,
        count_size)``.
    :param CountedPlan plan: The tree and its subsets.
    :return: Differentiable results; marginals are zero in rows where nothing is possible. Cost: the terms of all sums.
    """
    return CountedBeliefs(*infer_marginals(_CountedTree(plan), clique_logits, count_logits))


def log_partition_of_counted(clique_logits: Tensor, count_logits: Tensor, plan: CountedPlan) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_counted`."""
    return infer_marginals(_CountedTree(plan), clique_logits, count_logits, marginals=False)[0]


class _CountedTree(MarginalPlan):
    def __init__(self, plan: CountedPlan) -> None:
        self.plan = plan

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        rows = max(map(len, parameters))
        schedule = self.plan.schedule(self.plan.limits(parameters[1]), parameters[0].device)
        step = max(1, TERMS_AT_ONCE // max(1, schedule.num_terms))
        results = []
        for start in range(0, max(1, rows), step):
            tables, counts = (p if len(p) == 1 else p[start : start + step] for p in parameters)
            results.append(_solve(schedule, self.plan, tables.T, counts.T, marginals))
        return tuple(torch.cat(parts, -1).movedim(-1, 0) for parts in zip(*results, strict=True))


class _Pass(NamedTuple):
    """Upward pass: ``log_partition``, shape ``(rows,)``, the ``messages``, shape ``(cells, rows)``, and each step's
    ``shares`` of the terms in its sums.
    """

    log_partition: Tensor
    messages: Tensor
    shares: list[Tensor]


def _upward(
    schedule: CountedSchedule, plan: CountedPlan, tables: Tensor, counts: Tensor, largest: bool = False
) -> _Pass:
    """Sums, or with ``largest`` maxima, from the leaves to the roots.

    :param Tensor tables: Shape ``(table_size + 1, rows)``, with a zero in the last row.
    :param Tensor counts: Shape ``(count_size, rows)``.
    """
    rows = max(tables.shape[-1], counts.shape[-1]) if tables.shape[-1] and counts.shape[-1] else 0
    messages = tables.new_full((schedule.num_cells, rows), -math.inf)
    messages[NEUTRAL] = 0.0
    shares = []
    for step in schedule.steps:
        terms = _terms(step, messages, tables)
        peak = terms.detach().amax(1, keepdim=True) if rows else terms.detach().sum(1, keepdim=True)
        if largest:
            sums = peak.squeeze(1)
        else:
            peak = peak.masked_fill(peak == -math.inf, 0.0)
            weights = (terms - peak).exp()
            total = weights.sum(1)
            sums = safe_log(total) + peak.squeeze(1)
            shares.append(weights / total.masked_fill(total == 0, 1.0).unsqueeze(1))
        if len(step.weights):
            sums = sums.index_add(0, step.weighed, counts[step.weights].expand(-1, rows))
        messages[step.start : step.start + len(sums)] = sums
    log_z = messages[schedule.roots].sum(0)
    if plan.constants:
        log_z = log_z + counts[plan.constants].sum(0)
    return _Pass(log_z, messages, shares)


def _terms(step: CountedStep, messages: Tensor, tables: Tensor) -> Tensor:
    """Logarithms of the terms of all cells, shape ``(O, terms, rows)``."""
    if isinstance(step, CountSum):
        return _gather(messages, step.cells) + _gather(tables, step.entries)
    assert isinstance(step, CountProduct)
    second = _gather(messages, step.second).index_select(1, step.rests.flatten()).unflatten(1, step.rests.shape)
    terms: Tensor = (_gather(messages, step.first).unsqueeze(1) + second).flatten(0, 1)
    return terms


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.flatten()).reshape(*index.shape, rows.shape[-1])


def _solve(
    schedule: CountedSchedule, plan: CountedPlan, tables: Tensor, counts: Tensor, marginals: bool
) -> tuple[Tensor, ...]:
    """Results of :class:`CountedBeliefs`, with the rows last; arguments as the parameters, with the rows last."""
    passed = _upward(schedule, plan, torch.cat([tables, tables.new_zeros(1, tables.shape[-1])]), counts)
    if not marginals:
        return (passed.log_partition,)
    possible = (passed.log_partition > -math.inf).to(tables.dtype)
    beliefs = torch.zeros_like(passed.messages)
    beliefs[schedule.roots] = possible
    entries = beliefs.new_zeros(len(tables) + 1, beliefs.shape[-1])
    numbers = beliefs.new_zeros(len(counts), beliefs.shape[-1])
    for step, shares in zip(reversed(schedule.steps), reversed(passed.shares), strict=True):
        own = beliefs[step.start : step.start + len(shares)].clone()
        if len(step.weights):
            numbers.index_add_(0, step.weights, own[step.weighed])
        joint = shares * own.unsqueeze(1)
        if isinstance(step, CountSum):
            flat = joint.flatten(0, 1)
            beliefs.index_add_(0, step.cells.flatten(), flat)
            entries.index_add_(0, step.entries.flatten(), flat)
        else:
            assert isinstance(step, CountProduct)
            joint = joint.unflatten(0, (-1, step.width))
            beliefs.index_add_(0, step.first.flatten(), joint.sum(1).flatten(0, 1))
            second = joint.new_zeros(joint.shape[:1] + (step.second.shape[1],) + joint.shape[3:])
            second.index_add_(1, step.rests.flatten(), joint.flatten(1, 2))
            beliefs.index_add_(0, step.second.flatten(), second.flatten(0, 1))
    if plan.constants:
        numbers[plan.constants] = possible
    return passed.log_partition, entries[:-1], numbers


class CountedDraws:
    """Exact samples, from an upward pass that is made once; arguments as for :func:`infer_counted`."""

    def __init__(self, clique_logits: Tensor, count_logits: Tensor, plan: CountedPlan) -> None:
        self._plan = plan
        self._schedule = plan.schedule(plan.limits(count_logits), clique_logits.device)
        self._tables, self._messages, log_z = _prepared(self._schedule, plan, clique_logits, count_logits, False)
        self.possible = not any_true(log_z == -math.inf)

    def __call__(self, num_samples: int) -> Tensor:
        """Integers of shape ``(num_samples, rows, n)``."""
        rows = self._messages.shape[-1]
        step = max(1, TERMS_AT_ONCE // max(1, rows * self._schedule.num_terms))
        parts = [
            _descend(self._schedule, self._plan, self._tables, self._messages, min(step, num_samples - start), True)
            for start in range(0, num_samples, step)
        ]
        if not parts:
            return self._messages.new_zeros(0, rows, self._plan.num_variables, dtype=torch.long)
        return torch.cat(parts)


@torch.no_grad()
def maximize_counted(clique_logits: Tensor, count_logits: Tensor, plan: CountedPlan) -> Tensor:
    """A most probable value of every row, integers of shape ``(rows, n)``; arguments as for :func:`infer_counted`."""
    schedule = plan.schedule(plan.limits(count_logits), clique_logits.device)
    tables, messages, _ = _prepared(schedule, plan, clique_logits, count_logits, True)
    return _descend(schedule, plan, tables, messages, 1, False).squeeze(0)


@torch.no_grad()
def _prepared(
    schedule: CountedSchedule, plan: CountedPlan, clique_logits: Tensor, count_logits: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Tables with a zero in a last row, messages, and log Z, for all rows."""
    tables = torch.nn.functional.pad(clique_logits, (0, 1)).T
    passed = _upward(schedule, plan, tables, count_logits.T, largest)
    return tables.expand(-1, passed.messages.shape[-1]), passed.messages, passed.log_partition


def _descend(
    schedule: CountedSchedule, plan: CountedPlan, tables: Tensor, messages: Tensor, num_samples: int, is_random: bool
) -> Tensor:
    """Chooses a cell of each message, from the roots to the leaves, and so an entry of each clique's table."""
    rows = torch.arange(messages.shape[-1], device=messages.device)
    shape = num_samples, len(rows)
    chosen = torch.zeros(schedule.num_nodes + 1, *shape, dtype=torch.long, device=messages.device)
    chosen[schedule.root_nodes] = schedule.roots[:, None, None].expand(-1, *shape)
    entries = torch.zeros(plan.num_cliques + 1, *shape, dtype=torch.long, device=messages.device)
    for step in reversed(schedule.steps):
        cell = chosen[step.nodes] - step.start
        if isinstance(step, CountSum):
            cells, places = step.cells[cell], step.entries[cell]
            term = _pick(messages[cells, rows[:, None]] + tables[places, rows[:, None]], is_random)
            chosen[step.left] = cells.gather(-1, term).squeeze(-1)
            entries[step.cliques] = places.gather(-1, term).squeeze(-1)
        else:
            assert isinstance(step, CountProduct)
            row, count = cell // step.width, cell % step.width
            first, second = step.first[row], step.second[row].gather(-1, step.rests[count])
            term = _pick(messages[first, rows[:, None]] + messages[second, rows[:, None]], is_random)
            chosen[step.left] = first.gather(-1, term).squeeze(-1)
            chosen[step.right] = second.gather(-1, term).squeeze(-1)
    return plan.states(entries[:-1]).movedim(0, -1)


def _pick(log_weights: Tensor, is_random: bool) -> Tensor:
    if not log_weights.numel():
        return torch.zeros(log_weights.shape[:-1] + (1,), dtype=torch.long, device=log_weights.device)
    return (draw_log(log_weights) if is_random else log_weights.argmax(-1)).unsqueeze(-1)
