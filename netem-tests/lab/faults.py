#!/usr/bin/env python3
"""faults.py FAULT_OPERATION [TIMEOUT] - a stream of operations from rxe0 to rxe1, what befalls it, and what the requester gets to see of it.

Operations: write, send, read, of 64 KiB each, eight under way. Faults, once some have completed: `killed`, the target's process is (SIGKILL); `host_gone`, the target's interface
goes down; `cut_1s`, `cut_long`: the long link carries nothing for that time, or for LAB_CUT seconds (default 12: longer than `peer.dead_after` and than `limits.target_dead`).

Everything is put right again afterwards (LAB_LINK: what netem was told), and a new pair of queue pairs tried. The last line printed is the outcome: statuses in the order in which they
came, runs of the same as one, then what new queue pairs see. Exit status 0: the stream ended, well or by an error, within the time limit; nothing that completed was wrong; after it all
goes well; and, with LAB_WAY=gateways, `cut_1s` went unnoticed, and by `cut_long` the requester gave up by itself. A requester gives up after 7 tries of 67 ms here, or of
4.096 us x 2^TIMEOUT. One that waits for a READ cannot be kept patient (near.rs, `may_repeat`), so `cut_1s_read` may end in an error unless its time limit is longer.
"""
import os
import signal
import subprocess
import sys
import time

from streams import DEPTH, Pair, runs

BEFORE, AFTER = 40, 40  # operations that complete before the fault; that are posted after it is over
TIMEOUT = int(sys.argv[2]) if len(sys.argv) > 2 else 14
LIMIT = 60.0
CUT = {"cut_1s": 1.0, "cut_long": float(os.environ.get("LAB_CUT", "12"))}
LINK = os.environ.get("LAB_LINK", "delay 10ms limit 200000 rate 200mbit").split()
GIVEN_UP = "success retry_exc_err wr_flush_err"


def link(whole):
    """The long link is as it was, or loses everything."""
    spec = LINK if whole else [*(LINK[: LINK.index("loss")] if "loss" in LINK else LINK), "loss", "100%"]
    for site, device in (("gwa", "wa"), ("gwb", "wb")):
        subprocess.run(["tc", "-n", site, "qdisc", "change", "dev", device, "root", "netem", *spec], check=True)


def host(up):
    subprocess.run(["ip", "link", "set", "v1", "up" if up else "down"], check=True)
    if up:
        subprocess.run("ip route replace 10.0.0.1 via 10.0.1.254 dev v1 table 101".split(), check=True)


def main():
    fault, operation = sys.argv[1].rsplit("_", 1)
    pair = Pair(operation, TIMEOUT)
    until = time.monotonic() + LIMIT
    pair.run(BEFORE, until)
    if pair.failed() or pair.completed < BEFORE:
        sys.exit(f"before the fault: {runs(pair.statuses)}")
    while pair.posted - len(pair.statuses) < DEPTH:
        pair.post()
    began = time.monotonic()
    if fault == "killed":
        os.kill(pair.child, signal.SIGKILL)
    elif fault == "host_gone":
        host(False)
    else:
        link(whole=False)
    if fault in CUT:
        # Posts go on as they would, and then the link is back.
        pair.run(1 << 30, began + CUT[fault])
        link(whole=True)
        pair.run(pair.posted + AFTER, until)
    else:
        pair.run(1 << 30, until)
    ended = time.monotonic()
    # What was under way is flushed behind an error.
    while pair.take() and time.monotonic() < ended + 5:
        pass
    if fault == "host_gone":
        host(True)
    statuses = pair.statuses + ["no completion"] * (pair.posted - len(pair.statuses))
    wrong, at_target = pair.verdict(fault != "killed")
    print(f"{pair.completed} completed, ended {ended - began:.1f} s after the fault began; at the target {runs(at_target) or 'nothing'}")
    after = anew(operation)
    good = runs(statuses) == "success"
    print(runs(statuses) + (f", {wrong} WRONG" if wrong else "") + f", new ones {after}")
    as_due = True
    if os.environ.get("LAB_WAY") == "gateways":
        if fault == "cut_1s" and (operation != "read" or TIMEOUT >= 18):
            as_due = good
        elif fault == "cut_long":
            as_due = runs(statuses) == GIVEN_UP
    sys.exit(not (as_due and wrong == 0 and after == "success" and "no completion" not in statuses))


def anew(operation):
    """What new queue pairs see, which may have to wait for a new session: their own time limits are short."""
    for _ in range(10):
        pair = Pair(operation, TIMEOUT)
        pair.run(AFTER, time.monotonic() + LIMIT)
        wrong, _ = pair.verdict(True)
        found = (runs(pair.statuses) or "no completion") + (f", {wrong} WRONG" if wrong else "")
        if found == "success":
            break
        time.sleep(2)
    return found


main()
