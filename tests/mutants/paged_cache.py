"""Mutation test of paged_cache/: is there a test that fails for every small fault in the code?

Makes one-line faults mechanically from the shipping sources, compiles each in a scratch folder, links
it with the tests of a build folder and runs them. A mutant that makes no test fail is a survivor.

    cmake --preset release && ninja -C build/release \\
        page_pool_test page_pool_retention_test cache_policy_test block_manager_test \\
        block_manager_cases_test block_manager_admin_test block_manager_tiers_test \\
        cache_files_test block_manager_model_test block_manager_exhaustive_test
    python3 tests/mutants/paged_cache.py --build build/release --sample 80
    python3 tests/mutants/paged_cache.py --build build/release --headers --sample 20

--sample N takes N mutants by --seed (0 = all), the same share of each file; --only TEXT those whose
label contains TEXT; --list prints them. Not part of ctest: all mutants take hours. Functions that
only audit or count for people are left alone: they are the instrument, not the thing measured.
Headers are mutated with --headers, which costs more, as the tests include them. Figures and
survivors of the last runs are in README.md beside this file. Exit status 1 if there are survivors
that EXPLAINED below does not explain.
"""
import argparse
import json
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["page_pool.cc", "prefix_index.cc", "block_manager.cc", "prefix_match.cc",
           "block_admin.cc"]
HEADERS = ["page_table.h", "cache_policy.h", "prefix_index.h", "retention.h"]
# The quickest first. A file's mutants are not shown to tests that do not link it.
TESTS = [("page_pool_test", "*"), ("page_pool_retention_test", "*"), ("cache_policy_test", "*"),
         ("block_manager_test", "*"), ("block_manager_cases_test", "*"),
         ("block_manager_admin_test", "*"), ("block_manager_tiers_test", "*"),
         ("cache_files_test", "*"),
         ("block_manager_model_test", "*Walks*"), ("block_manager_exhaustive_test", "*Sliding*"),
         ("block_manager_exhaustive_test", "*Tiers*")]
MANAGER_ONLY = ["page_pool_test", "page_pool_retention_test", "cache_policy_test"]
BLIND = {name: MANAGER_ONLY for name in SOURCES}
BLIND["page_pool.cc"] = ["cache_policy_test"]
BLIND |= {"page_table.h": ["cache_policy_test"], "prefix_index.h": MANAGER_ONLY,
          "cache_policy.h": ["page_pool_test", "page_pool_retention_test"]}
TIMEOUT_S = 60

# Survivors that are no fault: mutated line (stripped) -> why nothing can tell.
EXPLAINED = {
    "if (idle == (root.idle_since != 0)) return;  =>  (deleted)":
        "no caller finds a root idle twice in a row, and a busy one has no entry to erase",
    "if (page >= 0) {  =>  if (page > 0) {": "page 0 is in no list",
    "(p.next < 0 ? list.tail : at(p.next).prev) = p.prev;  =>  "
    "(p.next <= 0 ? list.tail : at(p.next).prev) = p.prev;": "page 0 is in no list",
    "(list.head < 0 ? list.tail : at(list.head).prev) = page;  =>  "
    "(list.head <= 0 ? list.tail : at(list.head).prev) = page;": "page 0 is in no list",
    "if (cached_[c].head < 0) cached_classes_[c / 64] &= ~(uint64_t{1} << (c % 64));  =>  "
    "if (cached_[c].tail < 0) cached_classes_[c / 64] &= ~(uint64_t{1} << (c % 64));":
        "of an empty list both ends are -1",
    "if (group_of(g).kind != CacheKind::kState) continue;  =>  (deleted)":
        "without a snapshot interval every page border of a group is a snapshot, so none is dropped",
    "if (index_.is_detached(node)) return;  =>  (deleted)":
        "in MergeAnnounced: nothing is sealed behind a detached node, so the sequence stays private",
    "if (has_state_ || t.chain_broken || num_tokens + 1 >= static_cast<int32_t>(tokens.size())) {"
    "  =>  "
    "if (has_state_ || t.chain_broken || num_tokens + 1 > static_cast<int32_t>(tokens.size())) {":
        "with one token left no block has anything in common with the none before it",
    "if (group_of(g).kind == CacheKind::kCrossAttention) continue;  =>  "
    "if (group_of(g).kind == CacheKind::kCrossAttention) ;":
        "in LongestServable: streaks of such groups are not looked at",
    "if (num_full >= t.num_sealed) return;  =>  if (num_full > t.num_sealed) return;":
        "in Truncate: at equality all that follows sets what is there already",
    "const PageId page = i < table.num_pages() ? table[i] : kNullPage;  =>  "
    "const PageId page = i <= table.num_pages() ? table[i] : kNullPage;":
        "reads past the end, which the asan build sees",
    "return false;  =>  return true;":
        "in Demote, of a page that is gone already: the caller returns as well",
}

SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "),
         (" != ", " == "), (" && ", " || "), (" || ", " && "), (" + 1", ""), (" - 1", ""),
         ("std::max", "std::min"), ("std::min", "std::max"), ("true", "false"), ("false", "true"),
         ("PushBack(", "PushFront("), ("PushFront(", "PushBack("), (".head", ".tail"),
         ("++", "--"), ("--", "++"), ("if (!", "if ("), (" + ", " - "), ("continue;", ";"),
         ("break;", ";")]
# Faults that no swap makes: file, text, replacement. Label "by hand".
BY_HAND = [
    ("prefix_index.cc",
     "std::equal(own.begin(), own.end(), tokens.begin(), tokens.end()) ? it->second : kNoNode",
     "it->second"),  # tokens are not compared
    ("prefix_index.cc", "(static_cast<uint64_t>(root) * 0xd1b54a32d192ed03)", "0"),
    ("prefix_index.cc", "if (at(it->second).parent != parent) return kNoNode;", ""),
    ("prefix_index.cc", "roots_.at(at(node).root).keep", "true"),
    ("prefix_index.cc", "DetachSubtree(node, DropReason::kOrphaned)", "Prune(node)"),
    ("block_manager.cc", "if (pool.refs(page) > 1) {", "if (pool.refs(page) > 2) {"),
    ("block_manager.cc", "child.cursor = t.cursor.Fork();", "child.cursor = PrefixCursor();"),
    ("page_pool.cc", "++p.generation;", ""),
]
STATEMENT = re.compile(r"^\s+(?!return|const |auto |std::|DCHECK|CHECK|case |break|continue|else|#)"
                       r"[A-Za-z_+\-(*][^;]*;(\s*//.*)?$")
AUDIT = re.compile(r"\b(Audit\w*|Broken)\(.*\{?$")


def lines_to_mutate(text):
    """Yields (number, line) outside comments, checks and auditing functions."""
    depth, skipping = 0, False
    for n, line in enumerate(text.split("\n")):
        code = line.split("//")[0].rstrip()
        if not skipping and re.match(r"^(absl::Status|template)", code):
            skipping = bool(AUDIT.search(code)) or code.startswith("template")
        if skipping:
            depth += code.count("{") - code.count("}")
            if code == "}":
                skipping = False
            continue
        if code.strip() and not code.startswith(("#", "namespace", "}")) and "CHECK(" not in code \
                and "static_assert" not in code and ".reserve(" not in code and "refetch(" not in code:
            yield n, line


def mutants_of(path):
    text = path.read_text()
    lines = text.split("\n")
    for n, line in lines_to_mutate(text):
        made = set()
        code = line.split("//")[0]
        for old, new in SWAPS:
            if code.lstrip().startswith("for (") and old in ("++", "--", " < "):
                continue  # endless or out of bounds: tells nothing about the tests
            for m in re.finditer(re.escape(old), code):
                made.add(line[:m.start()] + new + line[m.end():])
        balanced = code.count("(") == code.count(")")
        if STATEMENT.match(line) and balanced and (n == 0 or re.search(r"[;{}:]\s*(//.*)?$|^\s*$|//",
                                                                       lines[n - 1])):
            made.add("")
        for new in sorted(made):
            changed = lines[:n] + [new] + lines[n + 1:]
            label = f"{path.name}:{n + 1}: {line.strip()}  =>  {new.strip() or '(deleted)'}"
            yield label, "\n".join(changed)


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.commands = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            self.commands[pathlib.Path(entry["file"]).name] = shlex.split(entry["command"])

    def compile(self, source, text_path, out, include=None):
        """Compiles text_path with the flags of `source`."""
        c = [w for w in self.commands[source] if "ccache" not in w]
        c[c.index("-o") + 1] = str(out)
        c[c.index("-c") + 1] = str(text_path)
        c = [w for w in c if w != "-O2"] + ["-O1", "-g0", "-w"]
        if include:
            c.insert(1, f"-I{include}")
        return subprocess.run(c, cwd=self.folder, capture_output=True, text=True).returncode == 0

    def link(self, test, objects, out):
        """The link command of `test`, with `objects` in front of the libraries."""
        commands = subprocess.run(["ninja", "-C", str(self.folder), "-t", "commands", test], text=True,
                                  capture_output=True, check=True).stdout.strip().split("\n")
        words = shlex.split(commands[-1].removeprefix(": && ").removesuffix(" && :"))
        words[words.index("-o") + 1] = str(out)
        at = next(i for i, w in enumerate(words) if w.endswith(f"{test}.cc.o"))
        replaced = [o for o in objects if o.name == f"{test}.o"]
        words[at:at + 1] = [str(o) for o in objects if o.name not in {f"{t}.o" for t, _ in TESTS}] + (
            [str(o) for o in replaced] or [words[at]])
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"cannot link {test}: {done.stderr[-2000:]}")


