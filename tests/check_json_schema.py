"""Judges texts by Python's json and jsonschema. Lines of stdin: {"schema": text, "text": text}."""
import json
import sys

import jsonschema

bad = count = 0
for line in sys.stdin:
    case = json.loads(line)
    count += 1
    try:
        value = json.loads(case["text"])
        jsonschema.Draft202012Validator(json.loads(case["schema"])).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        bad += 1
        print(f"{case['schema']}\n  {case['text']!r}\n  {str(error).splitlines()[0]}")
print(f"{count} texts, {bad} bad")
sys.exit(bad > 0)
