"""Learns a field of labels, in one process or in several, with the same numbers.

    python examples/fit.py
    torchrun --nproc_per_node 2 examples/fit.py

With the name of a file, ``... examples/fit.py run.pt``, it keeps its state there, and goes on from it when it is
started again, by any number of processes.
"""

import os
import sys
from pathlib import Path

import pyro
import torch
from pyro.optim import ExponentialLR

from pyro_structured.distributions import GridCRF
from pyro_structured.inference import DistributedOptim, PseudoLikelihood, shard_rows
from pyro_structured.structures import Grid

NUM_ROWS, NUM_ROUNDS, STEPS = 601, 5, 20
GRID = Grid(8, 8)


def pictures():
    """Features and labels of all rows; a process may as well read its own rows only."""
    features = torch.randn(NUM_ROWS, 8, 8)
    truth = GridCRF(features, torch.full((GRID.num_edges,), 0.4), GRID)
    return features, truth.sample()


def model(features, labels, rows):
    scale, bias = pyro.param("scale", torch.tensor(0.0)), pyro.param("bias", torch.tensor(0.0))
    penalty = pyro.param("penalty", torch.tensor(0.0))
    with pyro.plate("rows", NUM_ROWS, subsample=rows):
        field = GridCRF(scale * features[rows] + bias, penalty.expand(GRID.num_edges), GRID)
        pyro.sample("labels", field, obs=labels[rows])


def guide(features, labels, rows):
    pass


def main(path=None):
    if "RANK" in os.environ:  # torchrun sets it
        torch.distributed.init_process_group("gloo")
    is_first = os.environ.get("RANK", "0") == "0"
    pyro.set_rng_seed(0)
    data, rows = pictures(), shard_rows(NUM_ROWS)
    schedule = ExponentialLR({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.7})
    learner = PseudoLikelihood(model, guide, DistributedOptim(schedule, rows))
    done = 0
    if path is not None and path.exists():
        state = torch.load(path)
        done = state.pop("rounds")
        learner.load_state_dict(state)
    for number in range(done, NUM_ROUNDS):
        losses = [learner.step(*data, rows) for _ in range(STEPS)]
        learner.optim.step()
        state = learner.state_dict()  # of all processes, which all have to ask for it
        if is_first:
            print(f"round {number}: mean loss of a row {losses[-1] / NUM_ROWS:.4f}", flush=True)
            if path is not None:
                torch.save({**state, "rounds": number + 1}, path.with_suffix(".part"))
                path.with_suffix(".part").replace(path)  # the process may end at any time
    if is_first:
        print({name: round(value.item(), 3) for name, value in pyro.get_param_store().items()})
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
