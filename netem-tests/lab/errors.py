#!/usr/bin/env python3
"""errors.py CASE - one RDMA operation from rxe0 to rxe1 that goes wrong, or nearly, and what both programs get to see of it.

Both queue pairs belong to this process; it tells either the other's number. The last line it prints is the outcome: each work request's status at the requester, then
at the target. Exit status 0: there was an outcome, good or bad, within the time limit.
"""
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 1 << 20
GID = 1  # the IPv4 address
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
LIMIT = 60.0
STATUS = {value: name[7:].lower() for name, value in vars(e).items() if name.startswith("IBV_WC_") and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")}


class Side:
    """A host: a device, a queue pair and a region of 1 MiB."""

    def __init__(self, device, access=REMOTE):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 64)
        self.mr = MR(self.pd, SIZE, e.IBV_ACCESS_LOCAL_WRITE | access)
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def connect(self, other, rnr_retry, retry):
        attr = QPAttr(port_num=1)
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_4096, other.qp.qp_num
        route = GlobalRoute(dgid=other.context.query_gid(1, GID), sgid_index=GID, hop_limit=64)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.qp_access_flags = REMOTE
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = 14  # 1.28 ms
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, retry, rnr_retry
        attr.rq_psn = attr.sq_psn = 0x1234
        self.qp.to_rts(attr)

    def receive(self, length):
        self.qp.post_recv(RecvWR(sg=[SGE(self.mr.buf, length, self.mr.lkey)], num_sge=1))

    def post(self, opcode, other, length, offset=0, key=0, atomic=False):
        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(self.mr.buf, length, self.mr.lkey)], send_flags=e.IBV_SEND_SIGNALED, imm_data=0x1234)
        if atomic:
            request.set_wr_atomic(other.mr.rkey ^ key, other.mr.buf + offset, 1, 0)
        elif opcode not in (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM):
            request.set_wr_rdma(other.mr.rkey ^ key, other.mr.buf + offset)
        self.qp.post_send(request)

    def outcome(self, count, until):
        """The statuses of so many completions."""
        found = []
        while len(found) < count and time.monotonic() < until:
            number, completions = self.cq.poll(1)
            found += [STATUS[completion.status] for completion in completions[:number]]
            if number == 0:
                time.sleep(0.005)
        return found + ["no completion"] * (count - len(found))


def run(case):
    a, b = Side("rxe0"), Side("rxe1", 0 if case == "no_remote_access" else REMOTE)
    rnr_retry = int(case[-1]) if case.startswith("no_receive") or case.startswith("late_receive") else 7
    # 7 is for ever with Soft-RoCE. To try once more takes 67 ms and more.
    retry = 6 if case.startswith("target_gone") else 7
    a.connect(b, rnr_retry, retry)
    b.connect(a, rnr_retry, retry)
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
