"""Representations of objects."""

import inspect
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_structured.distributions as sdist
from pyro_structured import inference, models, structures
from pyro_structured.foundation.structures.representation import represent, shortened

EDGES = torch.tensor([[0, 1], [1, 2]])
NORMAL = dist.Normal(torch.zeros(2, 3), 1.0).to_event(1)


def model():
    pass


def learner(kind, *arguments):
    return kind(model, model, pyro.optim.Adam({"lr": 0.1}), *arguments)


@pytest.mark.parametrize(
    "value, text",
    [
        (structures.Matching(3), "Matching(num_rows=3, num_columns=3"),
        (structures.TopK(4, 2, maximize=True), "TopK(num_items=4, k=2, maximize=True)"),
        (structures.Ranking(3), "Ranking(num_items=3)"),
        (
            structures.ShortestPath(EDGES, 3, 0, 2),
            "ShortestPath(edges=torch.Size([2, 2]), num_nodes=3, source=0, target=2",
        ),
        (structures.MinimumCut(EDGES, 3), "MinimumCut(edges=torch.Size([2, 2]), num_nodes=3"),
        (structures.SpanningTree(EDGES, 3), "SpanningTree(edges=torch.Size([2, 2]), num_nodes=3"),
        (structures.ConnectedComponents(EDGES, 3, 0.5), "ConnectedComponents("),
        (structures.Count(4), "Count(num_variables=4)"),
        (structures.Transitions(4), "Transitions(num_variables=4)"),
        (structures.CategoryCounts(2, 3), "CategoryCounts("),
        (sdist.RandOM(NORMAL, structures.TopK(3, 2)), "problem=TopK(num_items=3, k=2), log_prob='exact')"),
        (sdist.RandOM(dist.Gamma(2.0, torch.ones(3)).to_event(1), structures.TopK(3, 2)), "log_prob='refused')"),
        (sdist.Argmin(torch.zeros(2, 3), structures.TopK(3, 2)), "Argmin(costs=torch.Size([2, 3]), problem=TopK("),
        (sdist.NanMasked(sdist.KSubset(torch.zeros(4), 2)), "NanMasked(base_dist=KSubset("),
        (inference.ConstrainedSlice(model), "ConstrainedSlice(model=model)"),
        (inference.Gibbs([(inference.BinaryGibbs(model), ["x"])]), "Gibbs([(BinaryGibbs(model=model), ['x'])])"),
        (learner(inference.HardEM, 2.0), "HardEM(model=model, guide=model, optim=PyroOptim, margin=2.0)"),
        (learner(inference.PseudoLikelihood), "PseudoLikelihood(model=model, guide=model, optim=PyroOptim)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_are_shown(value, text):
    assert text in repr(value)


def test_long_arguments_are_counted():
    assert shortened(list(range(100))) == "list of 100"
    assert shortened(torch.tensor(2.0)) == "2.0"
    assert represent(structures.TopK(3, 1), batch=torch.zeros(2)) == "TopK(num_items=3, k=1, batch=torch.Size([2]))"


@pytest.fixture(scope="module")
def examples():
    """Arguments of all that is public, as they are mutated elsewhere."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
    import constructors

    yield constructors.EXAMPLES
    sys.path.pop(0)


class Cells(HTMLParser):
    """Texts of a table, and the names of its elements."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.names, self.open = [], set(), []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.open.append(tag)
        assert not attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("name", structures.__all__)
def test_structures_are_tables(name, examples):
    kind = getattr(structures, name)
    if inspect.isabstract(kind):
        assert callable(kind._repr_html_)
        return
    for example in examples[f"structures.{name}"]:
        page = Cells(kind(**example())._repr_html_())
        assert page.names == {"table", "caption", "tr", "th", "td"}
        assert page.texts[0] == name and len(page.texts) % 2 == 1
        assert set(page.texts[1::2]) <= set(inspect.signature(kind).parameters)


def test_texts_are_escaped():
    problem = structures.LinearProblem(lambda costs: costs, torch.Size([2]))
    problem.solve_fn = "<b>&"
    assert "<td>&#x27;&lt;b&gt;&amp;&#x27;</td>" in problem._repr_html_()


@pytest.mark.parametrize("package", [structures, inference, sdist, models], ids=lambda package: package.__name__)
def test_every_public_class_shows_itself(package):
    kinds = [getattr(package, name) for name in package.__all__]
    assert not [
        kind.__name__
        for kind in kinds
        if inspect.isclass(kind) and not inspect.isabstract(kind) and kind.__repr__ is object.__repr__
    ]


def test_checkpoints_and_others_show_their_arguments():
    kernel = inference.ConstrainedSlice(model)
    assert repr(inference.Checkpoint(kernel, "run.pt", 10)) == (
        "Checkpoint(kernel=ConstrainedSlice(model=model), path=PosixPath('run.pt'), every=10)"
    )
    assert repr(inference.CostsReparam()) == "CostsReparam()"
    stopping = inference.EarlyStopping(learner(inference.PseudoLikelihood), len, patience=3)
    assert repr(stopping).startswith("EarlyStopping(learner=PseudoLikelihood(") and "patience=3)" in repr(stopping)
