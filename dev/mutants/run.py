#!/usr/bin/env python3
"""Puts faults into a copy of the sources, one at a time, and says which of them the tests notice.

A fault is one to three lines that a tired hand might write. A test suite is as good as the share of them that it catches.
The faults are in faults.txt, those in CUDA sources in gpu_faults.txt; list_of_faults() below says how they are written.

Each is put into a copy of the working tree (never the tree itself), what depends on it is built, and the unit tests run,
those of its room first. What they let pass is tried once more with the shell tests that can see its room. The first
failure catches it.

    dev/mutants/run.py --check                                  is every text still in the sources?
    dev/mutants/run.py --random 5 --changed-since HEAD~1        five faults in the rooms of the last commit
    dev/mutants/run.py                                          all, before a release
    dev/mutants/run.py --resume                                 goes on where a run was stopped
    dev/mutants/run.py --survivors                              names those that passed, of the last run
    dev/mutants/run.py --gpu                                    on a machine with a GPU
    dev/mutants/run.py --copies 8 --unit-tests-only             several at a time, shell tests later by --resume

CXX is that of make: CXX="ccache g++" spares compiling twice. The exit status is 0 when each fault was caught, 1 when one
survived, is stale (its text is not in the sources) or does not build, 2 when nothing could be run.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# The shell tests that can see a fault in a room, the likeliest first. The longest prefix of the file's path counts.
SHELL_TESTS = {
    "kernels": ["parity"],
    "kernels/runtime": ["parity", "example"],
    "offload": ["parity", "example"],
    "data": ["data", "hostile"],
    "data/base": ["data", "interrupt", "hostile", "kill_resume"],
    "data/gguf": ["gguf", "hostile"],
    "train/spec": ["parity", "cli"],
    "train/files": ["gguf", "parity", "hostile", "export"],
    "train/model": ["parity", "cli"],
    "train/run": ["cli", "data", "kill_resume", "hostile"],
    "train/export": ["export", "gguf", "interrupt"],
}
SHELL_TESTS_GPU = {"": ["parity"]}
# A hang is a failure too. A busy machine is not: this many times what the test takes as it is, and no less than a minute.
PATIENCE, LEAST_PATIENCE_S = 4, 60

UNIT_TESTS_PASS = "unit tests pass"  # the shell tests are still to come

Fault = collections.namedtuple("Fault", "id file meaning find replace unnoticed")  # unnoticed: why no test can see it


class CannotRun(Exception):
    pass


def list_of_faults(path):
    """Reads blocks of this form; lines that begin with # and empty lines between blocks are comments.

        @ train/run/trainer.cpp: micro-batches overlap when B > 1
        - first_sample + i * B
        + first_sample + i

    `-` lines are the text to find, `+` lines what takes its place; without a `+` line the text goes. White space and
    comments at a line's end match any other, so that formatting moves nothing out of sight. The text must be there once.
    A `? ` line says why no test notices the fault; --random passes over such faults.
    """
    faults, block = [], None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("@ "):
            file, separator, meaning = line[2:].partition(": ")
            if not separator:
                raise CannotRun(f"{path.name}, line {number}: wanted \"@ FILE: MEANING\"")
            block = {"file": file, "meaning": meaning.strip(), "-": [], "+": [], "?": []}
            faults.append(block)
        elif line[:2] in ("- ", "+ ", "? ") and block:
            block[line[0]].append(line[2:])
        elif line.strip() and not line.startswith("#"):
            raise CannotRun(f"{path.name}, line {number}: is none of \"@ \", \"- \", \"+ \", \"? \", \"#\"")
    result = []
    for block in faults:
        find, replace = "\n".join(block["-"]), "\n".join(block["+"])
        if not find.strip():
            raise CannotRun(f"{path.name}: {block['file']}: {block['meaning']}: has no text to find")
        key = "\0".join((block["file"], find, replace))
        result.append(Fault(hashlib.sha1(key.encode()).hexdigest()[:10], block["file"], block["meaning"], find, replace,
                            " ".join(block["?"])))
    for fault, count in collections.Counter(fault.id for fault in result).items():
        if count > 1:
            raise CannotRun(f"{path.name}: fault {fault} is there {count} times")
    return result


def places_of(fault, text):
    between_words = r"(?:\s|//[^\n]*\n)+"
    return list(re.finditer(between_words.join(re.escape(word) for word in fault.find.split()), text))


def place_of(fault, tree):
    """(file, match) of the fault's text, or (None, why it is stale). Code that moved to another file is found there."""
    file = tree / fault.file
    places = places_of(fault, file.read_text()) if file.is_file() else []
    if len(places) == 1:
        return file, places[0]
    if len(places) > 1:
        return None, f"its text is there {len(places)} times"
    found = []
    for other in sources_of(tree):
        found += [(other, place) for place in places_of(fault, other.read_text())]
    if len(found) == 1:
        return found[0]
    return None, "its text is not there" if not found else f"its text is in {len(found)} other places"


