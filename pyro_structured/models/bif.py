"""Bayesian networks in files of the Bayesian Interchange Format, version 0.15."""

__all__ = ["read_bif", "write_bif"]

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_structured.models.bayesian_network import BayesianNetwork
from pyro_structured.models.bif_scanner import BifScanner, is_word


class _Row(NamedTuple):
    """Numbers for some states of the parents, or for all: what a table and the default are."""

    kind: str
    given: tuple[str, ...]
    numbers: list[float]


def read_bif(path: str | Path) -> BayesianNetwork:
    """Reads a network of discrete variables.

    :param path: A file in UTF-8 as those of the bnlearn repository, also compressed by gzip (``.gz``). Rows are named
        by the parents' states; ``table`` has all numbers, the variable's own state slowest, and ``default`` stands for
        rows that are not there. Names may be in double quotes, then with any other sign. Properties are ignored.
    :return: Variables in the file's order.
    :raises ValueError: with the name of the file, and of the variable or the line, if something is missing or unknown.
    """
    path = Path(path)
    states, parents, rows = _read_declarations(path, BifScanner(path, _text(path)))
    names = list(states)
    tables = [_table(path, [*parents[name], name], states, rows[name]) for name in names]
    try:
        return BayesianNetwork(
            names, list(states.values()), [[names.index(each) for each in parents[name]] for name in names], tables
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_bif(network: BayesianNetwork, path: str | Path) -> None:
    """Writes a network, with all digits: reading it gives the same numbers.

    :param BayesianNetwork network: Names without double quotes; those with blanks or punctuation are written in quotes.
    :param path: A file; compressed if it ends in ``.gz``.
    """
    for name in itertools.chain(network.names, *network.states):
        if '"' in name:
            raise ValueError(f"network: expected names without double quotes, got {name!r}")
    text = "\n".join(["network unknown {", "}", *_lines(network)]) + "\n"
    path = Path(path)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def _lines(network: BayesianNetwork) -> Iterator[str]:
    names, states = _quoted(network.names), [_quoted(values) for values in network.states]
    for name, values in zip(names, states, strict=True):
        yield from (f"variable {name} {{", f"  type discrete [ {len(values)} ] {{ {', '.join(values)} }};", "}")
    for name, parents, table in zip(names, network.parents, network.tables, strict=True):
        if not parents:
            yield from (f"probability ( {name} ) {{", f"  table {_numbers(table)};", "}")
            continue
        yield f"probability ( {name} | {', '.join(names[d] for d in parents)} ) {{"
        for index in np.ndindex(*np.shape(table)[:-1]):
            given = ", ".join(states[d][state] for d, state in zip(parents, index, strict=True))
            yield f"  ({given}) {_numbers(table[index])};"
        yield "}"


def _quoted(names: Iterable[str]) -> list[str]:
    return [name if is_word(name) else f'"{name}"' for name in names]


def _numbers(row: np.ndarray) -> str:
    return ", ".join(repr(float(number)) for number in row)


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got byte {error.object[error.start]:#04x}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: expected what gzip has compressed, got other bytes ({error})") from None


def _read_declarations(
    path: Path, scanner: BifScanner
) -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, list[_Row]]]:
    """States, parents and probabilities of all variables."""
    states: dict[str, list[str]] = {}
    rows: dict[str, list[_Row]] = {}
    parents: dict[str, list[str]] = {}
    while scanner.peek():
        keyword = scanner.take("network", "variable", "probability")
        if keyword == "probability":
            child, above, found = _read_probability(scanner)
            if child in rows:
                raise ValueError(f"{path}: expected probabilities of {child} once, got them again")
            parents[child], rows[child] = above, found
        elif keyword == "variable":
            name, values = _read_variable(path, scanner)
            if name in states:
                raise ValueError(f"{path}: expected {name} to be declared once, got it again")
            states[name] = values
        else:
            _skip_network(scanner)
    for child, above in parents.items():
        unknown = [name for name in [child, *above] if name not in states]
        if unknown:
            raise ValueError(f"{path}: expected variables that are declared, got {unknown[0]}")
    missing = [name for name in states if name not in rows]
    if missing or not states:
        raise ValueError(f"{path}: expected probabilities of every variable, got none of {missing or 'any'}")
    return states, parents, rows


def _skip_network(scanner: BifScanner) -> None:
    if scanner.peek() != "{":
        scanner.name("the network's name")
    scanner.take("{")
    scanner.skip_properties()
    scanner.take("}")


def _read_variable(path: Path, scanner: BifScanner) -> tuple[str, list[str]]:
    name = scanner.name("a variable")
    scanner.take("{")
    scanner.skip_properties()
    for word in ("type", "discrete", "["):
        scanner.take(word)
    number = scanner.name(f"the number of states of {name}")
    for word in ("]", "{"):
        scanner.take(word)
    values = scanner.names(f"states of {name}")
    if number != str(len(values)):
        raise ValueError(f"{path}: expected {number} states of {name}, got {len(values)}")
    for word in ("}", ";"):
        scanner.take(word)
    scanner.skip_properties()
    scanner.take("}")
    return name, values


def _read_probability(scanner: BifScanner) -> tuple[str, list[str], list[_Row]]:
    scanner.take("(")
    child, parents = scanner.name("a variable"), []
    if scanner.take("|", ")") == "|":
        parents = scanner.names(f"parents of {child}")
        scanner.take(")")
    scanner.take("{")
    rows = []
    scanner.skip_properties()
    while (kind := scanner.take("(", "table", "default", "}")) != "}":
        given: list[str] = []
        if kind == "(":
            given = scanner.names(f"states of {parents} for {child}")
            scanner.take(")")
        rows.append(_Row(kind, tuple(given), scanner.probabilities(child)))
        scanner.skip_properties()
    return child, parents, rows


def _table(path: Path, family: list[str], states: dict[str, list[str]], rows: list[_Row]) -> np.ndarray:
    """Probabilities with the child's axis last."""
    *parents, child = family
    if len(set(family)) < len(family):
        raise ValueError(f"{path}: expected different parents of {child}, got {parents}")
    shape = [len(states[name]) for name in family]
    table, seen = np.full(shape, np.nan), set()
    # Defaults are for what nothing else says, and a table for what no row says.
    for kind, given, numbers in sorted(rows, key=lambda row: ("default", "table", "(").index(row.kind)):
        if (kind, given) in seen:
            raise ValueError(f"{path}: expected numbers of {child} once, got them again for {given or kind!r}")
        seen.add((kind, given))
        expected = table.size if kind == "table" else shape[-1]
        if len(numbers) != expected:
            raise ValueError(f"{path}: expected {expected} numbers for {child}, got {len(numbers)}")
        if kind == "table":
            table[:] = np.moveaxis(np.reshape(numbers, [shape[-1], *shape[:-1]]), 0, -1)
            continue
        if kind == "(" and not (
            len(given) == len(parents) and all(each in states[d] for each, d in zip(given, parents, strict=True))
        ):
            raise ValueError(f"{path}: expected states of {parents} for {child}, got {list(given)}")
        table[tuple(states[d].index(each) for each, d in zip(given, parents, strict=False))] = numbers
    if np.isnan(table).any():
        raise ValueError(f"{path}: expected probabilities for all states of {parents} of {child}, got some only")
    return table
