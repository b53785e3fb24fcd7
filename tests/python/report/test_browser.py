# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser: with the widths of a phone and a desktop, light and dark."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll
from atoll.doctor import heat_map
from atoll.report.page import report
from atoll.report.records import read
from browser import Browser, program
from guides import shell, steps_of
from made_records import inferences, training
from serving import Serve

READY_S = 90

pytestmark = pytest.mark.verify
MADE = ("training", "inference")
RECORDED = ("recorded training", "recorded inference")
PAGES = (*MADE, *RECORDED, "doctor")
# The lowest contrast of any text with its background, as WCAG 2 defines it.
CONTRAST = """(() => {
  const channel = (value) => { value /= 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const bytes = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (colour) => { const [r, g, b] = bytes(colour);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  let worst = [21, ""];
  for (const element of document.querySelectorAll("p, li, h1, h2, h3, td, th, summary, caption, span, b")) {
    if (!element.textContent.trim() || !element.offsetParent) continue;
    let behind = element;
    while (behind && bytes(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const paper = getComputedStyle(behind || document.body).backgroundColor;
    const pair = [getComputedStyle(element).color, paper].map(light);
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 200)];
  }
  return worst;
})()"""
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((element) => !element.closest(".table, svg, details")
  && element.getBoundingClientRect().right > WIDTH + 1).map((element) => element.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    training(folder / "training", count=400)
    inferences(folder / "inference", [0.04 + 0.0005 * (place % 37) if place % 50 else 0.15 for place in range(600)])
    record_training(folder / RECORDED[0])
    record_inferences(folder / RECORDED[1], folder)
    pairs = [{"a": a, "b": b, "link": "tcp 10.0.0.1:4000 -> 10.0.0.2:4001", "reason": "different hosts", "latency_us":
              20.0 + 9 * a * b, "a_to_b": 9.0 / (1 + a), "b_to_a": 8.0 / (1 + b), "bytes": 1 << 20}
             for a in range(8) for b in range(a + 1, 8)]  # fmt: skip
    ranks = [{"rank": rank, "host": "left", "device": "cpu", "device_name": "AMD EPYC"} for rank in range(8)]
    finding = {"level": "warning", "what": "pair 0-1 uses tcp, not UCX", "fix": "see ucx_info -d"}
    document = {"ranks": ranks, "links": pairs, "findings": [finding], "problems": 0, "warnings": 1,
                "verdict": "Atoll: doctor found no problem, 1 warning"}  # fmt: skip
    texts = {name: report(read(folder / name))[0] for name in (*MADE, *RECORDED)} | {"doctor": heat_map.html(document)}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


def record_training(folder: Path) -> None:
    """Records the training of the guide, on two islands of one rank."""
    (script,) = (step.text for step in steps_of("get-started.md") if (step.kind, step.what) == ("file", "train.py"))
    folder.mkdir()
    status, said = shell(
        "atoll run --island fast:1,device=cpu --island slow:1,device=cpu train.py", script_in(folder, script),
        {**os.environ, "ATOLL_RUN_DIR": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert status == 0, said


def script_in(folder: Path, script: str) -> Path:
    beside = folder.with_name("scripts")
    beside.mkdir()
    (beside / "train.py").write_text(script)
    return beside


def record_inferences(folder: Path, keys: Path) -> None:
    """Records inferences of a network that two processes share."""
    layers = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 4, 3, 1, 1)]
    net, image = nn.Sequential(*layers).eval(), torch.randn(1, 3, 64, 64)
    options = {"policy": "random", "seed": 1, "hedge": "never", "profile_seconds": 0.02, "record": folder}
    with Serve(keys) as server:
        with atoll.infer.Session(net, image, server.address, server.key_file, **options) as session:
            assert session.wait_until_ready(READY_S), session.report()
            for _ in range(300):
                session(image)
        assert server.stop() == 0, server.output


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if program() is None:
        pytest.fail("no browser here: scripts/setup.py --packages verify installs chromium where you are root")
    with Browser() as opened:
        yield opened


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable(browser: Browser, pages: dict[str, Path], name: str, width: int, is_dark: bool) -> None:
    browser.open(pages[name], width, is_dark)
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder) / f"{name}-{width}-{'dark' if is_dark else 'light'}.png")
    assert browser.problems() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(TOO_WIDE.replace("WIDTH", str(width))) == []
    ratio, where = browser.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background != "rgb(255, 255, 255)") == is_dark
    smallest = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('p, li, td, th, span, summary')]"
        ".filter((each) => each.textContent.trim()).map((each) => parseFloat(getComputedStyle(each).fontSize)))"
    )
    assert smallest >= 12


def test_charts_show_their_numbers(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["training"], 1280)
    told = "document.querySelectorAll('figure.chart output')[4].textContent"
    picture = "document.querySelectorAll('figure.chart svg[role]')[4]"
    box = browser.evaluate(
        f"(() => {{ {picture}.scrollIntoView(); const b = {picture}.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    assert browser.evaluate(told) == ""
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    assert "measured " in browser.evaluate(told)
    middle = browser.evaluate(told)
    browser.evaluate(f"{picture}.focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert browser.evaluate(told) not in ("", middle)
    assert browser.problems() == []


def test_the_test_sees_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><body style='background:white'><p style='width:900px;color:#bbb'>text</p>"
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('bad'); nothing();</script>"
    )
    browser.open(path, 360)
    kinds = {problem.partition(":")[0] for problem in browser.problems()}
    assert {"console", "exception", "request"} <= kinds
    assert browser.evaluate("document.documentElement.scrollWidth") > 360
    assert browser.evaluate(TOO_WIDE.replace("WIDTH", "360")) != []
    assert browser.evaluate(CONTRAST)[0] < 4.5
