"""The request mixes of bench/workloads.cc, as token ids that every engine is given alike."""
import dataclasses
import random

FIRST_ID, LAST_ID = 300, 39_999  # clear of special tokens at both ends of the vocabulary
STREAMS = 64


@dataclasses.dataclass(frozen=True)
class Mix:
    what: str
    requests: int
    shared: int  # tokens of a prefix that all have
    own: int
    new: int
    warm: bool = False  # the prefix was served once before
    unit: str = "output tok/s"


MIXES = {
    "W1": Mix("one stream, 32 + 128", 1, 0, 32, 128, unit="tok/s after the first"),
    "W2": Mix("prefill, 1024 + 1", 1, 0, 1024, 1, unit="prompt tok/s"),
    "W3": Mix("64 at once, 128 + 128", STREAMS, 0, 128, 128),
    "W4": Mix("64 at once, 512 shared + 32, 64 new, cold", STREAMS, 512, 32, 64),
    "W4warm": Mix("the same, the prefix served before", STREAMS, 512, 32, 64, warm=True),
}


def prompts(name, seed):
    """Fresh ones for each seed, so that nothing but what is meant to be shared is."""
    mix = MIXES[name]
    # Seeding by text hashes it, so neighbouring seeds share nothing.
    source = random.Random(f"{name} {seed}")

    def ids(count):
        return [source.randint(FIRST_ID, LAST_ID) for _ in range(count)]

    shared = ids(mix.shared)
    return [shared + ids(mix.own) for _ in range(mix.requests)]


def rate(name, engine, seed):
    """Runs a mix once; returns its rate and how it came about.

    Every engine is asked in the same way, without streaming. The single stream's first token is
    timed by a request of its own, with another prompt of the same length.
    """
    mix = MIXES[name]
    batch = prompts(name, seed)
    if mix.warm:
        engine.generate(batch[:1], 1)
    first = 0.0
    if name == "W1":
        first, _ = engine.generate(prompts(name, f"{seed} first"), 1)
    seconds, tokens = engine.generate(batch, mix.new)
    if tokens != mix.requests * mix.new:
        raise RuntimeError(f"{engine.name} made {tokens} tokens of {mix.requests * mix.new}")
    if name == "W1":
        value = (mix.new - 1) / (seconds - first)
    elif name == "W2":
        value = mix.own / seconds
    else:
        value = tokens / seconds
    return value, {"seconds": seconds, "first_s": first}
