#!/usr/bin/env python3
"""faults.py FAULT_OPERATION [TIMEOUT] - a stream of operations from rxe0 to rxe1, what befalls it, and what the requester gets to see of it.

Operations: write, send, read, of 64 KiB each, eight under way. Faults, once some have completed: `killed`, the target's process is (SIGKILL); `host_gone`, the target's interface
goes down; `cut_1s`, `cut_long`: the long link carries nothing for that time, or for LAB_CUT seconds (default 12: longer than `peer.dead_after` and than `limits.target_dead`).

The target is a process of its own; both tell each other their numbers by pipes. It checks what arrived, the requester what it read: operation n carries bytes n mod 251. Everything is put
right again afterwards (LAB_LINK: what netem was told), and a new pair of queue pairs tried. The last line printed is the outcome: statuses in the order in which they
came, runs of the same as one, then what new queue pairs see. Exit status 0: the stream ended, well or by an error, within the time limit; nothing that completed was wrong; after it all
goes well; and, with LAB_WAY=gateways, `cut_1s` went unnoticed, and by `cut_long` the requester gave up by itself. A requester gives up after 7 tries of 67 ms here, or of
4.096 us x 2^TIMEOUT. One that waits for a READ cannot be kept patient (near.rs, `may_repeat`), so `cut_1s_read` may end in an error unless its time limit is longer.
"""
import json
import os
import signal
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.wr import RecvWR, SendWR

import verbs

LENGTH = 1 << 16
DEPTH = 8
RECEIVES = 64
BEFORE, AFTER = 40, 40  # operations that complete before the fault; that are posted after it is over
TIMEOUT = int(sys.argv[2]) if len(sys.argv) > 2 else 14
LIMIT = 60.0
CUT = {"cut_1s": 1.0, "cut_long": float(os.environ.get("LAB_CUT", "12"))}
LINK = os.environ.get("LAB_LINK", "delay 10ms limit 200000 rate 200mbit").split()
GIVEN_UP = "success retry_exc_err wr_flush_err"
OPCODES = {"write": e.IBV_WR_RDMA_WRITE, "send": e.IBV_WR_SEND, "read": e.IBV_WR_RDMA_READ}


class Side(verbs.Side):
    """One whose memory is so many slots of 64 KiB."""

    def __init__(self, device, slots):
        super().__init__(device, slots * LENGTH, RECEIVES)
        self.slots = slots

    def slot(self, number):
        return self.piece(number % self.slots * LENGTH, LENGTH)

    def fill(self, number):
        self.mr.write(bytes([number % 251]) * LENGTH, LENGTH, number % self.slots * LENGTH)

    def holds(self, number):
        return self.mr.read(LENGTH, number % self.slots * LENGTH) == bytes([number % 251]) * LENGTH


def tell(pipe, what):
    os.write(pipe, (json.dumps(what) + "\n").encode())


def hear(pipe):
    text = b""
    while not text.endswith(b"\n"):
        more = os.read(pipe, 4096)
        if not more:
            sys.exit("the other side is gone")
        text += more
    return json.loads(text)


def target(operation, hears, tells):
    """The target's process: it serves until it is told how many operations completed at the requester, and says whether it had them."""
    side = Side("rxe1", RECEIVES if operation == "send" else DEPTH)
    tell(tells, side.address())
    side.connect(hear(hears), TIMEOUT)
    if operation == "send":
        for number in range(RECEIVES):
            side.qp.post_recv(RecvWR(sg=[side.slot(number)], num_sge=1))
    elif operation == "read":
        for number in range(DEPTH):
            side.fill(number)
    tell(tells, "ready")
    os.set_blocking(hears, False)
    received, wrong, statuses, posted = 0, 0, [], None
    while True:
        found = side.poll()
        for status in found:
            statuses.append(status)
            if status == "success":
                wrong += not side.holds(received)
                side.qp.post_recv(RecvWR(sg=[side.slot(received)], num_sge=1))
                received += 1
        if posted is None:
            try:
                posted, completed = json.loads(os.read(hears, 100))
            except BlockingIOError:
                pass
        elif not found:
            break
    if operation == "write":
        # One that did not complete may have begun to overwrite an earlier one's slot.
        wrong = sum(not side.holds(number) for number in range(max(0, posted - DEPTH), completed))
    elif operation == "send":
        wrong += max(0, completed - received)
    tell(tells, {"wrong": wrong, "statuses": [status for status in statuses if status != "success"]})
    os._exit(0)


