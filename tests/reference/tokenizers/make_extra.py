"""Writes extra.json: pieces, ids and texts that PyPI's tokenizers gives for pre-tokenizers, normalizers, added tokens and
ill-formed bytes beyond those of the trained reference tokenizers next to it. Usage: make_extra.py"""
import json
import random
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Tokenizer

HERE = Path(__file__).parent
rng = random.Random(11)

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
KNOWN = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTION + r"?"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTION + r"?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek_cjk": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "deepseek_words": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "numbers_of_3": r"\p{N}{1,3}",
    "number": r"\p{N}",
}
FOREIGN = {
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "qwen35": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "words": r"\w+|[^\w\s]+", "not_words": r"\W", "scripts": r"\p{Han}+|\p{Hiragana}|\p{Cyrillic}+|\P{L}", "lines": r"^.|.$", "spaces": r"\s",
    "look_behind": r"(?<=[a-z])(?=[A-Z])", "digits": r"\d+", "empty": r"x*", "escapes": "\\u00e9|\\x41|\\t|\\.", "mixed_case": r"(?i)the|\u017f",
    "possessive": r"\p{L}++|\s*+\S", "atomic": r"(?>a+)b|.",
}

AWKWARD = list("abcXYZ019 \n\t.,'-_()/") + ["\u00e9", "e\u0301", "\u4f60", "\u3042", "\u0628", "\u0438", "\U0001f600", "\u200d", "\ufe0f", "\u00a0", "'s", "'S", "'\u017f", "'LL",
           "  ", "\r\n", "\u2028", "\u0085", "\u180e", "\u200b", "\u3000", "\u0f0b", "12", "\u00b2", "\u0661", "\u2167", "ing", " the", "\u01c5", "\u02b0", "A\u0300", "\u0300", "\u212a",
           "HTTP", "iPhone", "\u0130", "\ufb05", "\x00", "\x1f", "\u1680", "$", "\u20ac", "\u203f"]


def texts(count):
    out = ["".join(rng.choice(AWKWARD) for _ in range(rng.randint(2, 16))) for _ in range(count)]
    for _ in range(count // 4):  # any characters, as long as they were assigned long ago
        chars = []
        while len(chars) < 14:
            c = chr(rng.choice([rng.randint(0, 0x3000), rng.randint(0, 0xFFFF), rng.randint(0x10000, 0x1FFFF)]))
            if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co"):
                chars.append(c)
        out.append("".join(chars))
    return out


def run_pieces(name, pre, normalizer, strings):
    spec = json.loads((HERE / "gpt2" / "tokenizer.json").read_text())
    spec.update(pre_tokenizer=pre, normalizer=normalizer)
    tok = Tokenizer.from_str(json.dumps(spec))
    cases = []
    for text in strings:
        normal = tok.normalizer.normalize_str(text) if normalizer else text
        pieces = [p for p, _ in tok.pre_tokenizer.pre_tokenize_str(normal)] if pre else [normal]
        cases.append([text, pieces])
    return {"name": name, "pre_tokenizer": pre, "normalizer": normalizer, "cases": cases}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def pieces():
    out = []
    for name, pattern in KNOWN.items():
        out.append(run_pieces(name, split({"Regex": pattern}), None, texts(160)))
    for name, pattern in FOREIGN.items():
        out.append(run_pieces(name, split({"Regex": pattern}), None, texts(40)))
    some = ["a,,b 1234567 ...!? 12", "a,,b", ",,a,b,,", "  a  b ", "", "Caf\u00e9 \u0661\u0662 x\u00b2", "-a--b---", "\u2026\u201cq\u201d $5+5=`~` \u00a7", "12 34"] + texts(8)
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern in ({"Regex": "[,-]"}, {"String": "a"}, {"Regex": "[0-9]+"}, {"Regex": r"\s*"}):
                out.append(run_pieces(f"{behavior} {invert}", split(pattern, behavior, invert), None, some))
        out.append(run_pieces(f"Punctuation {behavior}", {"type": "Punctuation", "behavior": behavior}, None, some))
    for individual in (True, False):
        out.append(run_pieces("Digits", {"type": "Digits", "individual_digits": individual}, None, some))
    for pre in ("BertPreTokenizer", "WhitespaceSplit"):
        out.append(run_pieces(pre, {"type": pre}, None, some))
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            out.append(run_pieces(f"Metaspace {scheme} {cut}", {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}, None, some + ["\u2581a \u2581", " "]))
            out.append(run_pieces(f"Split, Metaspace {scheme}", sequence(split({"String": ","}), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}), None, some))
    for prefix in (True, False):
        out.append(run_pieces("ByteLevel", byte_level(prefix), None, some))
        out.append(run_pieces("Digits, ByteLevel", sequence({"type": "Digits", "individual_digits": True}, byte_level(prefix)), None, some))
    out.append(run_pieces("falcon", sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(), {"type": "Digits", "individual_digits": False},
                                             split({"Regex": "[0-9][0-9][0-9]"})), None, some))
    words = ["Caf\u00e9 Cafe\u0301", "d\u00e9j\u00e0 vu \u2014 123 \U0001f60a", "\uff11\uff12 \uff21", "x\u00a0y\u200bz\ufeff", "\u0130i\u0307", "\ufb01ne", "", "  a  ", " \t\n", "\u1e69 s\u0323\u0307", "a b  c"]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        out.append(run_pieces(form, None, {"type": form}, words + texts(30)))
    for normalizer in ({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Prepend", "prepend": "\u2581"},
                       {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Strip", "strip_left": True, "strip_right": True},
                       {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}]}):
        out.append(run_pieces(normalizer["type"], None, normalizer, words))
    return out


