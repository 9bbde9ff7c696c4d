"""Queries in whole graphs of torch.compile, against the same ones outside: values, gradients, errors."""

import math
import shutil

import pytest
import torch
from torch.autograd import forward_ad

from pyro_structured.distributions import KSubset, PoissonBinomial, RecursiveCardinality
from pyro_structured.structures import NestedSubsets

# Tracers of earlier releases know less of Python.
pytestmark = pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch < 2.13")
SUBSETS = [[0, 1], [2, 3], [0, 1, 2, 3], [4]]
VALUE = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])


@pytest.fixture(autouse=True)
def fresh_graphs():
    """torch.compile forgets graphs of other tests; it turns the validation of all distributions off, for good."""
    torch.compiler.reset()
    yield
    torch.distributions.Distribution.set_default_validate_args(True)


def numbers(*shape, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape))
    return scale * torch.randn(*shape, generator=generator, dtype=torch.double)


NESTED = NestedSubsets(SUBSETS, 5)
TURNED = NestedSubsets(SUBSETS, 5, references=[[0, 1], [1, 0], [0, 1, 0, 1], [1]])
TIED = NestedSubsets([[0, 1], [2, 3]], 5, edges=[(0, 1), (2, 3)], links=[(0, 1, "difference")])
SIZES = torch.tensor([1, 3])
# Functions of tensors, and the tensors.
CASES = {
    "log_prob": (lambda x, f: RecursiveCardinality(x, f).log_prob(VALUE), [numbers(5), numbers(6)]),
    "log Z": (lambda x, f: RecursiveCardinality(x, f).log_partition_function, [numbers(5), numbers(6)]),
    "marginals": (lambda x, f: RecursiveCardinality(x, f).marginals, [numbers(5), numbers(6)]),
    "count_marginals": (lambda x, f: RecursiveCardinality(x, f).count_marginals, [numbers(2, 5), numbers(6)]),
    "entropy": (lambda x, f: RecursiveCardinality(x, f).entropy(), [numbers(5), numbers(2, 6)]),
    "batches that broadcast": (
        lambda x, f: RecursiveCardinality(x, f).log_prob(VALUE),
        [numbers(3, 1, 5), numbers(2, 6)],
    ),
    "single precision": (
        lambda x, f: RecursiveCardinality(x, f).marginals,
        [numbers(3, 5).float(), numbers(6).float()],
    ),
    "one variable": (lambda x, f: RecursiveCardinality(x, f).log_prob(VALUE[:1]), [numbers(1), numbers(2)]),
    "clamps": (
        lambda x, f: RecursiveCardinality(x, f).marginals,
        [torch.tensor([1.0, math.inf, 0.5, -math.inf, 2.0]), torch.tensor([0.0, 1.0, 2.0, -math.inf, 0.0, 0.0])],
    ),
    "lines that are moved": (
        lambda x, f: RecursiveCardinality(x, f).log_partition_function,
        [numbers(2, 5) - 2.0**40, numbers(6) + 2.0**40 * torch.arange(6)],
    ),
    "rows without a certificate": (
        lambda x, f: RecursiveCardinality(x, f).marginals,
        [numbers(5) + torch.tensor([[0.0], [1e5]]), numbers(2, 6, scale=1e4)],
    ),
    "nested": (lambda x, f: RecursiveCardinality(x, f, NESTED).log_prob(VALUE), [numbers(5), numbers(13)]),
    "references": (lambda x, f: RecursiveCardinality(x, f, TURNED).marginals, [numbers(5), numbers(13)]),
    "edges and links": (
        lambda x, f, e, g: RecursiveCardinality(x, f, TIED, e, g).log_prob(VALUE),
        [numbers(2, 5), numbers(6), numbers(2, 2, 2), numbers(5)],
    ),
    "subset": (lambda x: KSubset(x, 3).log_prob(VALUE), [numbers(2, 5)]),
    "choice": (lambda x: KSubset(x, 1).marginals, [numbers(5)]),
    "subsets of given sizes": (lambda x: KSubset(x, SIZES).marginals, [numbers(2, 5)]),
    "trials": (lambda x: PoissonBinomial(logits=x).log_prob(torch.arange(6.0)), [numbers(5)]),
    "probable trials": (lambda x: PoissonBinomial(probs=x.sigmoid()).log_prob(torch.arange(6.0)), [numbers(5)]),
}


