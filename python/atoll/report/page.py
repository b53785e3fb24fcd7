# SPDX-License-Identifier: Apache-2.0
"""A page: one self-contained HTML file that opens anywhere."""

import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from atoll._build_info import VERSION
from atoll.report.inference_page import inference_sections, inference_verdict
from atoll.report.inferences import Inferences
from atoll.report.links import Measured
from atoll.report.parts import Sentence, seconds_text, section, sentences, table
from atoll.report.records import Record, RecordError, Training
from atoll.report.steps import summary
from atoll.report.training_page import attempts, how_it_ended, training_sections
from atoll.report.training_verdict import verdict

MAX_SESSIONS = 4


def page(title: str, body: str) -> str:
    """Returns a page with its own style and script, and nothing from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_text('page.css')}</style>\n</head>\n<body>\n{body}"
        f"<footer>Written by atoll {escape(VERSION)}.</footer>\n"
        f"<script>\n{_text('page.js')}</script>\n</body>\n</html>\n"
    )


def report(records: Sequence[Record], measured: Measured | None = None) -> tuple[str, list[Sentence]]:
    """Returns the page about these records, and its first sentences. Raises RecordError if all records are empty."""
    trainings = [Training.of(record) for record in records if record.kind == "training"]
    sessions = [Inferences.of(record) for record in records if record.kind == "inference"]
    sessions = sorted((session for session in sessions if session.number), key=lambda session: -session.number)
    body = ""
    said: list[Sentence] = []
    if any(training.windows for training in trainings):
        text, told = _training(trainings, measured)
        body, said = body + text, said + told
    for session in sessions[:MAX_SESSIONS]:
        text, told = _session(session)
        body, said = body + text, said + told
    if not body:
        raise RecordError(
            f"{records[0].path.parent} has records, but without steps or inferences yet: a training writes the "
            f"first one after an update interval (Settings(update_interval=50) steps)"
        )
    notes = [note for record in records for note in record.notes]
    if (more := len(sessions) - MAX_SESSIONS) > 0:
        notes.append(f"{more} more sessions have records here, with fewer inferences; give one file to see its session")
    return page("Atoll: report of a run", body + _notes(notes)), said


def _training(trainings: Sequence[Training], measured: Measured | None) -> tuple[str, list[Sentence]]:
    """Returns the page of the newest training with steps; the others are listed."""
    shown = newest(trainings)
    of = summary(shown)
    assert of is not None
    said = verdict(shown, of)
    if shown.record.end is None or shown.record.end.get("error"):
        said.append(Sentence(f"How the run ended: {how_it_ended(shown)}."))
    missing = [rank for rank in of.ranks if not any(window.compute_seconds[rank] > 0 for window in of.windows)]
    if missing:
        who = ", ".join(f"rank {rank}" for rank in missing)
        said.append(Sentence(f"There are no measurements of {who}: its times are shown as zero."))
    about = shown.record.about
    when = f"{_moment(shown.record.began)}, {seconds_text(max(0.0, shown.record.last_time - shown.record.began))}"
    where = f" on {about['host']}" if about.get("host") else ""
    policy = f", policy {about['policy']}" if about.get("policy") else ""
    head = f"<header><h1>Training</h1><p>{escape(f'{when}{where}{policy}')}</p></header>{sentences(said)}"
    rest = section("Records", attempts(trainings)) if len(trainings) > 1 else ""
    return head + "".join(training_sections(shown, of, measured)) + rest, said


def newest(trainings: Sequence[Training]) -> Training:
    """Returns the training with the most steps in the process that started last; its others are evaluations."""
    there = [training for training in trainings if summary(training) is not None]
    if not there:
        raise RecordError("no training has measured steps yet: wait for an update interval")
    last = max(there, key=lambda training: training.record.began).record.about
    same = [each for each in there if all(each.record.about.get(key) == last.get(key) for key in ("host", "pid"))]
    return max(same, key=lambda training: len(training.windows))


def _session(of: Inferences) -> tuple[str, list[Sentence]]:
    said = [*inference_verdict(of)]
    if of.record.end is None:
        said.append(Sentence("The record has no end: the process was killed, or still runs."))
    about = of.record.about
    server = of.state("server") or about.get("to")
    facts = [
        f"{_moment(of.record.began)}, {seconds_text(max(0.0, of.record.last_time - of.record.began))} on "
        f"{about.get('host', '?')}",
        f"policy {about.get('policy', '?')}",
        f"server {server}" if server else "without a server",
    ]
    head = f"<header><h1>Inference</h1><p>{escape(', '.join(facts))}</p></header>{sentences(said)}"
    return head + "".join(inference_sections(of)), said


def _notes(notes: Iterable[str]) -> str:
    rows = [[note] for note in notes]
    return section("About the records", table(["note"], rows, "Notes", numbers=False)) if rows else ""


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _text(name: str) -> str:
    return resources.files("atoll.report").joinpath(name).read_text(encoding="utf-8")