class Pair:
    """A requester, and its target's process."""

    def __init__(self, operation):
        self.operation = operation
        to_target, to_us = os.pipe(), os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(to_target[1])
            target(operation, to_target[0], to_us[1])
        os.close(to_us[1])
        self.hears, self.tells = to_us[0], to_target[1]
        self.side = Side("rxe0", DEPTH)
        self.other = hear(self.hears)
        tell(self.tells, self.side.address())
        self.side.connect(self.other, TIMEOUT)
        hear(self.hears)
        self.posted = self.completed = self.wrong = 0
        self.statuses = []

    def post(self):
        if self.operation != "read":
            self.side.fill(self.posted)
        request = SendWR(opcode=OPCODES[self.operation], num_sge=1, sg=[self.side.slot(self.posted)], send_flags=e.IBV_SEND_SIGNALED)
        if self.operation != "send":
            request.set_wr_rdma(self.other["rkey"], self.other["buf"] + self.posted % DEPTH * LENGTH)
        self.side.qp.post_send(request)
        self.posted += 1

    def run(self, goal, until):
        """Posts operations until so many have been posted, an error came, or the time is up, and takes what completes."""
        while not self.failed() and time.monotonic() < until:
            while self.posted < goal and self.posted - len(self.statuses) < DEPTH:
                self.post()
            if not self.take() and self.posted == goal:
                return

    def take(self):
        """Takes completions; whether any are still to come."""
        for status in self.side.poll():
            if status == "success":
                if self.operation == "read":
                    # The target's slots hold their own numbers.
                    data = self.side.mr.read(LENGTH, self.completed % DEPTH * LENGTH)
                    self.wrong += data != bytes([self.completed % DEPTH]) * LENGTH
                self.completed += 1
            self.statuses.append(status)
        return len(self.statuses) < self.posted

    def failed(self):
        return any(status != "success" for status in self.statuses)

    def verdict(self, alive):
        """What the target says, and the end of it."""
        found = {"wrong": 0, "statuses": []}
        if alive:
            tell(self.tells, [self.posted, self.completed])
            found = hear(self.hears)
        os.waitpid(self.child, 0)
        return found["wrong"] + self.wrong, found["statuses"]


def link(whole):
    """The long link is as it was, or loses everything."""
    spec = LINK if whole else [*(LINK[: LINK.index("loss")] if "loss" in LINK else LINK), "loss", "100%"]
    for site, device in (("gwa", "wa"), ("gwb", "wb")):
        subprocess.run(["tc", "-n", site, "qdisc", "change", "dev", device, "root", "netem", *spec], check=True)


def host(up):
    subprocess.run(["ip", "link", "set", "v1", "up" if up else "down"], check=True)
    if up:
        subprocess.run("ip route replace 10.0.0.1 via 10.0.1.254 dev v1 table 101".split(), check=True)


def runs(statuses):
    """The same, but runs as one."""
    return " ".join(status for index, status in enumerate(statuses) if index == 0 or statuses[index - 1] != status)


def main():
    fault, operation = sys.argv[1].rsplit("_", 1)
    pair = Pair(operation)
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
        pair = Pair(operation)
        pair.run(AFTER, time.monotonic() + LIMIT)
        wrong, _ = pair.verdict(True)
        found = (runs(pair.statuses) or "no completion") + (f", {wrong} WRONG" if wrong else "")
        if found == "success":
            break
        time.sleep(2)
    return found


main()
