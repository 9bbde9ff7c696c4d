"""Several processes learn what one learns, and fail together."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyro
import pytest
import torch

from pyro_structured.foundation.inference import united_state
from tests.foundation.inference import together
from tests.foundation.inference.test_resuming import differences
from tests.foundation.inference.together import outcomes

ROOT = Path(__file__).parents[3]


def assert_close(first, second, tolerance=1e-6):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.allclose(value, second[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("size, kind", [(2, "svi"), (3, "schedule"), (2, "plateau"), (2, "effects")])
def test_variational_inference(size, kind, tmp_path):
    """Rows that do not share out evenly; random numbers differ afterwards."""
    single, _ = together.variational(kind)
    found = outcomes(together.variational, size, tmp_path, kind)
    for learned, _ in found:
        assert_close(learned, single)
        assert all(torch.equal(value, found[0][0][name]) for name, value in learned.items())
    assert len({float(number) for _, number in found}) == size


def test_pyro_modules(tmp_path):
    """ELBOs that are modules work inside of torch's DistributedDataParallel."""
    single = together.data_parallel()
    for found in outcomes(together.data_parallel, 2, tmp_path):
        assert_close(found, single)


def test_learners_without_random_numbers(tmp_path):
    """Parameters and losses of all rows are those of a single process."""
    arguments = (list(together.EXACT), 3, 3)
    single = together.learned(*arguments)
    for found in outcomes(together.learned, 2, tmp_path, *arguments):
        for name, (losses, learned, _, _) in found.items():
            assert_close(learned, single[name][1])
            assert torch.allclose(losses, single[name][0], rtol=1e-6), name


# Six standard deviations of the difference of two runs, from runs with six seeds.
TOLERANCES = {
    ("MCEM", "AutoDelta.shift"): 0.33,
    ("PerturbAndMAP", "AutoDelta.shift"): 0.07,
    ("PCD", "unary"): 0.5,
    ("PCD", "AutoDelta.strength"): 0.022,
    ("PCD, one field", "unary"): 0.22,
    ("ExpectedLoss", "loss"): 30.0,
}


@pytest.mark.slow
@pytest.mark.statistical
def test_learners_with_random_numbers(tmp_path):
    """Parameters and losses are equal in distribution, and in all processes; each has chains of its own rows."""
    arguments = (list(together.RANDOM), 80, 40)
    single, (first, second) = together.learned(*arguments), outcomes(together.learned, 2, tmp_path, *arguments)
    for name, (losses, learned, _, _) in first.items():
        assert_close(learned, second[name][1], 0.0)
        assert torch.equal(losses, second[name][0])
    for (name, key), tolerance in TOLERANCES.items():
        means = [losses.mean() if key == "loss" else found[key] for losses, found, *_ in (first[name], single[name])]
        # Costs may be shifted, but for a weak prior.
        means = [mean - mean.mean() if key == "AutoDelta.shift" else mean for mean in means]
        assert (means[0] - means[1]).abs().max() < tolerance, (name, key)
    for found in (first, second):
        for name, (_, _, seen, rows) in found.items():
            expected = torch.arange(len(rows)) if name == "PCD, one field" else rows
            assert all(torch.equal(each, expected) for each in seen), name
    assert len(first["MCEM"][2]) == len(first["ExpectedLoss"][2]) == 1


def test_nobody_learns_apart(tmp_path):
    for found in outcomes(together.apart, 2, tmp_path):
        *errors, shards = [text for text, _ in found]
        assert all(
            re.match(r"ValueError: optim: expected DistributedOptim\(optim, shard_rows", each) for each in errors
        )
        assert "got L-BFGS (None)" in errors[1] and len(errors) == 7
        assert shards == "ValueError: n: expected at least one row for each of 2 processes, got 1"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("size", [2, 3])
def test_failures_are_those_of_all(size, tmp_path):
    """With the number of the process and of the row, at once, and nothing has changed; all can go on."""
    kinds = ["row", "error", "interrupt", "nan"]
    found = outcomes(together.failures, size, tmp_path, kinds)
    row = "y: expected labels inside the support, zeros and ones, got others in 1 of"
    # The sixth row of process 1.
    number = 1 + 5 * size
    for rank, each in enumerate(found):
        texts = {kind: each[kind][0] for kind in kinds}
        own = "" if rank == 1 else "rank 1: "
        assert re.match(f"ValueError: {own}{row} {600 // size} rows, the first .* {number}$", texts["row"])
        assert texts["error"] == ("FileNotFoundError" if rank == 1 else "RuntimeError: rank 1: FileNotFoundError") + (
            ": pictures.pt"
        )
        assert texts["interrupt"] == ("KeyboardInterrupt: " if rank == 1 else "RuntimeError: rank 1: KeyboardInterrupt")
        assert re.match(f"NonFiniteError: {own}unary: expected a finite gradient, got nan in 4 of 4", texts["nan"])
        for kind in kinds:
            _, seconds, is_same, learned, _ = each[kind]
            assert seconds < 10 and is_same
            assert_close(learned, found[0][kind][3], 0.0)


