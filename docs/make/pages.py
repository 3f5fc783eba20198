# SPDX-License-Identifier: Apache-2.0
"""Pages of the repository as pages of the site. A link out of docs/ leads to a page that shows the
file, or lists the folder. So links work in both places and name no host."""

import os
import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s#:]+)((?:#[^)\s]*)?)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NAMED_BY_FILE = re.compile(r"\[([\w-]+\.md)\]\((\1(?:#[^)\s]*)?)\)")
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".json": "json", ".toml": "toml"}
LONGEST = 60_000  # most characters of a file that a page shows


class Site:
    """The pages below `target`, and the files of the repository to which they link."""

    def __init__(self, root: Path, target: Path) -> None:
        self.root, self.target = root, target
        self._sources: set[Path] = set()

    def add(self, page: Path) -> None:
        """Add a written page."""
        parts = FENCED.split(page.read_text())
        for i in range(0, len(parts), 2):
            parts[i] = LINK.sub(lambda link: self._link(page, link), parts[i])
            parts[i] = NAMED_BY_FILE.sub(self._by_title, parts[i])
        (self.target / self._name(page)).write_text("".join(parts))

    def _by_title(self, link: "re.Match[str]") -> str:
        """Replace the file name of a page, used in the repository, by its title on the site."""
        file = self.root / "docs" / link[1]
        if not file.exists():
            return link[0]
        return f"[{file.read_text().split(chr(10), 1)[0].removeprefix('# ')}]({link[2]})"

    def _name(self, page: Path) -> str:
        return page.name.lower() if page.parent == self.root else page.name

    def _link(self, page: Path, link: "re.Match[str]") -> str:
        path = Path(os.path.normpath(page.parent / link[1]))
        if not path.exists() or path.suffix == ".png" or path.parent == self.root / "docs":
            return f"]({path.name}{link[2]})" if path.suffix == ".md" else link[0]
        if path.parent == self.root and path.suffix == ".md":
            name = "index.md" if path.name == "README.md" else self._name(path)
            return f"]({name}{link[2]})"
        self._sources.add(path)
        return f"]({self._shown(path)})"

    def _shown(self, path: Path) -> str:
        return f"source/{path.relative_to(self.root)}.md"

    def add_sources(self) -> None:
        """Add a page for each linked file and folder."""
        for path in sorted(self._sources):
            for file in (f for f in sorted(path.iterdir()) if f.is_file()) if path.is_dir() else ():
                self._show(file, _code(file))
            self._show(path, _listing(path) if path.is_dir() else _code(path))

    def _show(self, path: Path, text: str) -> None:
        page = self.target / self._shown(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        title = path.relative_to(self.root)
        page.write_text(f"---\norphan: true\nnosearch: true\n---\n# {title}\n\n{text}")


def _code(path: Path) -> str:
    """Return the contents of a file as a code block."""
    text = path.read_text(errors="replace")
    if len(text) > LONGEST:
        return f"{len(text)} characters: see the repository.\n"
    return f"``````{LANGUAGES.get(path.suffix, 'none')}\n{text}\n``````\n"


def _listing(folder: Path) -> str:
    """Return the listing of a folder."""
    entries = [entry for entry in sorted(folder.iterdir()) if entry.name != "__pycache__"]
    names = (
        f"[{e.name}]({folder.name}/{e.name}.md)" if e.is_file() else f"{e.name}/" for e in entries
    )
    return "".join(f"- {name}\n" for name in names)
