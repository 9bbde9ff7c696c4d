"""Time to score rows with densities of binary vectors, fitted with their defaults to three public sets.

Claims: `ExchangeableSPN().score_samples` takes at most 100 microseconds a row on each, and its log-probabilities differ
from those of its distribution by at most 1e-9.
"""

import numpy as np
import torch

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, small
from pyro_structured.datasets import load_density
from pyro_structured.models import ExchangeableSPN, LatentTreeDensity, MEVMDensity, ThinJunctionTree

TEXT = """
Processor time of a test row, of 2,000 that are scored together by `score_samples`, and of a row that is scored by
itself. *Distribution*: `to_pyro().log_prob` of the same rows, which looks up every variable and block of every state,
where `score_samples` multiplies matrices. *Difference*: the largest one between the two, in nats. Other densities stand
beside it for comparison; they have fewer parameters.
"""
SETS, QUICK = ("nltcs", "plants", "jester"), ("nltcs",)
MODELS = {
    "MEVMDensity": MEVMDensity,
    "ThinJunctionTree": ThinJunctionTree,
    "LatentTreeDensity": LatentTreeDensity,
}
MOST_SECONDS, MOST_DIFFERENCE, ROWS = 1e-4, 1e-9, 2_000


def main():
    options = arguments(__doc__)
    report = Report("Scoring rows", TEXT, options)
    if report.lacks("debd/*.npz"):
        report.finish()
        return
    rows, others = [], []
    for name in QUICK if options.quick else SETS:
        data = load_density(name)
        if options.quick:
            data = data._make(each[:200] for each in data)
        test = data.test[:ROWS]
        network = ExchangeableSPN(random_state=options.seed, verbose=False)
        if options.quick:
            network.set_params(n_networks=1, n_states=2, max_iter=1, smoothing=1.0)
        network.fit(data.train, X_val=data.validation)
        d, values = network.to_pyro(), torch.from_numpy(test.astype(np.float64))

        def distribution(d=d, values=values):
            with torch.no_grad():
                return torch.cat([d.log_prob(part) for part in values.split(32)])

        runs = {
            "ours": lambda network=network, test=test: network.score_samples(test),
            "distribution": distribution,
            "one": lambda network=network, test=test: network.score_samples(test[:1]),
        }
        times = interleaved(runs, options.repeats)
        each, difference = times["ours"] / len(test), np.abs(runs["ours"]() - distribution().numpy()).max()
        s = d.structure
        size = f"{s.num_networks} x {s.num_regions} x {s.num_states} x {s.num_variables}"
        slow = times["distribution"] / len(test)
        rows.append([name, size, *map(duration, (each, slow, times["one"])), ratio(slow / each), small(difference)])
        report.claim(f"{name}: time of a row", f"<= {duration(MOST_SECONDS)}", duration(each), each <= MOST_SECONDS)
        report.claim(
            f"{name}: difference", f"<= {small(MOST_DIFFERENCE)}", small(difference), difference <= MOST_DIFFERENCE
        )
        models = {model: make(random_state=options.seed, verbose=False) for model, make in MODELS.items()}
        for model in models.values():
            model.fit(data.train, X_val=data.validation)
        times = interleaved(
            {key: lambda model=model, test=test: model.score_samples(test) for key, model in models.items()},
            options.repeats,
        )
        others.append([name, *(duration(time / len(test)) for time in times.values())])
    header = ["data", "networks x regions x states x variables", "score_samples", "distribution", "one row by itself"]
    report.table("ExchangeableSPN, a row", [*header, "distribution / score_samples", "difference"], rows)
    report.table("Other densities, a row", ["data", *MODELS], others)
    report.finish()


if __name__ == "__main__":
    main()
