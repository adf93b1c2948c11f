"""plain-uc.py MESSAGES BYTES: plain UC writes with immediate, from rxe0 to rxe1. Says how many messages came: a lost packet loses all of one."""
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID as Gid
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID = 1  # the IPv4 address


class Side:
    """A host: a device, memory, and a UC queue pair."""

    def __init__(self, device, size):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 1024)
        self.mr = MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=16, max_recv_wr=512)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_UC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.gid = self.context.query_gid(1, GID).gid

    def connect(self, other):
        attr = QPAttr(port_num=1)
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_1024, other.qp.qp_num
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=Gid(other.gid), sgid_index=GID, hop_limit=64))
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.rq_psn = attr.sq_psn = 0x1234
        self.qp.to_rts(attr)


def main(messages, size):
    near, far = Side("rxe0", size), Side("rxe1", size)
    near.connect(far)
    far.connect(near)
    for number in range(messages):
        # The payload goes where the write says, and this says nothing.
        far.qp.post_recv(RecvWR(wr_id=number, num_sge=1, sg=[SGE(far.mr.buf, 4, far.mr.lkey)]))
    came = 0
    for number in range(messages):
        sge = SGE(near.mr.buf, size, near.mr.lkey)
        wr = SendWR(wr_id=number, opcode=e.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, imm_data=number, sg=[sge], send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_rdma(far.mr.rkey, far.mr.buf)
        near.qp.post_send(wr)
        while not near.cq.poll(16)[0]:
            time.sleep(0.001)
    last = time.monotonic()
    while time.monotonic() - last < 1 and came < messages:
        count = far.cq.poll(16)[0]
        if count:
            came, last = came + count, time.monotonic()
        else:
            time.sleep(0.002)
    print(f"plain UC writes: {came} of {messages} messages of {size} bytes came")
    return 0 if came < messages else 1


sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
