"""Draws the folders of `workflows` and `components` and how often each imports which: `make layers`.

A row imports a column. Rows stand above what they import, so each number is right of the dots; one that is left of them
is an import that points up.
"""

from __future__ import annotations

from collections import Counter

import grimp


def imports(package: str) -> dict[str, Counter[str]]:
    """How many imports the modules of each folder (or file) of a package make from each other one."""
    graph = grimp.build_graph(package, cache_dir=None)
    counts: dict[str, Counter[str]] = {child.split(".")[1]: Counter() for child in graph.find_children(package)}
    for module in graph.modules - {package}:
        for target in graph.find_modules_directly_imported_by(module) - {package}:
            source, dependency = module.split(".")[1], target.split(".")[1]
            if source != dependency:
                counts[source][dependency] += 1
    return counts


def ordered(counts: dict[str, Counter[str]]) -> list[str]:
    """Importers first. In a circle, whatever the fewest imports of the others are left to."""
    pending, order = set(counts), []
    while pending:
        order.append(min(pending, key=lambda layer: (sum(counts[importer][layer] for importer in pending), layer)))
        pending.remove(order[-1])
    return order


def drawing(package: str) -> str:
    """The table of a package."""
    counts = imports(package)
    order = ordered(counts)
    lines = [f"{package:18}" + "".join(f"{number:4}" for number in range(1, len(order) + 1))]
    for number, layer in enumerate(order, 1):
        cells = ["·" if layer == target else str(counts[layer][target] or "") for target in order]
        lines.append(f"{number:4} {layer:13}" + "".join(f"{cell:>4}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    print(drawing("workflows"), drawing("components"), sep="\n\n")
