"""Continues a text and prints it as it comes:  python complete.py [address] [text]"""
import sys

from quire_client import Client, Params

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"
text = sys.argv[2] if len(sys.argv) > 2 else "The capital of France is"

with Client(address) as client:
    with client.stream(text, Params(max_tokens=16, temperature=0)) as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
        answer = stream.answer()
print(f"\n{answer.usage.completion_tokens} tokens, first after {answer.timings.first_token_ms:.0f} ms")