def compare(function, tensors, backend):
    """Compares values and gradients; the compiled function is called first, when nothing is remembered."""

    def differentiated(function):
        given = [tensor.clone().requires_grad_() for tensor in tensors]
        result = function(*given)
        return result, *torch.autograd.grad(result.sin().sum(), given)

    found = differentiated(torch.compile(function, fullgraph=True, backend=backend))
    torch.testing.assert_close(found, differentiated(function), rtol=1e-12, atol=1e-12)


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    compare(*CASES[case], "aot_eager")


@pytest.mark.parametrize("case", ["log_prob", "marginals", "edges and links", "trials"])
def test_values_and_gradients_of_graphs_that_are_run_as_they_are(case):
    compare(*CASES[case], "eager")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler of C++")
def test_compiled_code():
    function, tensors = CASES["marginals"]
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(*tensors), function(*tensors))


@pytest.mark.parametrize("case", ["log Z", "marginals", "nested", "edges and links", "subset", "trials"])
def test_rows_of_vmap(case):
    function, tensors = CASES[case]
    tensors = [torch.stack([tensor, -tensor]) for tensor in tensors]
    found = torch.compile(torch.vmap(function), fullgraph=True, backend="aot_eager")(*tensors)
    expected = torch.stack([function(*row) for row in zip(*tensors, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_certificate():
    def certificate(logits, count_logits):
        return RecursiveCardinality(logits, count_logits).certificate

    tensors = numbers(2, 5), numbers(6, scale=1e10)
    found = torch.compile(certificate, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(found, certificate(*tensors))


def test_graphs_are_of_one_family_of_subsets_and_of_any_number_of_rows():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x, f, subsets: RecursiveCardinality(x, f, subsets).marginals, fullgraph=True, backend=backend
    )
    families = [NestedSubsets(subsets, 4) for subsets in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])]
    tables = numbers(6)
    for rows in range(2, 6):
        for subsets in families:
            logits = numbers(rows, 4)
            found = compiled(logits, tables, subsets)
            torch.testing.assert_close(found, RecursiveCardinality(logits, tables, subsets).marginals)
    assert len(graphs) <= 4


@pytest.mark.parametrize("query", ["log_prob", "log Z", "marginals", "count_marginals"])
def test_errors_of_empty_supports_name_rows(query):
    tables = torch.zeros(3, 6)
    tables[1] = -math.inf
    compiled = torch.compile(CASES[query][0], fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="count_logits: .* the support is empty, in row 1"):
        compiled(numbers(5), tables)


def test_errors_of_numbers_of_ones():
    compiled = torch.compile(lambda x: KSubset(x, 7).marginals, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="k: expected a number of ones"):
        compiled(numbers(4))


def test_validation_is_on_again_where_somebody_says_so():
    torch.compile(lambda x: x, backend="eager")
    torch.distributions.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError, match="value"):
        RecursiveCardinality(numbers(5), numbers(6)).log_prob(numbers(5))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_derivatives_are_no_silent_zeros():
    """Operators have none: whole graphs are refused."""
    function, tensors = CASES["log Z"]
    with pytest.raises(RuntimeError, match="data-dependent"):
        torch.compile(lambda *x: torch.func.jvp(function, x, x), fullgraph=True, backend="eager")(*tensors)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    compiled(*tensors)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="data-dependent"):
        compiled(*(forward_ad.make_dual(tensor, tensor) for tensor in tensors))


@pytest.mark.filterwarnings("ignore")  # of what the tracer meets on its way
def test_graphs_break_at_gradients_by_torch_func():
    """Operators have none of these, either; compiled loops are made before."""
    function, tensors = CASES["log Z"]
    expected = torch.func.grad(function)(*tensors)
    compiled = torch.compile(torch.func.grad(function), backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), expected)
