"""A conversation of two turns:  python chat.py [address]"""
import sys

from quire_client import Client, Params

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
params = Params(max_tokens=24, temperature=0)

with Client(address) as client:
    messages = [{"role": "user", "content": "Name a colour."}]
    for question in ("And another one?", None):
        answer = client.chat(messages, params).text
        print(f"{messages[-1]['content']} -> {answer}")
        if question is not None:
            messages += [{"role": "assistant", "content": answer},
                         {"role": "user", "content": question}]