def added():
    """Tokens with each flag, on a byte-level and on a SentencePiece-like tokenizer."""
    out = []
    around = ["<a>user", "<a> user", "x<a>y", "<a><a>", " <a> ", "<A>", "x<a", "a <a>\n\n<a>\tb", "<a>\u3000<a>x", "_<a>_", "\u00e9<a>", "1<a>", ".<a>.", "<a>b>", "<a><a>b>c", "", "<a>", "  <a>", "caf\u00e9<a> caf\u00e9"]
    for base in ("gpt2", "llama2", "llama2_metaspace", "qwen2"):
        for flags in ({}, {"special": True}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"single_word": True, "lstrip": True}, {"normalized": True},
                      {"normalized": True, "lstrip": True, "special": True}, {"normalized": True, "single_word": True}):
            tok = Tokenizer.from_file(str(HERE / base / "tokenizer.json"))
            full = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, **flags}
            tok.add_tokens([AddedToken(t, **full) for t in ("<a>", "<a>b>", "e\u0301x")])
            spec = json.loads(tok.to_str())
            cases = [[t, tok.encode(t, add_special_tokens=False).ids] for t in around + ["e\u0301x", "\u00e9x", " e\u0301x "]]
            out.append({"base": base, "added_tokens": spec["added_tokens"], "cases": cases})
    return out


def decoded():
    """Texts of ids that are no text: bytes that are ill-formed, special tokens anywhere, any ids at all."""
    out = []
    runs = [[0x80, 0x80, 0x80], [0xC3, 0x28], [0xF0, 0x9F], [0xF0, 0x9F, 0x41], [0xFF, 0xFE], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xE4, 0xBD], [0xE4, 0xBD, 0xA0], [0xF0, 0x9F, 0x98, 0x80], [0xC3], [0xC0, 0xAF], [0xE0, 0x80, 0x80]]
    for base in ("gpt2", "qwen2", "deepseek_v3", "llama2", "gemma", "llama2_metaspace"):
        tok = Tokenizer.from_file(str(HERE / base / "tokenizer.json"))
        plain = base in ("llama2", "gemma", "llama2_metaspace")
        table = json.loads((HERE / base / "tokenizer.json").read_text())["model"]["vocab"]
        printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b]
        alphabet = {b: chr(b) for b in printable}
        alphabet.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)})
        token = lambda b: table[f"<0x{b:02X}>" if plain else alphabet[b]]
        letters = tok.encode("Ascii letters.", add_special_tokens=False).ids
        cases = []
        for run in runs:
            bytes_ids = [token(b) for b in run]
            cases += [bytes_ids, bytes_ids + letters, letters + bytes_ids + letters]
        size = tok.get_vocab_size()
        specials = {i for i, t in tok.get_added_tokens_decoder().items() if t.special}
        is_byte = lambda i: tok.id_to_token(i).startswith("<0x")
        while len(cases) < 3 * len(runs) + 60:
            ids = [rng.randrange(size) for _ in range(rng.randint(1, 12))]
            # Runs that begin well and go wrong later are left out: a stream cannot take back what it showed.
            rest = [i for i in ids if i not in specials]
            if not plain or not any(is_byte(a) and is_byte(b) for a, b in zip(rest, rest[1:])):
                cases.append(ids)
        out.append({"base": base, "cases": [[ids, tok.decode(ids, skip_special_tokens=True), tok.decode(ids, skip_special_tokens=False)] for ids in cases]})
    return out


def gaps():
    """Ids with holes, and a vocabulary that has the added token itself."""
    spec = json.loads((HERE / "gpt2" / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    vocab["<|endoftext|>"] = 800
    spec["model"]["vocab"] = {t: i + (50 if i >= 300 else 0) for t, i in vocab.items()}
    spec["added_tokens"][0]["id"] = 850
    tok = Tokenizer.from_str(json.dumps(spec))
    return {"first_moved_id": 300, "gap": 50, "cases": [[t, tok.encode(t).ids] for t in ["The quick answer<|endoftext|>", "tokens are cached", ""] + texts(20)]}


doc = {"tokenizers": tokenizers.__version__, "pieces": pieces(), "added": added(), "decoded": decoded()}
lines = [f'"tokenizers": {json.dumps(doc["tokenizers"])}']
for key in ("pieces", "added", "decoded"):
    lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(entry, ensure_ascii=True, separators=(",", ":")) for entry in doc[key]) + "\n]")
lines.append('"gaps": ' + json.dumps(gaps(), ensure_ascii=True, separators=(",", ":")))
(HERE / "extra.json").write_text("{" + ",\n".join(lines) + "}\n")
