"""Faults of XGrammar 0.2.8 that would let text end which is no JSON, put right in its source.

    deploy/xgrammar-fixes.py FOLDER

Each fix replaces text that must be there, once for each count; anything else is an error. Held by
tests/grammar_json_test.cc.
"""
import pathlib
import sys

FIXES = [
    # A string with minLength or maxLength let control characters through.
    ("cpp/json_schema_converter.cc",
     r"""{{'"', '"'}, {'\\', '\\'}, {'\r', '\r'}, {'\n', '\n'}}, true);""",
     r"""{{'"', '"'}, {'\\', '\\'}, {0, 0x1f}}, true);""", 1),
    # A pattern that its automaton can't hold within a JSON string fell back on rules that put quotes,
    # backslashes and control characters into the string as they are.
    ("cpp/json_schema_converter.cc",
     """  // Keep regex conversion independent. Only the uncommon""",
     """  XGRAMMAR_CHECK(!json_string)
      << "pattern " << regex << " is not supported within a JSON string: it needs a character that "
      << "must be escaped, or has one beyond ASCII (write it as \\\\uXXXX), or an unknown construct";
  // Keep regex conversion independent. Only the uncommon""", 1),
]

root = pathlib.Path(sys.argv[1])
for name, old, new, count in FIXES:
    path = root / name
    text = path.read_text()
    if text.count(old) != count:
        sys.exit(f"{path}: {text.count(old)} places instead of {count} for: {old}")
    path.write_text(text.replace(old, new))
