"""Do two versions of the package compute the same numbers? For all public classes, draws and chains included.

    python tests/equal_numbers.py save before.pt     # in a clone of the one version
    python tests/equal_numbers.py save after.pt      # in that of the other
    python tests/equal_numbers.py compare before.pt after.pt

Numbers are equal up to 1e-12 of their size, those in single precision and those of learners up to 1e-6, draws bit for
bit; with ``compare-bits``, all are. ``save before.pt RecursiveCardinality ...`` is of these distributions alone.
Queries that only the later version has are new, not different.
"""

import importlib.util
import inspect
import math
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pyro
import torch
from pyro.infer import MCMC
from torch import Tensor

from pyro_structured.inference import AnnealedImportanceSampling

TESTS = Path(__file__).parent
TOLERANCE, SINGLE = (0.0, 0.0) if sys.argv[1:2] == ["compare-bits"] else (1e-12, 1e-6)
NUM_STEPS = 6
# Attributes that copy or describe a distribution, or draw from it, which is compared by itself.
IGNORED = set(dir(torch.distributions.Distribution)) - {"mean", "variance", "stddev", "mode", "entropy"}
IGNORED |= {"conjugate_update", "expand_by", "has_rsample", "is_discrete", "is_reparameterized", "mask", "to_event"}
VALUES = ("log_prob", "unnormalized_log_prob", "pseudo_log_prob", "log_prob_bounds", "conditional_logits", "cdf")
METHODS = ("em", "cut", "dual", "branch_and_bound", "enumeration")


