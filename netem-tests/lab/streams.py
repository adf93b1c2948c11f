"""What faults.py and outages.py share: a stream of operations from rxe0 to rxe1, of 64 KiB each and eight under way, whose contents both ends check.

The target is a process of its own; both tell each other their numbers by pipes. It checks what arrived, the requester what it read: operation n carries bytes n mod 251.
"""
import json
import os
import sys
import time

import pyverbs.enums as e
from pyverbs.wr import RecvWR, SendWR

import verbs

LENGTH = 1 << 16
DEPTH = 8
RECEIVES = 64
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


def target(operation, timeout, hears, tells):
    """The target's process: it serves until it is told how many operations completed at the requester, and says whether it had them."""
    side = Side("rxe1", RECEIVES if operation == "send" else DEPTH)
    tell(tells, side.address())
    side.connect(hear(hears), timeout)
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
    """A requester that gives up after 7 tries of 4.096 us x 2^timeout each, and its target's process."""

    def __init__(self, operation, timeout):
        self.operation, self.timeout = operation, timeout
        to_target, to_us = os.pipe(), os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(to_target[1])
            target(operation, timeout, to_target[0], to_us[1])
        os.close(to_us[1])
        self.hears, self.tells = to_us[0], to_target[1]
        self.side = Side("rxe0", DEPTH)
        self.other = hear(self.hears)
        tell(self.tells, self.side.address())
        self.side.connect(self.other, timeout)
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


def runs(statuses):
    """The same, but runs as one."""
    return " ".join(status for index, status in enumerate(statuses) if index == 0 or statuses[index - 1] != status)
