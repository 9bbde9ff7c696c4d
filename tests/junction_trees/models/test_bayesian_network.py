"""Bayesian networks and their files, against pyAgrum."""

import gzip
import os
import tempfile
from pathlib import Path

import numpy as np
import pyagrum
import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.models import bif
from pyro_structured.models import BayesianNetwork, read_bif, write_bif

FILES = ("alarm", "asia", "cancer", "earthquake", "sachs", "survey")


def peer_of(network):
    """The same network in pyAgrum, with all digits."""
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
    """Random networks are the same after writing and reading, also from files that pyAgrum writes."""
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
        ("table 0.5, 0.5", "table 0.5, half", "expected numbers of at least 0, .* for c in line 1, got 'half'"),
        ("table 0.5, 0.5", "table 1.5, -0.5", "expected numbers of at least 0, .* for c in line 1, got '-0.5'"),
        ("table 0.5, 0.5", "table 0.5, nan", "expected numbers of at least 0, .* for c in line 1, got 'nan'"),
        ("table 0.5, 0.5", "table 0.5, 0.6", "tables: expected probabilities that add up to 1 for 'c'"),
        ("table 0.5, 0.5;", "(t) 0.5, 0.5;", r"expected states of \[\] for c, got \['t'\]"),
        ("table 0.5, 0.5;", "default 0.5;", "expected 2 numbers for c, got 1"),
        ("table 0.5, 0.5;", "table 0.5, 0.5; (t) 1, 0", "expected .* a semicolon after them, for c in line 1, got '}'"),
        ("table 0.5, 0.5;", "table 0.5, 0.5; table 1, 0;", "expected numbers of c once, got them again for 'table'"),
        ("probability (c)", "variable c { type discrete [2] { f, t }; } probability (c)", "c to be declared once"),
        ("probability (c)", "probability (c) { table 1, 0; } probability (c)", "probabilities of c once"),
        ("table 0.5, 0.5;", "", r"expected probabilities for all states of \[\] of c"),
        ("{ t, f }", "{ t, t }", r"expected different states of c, got \['t', 't'\] \(line 1\)"),
        ("{ t, f }", "{ t, }", "expected states of c in line 1, got '}'"),
        ("(c)", "(c | c)", r"expected different parents of c, got \['c'\]"),
        ("variable c {", "variable {", "expected a variable in line 1, got '{'"),
        ("variable c {", "\nvariable c [", r"expected '{' in line 2, got '\['"),
        ("variable", "variables", "expected 'network' or 'variable' or 'probability' in line 1, got 'variables'"),
        ("{ t, f }", '{ t, "f }', "expected quotes and comments that end in line 1, got '\"f }"),
        ("{ table", "{ /* table", "expected quotes and comments that end in line 1, got '/. table"),
        ("0.5; }", "0.5;", "expected '\\(' or 'table' or 'default' or '}' in line 1, got 'the end'"),
        ("table 0.5, 0.5; }", "table 0.5, 0.5; property x }", "expected a property that ends with a semicolon"),
        ("t, f", "\xe4, f", "expected text in UTF-8, got byte 0xe4"),
        ("table 0.5, 0.5", "table 1, 1e-31_0", "expected numbers of at least 0, .* in line 1, got '1e-31_0'"),
        ("table 0.5, 0.5", "table 1_0, 0", "expected numbers of at least 0, .* in line 1, got '1_0'"),
        ("table 0.5, 0.5", "table 1e999, 0", "expected numbers of at least 0, .* in line 1, got '1e999'"),
        ("table 0.5, 0.5", "\n\ntable 0.5", r"expected 2 numbers for c, got 1 \(line 3\)"),
        ("0.5; }", "0.5; }\nprobability (d) { table 1; }", r"variables that are declared, got d \(line 2\)"),
        ("{ t, f }", "{ t, " + "f" * 100 + ' ( "}', r"in line 1, got '\('"),
        ("variable", "v" * 100, r"expected 'network' .* in line 1, got 'v{60}\.\.\.'"),
    ],
)
def test_bad_files(old, new, message, tmp_path):
    text = "variable c { type discrete [2] { t, f }; } probability (c) { table 0.5, 0.5; }"
    path = tmp_path / "bad.bif"
    path.write_bytes(text.replace(old, new).encode("latin-1"))
    with pytest.raises(ValueError, match=f"bad.bif: .*{message}"):
        read_bif(path)


