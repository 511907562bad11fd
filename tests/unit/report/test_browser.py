"""Reports as a reader meets them: opened in Chromium at the width of a desktop and of a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser

from .cases import CASES, page

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

FIGURES = {"placement", "breakdown", "memory", "timeline", "links", "convergence", "configurations"}
SHOWN = {
    "two stages": FIGURES,
    "hostile names": FIGURES,
    "one GPU": FIGURES - {"links"},
    "infeasible": {"configurations"},
}
IMAGES = """
return [...document.querySelectorAll("figure img")].map(image => {
  const box = image.getBoundingClientRect();
  return {name: image.closest("figure").id, left: box.left, right: box.right, width: box.width,
          height: box.height, decoded: image.complete && image.naturalWidth > 0, alt: image.alt,
          drawn_width: Number(image.getAttribute("width") || 0)};
})
"""
TEXTS = """
return ["h1", "#verdict", ".facts", "#plan dl", "#why ul", "#bounds", "#provenance dl"].map(selector => {
  const element = document.querySelector(selector);
  if (!element) return {selector, found: false};
  const box = element.getBoundingClientRect();
  return {selector, found: true, left: box.left, right: box.right, width: box.width, height: box.height};
})
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the report of a case."""
    folder = tmp_path_factory.mktemp("reports")

    def write(case: str) -> Path:
        path = folder / f"{case.replace(' ', '_')}.html"
        path.write_text(page(case), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("case", CASES)
def test_everything_is_visible_and_nothing_leaves_the_file(
    chromium: Browser, file_of: Callable[[str], Path], case: str, width: int
) -> None:
    path = file_of(case)
    chromium.open(path, width)
    assert chromium.console() == []
    assert chromium.requests() == [path.as_uri()]
    assert chromium.ask("return window.innerWidth") == width
    assert chromium.ask("return document.documentElement.scrollWidth") <= width
    images = {image["name"].removeprefix("figure-"): image for image in chromium.ask(IMAGES)}
    assert set(images) == SHOWN[case]
    for name, image in images.items():
        assert image["decoded"], name
        assert image["alt"], name
        assert 0 <= image["left"] < image["right"] <= width, name
        assert image["width"] >= 300, name
        assert image["height"] >= 60, name
        # never smaller than drawn by more than a few per cent: the text in it would be too small
        assert image["width"] >= 0.95 * image["drawn_width"], name
    with_plan = case != "infeasible"
    for text in chromium.ask(TEXTS):
        if not with_plan and text["selector"].startswith(("#plan", "#why")):
            assert not text["found"]
            continue
        assert text["found"], text
        assert 0 <= text["left"] < text["right"] <= width, text
        assert text["height"] > 15, text


def test_names_stay_text(chromium: Browser, file_of: Callable[[str], Path]) -> None:
    chromium.open(file_of("hostile names"), 1280)
    assert chromium.ask("return document.querySelectorAll('script, iframe, object, embed, base').length") == 0
    assert chromium.ask("return document.querySelectorAll('img[src=x]').length") == 0
    assert chromium.ask("return document.title").startswith("<script>")
    assert chromium.ask("return window.hacked === undefined")
    assert "<b>bold</b>" in chromium.ask("return document.body.textContent")


def test_the_dark_scheme_is_followed(chromium: Browser, file_of: Callable[[str], Path]) -> None:
    colors = []
    for dark in (False, True):
        chromium.open(file_of("two stages"), 1280, dark=dark)
        colors.append(chromium.ask("return getComputedStyle(document.body).backgroundColor"))
    assert colors == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]


def test_the_checks_see_what_they_look_for(chromium: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><img src='http://127.0.0.1:9/x.png'><script>console.error('said')</script>"
        "<div style='width:900px'>wide</div>",
        encoding="utf-8",
    )
    chromium.open(bad, 400)
    assert any("said" in message for message in chromium.console())
    assert "http://127.0.0.1:9/x.png" in chromium.requests()
    assert chromium.ask("return document.documentElement.scrollWidth") > 400
