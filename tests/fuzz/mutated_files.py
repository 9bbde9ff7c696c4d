"""Mutated files for read_bif, the loaders of local data, and Checkpoint: a result, or an error that names the file.

Every file is read within a deadline, or the process ends with a traceback; the file is left where the message says.
"""

import argparse
import faulthandler
import gzip
import io
import os
import resource
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
from pyro.infer import MCMC, NUTS
from tqdm import trange

from pyro_structured import datasets
from pyro_structured.inference import Checkpoint
from pyro_structured.models import BayesianNetwork, read_bif, write_bif

DEADLINE_SECONDS = 10
MEMORY_BYTES = 2 * 2**30
TEXT = """network small { property made "by; hand"; }
variable a { type discrete [ 2 ] { yes, no }; property position = (1, 2); } // a comment
variable b { type discrete[3] {"x, y", Very Low, "z"}; }
variable c { type discrete [2] { t, f }; }
probability (a) { table 0.25, 0.75; property "half; table 0.5 0.5; }
probability ( b | a ) { (yes) 0.1, 0.2, 0.7; /* both */ (no) 0.5, 0.5, 0; }
probability (c | a, b) { default 0.5, 0.5; (no, "z") 1e-3, 0.999; }
"""
WORDS = (
    *'{}()[],;|"/* \n\t\0\\',
    *(
        "//",
        "/*",
        "*/",
        '""',
        '"\n',
        "property",
        "property ;",
        "network",
        "variable",
        "probability",
        "table",
        "default",
    ),
    *("0", "1", "-1", "1e999", "1_0", "1e-31_0", "nan", "inf", "0x10", "\u0663", "1" * 400, "99999999999", "1e-400"),
    *("a", "b", "type discrete [ 1 ] { x };", "\ufeff", "\u2028", "\xe4", "x" * 300),
)


def random_network(generator):
    """Up to six variables with up to three states, and up to three parents."""
    number = int(generator.integers(1, 7))
    sizes = generator.integers(1, 4, number)
    parents = [sorted(generator.permutation(d)[: generator.integers(4)].tolist()) for d in range(number)]
    tables = [generator.dirichlet(np.ones(sizes[d]), [sizes[p] for p in above]) for d, above in enumerate(parents)]
    states = [[f"s{state}" for state in range(size)] for size in sizes]
    return BayesianNetwork([f"v{d}" for d in range(number)], states, parents, tables)


def mutated_bytes(content, generator):
    """Some spans are dropped, moved, repeated or replaced."""
    for _ in range(int(generator.choice([1, 1, 1, 2, 3]))):
        start = int(generator.integers(0, len(content) + 1))
        end = start + int(generator.integers(len(content) + 1) if generator.random() < 0.1 else generator.integers(8))
        span, other = content[start:end], int(generator.integers(0, len(content) + 1))
        match int(generator.integers(6)):
            case 0:
                content = content[:start] + content[end:]
            case 1:
                content = content[:start]
            case 2:
                content = content[:start] + (span * int(10 ** generator.uniform(0, 4)))[: 2**18] + content[end:]
            case 3:
                content = content[:start] + generator.bytes(len(span[:20])) + content[end:]
            case 4:
                content = content[:other] + span + content[other:]
            case _:
                word = WORDS[generator.integers(len(WORDS))].encode()
                content = content[:start] + word * int(generator.choice([1, 1, 1, 30])) + content[end:]
    return content


def mutated_network(folder, number):
    """A file, damaged as text or as what gzip has compressed; some decompress to 128 MB."""
    generator = np.random.default_rng(number)
    path, whole = folder / "mutated.bif", folder / "whole.bif"
    content = TEXT.encode()
    if generator.random() < 0.7:
        write_bif(random_network(generator), whole)
        content = whole.read_bytes()
    content = mutated_bytes(content, generator)
    if generator.random() < 0.1:
        path = folder / "mutated.bif.gz"
        content = gzip.compress(content)
        if generator.random() < 0.5:
            content = mutated_bytes(content, generator)
    if number % 5000 == 7:
        path, content = folder / "mutated.bif.gz", gzip.compress(bytes(2**27), 1)
    path.write_bytes(content)
    return path