def test_repeated_parents_and_states(tmp_path):
    variables = "variable a { type discrete [2] { t, f }; } variable b { type discrete [1] { x }; }"
    path = tmp_path / "bad.bif"
    for rows, message in (
        ("probability (b | a, a) { default 1; }", r"expected different parents of b, got \['a', 'a'\]"),
        ("probability (b | a) { (t) 1; (f) 1; (t) 1; }", r"numbers of b once, got them again for \('t',\)"),
    ):
        path.write_text(f"{variables} probability (a) {{ table 0.5 0.5; }} {rows}")
        with pytest.raises(ValueError, match=f"bad.bif: .*{message}"):
            read_bif(path)


@pytest.mark.parametrize(
    "content", [b"network", gzip.compress(b"network", mtime=0)[:-9], gzip.compress(b"", mtime=0)[:12] + b"\xff" * 20]
)
def test_damaged_files(content, tmp_path):
    (tmp_path / "bad.bif.gz").write_bytes(content)
    with pytest.raises(ValueError, match="bad.bif.gz: expected what gzip has compressed, got other bytes"):
        read_bif(tmp_path / "bad.bif.gz")


def write_family(path, num_parents, num_states):
    """A variable with so many parents, all of them with so many states, in a few lines."""
    states = ", ".join(f"s{state}" for state in range(num_states))
    variable = f"variable v{{}} {{{{ type discrete [{num_states}] {{{{ {states} }}}}; }}}}\n"
    uniform = " ".join([str(1 / num_states)] * num_states)
    above = [f"v{d}" for d in range(num_parents)]
    text = "".join(variable.format(d) for d in range(num_parents + 1))
    text += "".join(f"probability ({name}) {{ default {uniform}; }}\n" for name in above)
    path.write_text(f"{text}probability (v{num_parents} | {', '.join(above)}) {{ default {uniform}; }}")


def test_budget_of_tables(tmp_path):
    """Tables are refused before they take memory, in any of the forms in which a small file describes large ones."""
    path = tmp_path / "large.bif"
    write_family(path, 29, 2)
    message = (
        r"large.bif: expected at most \d+ numbers \(pyro_structured_max_table_entries\) in all tables, the largest of "
        r"which is that of 'v29' given \['v0', .*'v28'\], got 1073741882; pyro.settings.set"
    )
    with pytest.raises(NotImplementedError, match=message):
        read_bif(path)
    write_family(path, 3, 2)
    with pyro.settings.context(pyro_structured_max_table_entries=21):
        with pytest.raises(NotImplementedError, match="expected at most 21 numbers .* got 22"):
            read_bif(path)
    with pyro.settings.context(pyro_structured_max_table_entries=22):
        assert read_bif(path).num_parameters == 11
    write_family(path, 32, 1)
    with pytest.raises(ValueError, match=r"large.bif: expected at most 31 parents of v32, got 32 \(line 66\)"):
        read_bif(path)
    write_family(path, 31, 1)
    assert read_bif(path).tables[-1].ndim == 32


@pytest.mark.parametrize(
    "text, message",
    [
        ("network n { property " + '"a" ' * 20, "expected a property that ends with a semicolon in line 1, got 'prop"),
        ("network n { property " + '"a"b" ' * 10000 + ";", "expected '}' in line 1, got 'the end'"),
        (" " * 2**21 + "/* " * 2**19, "expected quotes and comments that end in line 1"),
        ("variable c { type discrete [1] { t }; } probability (c) { table " + "9" * 2**16 + "x", "got '9{60}...'"),
    ],
)
def test_long_texts(text, message, tmp_path):
    """The time to read a text, or to find out that it is none, is in proportion to its length."""
    path = tmp_path / "long.bif"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"long.bif: .*{message}"):
        read_bif(path)


def test_texts_that_are_too_long(tmp_path, monkeypatch):
    """No more is decompressed than a network may have."""
    monkeypatch.setattr(bif, "LARGEST_TEXT", 1000)
    for path, content in ((tmp_path / "a.bif.gz", gzip.compress(bytes(2**20))), (tmp_path / "a.bif", bytes(1001))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a.bif.*: expected at most 1000 bytes, decompressed, got more"):
            read_bif(path)


def test_quoted_names(tmp_path):
    """Quotes hide punctuation, comments and keywords."""
    path = tmp_path / "quoted.bif"
    path.write_text(
        """network "of mine; // all" { property who = "me; you"; }
        variable "first, one" { property; type discrete [ 3 ] { "a, b", Very Low, property }; }
        variable table { type discrete [ 2 ] { "/* no */", table }; }
        probability ( "first, one" ) { property "half; table 0.25 0.25 0.5; }
        probability ( table | "first, one" ) { ("a, b") 0.5, 0.5; (Very Low) 1, 0; (property) 0, 1; }
        """
    )
    network = read_bif(path)
    assert network.names == ["first, one", "table"]
    assert network.states == [["a, b", "Very Low", "property"], ["/* no */", "table"]]
    np.testing.assert_array_equal(network.tables[1], [[0.5, 0.5], [1, 0], [0, 1]])
    round_trip(network, tmp_path)


NAMES = st.text(min_size=0, max_size=6).filter(lambda name: '"' not in name) | st.sampled_from(
    ["//", "a/*b", "property", "table", "x y", " ", "{", "a;", "(", "\r\n", "|", "\ufeff", "default", "variable", "0.5"]
)


@settings(max_examples=100)
@given(st.data())
def test_any_names(data):
    names = data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    states = [data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)) for _ in names]
    parents = [data.draw(st.lists(st.sampled_from(range(d)), unique=True)) if d else [] for d in range(len(names))]
    rng = np.random.default_rng(0)
    tables = [
        rng.dirichlet(np.ones(len(states[d])), [len(states[other]) for other in above])
        for d, above in enumerate(parents)
    ]
    with tempfile.TemporaryDirectory() as folder:
        round_trip(BayesianNetwork(names, states, parents, tables), Path(folder))


