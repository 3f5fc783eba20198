# SPDX-License-Identifier: Apache-2.0
"""The schema of the JSON that commands and experiments write."""

import json
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "results.schema.json").read_text())


def validate(document):
    """Raise jsonschema.ValidationError if the document is invalid."""
    jsonschema.validate(document, SCHEMA)
