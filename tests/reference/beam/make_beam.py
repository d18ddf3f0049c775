"""Writes beam.json: beam searches of transformers' `generate` over toy models, whose next-token logits
depend on the step and the last token.

    pip install torch==2.9.1 transformers==5.16.1 && python make_beam.py beam.json
    pip install torch==2.9.1 transformers==4.49.0 && python make_beam.py groups.json

The second one is the last line of versions with group beam search. A case is kept only if no two of its
sequences have scores within 1e-5: the order of equals is nobody's promise.
"""
import json
import sys

import torch
import transformers
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

PAD = 1000      # in no vocabulary, so that padding is told apart from tokens; group search wants one that is


class ToyConfig(PretrainedConfig):
    model_type = "toy"

    def __init__(self, vocab_size=4, **kw):
        self.vocab_size = vocab_size
        self.num_hidden_layers = 1
        self.hidden_size = 1
        super().__init__(**kw)


class Toy(PreTrainedModel, GenerationMixin):
    config_class = ToyConfig
    base_model_prefix = "toy"

    def __init__(self, config, table):
        super().__init__(config)
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.table = torch.tensor(table, dtype=torch.float32)      # [steps, last token, next token]

    def forward(self, input_ids=None, **kw):
        step = (input_ids.shape[1] - 1) % self.table.shape[0]       # prompts have one token
        return CausalLMOutput(logits=self.table[step][input_ids[:, -1]][:, None, :])

    def prepare_inputs_for_generation(self, input_ids, **kw):
        return {"input_ids": input_ids}


def logit(toy, step, last, token):
    """In millionths, from -2 to 2: a 32-bit hash, so that the tables need not be kept."""
    x = (toy * 1000003 + step * 10007 + last * 101 + token * 7 + 12345) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return ((x ^ x >> 16) % 4000001 - 2000000) / 1000000


def make(toy, vocab, steps, padded=False):
    table = [[[logit(toy, s, last, t) for t in range(vocab)] for last in range(vocab)] for s in range(steps)]
    if padded:                                                       # an id that is 90 below all others
        table = [[row + [-90.0] for row in step] + [[0.0] * (vocab + 1)] for step in table]
    return Toy(ToyConfig(vocab_size=vocab + padded), table).eval(), {"id": toy, "vocab": vocab, "steps": steps}


def search(model, prompt, pad, **kw):
    ids = torch.tensor([prompt])
    out = model.generate(ids, do_sample=False, return_dict_in_generate=True, output_scores=True, use_cache=False, pad_token_id=pad, **kw)
    eos = kw.get("eos_token_id") or []
    sequences = []
    for s in out.sequences[:, 1:].tolist():
        end = next((i + 1 for i, t in enumerate(s) if t in eos), len(s))
        sequences.append([t for t in s[:end] if t != pad])
    if "num_beams" in kw and kw["num_beams"] > 1:
        return sequences, [round(float(x), 6) for x in out.sequences_scores]
    return sequences, None


def add(cases, toy, model, prompt, pad=None, **kw):
    ended_last.clear()
    sequences, scores = search(model, prompt, PAD if pad is None else pad, **kw)
    if kw["max_new_tokens"] in ended_last:
        return
    if scores and any(a - b < 1e-5 for a, b in zip(scores, scores[1:])):
        return
    if scores and scores[-1] < -1e8:                                 # a placeholder won
        return
    case = {"toy": toy, "prompt": prompt, **kw, "sequences": sequences}
    if scores:
        case["scores"] = scores
    cases.append(case)


def single(cases):
    for i in range(100):                                             # three tokens and an end token
        model, toy = make(i, 4, 6)
        for lp in (-1.0, 0.0, 0.6, 1.0, 2.0):
            for early in (True, False, "never"):
                n = 1 + (i + int(lp * 10) + len(cases)) % 4
                kw = {} if n == 1 else {"num_beams": n, "num_return_sequences": n, "length_penalty": lp, "early_stopping": early}
                if n == 1 and (lp, early) != (1.0, False):
                    n = 2 + i % 3
                    kw = {"num_beams": n, "num_return_sequences": n, "length_penalty": lp, "early_stopping": early}
                add(cases, toy, model, [i % 3], max_new_tokens=3 + i % 8, eos_token_id=[3], **kw)
    for i in range(40):                                              # wider, with several end tokens or none
        model, toy = make(100 + i, 10, 5)
        for lp in (-0.5, 0.0, 1.0, 1.5):
            for early in (True, False, "never"):
                n = (3, 5, 8, 2)[i % 4]
                eos = ([9], [8, 9], [2, 5, 9], [])[(i // 4) % 4]
                kw = {"eos_token_id": eos} if eos else {}
                add(cases, toy, model, [i % 8], max_new_tokens=4 + i % 9, num_beams=n, num_return_sequences=max(1, n - i % 3), length_penalty=lp,
                    early_stopping=early, **kw)
    for i in range(40):                                              # processors act on log-probabilities
        model, toy = make(200 + i, 10, 5)
        extra = ({"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"min_new_tokens": 5}, {"bad_words_ids": [[1], [2, 3]]},
                 {"sequence_bias": [[[4], 1.5], [[5], -2.0]]}, {"suppress_tokens": [0, 6]},
                 {"repetition_penalty": 0.8, "min_new_tokens": 3}, {"no_repeat_ngram_size": 1, "repetition_penalty": 1.1})[i % 8]
        for lp, early in ((0.0, True), (1.0, False), (2.0, "never")):
            add(cases, toy, model, [i % 8], max_new_tokens=8, num_beams=4, num_return_sequences=4, length_penalty=lp, early_stopping=early,
                eos_token_id=[9], **extra)


ended_last = []


def watch_groups():
    """Notes groups that end in the very last step. This version then forgets their open beams, where the newer
    search of single groups keeps the best of both: such cases are left out."""
    from transformers.generation.beam_search import BeamSearchScorer
    process = BeamSearchScorer.process

    def watched(self, input_ids, *args, group_index=0, **kw):
        before = bool(self._done[group_index])
        out = process(self, input_ids, *args, group_index=group_index, **kw)
        if not before and self._done[group_index]:
            ended_last.append(input_ids.shape[1])                    # prompt of one token: the new token's number
        return out

    BeamSearchScorer.process = watched


# Of several end tokens this version tells only the first, so there is one.
def groups(cases):
    watch_groups()
    for i in range(60):
        model, toy = make(300 + i, 9, 5, padded=True)
        n, g = ((4, 2), (6, 3), (4, 4), (6, 2), (8, 4))[i % 5]
        for rate in (0.2, 0.8, 3.0):
            for lp in (0.0, 1.0, -0.5, 2.0):
                add(cases, toy, model, [i % 8], pad=9, max_new_tokens=3 + i % 6, num_beams=n, num_beam_groups=g, diversity_penalty=rate,
                    num_return_sequences=n - i % 2, length_penalty=lp, early_stopping=True, eos_token_id=[8])


if __name__ == "__main__":
    cases = []
    transformers.logging.set_verbosity_error()
    (groups if transformers.__version__.startswith("4.") else single)(cases)
    with open(sys.argv[1], "w") as f:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "cases": cases}, f, separators=(",", ":"))
    print(len(cases), "cases")
