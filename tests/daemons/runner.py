"""Runs cases: builds what they need, gives each a directory, judges it, prints a line. tests/daemons/run and tests/deploy/run
are lists of cases over it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import harness

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SANITIZERS = {
    # A leak at the end of a process makes its exit status 1.
    "ASAN_OPTIONS": "detect_leaks=1:exitcode=1:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
}


def build(targets, config):
    """Where each binary lies."""
    ready = os.environ.get("KVFERRY_BIN")
    if ready:
        return {name: os.path.join(ready, name) for name in targets}
    quiet = ["--noshow_progress", "--ui_event_filters=-info"] + ([f"--config={config}"] if config else [])
    labels = ["//" + path.rsplit("/", 1)[0] + ":" + name for name, path in targets.items()]
    subprocess.run(["bazel", "build", *quiet, *labels], cwd=TOP, check=True)
    found = subprocess.run(["bazel", "info", *quiet, "bazel-bin"], cwd=TOP, check=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True).stdout.strip()
    return {name: os.path.join(found, path) for name, path in targets.items()}


def copy_binaries(built, work):
    """What runs must not change while somebody builds."""
    os.makedirs(f"{work}/bin")
    for name, path in built.items():
        shutil.copy2(path, f"{work}/bin/{name}")
    return f"{work}/bin"


def all_cases(modules):
    for module in modules:
        for name, case in vars(module).items():
            if callable(case) and getattr(case, "__module__", "") == module.__name__ and not name.startswith("_"):
                yield name, case


def run_case(function, case):
    """None, or what is wrong."""
    try:
        function(case)
        case.finish()
        return None
    except harness.Skipped:
        raise
    except Exception as error:  # also what a case itself does wrong is told, and the next one runs
        kind = "" if isinstance(error, harness.Failed) else f"{type(error).__name__}: "
        frame = error.__traceback__
        places = []
        while frame is not None:
            places.append(f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}")
            frame = frame.tb_next
        return f"{kind}{error}\n   at {' '.join(places[1:])}"
    finally:
        case.abandon()


def main(targets, modules, usage):
    """The exit status: 0 only when at least one case ran and all passed."""
    config, prefixes = None, []
    for word in sys.argv[1:]:
        if word.startswith("--config="):
            config = word.split("=", 1)[1]
        elif word == "--list":
            print("\n".join(name for name, _ in all_cases(modules)))
            return 0
        elif word.startswith("-"):
            print(usage.strip(), file=sys.stderr)
            return 2
        else:
            prefixes.append(word)
    chosen = [(name, case) for name, case in all_cases(modules) if not prefixes or name.startswith(tuple(prefixes))]
    built = build(targets, config)
    work = tempfile.mkdtemp(prefix="kvf-", dir=os.environ.get("TMPDIR") or "/var/tmp")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVFERRY_")}
    environment.update(SANITIZERS if config else {})
    passed = failed = skipped = 0
    try:
        binaries = copy_binaries(built, work)
        for number, (name, function) in enumerate(chosen):
            case = harness.Case(binaries, f"{work}/{number}", environment, 4 if config else 1)
            start = time.monotonic()
            try:
                wrong = run_case(function, case)
            except harness.Skipped as why:
                skipped += 1
                print(f"SKIPPED {name}: NOT TESTED, {why}", flush=True)
                case.remove()
                continue
            seconds = time.monotonic() - start
            if wrong is None:
                passed += 1
                print(f"ok      {name} ({seconds:.1f} s)", flush=True)
                case.remove()
            else:
                failed += 1
                print(f"FAILED  {name} ({seconds:.1f} s)\n   {wrong}\n{case.log_tails()}", flush=True)
    finally:
        if failed:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 0 if failed == 0 and passed > 0 else 1