def test_steps_are_left_out_together(tmp_path):
    first, second = outcomes(together.failures, 2, tmp_path, ["nan"], "skip")
    for each in (first, second):
        text, _, is_same, learned, num_skipped = each["nan"]
        assert (text, is_same, num_skipped) == ("none", True, 1)
        assert_close(learned, first["nan"][3], 0.0)


def test_the_worse_of_two_failures_counts(tmp_path):
    """A step is left out only if there is nothing worse than numbers that are not finite."""
    first, second = outcomes(together.failures, 2, tmp_path, ["both"], "skip")
    expected = "y: expected labels inside the support"
    assert first["both"][0].startswith(f"ValueError: rank 1: {expected}") and first["both"][4] == 0
    assert second["both"][0].startswith(f"ValueError: {expected}")


def test_numbers_that_are_not_finite_in_svi(tmp_path):
    first, second = outcomes(together.failures_of_svi, 2, tmp_path, "nan")
    expected = "scale: expected a finite gradient, got nan in 1 of 1 entries; nothing was changed"
    assert (first[0], second[0]) == (f"ValueError: rank 1: {expected}", f"ValueError: {expected}")
    assert_close(first[2], second[2], 0.0)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_are_killed_are_named(size, tmp_path):
    found = outcomes(together.failures_of_svi, size, tmp_path, "killed", by_tcp=size == 3)
    assert found[1] is None
    for rank in {0, size - 1} - {1}:
        text, seconds, _ = found[rank]
        assert text.startswith("RuntimeError: rank 1: expected a process that goes on, got a broken connection")
        assert seconds < 10


@pytest.mark.slow
def test_programs_that_end_with_an_error(tmp_path):
    """Others say which process it was, and why, also of SVI, whose errors nobody catches."""
    file = tmp_path / "group"
    file.touch()
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stderr": subprocess.PIPE, "text": True}
    commands = [[sys.executable, together.__file__, str(rank), "2", file] for rank in range(2)]
    programs = [subprocess.Popen(command, **options) for command in commands]
    try:
        first, second = [program.communicate(timeout=60)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert "RuntimeError: rank 1: FileNotFoundError: pictures.pt" in first
    assert second.rstrip().endswith("FileNotFoundError: pictures.pt")


@pytest.mark.slow
def test_interrupts_while_waiting(tmp_path):
    first, second = outcomes(together.interrupted, 2, tmp_path)
    assert (first[0], second[0]) == ("KeyboardInterrupt: ", "RuntimeError: rank 0: KeyboardInterrupt")
    assert second[1] < 10


def test_interrupts_between_agreement_and_exchange(tmp_path):
    first, second = outcomes(together.interrupted_exchange, 2, tmp_path)
    assert (first[0], second[0]) == ("RuntimeError: rank 1: KeyboardInterrupt", "KeyboardInterrupt: ")
    assert first[1] < 10


def test_plates_of_a_part(tmp_path):
    for rank, (text, _) in enumerate(outcomes(together.part_of_a_plate, 2, tmp_path)):
        assert re.match(rf"ValueError: model: expected a plate of all 601 rows.* got sizes \[{301 - rank}\]", text)


def test_parameters_that_are_not_alike(tmp_path):
    """The first values are those of process 0; parameters that one process does not use move all the same."""
    (found, error), (other, other_error) = outcomes(together.unlike_parameters, 2, tmp_path)
    assert all(map(torch.equal, found, other))
    # The first step changes nothing but starts that differ.
    pyro.set_rng_seed(0)
    assert torch.equal(found[0], torch.randn(2, 2, dtype=torch.double))
    assert not torch.equal(found[0], found[1])
    assert error[0] == other_error[0]
    assert error[0].startswith("ValueError: late: expected the same parameter in all processes, got none in rank 0")


def test_optimisers_and_rows_that_are_not_right(tmp_path):
    for rates, kinds, rows in outcomes(together.unlike_settings, 2, tmp_path):
        expected = "ValueError: optim: expected the same optimiser in all processes, got Adam lr="
        assert rates == f"{expected}0.1 in rank 0 and Adam lr=0.2 in rank 1"
        assert kinds == f"{expected}0.1 in rank 0 and SGD lr=0.1 in rank 1"
        assert rows == "ValueError: rows: expected other rows in every process, got 1202 of 601 in all of them"


def test_other_things_at_the_same_time(tmp_path):
    for text, seconds in outcomes(together.doing_other_things, 2, tmp_path):
        assert text.endswith("expected all to do the same, got state_dict in rank 0, a step in rank 1") and seconds < 10


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["SVI", "PCD"])
def test_early_stopping(kind, tmp_path):
    """All stop at the same score, the mean, and go back to it."""
    first, second = outcomes(together.stopping, 2, tmp_path, kind)
    for text, seen, learned in (first, second):
        assert text[0] == "none" and seen.pop() == [0.0, 1.5, 2.0, 1.0, 0.0, 0.0]
        assert_close(learned, seen[2], 0.0)
        for mine, theirs in zip(seen, first[1], strict=False):
            assert_close(mine, theirs, 0.0)


