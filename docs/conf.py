# SPDX-License-Identifier: Apache-2.0
"""How the site is made of the pages that docs/make has put together: `make docs`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs/make"))

project = "partialcoll"
author = "The partialcoll developers"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
smartquotes = False  # options of commands begin with two dashes

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = (
    "none"  # the signature stands in the text of the docstring, with shapes and units
)
python_display_short_literal_types = True
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in docstrings are words
suppress_warnings = ["ref.python"]  # names that partialcoll and partialcoll.torch share

html_theme = "furo"
html_title = "partialcoll"
html_copy_source = False
html_show_sphinx = False
html_domain_indices = False  # of modules: the pages of the reference are in the menu
html_static_path = ["make/site.css"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "native"
highlight_language = "none"


def prose_first(app, what, name, thing, options, lines):
    """What a docstring says after its parameters comes before them: for Napoleon a section ends
    with the docstring, and prose in it is a parameter."""
    text = "\n".join(lines)
    head, *sections = re.split(r"^(?=\w[\w ]*\n-{3,}$)", text, flags=re.MULTILINE)
    prose = []
    for i, section in enumerate(sections):
        first, *others = section.rstrip().split("\n\n")
        is_prose = [not re.search(r"^ |::$", other, re.MULTILINE) for other in others]
        prose += [other for other, moved in zip(others, is_prose) if moved]
        kept = [other for other, moved in zip(others, is_prose) if not moved]
        sections[i] = "\n\n".join([first, *kept]) + "\n\n"
    lines[:] = "\n\n".join([head.rstrip(), *prose, "".join(sections)]).split("\n")


# For Napoleon what stands before a colon in the first line of a property is its type, and ours are
# sentences: they are kept from it.
_sentences = {}


def keep_sentences(app, what, name, thing, options, lines):
    if what in ("property", "attribute", "data"):
        _sentences[name] = list(lines)


def restore_sentences(app, what, name, thing, options, lines):
    if name in _sentences:
        lines[:] = _sentences.pop(name)


def write_llms_txt(app, exception):
    """Write docs/llms.txt beside the pages, with links to these."""
    text = (ROOT / "docs/llms.txt").read_text()
    (Path(app.outdir) / "llms.txt").write_text(text.replace(".md)", ".html)"))


def setup(app):
    app.connect("autodoc-process-docstring", prose_first, priority=400)
    app.connect("autodoc-process-docstring", keep_sentences, priority=450)  # Napoleon has 500
    app.connect("autodoc-process-docstring", restore_sentences, priority=550)
    app.connect("build-finished", write_llms_txt)
