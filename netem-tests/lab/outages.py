#!/usr/bin/env python3
"""outages.py OPERATION TIMEOUT FOLDER - a stream of operations (streams.py) for as long as FOLDER/go exists, and its longest stalls.

FOLDER/deed says what befalls it now. When it says something else, a line with the deed, the longest time without a completion in it, and the completions goes to
FOLDER/OPERATION.tsv. Exit status 0: all completed well, and all that completed was right.
"""
import os
import sys
import time

from streams import DEPTH, Pair, runs


def deed(folder):
    with open(os.path.join(folder, "deed"), encoding="utf-8") as file:
        return file.read().strip()


def main():
    operation, timeout, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    go, table = os.path.join(folder, "go"), open(os.path.join(folder, f"{operation}.tsv"), "w", encoding="utf-8")
    pair = Pair(operation, timeout)
    current, longest, before = deed(folder), 0.0, 0
    last = looked = time.monotonic()

    def tell():
        print(current, f"{max(longest, time.monotonic() - last):.2f}", pair.completed - before, sep="\t", file=table, flush=True)

    while os.path.exists(go):
        while pair.posted - len(pair.statuses) < DEPTH:
            pair.post()
        count = pair.completed
        pair.take()
        now = time.monotonic()
        if pair.completed > count:
            longest, last = max(longest, now - last), now
        if pair.statuses and pair.statuses[-1] != "success":
            break
        if now > looked + 0.1:
            looked, said = now, deed(folder)
            if said != current:
                tell()
                current, longest, before = said, 0.0, pair.completed
    tell()
    until = time.monotonic() + 90
    while pair.take() and time.monotonic() < until:
        pass
    wrong, at_target = pair.verdict(True)
    print(f"{operation}: {pair.completed} of {pair.posted} completed, {wrong} wrong; {runs(pair.statuses)}; at the target {runs(at_target) or 'nothing'}")
    sys.exit(wrong != 0 or pair.completed != pair.posted)


main()