TEXT = """network small { property made "by; hand"; }
variable a { type discrete [ 2 ] { yes, no }; } // a comment
variable b { type discrete[3] {"x", "y", "z"}; }
probability (a) { table 0.25, 0.75; }
probability ( b | a ) { (yes) 0.1, 0.2, 0.7; /* both */ (no) 0.5, 0.5, 0; }
"""


@settings(max_examples=300)
@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.text('{}()[],;|"/* \nax0.-', max_size=4))
def test_damaged_text(place, length, instead):
    """A network, or an error that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.bif")
        path.write_text(TEXT[:place] + instead + TEXT[place + length :])
        try:
            network = read_bif(path)
        except ValueError as error:
            assert str(error).startswith(f"{path}: expected ") or str(error).startswith(f"{path}: tables: expected"), (
                error
            )
        else:
            round_trip(network, Path(folder))


def test_tables_of_any_kind():
    """Lists, tensors, and views of arrays."""
    names, states = ["a", "b"], np.array([["no", "yes"]] * 2)
    wet = np.array([[0.0, 1.0], [0.9, 0.1]])[::-1]
    expected = [[0.8, 0.2], [0.72, 0.28]]
    for tables in (
        [[0.8, 0.2], wet.tolist()],
        [torch.tensor([0.8, 0.2]).double(), torch.tensor(wet.copy())],
        [(0.8, 0.2), wet],
    ):
        network = BayesianNetwork(names, states, [[], [0]], tables)
        assert all(table.dtype == np.float64 for table in network.tables)
        np.testing.assert_allclose(network.to_junction_tree().marginals, expected, rtol=1e-15)


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
    for table in ([[0.5, 0.5], [1.0]], [["half", "half"], [0, 1]]):
        with pytest.raises(ValueError, match="tables: expected numbers for 'b', got others: "):
            BayesianNetwork(["a", "b"], [["t", "f"]] * 2, [[], [0]], [fair, table])
    with pytest.raises(ValueError, match=r"states: expected strings, got \[0, 1\]"):
        BayesianNetwork(["a"], [[0, 1]], [[]], [fair])
    for names in (3, [3]):
        with pytest.raises(ValueError, match=r"names: expected strings, got \[?3"):
            BayesianNetwork(names, [["t", "f"]], [[]], [fair])
    for states, message in ((3, "states: expected a sequence, got 3"), ([3], "states: expected strings, got 3")):
        with pytest.raises(ValueError, match=message):
            BayesianNetwork(["a"], states, [[]], [fair])
    with pytest.raises(ValueError, match="names: expected strings, got <list_iterator"):
        BayesianNetwork(iter(["a"]), [["t", "f"]], [[]], [fair])
    with pytest.raises(ValueError, match="states: expected 1, one for each variable, got 0"):
        BayesianNetwork(["a"], [], [[]], [fair])
    with pytest.raises(ValueError, match="network: expected names without double quotes, got 'a\"b'"):
        write_bif(BayesianNetwork(['a"b'], [["t", "f"]], [[]], [fair]), tmp_path / "bad.bif")


def test_arguments_of_other_kinds(tmp_path):
    for call in (read_bif, lambda path: write_bif(read_bif(tmp_path / "whole.bif"), path)):
        write_bif(BayesianNetwork(["a"], [["x", "y"]], [[]], [np.array([0.5, 0.5])]), tmp_path / "whole.bif")
        for path in (3, b"some", None):
            with pytest.raises(ValueError, match="path: expected a path, got"):
                call(path)
    with pytest.raises(ValueError, match="network: expected a BayesianNetwork, got 'asia'"):
        write_bif("asia", tmp_path / "other.bif")
    assert not (tmp_path / "other.bif").exists()
