"""What errors.py, faults.py and identity.py share: a host's end of an RC connection, and the names of completion statuses."""
import time

import pyverbs.enums as e
from pyverbs.addr import GID as Gid
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE

GID = 1  # the IPv4 address
SENDS = 16
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
STATUS = {value: name[7:].lower() for name, value in vars(e).items() if name.startswith("IBV_WC_") and (name.endswith("_ERR") or name == "IBV_WC_SUCCESS")}


def attributes(gid, qpn, timeout=14, retry=6, rnr_retry=7, psn=0x1234, label=0, mtu=e.IBV_MTU_4096):
    """What connects a queue pair to another: with both ends' first PSN, and the flow label of what it sends."""
    attr = QPAttr(port_num=1)
    attr.path_mtu, attr.dest_qp_num = mtu, qpn
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=Gid(gid), sgid_index=GID, flow_label=label, hop_limit=64))
    attr.qp_access_flags = REMOTE
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    attr.min_rnr_timer = 14  # 1.28 ms
    attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retry, rnr_retry
    attr.rq_psn = attr.sq_psn = psn
    return attr


class Side:
    """A host: a device, so many bytes of memory, and a queue pair for so many receives and 16 sends."""

    def __init__(self, device, size, receives=16, access=REMOTE):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 256)
        self.mr = MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE | access)
        cap = QPCap(max_send_wr=SENDS, max_recv_wr=receives)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))

    def address(self):
        """What the other side has to be told."""
        return {"qpn": self.qp.qp_num, "gid": self.context.query_gid(1, GID).gid, "rkey": self.mr.rkey, "buf": self.mr.buf}

    def connect(self, other, timeout=14, retry=6, rnr_retry=7):
        """To the address of the other side. A `retry` or `rnr_retry` of 7 is for ever with Soft-RoCE; each try takes 4.096 us x 2^timeout."""
        self.qp.to_rts(attributes(other["gid"], other["qpn"], timeout=timeout, retry=retry, rnr_retry=rnr_retry))

    def piece(self, offset, length):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def poll(self):
        """The statuses of what has completed, after a little pause if nothing has."""
        number, completions = self.cq.poll(SENDS)
        if number == 0:
            time.sleep(0.002)
        return [STATUS[completion.status] for completion in completions[:number]]