def whole_archives(generator):
    """For every loader, its local file and the arrays in it."""
    bits, rows = np.arange(24, dtype=np.uint8).reshape(3, 8), generator.integers(0, 2, (3, 4)).astype(np.uint8)
    pictures = generator.integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    masks, names = generator.integers(0, 256, (3, 128)).astype(np.uint8), np.array(["a", "b", "c"])
    triples = np.array([[1, 2, 0.5], [2, 3, 1.5], [2, 4, 0.0]], np.float32)
    readings = generator.normal(size=(3, 5)).astype(np.float32) ** 2
    return {
        "bif/alarm_samples.npz": (
            datasets.load_alarm_samples,
            {
                "train": rows,
                "valid": rows[:1],
                "test": rows[1:],
                "card": np.full(4, 2, np.uint8),
                "names": np.array(["p", "q", "r", "s"]),
                "true_test_ll": np.float64(-2.5),
            },
        ),
        "debd/nltcs.npz": (
            lambda: datasets.load_density("nltcs"),
            {"n_vars": np.int32(60), "train": bits, "valid": bits[:1], "test": bits[:2]},
        ),
        "images/caltech101_silhouettes28.npz": (
            datasets.load_caltech_silhouettes,
            {name: np.zeros((2, 98), np.uint8) for name in ("train", "val", "test")},
        ),
        "images/mnist_t10k_gray.npz": (
            datasets.load_mnist_test,
            {"X": np.zeros((3, 784), np.uint8), "y": np.array([1, 2, 3], np.uint8)},
        ),
        "images/voc_silhouettes32.npz": (
            lambda: datasets.load_silhouettes("bird"),
            {"bird": masks, "bird_image": names},
        ),
        "images/weizmann_horses32.npz": (datasets.load_horses, {"rgb": pictures, "mask": masks}),
        "matching/cmu_house.npz": (
            lambda: datasets.load_house_pairs(90),
            {"points": np.zeros((111, 2, 2), np.float32), "shape_context": np.zeros((111, 2, 60), np.uint8)},
        ),
        "matching/dirlab_landmarks.npz": (
            lambda: datasets.load_lung_landmarks(3),
            {"case3_EE": np.zeros((4, 3), np.int16), "case3_EI": np.ones((4, 3), np.int16)},
        ),
        "matching/reviewer_midl2018.npz": (
            datasets.load_review_scores,
            {"scores": np.ones((3, 2)), "covs": np.ones(2, np.int16), "loads": np.ones(3, np.int16)},
        ),
        "mil/musk1.npz": (
            datasets.load_musk1,
            {
                "X": np.zeros((3, 166), np.int16),
                "bag": np.array([0, 1, 1], np.int16),
                "y": np.array([1, 0], np.uint8),
                "cv_folds": np.ones((1, 2, 2), np.uint8),
            },
        ),
        "paths/borlange_gps.npz": (
            datasets.load_borlange_trips,
            {
                "incidence": np.array([[1, 2], [2, 3], [2, 4]], np.int32),
                "time": triples,
                "angle": triples,
                "paths": np.array([4, 1, 2, 4, 3, 2, 3], np.int32),
                "ptr": np.array([0, 4, 7], np.int32),
            },
        ),
        "sensors/intel_lab_50x240.npz": (
            datasets.load_lab_readings,
            {"TemperatureTrain": readings, "TemperatureTest": readings[:2]},
        ),
        "sensors/la_traffic_207x2016.npz": (
            datasets.load_traffic_speeds,
            {"speed": readings, "sensor_id": np.array(list("vwxyz"))},
        ),
        "text/enron1.npz": (
            lambda: datasets.load_text("enron"),
            {
                "indices": np.array([2, 0, 1, 0], np.uint16),
                "indptr": np.array([0, 2, 2, 4], np.int32),
                "shape": np.array([3, 4], np.int32),
                "y": np.array([1, 0, 1], np.uint8),
                "split": np.array([0, 0, 1], np.uint8),
                "names": np.array(["ham", "spam"]),
                "vocab": np.frombuffer(b"a\nb\nc\nd", np.uint8),
            },
        ),
    }


TABLES = {
    "net": "<NUMBER OF NODES> 2\n<END OF METADATA>\n~ x ;\n\t1\t2\t25.5\t6\t7\t0.15\t4\t0\t0\t1\t;\n"
    "\t2\t1\t8\t5\t3\t0.15\t4\t0\t0\t1\t;\n",
    "node": "Node\tX\tY\t;\n1\t-96.5\t43.25\t;\n2\t-97\t44\t;\n",
    "flow": "From To Volume Cost\n1 2 44.5 6.75\n2 1 3 4\n",
    "trips": "<END OF METADATA>\nOrigin 1\n 1 : 0.0; 2 : 10.5;\nOrigin 2\n 1 : 20.0; 2 : 0.0;\n",
}


def other_array(array, generator):
    """Another kind, shape, or other numbers."""
    match int(generator.integers(8)):
        case 0:
            kinds = ["f8", "c16", "O", "U3", "i8", "u1", "?", "f2", "M8[s]", "i4,f4"]
            return np.zeros(array.shape, kinds[generator.integers(len(kinds))])
        case 1:
            shape = generator.integers(0, 5, generator.integers(0, 5)).tolist()
            return np.resize(array, shape)
        case 2:
            return array[..., None]
        case 3:
            return np.concatenate([array.reshape(-1), array.reshape(-1)])
        case 4:
            return array.T
        case 5:
            return array[:0] if array.ndim else array
    if array.dtype.kind == "U" or not array.size:
        return np.full(array.shape, "x" * int(generator.integers(0, 2000)))
    changed = np.array(array)
    ends = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
    numbers = [ends.min, ends.max, 0, 1, *([np.nan, np.inf] if array.dtype.kind == "f" else [])]
    changed.reshape(-1)[generator.integers(array.size)] = numbers[generator.integers(len(numbers))]
    return changed


