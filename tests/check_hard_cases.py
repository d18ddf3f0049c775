"""Fails if tests/HARD-CASES.md names a test that does not exist, has an empty row or a case twice."""
import pathlib
import re
import sys

tests = pathlib.Path(__file__).parent
known = set()
for path in tests.glob("*_test.cc"):
    for suite, name in re.findall(r"^(?:TYPED_)?TEST(?:_[PF])?\(\s*(\w+),\s*(\w+)", path.read_text(), re.M):
        known.add(f"{suite}.{name}")
for path in (tests / "e2e").glob("*_test.py"):
    for name in re.findall(r"def (test_\w+)", path.read_text()):
        known.add(f"{path.stem}.{name}")

bad, seen, held = [], set(), 0
for line in (tests / "HARD-CASES.md").read_text().splitlines():
    row = re.match(r"\| ([A-T]\d\d) \| (.*?) \| (.*?) ?\|$", line)
    if not row:
        continue
    case, by, note = row.groups()
    if case in seen:
        bad.append(f"{case} stands twice")
    seen.add(case)
    if by == "open":
        if not note:
            bad.append(f"{case} is open without a reason")
        continue
    held += 1
    for name in re.findall(r"\b\w+\.\w+\b", by + " " + note) or [f"(nothing for {case})"]:
        if name not in known:
            bad.append(f"{case}: no test {name}")
if len(seen) != 126:
    bad.append(f"{len(seen)} cases, 126 expected")
print("\n".join(bad) or f"{held} cases held, {len(seen) - held} open")
sys.exit(bool(bad))
