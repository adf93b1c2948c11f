#!/usr/bin/env python3
"""errors.py CASE - one RDMA operation from rxe0 to rxe1 that goes wrong, or nearly, and what both programs get to see of it.

Both queue pairs belong to this process; it tells either the other's number. The last line it prints is the outcome: each work request's status at the requester, then
at the target. Exit status 0: there was an outcome, good or bad, within the time limit.
"""
import sys
import time

import pyverbs.enums as e
from pyverbs.wr import RecvWR, SendWR

import verbs

SIZE = 1 << 20
LIMIT = 60.0


class Side(verbs.Side):
    """One whose memory is 1 MiB."""

    def __init__(self, device, access=verbs.REMOTE):
        super().__init__(device, SIZE, access=access)

    def receive(self, length):
        self.qp.post_recv(RecvWR(sg=[self.piece(0, length)], num_sge=1))

    def post(self, opcode, other, length, offset=0, key=0, atomic=False):
        request = SendWR(opcode=opcode, num_sge=1, sg=[self.piece(0, length)], send_flags=e.IBV_SEND_SIGNALED, imm_data=0x1234)
        if atomic:
            request.set_wr_atomic(other.mr.rkey ^ key, other.mr.buf + offset, 1, 0)
        elif opcode not in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
            request.set_wr_rdma(other.mr.rkey ^ key, other.mr.buf + offset)
        self.qp.post_send(request)

    def outcome(self, count, until):
        """The statuses of so many completions."""
        found = []
        while len(found) < count and time.monotonic() < until:
            found += self.poll()
        return found + ["no completion"] * (count - len(found))


def run(case):
    a, b = Side("rxe0"), Side("rxe1", 0 if case == "no_remote_access" else verbs.REMOTE)
    rnr_retry = int(case[-1]) if case.startswith("no_receive") or case.startswith("late_receive") else 7
    retry = 6 if case.startswith("target_gone") else 7
    a.connect(b.address(), retry=retry, rnr_retry=rnr_retry)
    b.connect(a.address(), retry=retry, rnr_retry=rnr_retry)
    a.mr.write(b"x" * SIZE, SIZE)
    operations, at_target, check = 1, 0, None
    if case == "write_imm":
        b.receive(0)
        a.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, b, 100_001)
        at_target, check = 1, 100_001
    elif case == "write_wrong_rkey":
        a.post(e.IBV_WR_RDMA_WRITE, b, 10_000, key=0xff00)
    elif case == "read_wrong_rkey":
        a.post(e.IBV_WR_RDMA_READ, b, 10_000, key=0xff00)
    elif case == "atomic_wrong_rkey":
        a.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, b, 8, key=0xff00, atomic=True)
    elif case == "write_beyond":
        a.post(e.IBV_WR_RDMA_WRITE, b, 10_000, offset=SIZE - 9_999)
    elif case == "read_beyond":
        a.post(e.IBV_WR_RDMA_READ, b, 10_000, offset=SIZE - 9_999)
    elif case == "no_remote_access":
        a.post(e.IBV_WR_RDMA_WRITE, b, 64)
    elif case == "send_too_long":
        b.receive(5_000)
        a.post(e.IBV_WR_SEND, b, 10_000)
        at_target = 1
    elif case == "good_then_wrong_rkey":
        for key in (0, 0, 0xff00, 0):
            a.post(e.IBV_WR_RDMA_WRITE, b, 10_000, key=key)
        operations, check = 4, 10_000
    elif case.startswith("no_receive"):
        a.post(e.IBV_WR_SEND, b, 64)
    elif case.startswith("late_receive"):
        a.post(e.IBV_WR_SEND, b, 10_000)
        time.sleep(1)
        b.receive(10_000)
        at_target, check = 1, 10_000
    elif case.startswith("target_gone"):
        # After a message that was well.
        b.receive(64)
        a.post(e.IBV_WR_SEND, b, 64)
        b.outcome(1, time.monotonic() + LIMIT)
        b.qp.close()
        a.post(e.IBV_WR_RDMA_WRITE, b, int(case.rsplit("_", 1)[1]))
        operations = 2
    else:
        sys.exit(f"no case {case}")
    until = time.monotonic() + LIMIT
    if case == "no_receive_7":
        until = time.monotonic() + 5  # for ever
    lines = [" ".join(a.outcome(operations, until))]
    if at_target:
        lines.append("at the target " + " ".join(b.outcome(at_target, until)))
    if check:
        data = b.mr.read(check, 0)
        lines.append("data right" if bytes(data).strip(b"x") == b"" else "DATA WRONG")
    print(", ".join(lines))


run(sys.argv[1])
