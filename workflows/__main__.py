"""The command line: `python -m workflows COMMAND ...`."""

# ruff: noqa: E402  (what is imported below may not be ours: that is looked at first)
import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def shadowed() -> str | None:
    """What keeps this from working: not the repository's root, or another distribution's package of a name of ours."""
    if Path.cwd() != ROOT:
        return f"run this from the repository's root: cd {ROOT} && python -m workflows ..."
    for name in ("workflows", "components"):
        spec = find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if found != ROOT / name / "__init__.py":
            where = f"is found in {found.parent}" if found else "is not found"
            return f"{name!r} {where}, and ours is in {ROOT}; run it as `python -m workflows`, without PYTHONPATH"
    return None


if __name__ == "__main__" and (reason := shadowed()):
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)

from components.config import UserError
from workflows import commands
from workflows.store import StepFailed


def main(words: list[str] | None = None) -> int:
    """Run one command; 0 for done, 2 for a user's mistake, 1 for a failure."""
    arguments = parser().parse_args(words)
    try:
        arguments.call(arguments)
        sys.stdout.flush()
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except StepFailed as error:
        print(f"failed: {error}\nWhat was finished stays finished; the same command goes on.", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted; what was finished stays finished, and the same command goes on"
        print(f"\n{said}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        commands.leave()


def parser() -> argparse.ArgumentParser:
    """Every command with its options; `--help` teaches."""
    top = argparse.ArgumentParser(
        prog="python -m workflows",
        description="Train dense retrievers and rankers against each other on Ray.",
        epilog="Begin with: python -m workflows plan configs/demo.yaml",
    )
    top.add_argument(
        "--store",
        metavar="PLACE",
        help="where artifacts lie: a directory, or s3://BUCKET/PREFIX (default: $SPARRING_STORE or store)",
    )
    top.add_argument("--runs", type=Path, default=Path("runs"), help="where each run's links and report lie")
    found = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, call: object, help: str, *, config: bool = True) -> argparse.ArgumentParser:
        sub = found.add_parser(name, help=help, description=help)
        sub.set_defaults(call=call)
        if config:
            sub.add_argument("config", type=Path, metavar="CONFIG", help="an experiment, such as configs/demo.yaml")
            sub.add_argument(
                "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments",
                help="change a number: rounds=3, retriever.game.train.steps=200 (part of the identity)",
            )  # fmt: skip
        return sub

    def on_cluster(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--cluster", type=Path, default=ROOT / "cluster" / "laptop.yaml", metavar="FILE",
            help="what to run on; never changes a result (default: cluster/laptop.yaml)",
        )  # fmt: skip

    sub = command("plan", commands.plan, "print every step with its state and place; runs nothing")
    sub.add_argument(
        "--cluster", type=Path, metavar="FILE", help="see as well whether what this profile speaks of can run it"
    )
    sub = command("run", commands.run, "run what is not done; the same command again goes on where it was")
    on_cluster(sub)
    sub.add_argument("--until", metavar="LABEL", help="stop when the step with this label is done")
    sub = command("submit", commands.submit, "run it on a Ray cluster, as one job, following its log")
    on_cluster(sub)
    sub.add_argument("--address", required=True, metavar="URL", help="the job server, such as http://127.0.0.1:8265")
    sub.add_argument("--no-wait", action="store_true", help="do not follow the log")
    sub.add_argument("--tune", action="store_true", help="tune it there, as the command `tune` does here")
    sub.add_argument(
        "--install", action="store_true",
        help="install the lock for this job on every node (minutes); for nodes that were not made from it",
    )  # fmt: skip
    sub = command("tune", commands.tune, "look for better numbers: many trials of the recipe, by Ray Tune")
    on_cluster(sub)
    sub = command("show", commands.show, "print the measures, the record of one step, or how far a run is")
    sub.add_argument("label", nargs="?", metavar="LABEL", help="a step's label as `plan` prints it")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("--watch", action="store_true", help="follow a run that another shell has begun, to its end")
    command("report", commands.report, "write the report: one HTML file that needs no network")
    sub = command("search", commands.search, "what the trained models find for a query, with text and scores")
    on_cluster(sub)
    sub.add_argument("query", metavar="QUERY")
    sub.add_argument("-k", type=int, default=5, help="documents to show (default: 5)")
    sub.add_argument("--rank", action="store_true", help="let the ranker order what the retriever finds")
    sub = command("export", commands.export, "copy models, rankings and qrels out in the formats other tools load")
    sub.add_argument("directory", type=Path, metavar="DIRECTORY")
    sub = command("clean", commands.clean, "drop superseded vectors, indexes and optimizer states; results stay")
    sub.add_argument("--dry-run", action="store_true", help="say what would be dropped")
    sub = command("evaluate", commands.evaluate, "measures of any TREC run file", config=False)
    sub.add_argument("ranking", type=Path, metavar="RANKING", help="a TREC run file")
    sub.add_argument("qrels", type=Path, metavar="QRELS", help="a TREC or BEIR qrels file")
    sub.add_argument("--measures", nargs="+", default=["RR@10", "nDCG@10", "R@100"], metavar="MEASURE")
    command("doctor", commands.doctor, "check Java, Ray, accelerators, FAISS and disk", config=False)
    return top


if __name__ == "__main__":
    sys.exit(main())