def load(*names):
    """A module of the tests, at the first place that exists: it has moved between versions."""
    path = next(TESTS / name for name in names if (TESTS / name).exists())
    spec = importlib.util.spec_from_file_location("_".join(path.with_suffix("").parts[-2:]), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def plain(value):
    """Tensors, numbers and texts; of other objects, the class."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (type(None), bool, int, float, str)) else type(value).__name__


def asked(query):
    """Result of a query, always with the same random numbers; of an error, its kind and message."""
    pyro.set_rng_seed(0)
    try:
        return plain(query())
    except Exception as error:
        # Modules may have moved.
        return re.sub(r"pyro_structured\.[\w.]*\.", "", f"{type(error).__name__}: {error}")


def needs_nothing(method):
    parameters = inspect.signature(method).parameters.values()
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def queries(d):
    """Public properties, and methods that need no arguments."""
    found = {}
    for name in sorted(set(dir(type(d))) - IGNORED | {"sample"}):
        kind = inspect.getattr_static(type(d), name)
        if name.startswith("_") or isinstance(kind, (staticmethod, classmethod, type)):
            continue
        if not callable(kind):
            found[name] = asked(lambda name=name: getattr(d, name))
        elif needs_nothing(getattr(d, name)):
            found[name] = asked(getattr(d, name))
    return found


def estimated(d, values, estimator):
    """Estimates, whether the estimator belongs to the distribution or to the query."""
    d.estimator = estimator
    try:
        return d.estimate_log_prob(values)
    except TypeError:
        return d.estimate_log_prob(values, estimator)
    finally:
        d.estimator = None


def answers(d, given=True):
    """Of all queries, about values and, once, given a part of a value."""
    found = queries(d)
    pyro.set_rng_seed(1)
    values = d.sample((3,))
    for name in VALUES:
        if hasattr(d, name):
            found[f"{name}(value)"] = asked(lambda name=name: getattr(d, name)(values))
    if hasattr(d, "log_partition_bounds"):
        estimator = AnnealedImportanceSampling(10, 4)
        found["estimate_log_prob"] = asked(lambda: estimated(d, values, estimator))
    if hasattr(d, "map"):
        found["map"] = {method: asked(lambda method=method: d.map(method)) for method in METHODS}
    if hasattr(d, "condition") and given:
        observed = torch.zeros(d.event_shape, dtype=torch.bool)
        observed.view(-1)[0] = True
        found["marginal_log_prob"] = asked(lambda: d.marginal_log_prob(values, observed))
        found["given"] = asked(lambda: answers(d.condition(values[0], observed), given=False))
    return found


def gradients(d):
    """Of log-probabilities of draws, with respect to all differentiable parameters."""
    from pyro_structured.testing.distribution_case import substitute

    leaves = {}

    def leaf(parameter):
        leaves[parameter.name] = parameter.tensor.detach().clone().requires_grad_()
        return leaves[parameter.name]

    pyro.set_rng_seed(1)
    log_probs = substitute(d, leaf).log_prob(d.sample((3,))).sum()
    found = torch.autograd.grad(log_probs, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def distributions(names=()):
    """By class, number of the case, and dtype."""
    contract, found = load("distributions/test_contract.py"), {}
    for name, factories in contract.FACTORIES.items():
        if names and name not in names:
            continue
        for number, factory in enumerate(factories):
            for dtype in (torch.float32, torch.float64):
                d = factory(torch.Size((2,)), dtype)
                key = f"{name} {number} {dtype}"
                found[key] = {**answers(d), "gradients": asked(lambda d=d: gradients(d))}
    return found


def kernels():
    """Chains of a few draws."""
    contract, found = load("inference/test_contract.py"), {}
    for name, (factory, model, draw, *_) in contract.CASES.items():
        pyro.set_rng_seed(0)
        _, args = draw()
        mcmc = MCMC(factory(model), num_samples=NUM_STEPS, warmup_steps=NUM_STEPS, disable_progbar=True)
        mcmc.run(*args)
        found[name] = {**plain(mcmc.get_samples()), "diagnostics": plain(mcmc.diagnostics())}
    return found


def learners():
    """Losses of a few steps."""
    runs = load("foundation/inference/resumed_runs.py", "inference/resumed_runs.py")
    found = {}
    for name in runs.RUNS:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        learner = runs.RUNS[name]()
        learner = getattr(learner, "learner", learner)
        steps = range(NUM_STEPS)
        losses = [learner.step(*([step] if name == "PseudoLikelihood" else [])) for step in steps]
        found[name] = {"losses": losses, "parameters": plain(dict(pyro.get_param_store().items()))}
    return found


def estimators():
    """Scores of what was learned, of the same rows."""
    inputs, found = load("models/test_ordinary_input.py"), {}
    for name in inputs.ESTIMATORS:
        data = [("plain", inputs.PLAIN), *([("gaps", inputs.GAPPY)] if name in inputs.GAPS else [])]
        found[name] = {kind: plain(vars(inputs.scores(name, rows))) for kind, rows in data}
    from pyro_structured.models import SegmentationCRF, learn_nested_subsets

    found["learn_nested_subsets"] = plain(learn_nested_subsets(torch.from_numpy(inputs.PLAIN)).subsets)
    rng = np.random.default_rng(0)
    masks = np.zeros((12, 8, 8), dtype=bool)
    masks[:, 2:6, 2:6] = True
    pictures = (rng.random((12, 8, 8, 3)) * 128 + 100 * masks[..., None]).astype(np.uint8)
    for composition in ("sum", "min"):
        crf = SegmentationCRF(n_patterns=2, max_iter=5, composition=composition, random_state=0)
        crf.fit(pictures, masks)
        found[f"SegmentationCRF {composition}"] = [crf.predict(pictures).tolist(), plain(crf.predict_proba(pictures))]
    return found


def different(before, after, place=""):
    """Places at which results are not equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in after:
                yield f"{place}/{key}", "only before"
            elif key in before:
                yield from different(before[key], after[key], f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from different(*pair, f"{place}/{number}")
    elif isinstance(before, Tensor) and isinstance(after, Tensor):
        same = before.shape == after.shape and before.dtype == after.dtype
        exact = not before.is_floating_point() or "sample" in place
        limits = (0.0, 0.0) if exact else 2 * (SINGLE if before.dtype == torch.float32 else TOLERANCE,)
        if not same or not torch.allclose(before, after, *limits, equal_nan=True):
            gap = float((before.double() - after.double()).abs().nan_to_num().max()) if same else math.nan
            yield place, f"{tuple(before.shape)} {before.dtype}, {tuple(after.shape)} {after.dtype}, up to {gap:.1e}"
    elif isinstance(before, float) and isinstance(after, float):
        limit = SINGLE if place.startswith("/learners") else TOLERANCE
        if not math.isclose(before, after, rel_tol=limit, abs_tol=limit) and before == before:
            yield place, f"{before!r}, {after!r}"
    elif type(before) is not type(after) or before != after:
        yield place, f"{str(before)[:150]!r}, {str(after)[:150]!r}"


def number_of(found):
    """Of results."""
    if isinstance(found, (dict, list)):
        return sum(map(number_of, found.values() if isinstance(found, dict) else found))
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "save":
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        chosen = sys.argv[3:]
        others = {} if chosen else {f.__name__: f() for f in (kernels, learners, estimators)}
        torch.save({"distributions": distributions(chosen), **others}, sys.argv[2])
    else:
        before, after = (torch.load(path) for path in sys.argv[2:4])
        faults = list(different(before, after))
        print(*(f"{place}: {text}" for place, text in faults), sep="\n")
        print(f"{number_of(before)} results, {len(faults)} of them different")
        sys.exit(bool(faults))