def test_starts_that_are_kept(tmp_path):
    """All go back to the same start, although each would have another one."""
    (_, seen, first), (_, _, second) = outcomes(together.stopping, 2, tmp_path, "start")
    assert_close(first, second, 0.0)
    assert_close(first, seen[0], 0.0)
    assert seen[-1] == [1.0, 0.0, 0.0, 0.0]


def test_scores_that_fail(tmp_path):
    first, second = outcomes(together.stopping, 2, tmp_path, "fails")
    expected = "score: expected pictures, got none"
    assert (first[0][0], second[0][0]) == (f"ValueError: rank 1: {expected}", f"ValueError: {expected}")
    assert first[0][1] < 10


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folder of the states of two processes, of which one was killed, and what the other one says."""
    folder = tmp_path_factory.mktemp("killed")
    return folder, outcomes(together.killed_runs, 2, tmp_path_factory.mktemp("groups"), folder)


@pytest.mark.slow
def test_runs_go_on_after_a_process_was_killed(killed, tmp_path):
    """Bit for bit, with as many processes as before, from one file of both."""
    folder, ((text, seconds), nothing) = killed
    assert nothing is None and "rank 1" in text and seconds < 10
    for found, _ in outcomes(together.resumed_runs, 2, tmp_path, folder):
        for name, (loaded, final) in found.items():
            full, early = (torch.load(folder / f"{name}.{kind}") for kind in ("full", "state"))
            assert differences(early, loaded) == [], name
            assert differences(full, final) == [] and differences(full, early), name


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_runs_go_on_with_another_number_of_processes(size, killed, tmp_path):
    """Every process has the chains of its own rows; parameters and optimisers are those of before."""
    folder, _ = killed
    results = outcomes(together.resumed_runs, size, tmp_path, folder)
    for name in together.RUNS:
        if size > 1:
            shown = [found[name][0]["others"] for found, _ in results][0]
            changes = [each["changes"] for each in shown]
            changes = [each["learner"]["changes"] if name == "EarlyStopping" else each for each in changes]
            assert all("random" in each for each in changes), name
        early = torch.load(folder / f"{name}.state")
        loaded = [found[name][0] for found, _ in results]
        assert all(differences(each, loaded[0]) == [] for each in loaded), name
        part, before = (each if name != "EarlyStopping" else each["learner"] for each in (loaded[0], early))
        for key in ("params", "optim", "buffers"):
            assert differences(part[key], before[key]) == [], (name, key)
        if name in ("MCEM", "PCD"):
            site = "y_costs" if name == "MCEM" else "y"
            known, now = rows_of(early, site), rows_of(loaded[0], site)
            counts = [len(each) for each in known]
            assert counts == [301, 300] if name == "PCD" else 40 < min(counts) <= max(counts) <= 120
            assert {number for each in now for number in each} == {number for each in known for number in each}
            for rank, each in enumerate(now):
                assert all(number % size == rank for number in each)
                assert all(torch.equal(value, known[number % 2][number]) for number, value in each.items())


def test_several_processes_go_on_from_one(killed, tmp_path):
    """What one process has kept, of all rows, is shared out."""
    ((single, _),) = outcomes(together.resumed_runs, 1, tmp_path, killed[0])
    folder = tmp_path / "single"
    folder.mkdir()
    for name, (_, final) in single.items():
        torch.save(final, folder / f"{name}.state")
    for found, rows in outcomes(together.resumed_runs, 2, tmp_path, folder):
        (known,), now = rows_of(single["PCD"][1], "y"), rows_of(found["PCD"][0], "y")
        assert [len(each) for each in now] == [301, 300] and len(known) == 601 and len(rows) in (301, 300)
        assert all(torch.equal(value, known[number]) for each in now for number, value in each.items())


def rows_of(state, site):
    """For each process the values of its rows, by their numbers."""
    parts = [state["chains"][site], *(other["changes"]["chains"] for other in state.get("others", []))]
    parts[1:] = [united_state._put_together(state["chains"], each)[site] for each in parts[1:]]
    return [dict(zip(each["rows"][:, 0].tolist(), each["values"], strict=True)) for each in parts]
