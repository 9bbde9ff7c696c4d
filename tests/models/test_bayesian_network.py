"""Bayesian networks and their files, against pyAgrum."""

import gzip
import os
from pathlib import Path

import numpy as np
import pyagrum
import pytest
import torch

from pyro_structured.models import BayesianNetwork, read_bif, write_bif

FILES = ("alarm", "asia", "cancer", "earthquake", "sachs", "survey")


def peer_of(network):
    """The same in pyAgrum, with all digits."""
    peer = pyagrum.BayesNet()
    for name, states in zip(network.names, network.states, strict=True):
        peer.add(pyagrum.LabelizedVariable(name, name, list(states)))
    for name, parents, table in zip(network.names, network.parents, network.tables, strict=True):
        for parent in parents:
            peer.addArc(network.names[parent], name)
        conditional = peer.cpt(name)
        for index in np.ndindex(*np.shape(table)[:-1]):
            given = {network.names[d]: int(state) for d, state in zip(parents, index, strict=True)}
            conditional[given] = (table[index] / np.sum(table[index])).tolist()
    return peer


def check_against_peer(network, num_rows):
    """Marginals and probabilities of random evidence, and impossible evidence."""
    d, peer = network.to_junction_tree(), peer_of(network)
    torch.manual_seed(0)
    value = torch.stack([torch.randint(size, (num_rows,)) for size in network.cardinalities], -1)
    value[::2] = d.sample((len(value[::2]),))
    observed = torch.rand(value.shape) < torch.linspace(0, 1, num_rows).unsqueeze(-1)
    log_probs = d.marginal_log_prob(value, observed)
    assert not log_probs.isnan().any()
    for row in range(num_rows):
        engine = pyagrum.LazyPropagation(peer)
        engine.setEvidence({network.names[v]: int(value[row, v]) for v in observed[row].nonzero().flatten().tolist()})
        engine.makeInference()
        try:
            expected = engine.evidenceProbability()
        except pyagrum.IncompatibleEvidence:
            expected = 0.0
        np.testing.assert_allclose(log_probs[row].exp(), expected, rtol=1e-10, atol=1e-300)
        if not expected:
            assert log_probs[row] == -torch.inf
            continue
        found = d.condition(value[row], observed[row]).marginals
        for v, name in enumerate(network.names):
            expected = engine.posterior(name).toarray()
            np.testing.assert_allclose(found[v, : len(expected)], expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="the networks are not there")
