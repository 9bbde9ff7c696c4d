"""Bayesian networks in files of the Bayesian Interchange Format, version 0.15."""

__all__ = ["read_bif", "write_bif"]

import gzip
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_structured.foundation.ops.data_file import read_content
from pyro_structured.foundation.structures.argument_checks import checked_path
from pyro_structured.junction_trees.models.bayesian_network import BayesianNetwork
from pyro_structured.junction_trees.ops.table_budget import check_table_entries

# Each of these takes time in proportion to the text that it matches, and no memory: texts that do not match are refused
# without backtracking. A repeated group would keep every repetition.
BLANK = re.compile(r"\s+|//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r'(?!//|/\*)[^\s{}()\[\],;|"]+?(?=//|/\*|[\s{}()\[\],;|"]|\Z)')
TOKEN = re.compile(rf'"[^"]*"|[{{}}()\[\],;|]|{WORD.pattern}')
# Parts of properties: a quote without an end in its line is an ordinary character.
PROPERTY_PART = re.compile(r'[^;"]+|"[^"\n]*"|"')
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LONGEST_QUOTATION = 60


def _is_word(name: str) -> bool:
    """Whether a name needs no quotes."""
    match = WORD.match(name)
    return match is not None and match.end() == len(name)


class _BifScanner:
    """Scanner of a text, in time in proportion to its length; comments are skipped.

    :param Path path: Path of the text's file, for errors.
    :param str text: The text.
    :ivar int place: Number of characters that were read.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text, self.place = path, text, 0
        self._token: str | None = None

    def line(self, place: int) -> int:
        """Number of a place's line, counted from 1."""
        return self._text.count("\n", 0, place) + 1

    def error(self, expected: str) -> ValueError:
        """Error for a next token that is not the expected one."""
        token = TOKEN.match(self._text, self.place)
        got = token.group() if token else self._text[self.place : self.place + 20] or "the end"
        got = got if len(got) <= LONGEST_QUOTATION else got[:LONGEST_QUOTATION] + "..."
        return ValueError(f"{self._path}: expected {expected} in line {self.line(self.place)}, got {got!r}")

    def wrong(self, message: str, place: int | None = None) -> ValueError:
        """Error about text that was read, at the present place or at another one."""
        return ValueError(
            f"{self._path}: expected {message} (line {self.line(self.place if place is None else place)})"
        )

    def peek(self) -> str:
        """Next word, name with its quotes, or punctuation; empty at the end."""
        if self._token is None:
            while blank := BLANK.match(self._text, self.place):
                self.place = blank.end()
            token = TOKEN.match(self._text, self.place)
            if token is None and self.place < len(self._text):
                raise self.error("quotes and comments that end")
            self._token = token.group() if token else ""
        return self._token

    def _pass(self, length: int) -> None:
        self.place += length
        self._token = None

    def take(self, *expected: str) -> str:
        """Reads one of the expected words, and returns it."""
        token = self.peek()
        if token not in expected:
            raise self.error(" or ".join(map(repr, expected)))
        self._pass(len(token))
        return token

    def skip_properties(self) -> None:
        """Skips properties, which hold any text up to a semicolon."""
        while (token := self.peek()) == "property":
            start = self.place
            self._pass(len(token))
            while part := PROPERTY_PART.match(self._text, self.place):
                self.place = part.end()
            if self.place == len(self._text):
                self.place = start
                raise self.error("a property that ends with a semicolon")
            self.take(";")

    def name(self, what: str) -> str:
        """Reads a name in quotes, or of several words."""
        words: list[str] = []
        while _is_word(token := self.peek()) or (token.startswith('"') and not words):
            self._pass(len(token))
            if token.startswith('"'):
                return token[1:-1]
            words.append(token)
        if not words:
            raise self.error(what)
        return " ".join(words)

    def names(self, what: str) -> list[str]:
        """Reads names with commas between them."""
        names = [self.name(what)]
        while self.peek() == ",":
            self.take(",")
            names.append(self.name(what))
        return names

    def probabilities(self, what: str) -> list[float]:
        """Reads numbers, with commas between them or without, and the semicolon after them."""
        numbers = []
        while (token := self.peek()) != ";":
            if token != ",":
                numbers.append(self._probability(token, what))
            self._pass(len(token))
        self.take(";")
        return numbers

    def _probability(self, token: str, what: str) -> float:
        number = float(token) if NUMBER.fullmatch(token) else math.nan
        if not 0 <= number < math.inf:
            raise self.error(f"numbers of at least 0, and a semicolon after them, for {what}")
        return number


# Largest number of bytes: published networks of a thousand variables have less than a tenth of it.
LARGEST_TEXT = 2**26
# Largest number of parents: with the variable itself, as many axes as arrays of all versions of numpy can have.
MOST_PARENTS = 31


class _Row(NamedTuple):
    """Numbers of a row, a table or a default.

    :ivar str kind: ``"("``, ``"table"`` or ``"default"``.
    :ivar tuple given: States of the parents, for a row.
    :ivar list numbers: The numbers.
    :ivar int place: Place in the text.
    """

    kind: str
    given: tuple[str, ...]
    numbers: list[float]
    place: int


class _Conditional(NamedTuple):
    """Probabilities of a variable given its parents, and their place in the text."""

    parents: list[str]
    rows: list[_Row]
    place: int


def read_bif(path: str | Path) -> BayesianNetwork:
    """Reads a network of discrete variables.

    :param path: A file in UTF-8 as those of the bnlearn repository, also compressed by gzip (``.gz``). Rows are named
        by the parents' states; ``table`` has all numbers, the variable's own state slowest, and ``default`` stands for
        missing rows. Names may be in double quotes, and then contain any other character. Properties are ignored.
    :return: Variables in the file's order. Cost in proportion to the file's text and the tables' entries.
    :raises ValueError: with the name of the file and the line, if something is missing or unknown; if the text has more
        than ``2 ** 26`` bytes.
    :raises NotImplementedError: if the tables have more entries than the setting ``pyro_structured_max_table_entries``
        of ``pyro.settings``, before they take memory.
    """
    path = checked_path("path", path)
    scanner = _BifScanner(path, _text(path))
    states, conditionals = _read_declarations(scanner)
    numbers = {name: {state: number for number, state in enumerate(values)} for name, values in states.items()}
    _check_sizes(path, scanner, states, conditionals)
    tables = [_table(scanner, name, conditionals[name], numbers) for name in states]
    places = {name: number for number, name in enumerate(states)}
    parents = [[places[parent] for parent in conditionals[name].parents] for name in states]
    try:
        return BayesianNetwork(list(states), list(states.values()), parents, tables)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write_bif(network: BayesianNetwork, path: str | Path) -> None:
    """Writes a network, with all digits: reading it gives the same numbers.

    :param BayesianNetwork network: Names without double quotes; those with blanks or punctuation are written in quotes.
    :param path: A file; compressed if it ends in ``.gz``.
    """
    path = checked_path("path", path)
    if not isinstance(network, BayesianNetwork):
        raise ValueError(f"network: expected a BayesianNetwork, got {network!r}")
    for name in itertools.chain(network.names, *network.states):
        if '"' in name:
            raise ValueError(f"network: expected names without double quotes, got {name!r}")
    text = "\n".join(["network unknown {", "}", *_lines(network)]) + "\n"
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
    return [name if _is_word(name) else f'"{name}"' for name in names]


def _numbers(row: np.ndarray) -> str:
    return ", ".join(repr(float(number)) for number in row)


def _text(path: Path) -> str:
    content = read_content(path, LARGEST_TEXT)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8, got byte {error.object[error.start]:#04x}") from None


def _read_declarations(scanner: _BifScanner) -> tuple[dict[str, list[str]], dict[str, _Conditional]]:
    """States and probabilities of all variables, by name."""
    states: dict[str, list[str]] = {}
    conditionals: dict[str, _Conditional] = {}
    while scanner.peek():
        place = scanner.place
        keyword = scanner.take("network", "variable", "probability")
        if keyword == "probability":
            child, conditional = _read_probability(scanner)
            if child in conditionals:
                raise scanner.wrong(f"probabilities of {child} once, got them again", place)
            conditionals[child] = conditional
        elif keyword == "variable":
            name, values = _read_variable(scanner)
            if name in states:
                raise scanner.wrong(f"{name} to be declared once, got it again", place)
            states[name] = values
        else:
            _skip_network(scanner)
    for child, conditional in conditionals.items():
        unknown = [name for name in [child, *conditional.parents] if name not in states]
        if unknown:
            raise scanner.wrong(f"variables that are declared, got {unknown[0]}", conditional.place)
    missing = [name for name in states if name not in conditionals]
    if missing or not states:
        raise scanner.wrong(f"probabilities of every variable, got none of {missing or 'any'}")
    return states, conditionals


def _check_sizes(
    path: Path, scanner: _BifScanner, states: dict[str, list[str]], conditionals: dict[str, _Conditional]
) -> None:
    """Raises an error if the tables would have more axes, or more entries, than are allowed."""
    sizes = {}
    for child, (parents, _, place) in conditionals.items():
        if len(set(parents) | {child}) <= len(parents):
            raise scanner.wrong(f"different parents of {child}, got {parents}", place)
        if len(parents) > MOST_PARENTS:
            raise scanner.wrong(f"at most {MOST_PARENTS} parents of {child}, got {len(parents)}", place)
        sizes[child] = math.prod(len(states[name]) for name in [*parents, child])
    largest = max(sizes, key=sizes.__getitem__)
    what = f"all tables, the largest of which is that of {largest!r} given {conditionals[largest].parents}"
    check_table_entries(str(path), what, sum(sizes.values()))


def _skip_network(scanner: _BifScanner) -> None:
    if scanner.peek() != "{":
        scanner.name("the network's name")
    scanner.take("{")
    scanner.skip_properties()
    scanner.take("}")


def _read_variable(scanner: _BifScanner) -> tuple[str, list[str]]:
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
        raise scanner.wrong(f"{number} states of {name}, got {len(values)}")
    if len(set(values)) < len(values):
        raise scanner.wrong(f"different states of {name}, got {values}")
    for word in ("}", ";"):
        scanner.take(word)
    scanner.skip_properties()
    scanner.take("}")
    return name, values


def _read_probability(scanner: _BifScanner) -> tuple[str, _Conditional]:
    scanner.take("(")
    start, parents = scanner.place, []
    child = scanner.name("a variable")
    if scanner.take("|", ")") == "|":
        parents = scanner.names(f"parents of {child}")
        scanner.take(")")
    scanner.take("{")
    rows = []
    scanner.skip_properties()
    while (kind := scanner.take("(", "table", "default", "}")) != "}":
        given, place = [], scanner.place
        if kind == "(":
            given = scanner.names(f"states of {parents} for {child}")
            scanner.take(")")
        rows.append(_Row(kind, tuple(given), scanner.probabilities(child), place))
        scanner.skip_properties()
    return child, _Conditional(parents, rows, start)


def _table(
    scanner: _BifScanner, child: str, conditional: _Conditional, states: dict[str, dict[str, int]]
) -> np.ndarray:
    """Table of a variable's probabilities, with its own axis last.

    :param states: Numbers of the states of all variables, by name.
    """
    parents = conditional.parents
    shape = [len(states[name]) for name in [*parents, child]]
    table, seen = np.full(shape, np.nan), set()
    # Rows take precedence over a table, and a table over the default.
    for kind, given, numbers, place in sorted(
        conditional.rows, key=lambda row: ("default", "table", "(").index(row.kind)
    ):
        if (kind, given) in seen:
            raise scanner.wrong(f"numbers of {child} once, got them again for {given or kind!r}", place)
        seen.add((kind, given))
        expected = table.size if kind == "table" else shape[-1]
        if len(numbers) != expected:
            raise scanner.wrong(f"{expected} numbers for {child}, got {len(numbers)}", place)
        if kind == "table":
            table[:] = np.moveaxis(np.reshape(numbers, [shape[-1], *shape[:-1]]), 0, -1)
            continue
        if kind == "(" and not (
            len(given) == len(parents) and all(state in states[d] for state, d in zip(given, parents, strict=True))
        ):
            raise scanner.wrong(f"states of {parents} for {child}, got {list(given)}", place)
        table[tuple(states[d][state] for state, d in zip(given, parents, strict=False))] = numbers
    if np.isnan(table).any():
        message = f"probabilities for all states of {parents} of {child}, got some only"
        raise scanner.wrong(message, conditional.place)
    return table
