# SPDX-License-Identifier: Apache-2.0
"""Build the pages of the site: python docs/make FOLDER

Written pages are in docs/, where they can be read in the repository as well. Pages generated from
the sources (reference of Python and C, messages, results) are made here.
"""

import shutil
import sys
from pathlib import Path

import header
import messages
import pages
import python_reference
import results

ROOT = Path(__file__).resolve().parents[2]
MADE = {
    "c-reference.md": header.page,
    "all-messages.md": messages.page,
    "benchmarks.md": results.page,
}


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copytree(ROOT / "docs/img", target / "img")
    site = pages.Site(ROOT, target)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        site.add(ROOT / name)
    for page in sorted((ROOT / "docs").glob("*.md")):
        site.add(page)
    for name, page in MADE.items():
        (target / name).write_text(page(ROOT))
    for name, module in python_reference.MODULES.items():
        (target / name).write_text(python_reference.page(module))
    site.add_sources()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
