"""Command line of the demonstration."""

__all__ = ["main"]

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pyro
import torch

from pyro_structured.demo.settings import Settings

FORMATS = (".pdf", ".png", ".svg")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demonstration.

    :param arguments: Arguments of the command line; without, those of the process.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if find_spec("matplotlib") is None:
        parser.error("matplotlib is not installed; python -m pip install 'pyro-structured[demo]' installs it")
    from pyro_structured.demo import report  # only now, because it needs it

    settings = Settings()
    if options.steps is not None:
        limits = {
            name: min(options.steps, getattr(settings, name))
            for name in ("single_steps", "steps", "start_steps", "num_starts", "estimator_steps")
        }
        settings = replace(settings, **limits)
    torch.set_num_threads(1)  # the tensors are small: threads would mostly wait for each other
    pyro.enable_validation(True)
    start = time.perf_counter()
    if options.validate:
        report.validate(settings)
    elif options.splits is not None:
        report.compare_splits(range(1, options.splits + 1), settings)
    else:
        report.demonstrate(options.output, settings)
    print(f"Done in {time.perf_counter() - start:.0f} s.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyro_structured.demo",
        description="Learns images of handwritten digits, compares nine models, draws samples and completes images.",
    )
    parser.add_argument(
        "--output",
        type=_picture_path,
        default="digits.png",
        metavar="FILE",
        help="picture to write (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        metavar="N",
        help="at most N steps for every fit, from at most N starts: a quick look",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--splits", type=_positive, metavar="N", help="instead, compare the models on N other random splits"
    )
    mode.add_argument("--validate", action="store_true", help="instead, print the search that led to the settings")
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return number


def _picture_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected a file name that ends in {', '.join(FORMATS)}, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in an existing folder, but {str(path.parent)!r} is none")
    return path


if __name__ == "__main__":
    main()
