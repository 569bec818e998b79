"""Run one command on several experiments, one after another: configs, and folders of them."""

import argparse
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.systems.config import SYSTEM
from sparring.workflows.commands.shared_arguments import add_assignments
from sparring.workflows.experiments.loading import is_run
from sparring.workflows.experiments.scale import NoSmallScale
from sparring.workflows.program import located
from sparring.workflows.quantities import duration
from sparring.workflows.store.dag import StepFailed


def add_configs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name experiments."""
    parser.add_argument(
        "configs",
        type=Path,
        nargs="+",
        metavar="CONFIG",
        help="one or more experiments, such as configs/demo.yaml; a folder stands for all configs in it",
    )
    add_assignments(parser)


def named(arguments: argparse.Namespace) -> list[Path]:
    """Return the config files that the arguments name. A folder's are in natural order: Table 2 before Table 10.
    UserError if a folder has none."""
    files: dict[Path, None] = {}
    for path in arguments.configs:
        place = located(path)
        is_batch = place.is_dir() and not is_run(place) and not (place / SYSTEM).is_file()
        inside = sorted(place.rglob("*.yaml"), key=_natural) if is_batch else [path]
        if not inside:
            raise UserError(f"{path}: a folder without configs; accepted: a config, or a folder that has some")
        files |= dict.fromkeys(inside)
    return list(files)


def one_by_one(arguments: argparse.Namespace, call: Callable[[argparse.Namespace], None]) -> None:
    """Call a command with each experiment as `arguments.config`.

    If there is more than one, go on after a failure, and print at the end how each ended. Then raise StepFailed or
    UserError if any failed.
    """
    paths = named(arguments)
    if len(paths) == 1:
        arguments.config = paths[0]
        call(arguments)
        return
    ends = Ends()
    for number, path in enumerate(paths, 1):
        print(f"\n==== {number} of {len(paths)}: {path}\n", flush=True)
        arguments.config = path
        with ends.of(path):
            call(arguments)
    print(f"\n{ends.text()}")
    ends.check()


@dataclass
class Ends:
    """Outcomes of experiments that run one after another."""

    lines: list[str] = field(default_factory=list)
    failed: int = 0
    mistaken: int = 0

    @contextmanager
    def of(self, path: Path) -> Iterator[None]:
        """Record how an experiment ends."""
        began = time.monotonic()
        try:
            yield
        except NoSmallScale as error:
            self.lines.append(f"left out      {path}: {error.reason}")
            print(self.lines[-1])
        except (StepFailed, UserError, OSError) as error:
            self.mistaken += isinstance(error, UserError)
            self.failed += not isinstance(error, UserError)
            self.lines.append(f"failed        {path}: {error}")
            print(self.lines[-1])
        else:
            self.lines.append(f"done {duration(time.monotonic() - began):>12} {path}")

    def text(self) -> str:
        """Return one line per experiment."""
        return "\n".join(self.lines)

    def check(self) -> None:
        """Raise StepFailed or UserError if an experiment failed."""
        message = f"{self.failed + self.mistaken} of {len(self.lines)} experiments, above"
        if self.failed:
            raise StepFailed(message)
        if self.mistaken:
            raise UserError(message)


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.as_posix())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
