"""Mutation test of scheduler/: is there a test that fails for every small fault in the code?

As paged_cache.py, whose machinery it uses: one-line faults made mechanically from the shipping
sources, each compiled and linked with the tests of a build folder.

    cmake --preset dev && ninja -C build/dev scheduler_test scheduler_cases_test \\
        scheduler_sharing_cases_test scheduler_simulation_test engine_test
    python3 tests/mutants/scheduler.py --build build/dev --sample 60

--sample N takes N mutants by --seed (0 = all); --only TEXT those whose label contains TEXT; --list
prints them. Not part of ctest. Exit status 1 if there are survivors that EXPLAINED doesn't explain.
"""
import argparse
import pathlib
import random
import sys
import tempfile

import paged_cache as machinery

ROOT = machinery.ROOT
SOURCES = ["admission.cc", "schedule.cc", "commit.cc", "engine.cc", "options.cc"]
STEPPED = ["scheduler_test", "scheduler_cases_test", "scheduler_sharing_cases_test",
           "scheduler_simulation_test"]
TESTS = [(test, "*") for test in STEPPED + ["engine_test"]]
BLIND = {name: ["engine_test"] for name in SOURCES}
BLIND["engine.cc"] = STEPPED

# Survivors that are no fault: mutated line (stripped) => mutant -> why nothing can tell.
EXPLAINED = {
    "if (commands_.empty() && scheduler_.idle() && !audited_) Audit();  =>  (deleted)":
        "the audit finds faults, it does nothing",
}


def main():
    args = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawTextHelpFormatter)
    args.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev")
    args.add_argument("--sample", type=int, default=0)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--only", default="")
    args.add_argument("--list", action="store_true")
    args = args.parse_args()
    machinery.TESTS = TESTS
    todo = [(name, label, text) for name in SOURCES
            for label, text in machinery.mutants_of(ROOT / "scheduler" / name)]
    todo = [m for m in todo if args.only in m[1]]
    if args.sample:
        todo = random.Random(args.seed).sample(todo, min(args.sample, len(todo)))
    if args.list:
        print("\n".join(label for _, label, _ in todo))
        return 0
    build = machinery.Build(args.build.resolve())
    killed, invalid, survivors = 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if machinery.killer_of(build, [], scratch):
            raise SystemExit("the tests fail without any mutant")
        for name, label, text in todo:
            (scratch / name).write_text(text)
            out = scratch / name.replace(".cc", ".o")
            if not build.compile(name, scratch / name, out):
                invalid += 1
                continue
            killer = machinery.killer_of(build, [out], scratch, BLIND[name])
            killed += killer is not None
            survivors += [] if killer else [label]
            print(f"{'killed by ' + killer if killer else 'SURVIVES'}: {label}", flush=True)
    print(f"{killed} killed, {len(survivors)} survive, {invalid} do not compile")
    unexplained = 0
    for label in survivors:
        why = EXPLAINED.get(label.split(": ", 1)[1])
        unexplained += why is None
        print(f"survivor {label}\n  {why or 'not explained'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