def sources_of(tree):
    for folder in ("kernels", "offload", "data", "train"):
        for file in sorted((tree / folder).rglob("*")):
            if file.suffix in (".h", ".cpp", ".cu", ".cuh"):
                yield file


def room_of(file):
    return str(Path(file).parent)


def shell_tests_of(file, gpu):
    table = SHELL_TESTS_GPU if gpu else SHELL_TESTS
    rooms = [room for room in table if room == "" or room_of(file) == room or room_of(file).startswith(room + "/")]
    return table[max(rooms, key=len)] if rooms else []


class Copy:
    """The copy of the working tree, its build, and the tests in it."""

    def __init__(self, work, gpu, jobs, cpus=None):
        work.mkdir(parents=True, exist_ok=True)
        self.tree, self.gpu, self.cpus = work / "tree", gpu, cpus
        self.build_name = "build-cuda" if gpu else "build"
        self.log = work / "last.log"
        self.make = ["make", "-s", f"-j{jobs}", f"BUILD={self.build_name}", f"BACKEND={'cuda' if gpu else 'cpu'}"]
        self.limits_s = {}
        self.refresh()

    def refresh(self):
        """What git knows, and what is new and not ignored; the build too, where there is none yet."""
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                                capture_output=True).stdout.decode().split("\0")
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        hashed = hashlib.sha1()
        for name in sorted(wanted):
            source, target = ROOT / name, self.tree / name
            content = source.read_bytes()
            if not name.startswith("dev/mutants/"):
                hashed.update(name.encode() + b"\0" + content)
            if target.is_file() and target.read_bytes() == content:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            if self.built():
                os.utime(target)  # newer than what was built of the old one
        self.sources = hashed.hexdigest()[:12]
        for file in list(self.tree.rglob("*")):
            name = str(file.relative_to(self.tree))
            if file.is_file() and name not in wanted and not name.startswith("build"):
                file.unlink()
        if not self.built() and (ROOT / self.build_name / "obj").is_dir():
            self.take_build(ROOT / self.build_name)

    def take_build(self, build):
        subprocess.run(["cp", "-a", str(build / "obj"), str(build / "flags"), str(self.made())], check=False)

    def made(self):
        path = self.tree / self.build_name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def built(self):
        return (self.tree / self.build_name / "obj").is_dir()

    def run(self, command, limit_s):
        """(exit status or "time", output). What it started goes with it, and so do its temporary files."""
        environment = dict(os.environ, TMPDIR=tempfile.mkdtemp(prefix="slab-mutant-"))
        os.chmod(environment["TMPDIR"], 0o755)  # some tests are nobody for a while
        if self.gpu:
            environment["REQUIRE_GPU"] = "1"
        if self.cpus:
            command = ["taskset", "-c", ",".join(map(str, self.cpus))] + command
        with open(self.log, "wb") as log:
            process = subprocess.Popen(command, cwd=self.tree, stdout=log, stderr=subprocess.STDOUT, env=environment,
                                       stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                status = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                status = "time"
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                shutil.rmtree(environment["TMPDIR"], ignore_errors=True)
        return status, self.log.read_bytes().decode(errors="replace")

    def build(self, *targets):
        """"" when it built, else the compiler's first error."""
        status, output = self.run(self.make + list(targets), 3600)
        if status == 0:
            return ""
        errors = [line for line in output.splitlines() if "error" in line.lower()]
        return (errors or output.splitlines() or ["make failed"])[0][:200]

    def unit_tests(self, room, limit_s):
        """The name of the first test case that fails, of this room's tests or (room None) of all; "" when none does."""
        command = [f"{self.build_name}/tests", "--abort-after=1"]
        if room is not None:
            if not list((self.tree / "tests" / room).glob("*.cpp")):
                return ""
            command.append(f"--source-file=*tests/{room}/*")
        status, output = self.run(command, limit_s)
        if status == 0 or "FAIL: no test ran" in output:
            return ""
        named = re.findall(r"^TEST CASE: +(.*)$", output, re.MULTILINE)
        how = "the time limit" if status == "time" else named[0].strip() if named else f"exit status {status}"
        return f"unit tests: {how}"

    def shell_test(self, name, limit_s):
        status, output = self.run([f"tests/{name}_test.sh", self.build_name], limit_s)
        if status == 0:
            return ""
        failed = [line for line in output.splitlines() if line.startswith("FAIL")]
        how = "the time limit" if status == "time" else failed[0][:120] if failed else f"exit status {status}"
        return f"{name}_test.sh: {how}"

    def measure(self, names):
        """Builds the copy and runs the tests as they are: they must pass, and their times set the limits."""
        error = self.build("all", f"{self.build_name}/tests")
        if error:
            raise CannotRun(f"the sources do not build as they are: {error}")
        for name in names:
            start = time.monotonic()
            failure = self.unit_tests(None, 3600) if name == "unit" else self.shell_test(name, 3600)
            if failure:
                raise CannotRun(f"the tests do not pass as they are: {failure} (see {self.log})")
            took_s = time.monotonic() - start
            self.limits_s[name] = max(LEAST_PATIENCE_S, PATIENCE * took_s)
            print(f"as they are: {name} tests pass in {took_s:.0f} s", flush=True)

    def try_fault(self, fault, judge):
        """(verdict, by what, or why not), as judge(file) finds it while the fault is in the copy"""
        file, place = place_of(fault, self.tree)
        if file is None:
            return "stale", place
        moved = "" if file == self.tree / fault.file else f" (now in {file.relative_to(self.tree)})"
        original, times = file.read_bytes(), file.stat()
        object_file = self.tree / self.build_name / "obj" / (str(file.relative_to(self.tree)) + ".o")
        old_object = object_file.read_bytes() if file.suffix in (".cpp", ".cu") and object_file.is_file() else None
        text = original.decode()
        file.write_text(text[:place.start()] + fault.replace + text[place.end():])
        try:
            verdict, by = judge(str(file.relative_to(self.tree)))
            return verdict, by + moved
        finally:
            file.write_bytes(original)
            if old_object is not None:  # spares compiling the file as it was; what is linked of it is made again
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
                object_file.write_bytes(old_object)

    def by_unit_tests(self, file):
        error = self.build(f"{self.build_name}/tests")
        if error:
            return "does not build", error
        for room in (room_of(file), None):
            failure = self.unit_tests(room, self.limits_s["unit"])
            if failure:
                return "caught", failure
        return UNIT_TESTS_PASS, ""

    def by_shell_tests(self, file):
        error = self.build("all")
        if error:
            return "does not build", error
        for name in shell_tests_of(file, self.gpu):
            failure = self.shell_test(name, self.limits_s[name])
            if failure:
                return "caught", failure
        return "survived", ""


def rooms_changed_since(revision):
    listed = subprocess.run(["git", "diff", "--name-only", revision], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        raise CannotRun(f"--changed-since {revision}: {listed.stderr.strip()}")
    return {room_of(name) for name in listed.stdout.splitlines()}


def chosen(faults, arguments):
    if arguments.rooms:
        rooms = set(arguments.rooms.split(","))
        faults = [f for f in faults if any(room_of(f.file) == r or room_of(f.file).startswith(r + "/") for r in rooms)]
    if arguments.changed_since:
        rooms = rooms_changed_since(arguments.changed_since)
        faults = [fault for fault in faults if room_of(fault.file) in rooms] or faults
    if arguments.only:
        faults = [f for f in faults if arguments.only in f.id or arguments.only in f"{f.file}: {f.meaning}"]
    if arguments.random is not None:
        faults = [fault for fault in faults if not fault.unnoticed]
        seed = arguments.seed if arguments.seed is not None else str(random.randrange(10**6))
        print(f"{min(arguments.random, len(faults))} of {len(faults)} faults at random, --seed {seed}")
        faults = random.Random(seed).sample(faults, min(arguments.random, len(faults)))
    return faults


def read_results(file):
    results = {}
    if file.is_file():
        for line in file.read_text().splitlines():
            try:
                result = json.loads(line)
                results[result["id"]] = result
            except (ValueError, KeyError):
                pass  # a run that was killed may leave half a line
    return results


def check(faults, all_is_said):
    """1 when a fault is stale, else 0. A stale one fails every run, also one that has not chosen it."""
    stale = 0
    for fault in faults:
        file, why = place_of(fault, ROOT)
        if file is None:
            stale += 1
            print(f"stale  {fault.id}  {fault.file}: {fault.meaning}: {why}")
        elif all_is_said and file != ROOT / fault.file:
            print(f"moved  {fault.id}  {fault.file}: {fault.meaning}: now in {file.relative_to(ROOT)}")
    if all_is_said:
        print(f"{len(faults)} faults, {stale} of them stale")
    return 1 if stale else 0


def report(faults, results):
    """The table of a run, and its exit status."""
    verdicts = collections.Counter(results[fault.id]["verdict"] for fault in faults if fault.id in results)
    by_room = collections.defaultdict(collections.Counter)
    for fault in faults:
        if fault.id in results:
            by_room[room_of(fault.file)][results[fault.id]["verdict"]] += 1
    print("\n| room | faults | caught | survived |\n|---|---|---|---|")
    for room in sorted(by_room):
        counts = by_room[room]
        print(f"| {room} | {sum(counts.values())} | {counts['caught']} | {counts['survived']} |")
    print(f"| all | {sum(verdicts.values())} | {verdicts['caught']} | {verdicts['survived']} |\n")
    for verdict in ("survived", UNIT_TESTS_PASS, "stale", "does not build"):
        for fault in faults:
            if results.get(fault.id, {}).get("verdict") == verdict:
                why = fault.unnoticed or results[fault.id]["by"]
                print(f"{verdict}: {fault.id}  {fault.file}: {fault.meaning}  {why}")
    if len({result["sources"] for result in results.values()}) > 1:
        print("note: some of these verdicts are of other sources; without --resume all are found anew")
    tried = verdicts["caught"] + verdicts["survived"]
    share = f", {100 * verdicts['caught'] / tried:.0f}% of those that build" if tried else ""
    print(f"{verdicts['caught']} caught{share}, {verdicts['survived']} survived, {verdicts['stale']} stale, "
          f"{verdicts['does not build']} do not build, {len(faults) - sum(verdicts.values())} not tried")
    return 0 if sum(verdicts.values()) == verdicts["caught"] else 1


def arguments_of(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="N of the chosen faults")
    parser.add_argument("--seed", metavar="S", help="of --random; printed when it is not given")
    parser.add_argument("--rooms", metavar="A,B", help="only faults in these rooms, such as kernels,train/run")
    parser.add_argument("--changed-since", metavar="REV", help="only faults in rooms with a file changed since REV; all when none changed")
    parser.add_argument("--only", metavar="TEXT", help="only faults with TEXT in id, file or meaning")
    parser.add_argument("--gpu", action="store_true", help="the faults of gpu_faults.txt, with BACKEND=cuda")
    parser.add_argument("--check", action="store_true", help="only look for the texts")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts that the last run found")
    parser.add_argument("--survivors", action="store_true", help="only name what the last run did not catch")
    parser.add_argument("--work", type=Path, help="where copy and verdicts lie (build/mutants)")
    parser.add_argument("--copies", type=int, default=1, metavar="N", help="N copies, each tries a fault at a time")
    parser.add_argument("--unit-tests-only", action="store_true", help="no shell tests; --resume adds them later")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of make")
    return parser.parse_args(argv)


def copies_of(work, arguments):
    """The first copy, built, and as many more as --copies asks for. Each has its own share of the processors."""
    count = min(arguments.copies, len(os.sched_getaffinity(0)))
    if count <= 1:
        return [Copy(work, arguments.gpu, arguments.jobs)]
    first = Copy(work, arguments.gpu, arguments.jobs)
    error = first.build("all", f"{first.build_name}/tests")
    if error:
        raise CannotRun(f"the sources do not build as they are: {error}")
    cpus = sorted(os.sched_getaffinity(0))
    copies = [first]
    for number in range(1, count):
        copies.append(Copy(work / f"copy{number}", arguments.gpu, arguments.jobs))
        copies[-1].take_build(first.tree / first.build_name)
    for number, copy in enumerate(copies):
        copy.cpus = cpus[number::count]
        copy.make[2] = f"-j{len(copy.cpus)}"
    return copies


def main(argv):
    arguments = arguments_of(argv)
    all_faults = list_of_faults(HERE / ("gpu_faults.txt" if arguments.gpu else "faults.txt"))
    work = (arguments.work or ROOT / "build" / "mutants").resolve()
    results_file = work / ("gpu_results.jsonl" if arguments.gpu else "results.jsonl")
    if arguments.survivors:
        return report(all_faults, read_results(results_file))
    faults = chosen(all_faults, arguments)
    if not faults:
        print("no fault is chosen")
        return 0
    if arguments.check:
        return check(faults, True)
    stale = check(all_faults, False)
    work.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        results_file.unlink(missing_ok=True)
    results = read_results(results_file)
    copies = copies_of(work, arguments)
    idle, one_at_a_time = list(copies), threading.Lock()

    def try_one(fault, judge):
        with one_at_a_time:
            copy = idle.pop()
        start = time.monotonic()
        verdict, by = copy.try_fault(fault, lambda file: judge(copy, file))
        result = {"id": fault.id, "file": fault.file, "meaning": fault.meaning, "verdict": verdict, "by": by,
                  "seconds": round(time.monotonic() - start), "sources": copy.sources}
        with one_at_a_time:
            idle.append(copy)
            results[fault.id] = result
            with open(results_file, "a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{verdict:8}  {fault.file}: {fault.meaning}\n    {result['seconds']} s  {by}", flush=True)

    def try_all(some, judge, tests):
        copies[0].measure(tests)
        for copy in copies:
            copy.limits_s = copies[0].limits_s
        with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
            for tried in [pool.submit(try_one, fault, judge) for fault in some]:
                tried.result()

    left = [fault for fault in faults if fault.id not in results]
    if left:
        print(f"{len(left)} to try with the unit tests", flush=True)
        try_all(left, Copy.by_unit_tests, ["unit"])
    left = [fault for fault in faults if results[fault.id]["verdict"] == UNIT_TESTS_PASS]
    if left and not arguments.unit_tests_only:
        print(f"{len(left)} to try with the shell tests", flush=True)
        files = [str(place_of(fault, copies[0].tree)[0].relative_to(copies[0].tree)) for fault in left]
        tests = sorted({name for file in files for name in shell_tests_of(file, arguments.gpu)})
        try_all(left, Copy.by_shell_tests, tests)
    return max(stale, report(faults, results))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (CannotRun, OSError, subprocess.CalledProcessError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        sys.exit(2)
