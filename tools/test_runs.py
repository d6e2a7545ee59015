#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts test cases over several runs of `meson test`, for tools/check.

targets DIR SUITE...     prints what ninja has to build for these suites
collect DIR LOG COUNTS   reads meson's log and the XML files of GoogleTest in DIR, writes COUNTS
broken DIR COUNTS        DIR could not be built: one failure
total COUNTS...          prints a line per run, what failed, and "N passed, M failed"

A program that crashes, hangs, or fails after its last case (a leak) is one failure on top of its
cases. A program that is no GoogleTest is one case.
"""
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET


def introspect(directory, what):
    text = subprocess.run(["meson", "introspect", directory, what], check=True,
                          capture_output=True, text=True).stdout
    return json.loads(text)


def targets(directory, suites):
    files = {t["id"]: t["filename"] for t in introspect(directory, "--targets")}
    wanted = set()
    for test in introspect(directory, "--tests"):
        if not {s.split(":")[-1] for s in test["suite"]} & set(suites):
            continue
        for target in test["depends"]:
            wanted.update(files.get(target, []))
    base = os.path.realpath(directory)
    for path in sorted(wanted):
        print(os.path.relpath(os.path.realpath(path), base))


def cases_of_xml(path):
    """(passed, names of failed, skipped) or None when there is no usable file."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return None
    passed, failed, skipped = 0, [], 0
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.get("status") == "notrun" or case.get("result") in ("skipped", "suppressed"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def cases_of_output(text):
    """The same from the output of a program that did not live to write its XML."""
    passed = len(re.findall(r"^\[       OK \] ", text, re.M))
    failed = re.findall(r"^\[  FAILED  \] (\S+) \(\d+ ms\)", text, re.M)
    skipped = len(re.findall(r"^\[  SKIPPED \] \S+ \(\d+ ms\)", text, re.M))
    return passed, failed, skipped


def collect(directory, log, counts):
    run = {"name": directory, "programs": 0, "passed": 0, "skipped": 0, "failed": []}
    try:
        with open(log, encoding="utf-8", errors="replace") as lines:
            tests = [json.loads(line) for line in lines if line.strip()]
    except OSError:
        tests = []
    if not tests:
        run["failed"].append("no test was run")
    for test in tests:
        run["programs"] += 1
        name = test["name"].split(" / ")[-1]
        result = test["result"]
        good = result in ("OK", "SKIP", "EXPECTEDFAIL")
        output = test.get("stdout", "")
        cases = cases_of_xml(os.path.join(directory, name + ".xml"))
        if cases is None and "[==========] Running" in output:
            cases = cases_of_output(output)
        if cases is None:  # no GoogleTest, or it did not come that far
            cases = (int(good and result != "SKIP"), [], int(result == "SKIP"))
        passed, failed, skipped = cases
        run["passed"] += passed
        run["skipped"] += skipped
        run["failed"] += [f"{name}: {case}" for case in failed]
        if not good and not failed:
            why = {"TIMEOUT": "timed out"}.get(result, f"ended with {test.get('returncode')}")
            run["failed"].append(f"{name}: {why}")
    with open(counts, "w", encoding="utf-8") as file:
        json.dump(run, file)


def broken(directory, counts):
    with open(counts, "w", encoding="utf-8") as file:
        json.dump({"name": directory, "programs": 0, "passed": 0, "skipped": 0,
                   "failed": ["could not be built"]}, file)


def total(paths):
    passed, failed, skipped = 0, 0, 0
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                run = json.load(file)
        except (OSError, ValueError) as error:
            run = {"name": path, "programs": 0, "passed": 0, "skipped": 0, "failed": [str(error)]}
        for what in run["failed"]:
            print(f"FAILED {run['name']}: {what}")
        print(f"{run['name']}: {run['programs']} programs, {run['passed']} passed, "
              f"{len(run['failed'])} failed, {run['skipped']} skipped")
        passed += run["passed"]
        failed += len(run["failed"])
        skipped += run["skipped"]
    print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main(args):
    if len(args) > 2 and args[0] == "targets":
        targets(args[1], args[2:])
        return 0
    if len(args) == 4 and args[0] == "collect":
        collect(*args[1:])
        return 0
    if len(args) == 3 and args[0] == "broken":
        broken(*args[1:])
        return 0
    if len(args) > 1 and args[0] == "total":
        return total(args[1:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
