"""The site as it is seen in a window of 1,300 pixels: nothing is cut off, and the picture needs no scrolling."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

LOOK = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll(".beside > *")].map(each => each.getBoundingClientRect());
  const cut = [...document.querySelectorAll(".beside code")].filter(each => each.scrollWidth > each.clientWidth + 1);
  const picture = document.querySelector("article img");
  document.body.setAttribute("data-seen", JSON.stringify({
    cut: cut.length, columns: wide.map(each => [each.left, each.right, each.top]),
    picture: picture && [picture.naturalWidth, picture.getBoundingClientRect().bottom],
  }));
})</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    browser()
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", out], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def browser() -> str:
    """The program that draws pages; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium here")
    return program


def seen(page: Path, profile: Path) -> dict[str, Any]:
    """What a page looks like in a window of 1,300 x 900 pixels."""
    program = browser()
    copy = page.with_name(f"seen-{page.name}")
    copy.write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1300,900"]
    done = subprocess.run(
        [program, *words, "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()], capture_output=True, text=True
    )
    copy.unlink()
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stderr
    return dict(json.loads(html.unescape(found[1])))


@pytest.mark.deployment
def test_the_first_page_shows_its_picture_without_scrolling(site: Path, tmp_path: Path) -> None:
    width, bottom = seen(site / "index.html", tmp_path)["picture"]
    assert width > 0  # it was there to be drawn
    assert bottom < 700


@pytest.mark.deployment
def test_paper_and_code_are_side_by_side_and_neither_is_cut_off(site: Path, tmp_path: Path) -> None:
    pages = [page for page in sorted((site / "methods").glob("*.html")) if 'class="beside"' in page.read_text()]
    assert len(pages) > 50
    for page in pages:
        look = seen(page, tmp_path)
        (left, middle, top), (start, right, level) = look["columns"][:2]
        assert look["cut"] == 0, page.name
        assert 0 <= left < middle <= start < right <= 1300, page.name
        assert top == level, page.name
        assert min(middle - left, right - start) > 200, page.name
