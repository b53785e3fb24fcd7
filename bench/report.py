# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of docs/results from the JSON files there; nothing on them is typed by hand.

bench/report.py [--output FOLDER]"""

import argparse
import json
from pathlib import Path
from typing import Any

import papers_page
from aims_table import summary
from result_files import Part, parts_of
from results import RESULTS, ROOT
from scenarios import SCENARIOS

# Pages that long tests write.
TESTED = {
    "chaos": ("Faults at random", "make soak"),
    "soak": ("Very many operations", "make soak"),
    "new_user": ("As a new user", "scripts/trial.py"),
    "versions": ("With each release of PyTorch", "make matrix"),
    "gpu_rehearsal": ("A rehearsal of `make gpu`", "scripts/gpu.py --rehearsal"),
}


def preamble(name: str, document: dict[str, Any]) -> str:
    """Returns how the figures of the page of this name came about, and where they are."""
    file = f"[{name}.json]({name}.json)"
    kept = ""
    if samples := document.get("samples"):
        kept = (
            f"what this page shows is in {file}, and everything in `{samples['file']}`, which the command writes "
            f"(SHA-256 of the file that this page was made from: `{samples['sha256']}`)"
        )
    if "simulated" in document:
        return (
            f"Simulated on {document['simulated']}, at commit {document['commit']}: nothing here was timed. "
            f"Reproduce with `{document['command']}`; {kept or f'all figures are in {file}'}.\n"
        )
    machine = document["machine"]
    text = (
        f"Measured {document['measured']} on {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} "
        f"GiB, Linux {machine['kernel']}, torch {document['torch']}, at commit {document['commit']}. Others used "
        f"{document['others_cores_during']:.2f} cores meanwhile. Reproduce with `{document['command']}`; "
        f"{kept or f'all samples are in {file}'}.\n"
    )
    if document["busy"]:
        text += "\n!!! warning\n    The machine was busy: these times are not to be quoted.\n"
    if document["quick"]:
        text += "\n!!! warning\n    A quick run at tiny sizes: it shows that everything works, and measures nothing.\n"
    return text


def page(name: str, part: Part, document: dict[str, Any]) -> str:
    return f"# {capital(part.title)}\n\n{preamble(name, document)}\n{part.report(document)}"


def capital(title: str) -> str:
    return title[0].upper() + title[1:]


def generate(folder: Path) -> None:
    """Writes one page per JSON file, and index.md."""
    folder.mkdir(parents=True, exist_ok=True)
    index = (
        "# Measured\n\nEvery page says on what machine, when, and with which command; `make bench` measures all.\n\n"
    )
    parts = [(scenario, *each) for scenario, module in SCENARIOS.items() for each in parts_of(scenario, module).items()]
    for scenario, name, part in parts:
        path = folder / f"{name}.json"
        if path.exists():
            (folder / f"{name}.md").write_text(page(name, part, json.loads(path.read_text())))
            index += f"- [{capital(part.title)}]({name}.md)\n"
        else:
            index += f"- {capital(part.title)}: not measured yet (`bench/run.py {scenario}`)\n"
    for name, (title, command) in TESTED.items():
        if (folder / f"{name}.md").exists():
            index += f"- [{title}]({name}.md), by `{command}`\n"
    if folder == RESULTS:
        papers_page.write()
        index += "\nBeside the papers' own numbers: [the five papers, figure by figure](papers.md).\n"
    notes = folder / "missed.md"
    index += f"\n## Aims\n\n{summary(folder)}"
    index += "\nWhat bounds the missed ones: [missed](missed.md).\n" if notes.exists() else ""
    (folder / "index.md").write_text(index)
    if folder == RESULTS:
        fill_readme(summary(folder, headlines=True))


def fill_readme(text: str) -> None:
    """Writes the table between two marks of the README."""
    path = ROOT / "README.md"
    begin, end = "<!-- measured -->\n", "<!-- /measured -->"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}{text}{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON files and pages")
    generate(parser.parse_args().output)
