"""What mkdocs is to do besides: macros, the pages of methods, and what pages link to outside docs/.

- Macros are expanded (docs/macros.py).
- The README is the first page, and the other files of PAGES are pages too. Any other file of the repository that a page
  links to becomes a page with its source. Links lead to these pages.
- The pages of methods stand in the navigation by kind and name, and have the width of the page.
- What was built is looked through: every link leads somewhere, and nothing is fetched from elsewhere.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.append(str(Path(__file__).resolve().parent))
import code_names
import macros
import method_pages

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = {  # in the repository -> in the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".jsonl": "json", ".h": "c", ".c": "c"}
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```)", re.M | re.S)
LONGEST = 20_000  # characters of a source that is shown


def on_config(config: Any) -> Any:
    try:
        every = method_pages.pages()
    except code_names.Wrong as error:
        raise PluginError(str(error)) from None
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    methods = next(entry["Methods"] for entry in reference if "Methods" in entry)
    for kind, title in zip(code_names.KINDS, ("Federated methods", "Links", "Data-parallel methods"), strict=True):
        if shown := [{each.name: f"methods/{each.link}"} for each in every if each.kind == kind]:
            methods.append({title: shown})
    return config


def on_files(files: Any, config: Any) -> Any:
    for source, path in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text()))
    if files.get_file_from_path("decisions/index.md") is None:
        files.append(File.generated(config, "decisions/index.md", content=_decisions()))
    pages = [(file.src_uri, file.content_string) for file in files if file.src_uri.endswith(".md")]
    for path, text in pages:
        for target in sorted({found for found in map(_outside(path), _links(text)) if found}):
            if files.get_file_from_path(f"source/{target}.md") is None:
                files.append(File.generated(config, f"source/{target}.md", content=_shown(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    path = page.file.src_uri
    try:
        text = macros.expand(markdown, f"docs/{path}")
    except code_names.Wrong as error:
        raise PluginError(str(error)) from None
    if path.startswith("source/"):
        return text
    if 'class="beside"' in text:
        page.meta["hide"] = ["toc"]  # paper and code need the width of the page (css/beside.css)
    parts = CODE.split(text)
    return "".join(part if i % 2 else LINK.sub(_moved(path), part) for i, part in enumerate(parts))


# -- links out of docs/ ---------------------------------------------------------------------------------------------


def _links(text: str) -> list[str]:
    return [found[2] for part in CODE.split(text)[::2] for found in LINK.finditer(part)]


def _target(path: str, link: str) -> tuple[str, str] | None:
    """A relative link of a page -> what it means in the repository, and its anchor."""
    address, _, anchor = link.partition("#")
    if not address or "://" in link or link.startswith(("mailto:", "/")):
        return None
    sources = {page: source for source, page in PAGES.items()}
    here = posixpath.dirname(sources.get(path, f"docs/{path}"))
    where = posixpath.normpath(posixpath.join(here, address))
    readme = f"{where}/README.md"
    return readme if (ROOT / readme).is_file() else where, anchor


def _outside(path: str) -> Any:
    """A link -> the file of the repository that it means, if it lies outside of docs/ and is no page."""

    def found(link: str) -> str | None:
        target = _target(path, link)
        if target is None or target[0] in PAGES or target[0].startswith("docs/") or not (ROOT / target[0]).is_file():
            return None
        return target[0]

    return found


def _moved(path: str) -> Any:
    """The same link within the site. What is not there is left as it is, and mkdocs says so."""

    def made(found: re.Match[str]) -> str:
        label = found[1][:-1] if found[1].startswith("!") else f"[{LINK.sub(made, found[1][1:-1])}"  # a picture in it
        target = _target(path, found[2])
        if target is None:
            return f"{label}]({found[2]})"
        where, anchor = target
        if where in PAGES:
            where = PAGES[where]
        elif where.startswith("docs/"):
            where = where.removeprefix("docs/")
            where += "/index.md" if (ROOT / "docs" / where).is_dir() else ""
        elif (ROOT / where).is_file():
            where = f"source/{where}.md"
        else:
            return f"{label}]({found[2]})"
        there = posixpath.relpath(where, posixpath.dirname(path) or ".")
        return f"{label}]({there}{'#' * bool(anchor)}{anchor})"

    return made


def _decisions() -> str:
    """What was decided, by number."""
    heads = {path.name: path.read_text().partition("\n")[0].removeprefix("# ") for path in DECISIONS.glob("*.md")}
    rows = "".join(f"- [{head}]({name})\n" for name, head in sorted(heads.items()))
    return f"# Decisions\n\nWhat was decided, what else was possible, and why not that.\n\n{rows}"


def _shown(path: str) -> str:
    """A page with a file of the repository."""
    text = (ROOT / path).read_text()
    if path.endswith(".ipynb"):
        return _notebook(text)
    cut = "" if len(text) <= LONGEST else f"\n\nThe first {LONGEST:,} characters of {len(text):,}.\n"
    if path.endswith(".md"):
        return text
    fence = "````"
    return f"# {path}\n{cut}\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text[:LONGEST].rstrip()}\n{fence}\n"


def _notebook(text: str) -> str:
    """The cells of a notebook, without the badge, which would be fetched from elsewhere."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    shown = [f"```python\n{said}\n```" if kind == "code" else said for kind, said in cells]
    return re.sub(r"(?m)^\[!\[Open in Colab\].*\n", "", "\n\n".join(shown)) + "\n"


# -- what was built -------------------------------------------------------------------------------------------------


class Read(HTMLParser):
    """The links of a page, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "modulepreload"):
            self.loads.append(given["href"])
        elif tag in ("script", "img", "iframe", "video", "source") and "src" in given:
            self.loads.append(given["src"])


def on_post_build(config: Any) -> None:
    wrong = check(Path(config.site_dir))
    if wrong:
        raise PluginError("\n".join(wrong))


def check(site: Path) -> list[str]:
    """Internal links that lead nowhere, and what would be fetched from elsewhere."""
    read = {path: Read(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    wrong = []
    for path, page in read.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loads and parts.scheme != "data":
                    wrong.append(f"{path.relative_to(site)}: it would fetch {link}")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                wrong.append(f"{path.relative_to(site)}: {link} leads nowhere")
            elif parts.fragment and there in read and unquote(parts.fragment) not in read[there].anchors:
                wrong.append(f"{path.relative_to(site)}: {link}: there is no such anchor")
    return sorted(set(wrong))