def killer_of(build, objects, scratch, blind=(), prepare=None):
    """The first test that fails, or None. prepare(test): more objects, made when they are needed."""
    linked = set()
    for test, select in TESTS:
        if test in blind:
            continue
        out = scratch / test
        if test not in linked:
            build.link(test, objects + (prepare(test) if prepare else []), out)
            linked.add(test)
        try:
            code = subprocess.run([str(out), f"--gtest_filter={select}", "--gtest_brief=1"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  timeout=TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            return f"{test} (timeout)"
        if code:
            return test
    return None


class Invalid(Exception):
    """The mutant does not compile."""


class HeaderObjects:
    """What includes a mutated header, compiled test by test: most mutants need only the first."""

    def __init__(self, build, scratch):
        self.build, self.scratch, self.made = build, scratch, {}

    def compiled(self, source, path):
        if source not in self.made:
            out = self.scratch / source.replace(".cc", ".o")
            if not self.build.compile(source, path, out, self.scratch):
                raise Invalid()
            self.made[source] = out
        return self.made[source]

    def of(self, test):
        objects = [self.compiled(f"{test}.cc", ROOT / "tests" / f"{test}.cc")]
        if test != "cache_policy_test":
            objects += [self.compiled(s, self.scratch / "paged_cache" / s) for s in SOURCES]
        return objects


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    args.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    args.add_argument("--sample", type=int, default=0)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--only", default="")
    args.add_argument("--headers", action="store_true")
    args.add_argument("--list", action="store_true")
    args = args.parse_args()
    todo = []
    for name in HEADERS if args.headers else SOURCES:
        todo += [(name, label, text) for label, text in mutants_of(ROOT / "paged_cache" / name)]
    for name, old, new in [] if args.headers else BY_HAND:
        text = (ROOT / "paged_cache" / name).read_text()
        if text.count(old) < 1:
            raise SystemExit(f"{name} has no {old!r}; bring BY_HAND up to date")
        todo.append((name, f"{name} by hand: {old}  =>  {new or '(deleted)'}",
                     text.replace(old, new, 1)))
    todo = [m for m in todo if args.only in m[1]]
    if args.sample:
        rng, share, by_file = random.Random(args.seed), args.sample / len(todo), {}
        for m in todo:
            by_file.setdefault(m[0], []).append(m)
        todo = [m for of_file in by_file.values()
                for m in rng.sample(of_file, min(len(of_file), round(share * len(of_file) + 0.5)))]
    if args.list:
        print("\n".join(label for _, label, _ in todo))
        return 0
    build = Build(args.build.resolve())
    killed, invalid, survivors = 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if killer_of(build, [], scratch):
            raise SystemExit("the tests fail without any mutant")
        for name, label, text in todo:
            try:
                if args.headers:
                    shutil.copytree(ROOT / "paged_cache", scratch / "paged_cache",
                                    dirs_exist_ok=True)
                    (scratch / "paged_cache" / name).write_text(text)
                    killer = killer_of(build, [], scratch, BLIND.get(name, ()),
                                       HeaderObjects(build, scratch).of)
                else:
                    (scratch / name).write_text(text)
                    out = scratch / name.replace(".cc", ".o")
                    if not build.compile(name, scratch / name, out):
                        raise Invalid()
                    killer = killer_of(build, [out], scratch, BLIND.get(name, ()))
            except Invalid:
                invalid += 1
                continue
            if killer:
                killed += 1
            else:
                survivors.append(label)
            print(f"{'killed by ' + killer if killer else 'SURVIVES'}: {label}", flush=True)
    print(f"{killed} killed, {len(survivors)} survive, {invalid} do not compile")
    unexplained = []
    for label in survivors:
        line = label.split(": ", 1)[1]
        print(f"survivor {label}\n  {EXPLAINED.get(line, 'not explained')}")
        unexplained += [label] if line not in EXPLAINED else []
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