def packed(arrays, generator):
    """An archive; some members say that they are larger than memory, or decompress to 128 MB."""
    stream = io.BytesIO()
    bomb = generator.random()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=True)
            content = member.getvalue()
            if bomb < 0.05:
                member = io.BytesIO()
                shape = tuple(int(10 ** generator.integers(1, 12)) for _ in np.shape(array)) or (10**12,)
                header = {"descr": np.asarray(array).dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(member, header)
                content = member.getvalue() + bytes(64)
            elif bomb < 0.053:
                content = content[:128] + bytes(2**27)
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def mutated_data(folder, number):
    """A local file that was damaged, and its loader."""
    generator = np.random.default_rng(number)
    archives = whole_archives(generator)
    place = int(generator.integers(len(archives) + 1))
    if place == len(archives):
        contents = {f"paths/SiouxFalls_{name}.tntp.gz": text.encode() for name, text in TABLES.items()}
        path = list(contents)[generator.integers(len(contents))]
        contents[path] = mutated_bytes(contents[path], generator)
        contents = {each: gzip.compress(content) for each, content in contents.items()}
        if generator.random() < 0.3:
            contents[path] = mutated_bytes(contents[path], generator)
        if generator.random() < 0.02:
            contents[path] = gzip.compress(bytes(2**27), 1)
        load = datasets.load_sioux_falls
    else:
        path = list(archives)[place]
        load, arrays = archives[path]
        changed = dict(arrays)
        for name in generator.permutation(list(arrays))[: generator.integers(1, 3)].tolist():
            if generator.random() < 0.15:
                del changed[name]
            else:
                changed[name] = other_array(changed[name], generator)
        if generator.random() < 0.5:
            contents = {path: packed(changed, generator)}
        else:
            contents = {path: mutated_bytes(packed(arrays, generator), generator)}
    for each, content in contents.items():
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(content)
    return load, [folder / each for each in contents]


def outcome(call, paths):
    """Reads, and tells whether there was a result; any error has to be one that names the file."""
    faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, about dtypes of files
            call()
    except (ValueError, NotImplementedError) as error:
        assert any(path.name in str(error) for path in paths) and "expected" in str(error), repr(error)
        return type(error).__name__
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "result"


def read_mutated_networks(folder, numbers):
    """Numbers of mutated networks by the outcome of reading them."""
    found = Counter()
    for number in numbers:
        path = mutated_network(folder, number)
        try:
            found[outcome(lambda path=path: read_bif(path), [path])] += 1
        except BaseException as error:
            raise AssertionError(f"file {number}, {path}: expected a network or an error with its name") from error
    return found


def load_mutated_data(folder, numbers):
    """Numbers of mutated files by the outcome of loading them; the folder becomes that of local data."""
    os.environ["PYRO_STRUCTURED_DATA"] = str(folder)
    found = Counter()
    for number in numbers:
        load, paths = mutated_data(folder, number)
        try:
            found[outcome(load, paths)] += 1
        except BaseException as error:
            raise AssertionError(f"file {number}, {paths}: expected data or an error with its name") from error
    return found


def normal():
    pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))


def read_mutated_chains(folder, numbers):
    """Numbers of mutated files of a chain by the outcome of going on with them; asserts that no draws differ."""
    found, whole, path = Counter(), folder / "whole.pt", folder / "mutated.pt"
    MCMC(Checkpoint(NUTS(normal), whole), num_samples=4, warmup_steps=3, disable_progbar=True).run()
    content, expected = whole.read_bytes(), Checkpoint.load_samples(whole)["x"]

    def read():
        Checkpoint.resume(path, normal)
        assert Checkpoint.load_samples(path)["x"].equal(expected), "expected the draws of the whole file"

    for number in numbers:
        path.write_bytes(mutated_bytes(content, np.random.default_rng(number)))
        try:
            found[outcome(read, [path])] += 1
        except BaseException as error:
            raise AssertionError(f"file {number}, {path}: expected draws or an error with its name") from error
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bif", type=int, default=20000, help="number of mutated networks")
    parser.add_argument("--data", type=int, default=2000, help="number of mutated data files")
    parser.add_argument("--chains", type=int, default=2000, help="number of mutated files of chains")
    parser.add_argument("--seed", type=int, default=0, help="of the first file; the next ones count on")
    options = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))
    folder = Path(tempfile.mkdtemp())
    for name, read, number in (
        ("bif", read_mutated_networks, options.bif),
        ("data", load_mutated_data, options.data),
        ("chains", read_mutated_chains, options.chains),
    ):
        print(name, dict(read(folder, trange(options.seed, options.seed + number, desc=name))))
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
