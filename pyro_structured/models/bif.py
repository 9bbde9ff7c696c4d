"""Bayesian networks in files of the Bayesian Interchange Format, version 0.15."""

__all__ = ["read_bif", "write_bif"]

import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pyro_structured.models.bayesian_network import BayesianNetwork

COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
PROPERTIES = re.compile(r"([{;}]\s*)(?:property\s[^;]*;\s*)+")
VARIABLE = re.compile(
    r"variable\s+(\S+)\s*\{[^{}]*?type\s+discrete\s*\[\s*(\d+)\s*\]\s*\{([^{}]*)\}[^{}]*\}", re.DOTALL
)
PROBABILITY = re.compile(r"probability\s*\(([^()]*)\)\s*\{([^{}]*)\}", re.DOTALL)
ROW = re.compile(r"\(([^()]*)\)\s*([^;()]*);")
TABLE = re.compile(r"\b(table|default)\s+([^;]*);")


def read_bif(path: str | Path) -> BayesianNetwork:
    """Reads a network of discrete variables.

    :param path: A file as those of the bnlearn repository, also compressed by gzip (``.gz``). Rows are named by the
        parents' states; ``table`` has all numbers, the variable's own state slowest, and ``default`` stands for rows
        that are not there. Properties are ignored.
    :return: Variables in the file's order.
    :raises ValueError: with the name of the file, and of the variable, if something is missing or unknown.
    """
    path = Path(path)
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    text = PROPERTIES.sub(r"\1", COMMENTS.sub(" ", text))
    states = {name: _split(values) for name, _, values in VARIABLE.findall(text)}
    for name, number, values in VARIABLE.findall(text):
        if len(_split(values)) != int(number):
            raise ValueError(f"{path}: expected {number} states of {name}, got {len(_split(values))}")
    if len(states) < len(VARIABLE.findall(text)):
        raise ValueError(f"{path}: expected variables to be declared once, got one again")
    found = {}
    for header, body in PROBABILITY.findall(text):
        child, _, above = (part.strip() for part in header.partition("|"))
        unknown = [name for name in [child, *_split(above)] if name not in states]
        if unknown:
            raise ValueError(f"{path}: expected variables that are declared, got {unknown[0]}")
        if child in found:
            raise ValueError(f"{path}: expected probabilities of {child} once, got them again")
        found[child] = (_split(above), _table(path, child, [*_split(above), child], states, body))
    missing = [name for name in states if name not in found]
    if missing or not states:
        raise ValueError(f"{path}: expected probabilities of every variable, got none of {missing or 'any'}")
    names = list(states)
    parents = [[names.index(other) for other in found[name][0]] for name in names]
    return BayesianNetwork(names, list(states.values()), parents, [found[name][1] for name in names])


def write_bif(network: BayesianNetwork, path: str | Path) -> None:
    """Writes a network, with all digits: reading it gives the same numbers.

    :param BayesianNetwork network: Names without blanks, commas, semicolons, brackets and bars.
    :param path: A file; compressed if it ends in ``.gz``.
    """
    for name in itertools.chain(network.names, *network.states):
        if not re.fullmatch(r"[^\s,;|(){}\[\]]+", name):
            raise ValueError(f"network: expected names without blanks and punctuation of the format, got {name!r}")
    text = "\n".join(["network unknown {", "}", *_lines(network)]) + "\n"
    path = Path(path)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def _lines(network: BayesianNetwork) -> Iterator[str]:
    for name, states in zip(network.names, network.states, strict=True):
        yield from (f"variable {name} {{", f"  type discrete [ {len(states)} ] {{ {', '.join(states)} }};", "}")
    for name, parents, table in zip(network.names, network.parents, network.tables, strict=True):
        if not parents:
            yield from (f"probability ( {name} ) {{", f"  table {_numbers(table)};", "}")
            continue
        yield f"probability ( {name} | {', '.join(network.names[d] for d in parents)} ) {{"
        for index in np.ndindex(*np.shape(table)[:-1]):
            given = ", ".join(network.states[d][state] for d, state in zip(parents, index, strict=True))
            yield f"  ({given}) {_numbers(table[index])};"
        yield "}"


def _numbers(row: np.ndarray) -> str:
    return ", ".join(repr(float(number)) for number in row)


def _split(text: str) -> list[str]:
    return [part.strip().strip('"') for part in text.split(",") if part.strip()]


def _table(path: Path, child: str, family: list[str], states: dict[str, list[str]], body: str) -> np.ndarray:
    """Probabilities with the child's axis last."""
    shape = [len(states[name]) for name in family]
    table = np.full(shape, np.nan)
    rest = ROW.sub(" ", TABLE.sub(" ", body)).strip()
    if rest:
        raise ValueError(f"{path}: expected rows that end with a semicolon for {child}, got {rest!r}")
    # Defaults are for what nothing else says.
    for kind, numbers in sorted(TABLE.findall(body)):
        values = _floats(path, child, numbers)
        if kind == "default" and len(values) == shape[-1]:
            table[:] = values
        elif kind == "table" and len(values) == table.size:
            table[:] = np.moveaxis(np.reshape(values, [shape[-1], *shape[:-1]]), 0, -1)
        else:
            raise ValueError(f"{path}: expected {table.size} numbers for {child}, got {len(values)}")
    for given, numbers in ROW.findall(body):
        names = _split(given)
        if len(names) != len(family) - 1 or not all(
            each in states[d] for each, d in zip(names, family[:-1], strict=True)
        ):
            raise ValueError(f"{path}: expected states of {family[:-1]} for {child}, got {names}")
        values = _floats(path, child, numbers)
        if len(values) != shape[-1]:
            raise ValueError(f"{path}: expected {shape[-1]} numbers for {child}, got {len(values)}")
        table[tuple(states[d].index(each) for each, d in zip(names, family, strict=False))] = values
    if np.isnan(table).any():
        raise ValueError(f"{path}: expected probabilities for all states of {family[:-1]} of {child}, got some only")
    return table


def _floats(path: Path, child: str, numbers: str) -> list[float]:
    try:
        return [float(number) for number in re.split(r"[,\s]+", numbers.strip())]
    except ValueError:
        raise ValueError(f"{path}: expected numbers for {child}, got {numbers.strip()!r}") from None
