"""Weighted words of automata against enumeration."""

import itertools
import pickle
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.exchangeable.ops import automaton as module
from pyro_structured.exchangeable.ops.automaton import Automaton
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def draw_automaton(seed, length, states, letters, levels):
    generator = torch.Generator().manual_seed(seed)
    transitions = torch.randint(states, (length, states, letters), generator=generator)
    order = torch.randperm(length, generator=generator).tolist()
    automaton = Automaton(length, transitions, torch.randint(levels, (states,), generator=generator), levels, order)
    log_weights = 5 * torch.randn(2, length, letters, generator=generator, dtype=torch.float64)
    log_weights = log_weights.masked_fill(torch.rand(log_weights.shape, generator=generator) < 0.2, -torch.inf)
    words = torch.tensor(list(itertools.product(range(letters), repeat=length)))
    each = log_weights.unsqueeze(1).expand(-1, len(words), -1, -1).gather(-1, words.expand(2, -1, -1).unsqueeze(-1))
    return automaton, log_weights, words, each.squeeze(-1).sum(-1)


@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_enumeration(seed, length, states, letters, levels):
    automaton, log_weights, words, weights = draw_automaton(seed, length, states, letters, levels)
    level = automaton.read(words)
    member = level == torch.arange(levels).unsqueeze(-1)
    joint = weights.unsqueeze(1).masked_fill(~member, -torch.inf)
    found = automaton.log_mass(log_weights)
    torch.testing.assert_close(found, joint.logsumexp(-1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pickle.loads(pickle.dumps(automaton)).log_mass(log_weights), found)
    torch.testing.assert_close(automaton.log_peaks(log_weights), joint.amax(-1), rtol=1e-10, atol=1e-10)
    possible = found > -torch.inf
    levels_of = torch.arange(levels).expand(2, levels)
    for states_at_once in (module.STATES_AT_ONCE, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "STATES_AT_ONCE", states_at_once)
            for word in (
                automaton.find(levels_of, log_weights.unsqueeze(1)),
                automaton.sample(levels_of, log_weights[:, None]),
            ):
                assert torch.equal(automaton.read(word)[possible], levels_of[possible])
            places = letters ** torch.arange(length - 1, -1, -1)
            of_best = weights.gather(1, (automaton.find(levels_of, log_weights.unsqueeze(1)) * places).sum(-1))
            torch.testing.assert_close(of_best[possible], joint.amax(-1)[possible], rtol=1e-10, atol=1e-10)
            marginals = automaton.log_marginals(torch.zeros(levels).double(), log_weights).exp()
        if possible.any(-1).all():
            probs = (weights - weights.logsumexp(-1, keepdim=True)).exp()
            on = (words.unsqueeze(-1) == torch.arange(letters)).double()
            expected = torch.einsum("bw,wnc->bnc", probs, on)
            torch.testing.assert_close(marginals, expected, rtol=1e-9, atol=1e-12)


def test_samples():
    automaton, log_weights, words, weights = draw_automaton(3, 4, 3, 2, 2)
    level = int(automaton.log_mass(log_weights)[0].argmax())
    member = automaton.read(words) == level
    drawn = automaton.sample(torch.full((4000,), level), 0.2 * log_weights[0])
    probs = (0.2 * weights[0]).masked_fill(~member, -torch.inf).softmax(-1)
    found = (drawn * 2 ** torch.arange(3, -1, -1)).sum(-1).bincount(minlength=16)
    assert discrete_goodness_of_fit(probs, found) > 2e-9


@pytest.mark.parametrize("query", ["log_mass", "log_marginals", "sample", "sample of one"])
def test_memory(query, monkeypatch):
    """Not all states after all steps are alive at once, and words of the same weights share them."""
    automaton, log_weights, _, _ = draw_automaton(0, 1, 50, 2, 2)
    length, rows = 100, 20
    automaton = Automaton(length, automaton.transitions, automaton.levels, 2)
    alive, most = weakref.WeakSet(), 0

    def tracked(*arguments):
        nonlocal most
        result = logsumexp(*arguments)
        alive.add(result)
        most = max(most, sum(tensor.numel() for tensor in alive))
        return result

    logsumexp = module.logsumexp
    monkeypatch.setattr(module, "logsumexp", tracked)
    monkeypatch.setattr(module, "STATES_AT_ONCE", length * 50, raising=False)
    log_weights = torch.zeros(rows, length, 2).double()
    if query == "log_mass":
        automaton.log_mass(log_weights)
    elif query == "log_marginals":
        automaton.log_marginals(torch.zeros(2).double(), log_weights)
    else:
        weights = log_weights if query == "sample" else log_weights[0]
        automaton.sample(torch.zeros(rows, dtype=torch.long), weights)
    assert most < 30 * rows * 50
