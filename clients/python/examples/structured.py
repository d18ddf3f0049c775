"""An answer that is JSON of a schema:  python structured.py [address]"""
import json
import sys

from quire_client import Client, Params

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
schema = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 20},
                         "age": {"type": "integer", "minimum": 0, "maximum": 120}}}

with Client(address) as client:
    answer = client.chat([{"role": "user", "content": "Invent a person."}],
                         Params(json_schema=schema, temperature=0, max_tokens=100))
person = json.loads(answer.text)
print(f"{person['name']} is {person['age']} years old")