def test_public_networks(name, tmp_path):
    source = Path(os.environ["PYRO_STRUCTURED_DATA"], "bif", f"{name}.bif.gz")
    network = read_bif(source)
    check_against_peer(network, 40)
    (tmp_path / "peer.bif").write_bytes(gzip.decompress(source.read_bytes()))
    peer = pyagrum.loadBN(str(tmp_path / "peer.bif"))
    assert set(peer.names()) == set(network.names) and peer.dim() == network.num_parameters
    round_trip(network, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_random_networks(seed, tmp_path):
    """Also files that pyAgrum writes."""
    pyagrum.initRandom(seed)
    generator = pyagrum.BNGenerator()
    path = tmp_path / "random.bif"
    pyagrum.saveBN(generator.generate(8, 12, 4), str(path))
    network = read_bif(path)
    check_against_peer(network, 20)
    round_trip(network, tmp_path)


def round_trip(network, folder):
    for path in (folder / "again.bif", folder / "again.bif.gz"):
        write_bif(network, path)
        again = read_bif(path)
        assert (again.names, again.states, again.parents) == (network.names, network.states, network.parents)
        assert all(np.array_equal(one, other) for one, other in zip(again.tables, network.tables, strict=True))


def test_tables_and_defaults(tmp_path):
    """A table has the variable's own state slowest; defaults fill in; comments and properties are ignored."""
    path = tmp_path / "small.bif"
    path.write_text(
        """network small { property made by hand; }
        variable a { type discrete [ 2 ] { yes, no }; property position = (1, 2); } // a comment
        variable b { type discrete[3] {"x", "y", "z"}; }
        variable c { type discrete [2] { t, f }; }
        /* another
           one */
        probability (a) { table 0.25, 0.75; property old table 0.5 0.5; property b; }
        probability ( b | a ) { table 0.1, 0.2, 0.3, 0.3, 0.6, 0.5; }
        probability (c | a, b) { default 0.5, 0.5; (no, z) 1e-3, 0.999; }
        """
    )
    network = read_bif(path)
    np.testing.assert_array_equal(network.tables[1], [[0.1, 0.3, 0.6], [0.2, 0.3, 0.5]])
    assert network.tables[2][1, 2, 0] == 1e-3 and (network.tables[2][0] == 0.5).all()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("[2] { t, f }", "[3] { t, f }", "expected 3 states of c, got 2"),
        ("probability (c)", "probability (d)", "expected variables that are declared, got d"),
        ("probability (c) { table 0.5, 0.5; }", "", r"expected probabilities of every variable, got none of \['c'\]"),
        ("table 0.5, 0.5", "table 0.5", "expected 2 numbers for c, got 1"),
        ("table 0.5, 0.5", "table 0.5, half", "expected numbers for c, got '0.5, half'"),
        ("table 0.5, 0.5", "table 0.5, 0.6", "tables: expected probabilities that add up to 1 for 'c'"),
        ("table 0.5, 0.5;", "(t) 0.5, 0.5;", r"expected states of \[\] for c, got \['t'\]"),
        ("table 0.5, 0.5;", "default 0.5;", "expected 2 numbers for c, got 1"),
        ("table 0.5, 0.5;", "table 0.5, 0.5; (t) 1, 0", "expected rows that end with a semicolon for c"),
        ("probability (c)", "variable c { type discrete [2] { f, t }; } probability (c)", "to be declared once"),
        ("probability (c)", "probability (c) { table 1, 0; } probability (c)", "probabilities of c once"),
        ("table 0.5, 0.5;", "", r"expected probabilities for all states of \[\] of c"),
    ],
)
def test_bad_files(old, new, message, tmp_path):
    text = "variable c { type discrete [2] { t, f }; } probability (c) { table 0.5, 0.5; }"
    path = tmp_path / "bad.bif"
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_bif(path)


def test_bad_networks(tmp_path):
    fair, two = np.full(2, 0.5), np.full((2, 2), 0.5)
    with pytest.raises(ValueError, match=r"parents: expected no .* own ancestor, got a cycle among \[0, 1\]"):
        BayesianNetwork(["a", "b"], [["t", "f"]] * 2, [[1], [0]], [two, two])
    with pytest.raises(ValueError, match=r"parents: expected different .* for variable 1, got \[2\]"):
        BayesianNetwork(["a", "b"], [["t", "f"]] * 2, [[], [2]], [fair, two])
    with pytest.raises(ValueError, match=r"parents: expected different .* for variable 1, got \[0, 0\]"):
        BayesianNetwork(["a", "b"], [["t", "f"]] * 2, [[], [0, 0]], [fair, np.full((2, 2, 2), 0.5)])
    with pytest.raises(ValueError, match=r"tables: expected shape \(2, 2\) for 'b', got \(2,\)"):
        BayesianNetwork(["a", "b"], [["t", "f"]] * 2, [[], [0]], [fair, fair])
    with pytest.raises(ValueError, match="names: expected different ones"):
        BayesianNetwork(["a", "a"], [["t", "f"]] * 2, [[], []], [fair, fair])
    with pytest.raises(ValueError, match="states: expected 1, one for each variable, got 0"):
        BayesianNetwork(["a"], [], [[]], [fair])
    with pytest.raises(ValueError, match="network: expected names without blanks .*, got 'a b'"):
        write_bif(BayesianNetwork(["a b"], [["t", "f"]], [[]], [fair]), tmp_path / "bad.bif")
