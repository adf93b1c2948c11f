#!/usr/bin/env python3
"""identity.py EVIDENCE PART... - queue pairs whose partners are hard to tell: what completed, and whether it was right.

  labels:PAIRS          so many connections at once, the flow label of either end drawn from 1 to 8, all first PSNs 0
  labels:PAIRS:LOSS     the same while the LAN of host 1 loses so many percent of all packets, both ways
  reconnect:COUNT       ten queue pairs on each host are reset and connected again, with the same numbers and first PSN 0, 0, 20 or 100 ms after
                        everything was answered; so often in all. Every other time one end is connected only 30 ms after the other has posted.

Either end of a connection posts a WRITE, a SEND, a FetchAdd and a READ, in another order than last time. All but the atomic take several
packets. Bytes and addends differ from last time's, but each fourth time nothing does. Checked are statuses, all bytes, and each counter.
All queue pairs belong to this process. What it does with them, and each completion, stands in the file EVIDENCE for judge.py.
LAB_SEED draws the same again; LAB_ACK_TIMEOUT is that of the queue pairs, 4.096 us x 2^14 unless said. Exit status 0: all completed well, nothing was wrong.
"""
import collections
import os
import random
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

import evidence
import verbs

SLOT = 16384
SOURCE, LANDING, RECEIVED, FETCHED, SERVED, COUNTER, RESULT = 0, 2560, 5120, 7680, 10240, 12800, 12808
WRITTEN, SENT, FETCH = 2500, 1500, 2300  # bytes; the path MTU is 1024
WORK = 4
RECEIVE = 100
LABELS = range(1, 9)
PAUSES = (0, 0.02, 0.1)
LATE = 0.03
GRACE = 1.0
TOGETHER = 10
LIMIT = float(os.environ.get("LAB_LIMIT", "30"))
TIMEOUT = int(os.environ.get("LAB_ACK_TIMEOUT", "14"))
SUCCESS = e.IBV_WC_SUCCESS


class Host:
    """A device, and memory for so many ends."""

    def __init__(self, number, ends):
        self.number = number
        self.context = Context(name=f"rxe{number}")
        self.gid = self.context.query_gid(1, verbs.GID).gid
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16 * ends)
        self.mr = MR(self.pd, SLOT * ends, e.IBV_ACCESS_LOCAL_WRITE | verbs.REMOTE)
        self.ends = {}


class End:
    """One end of a connection."""

    def __init__(self, host, index):
        self.host, self.offset = host, index * SLOT
        cap = QPCap(max_send_wr=2 * WORK, max_recv_wr=4)
        self.qp = QP(host.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=host.cq, rcq=host.cq, cap=cap, sq_sig_all=1))
        self.place = (host.number, self.qp.qp_num)
        host.ends[self.qp.qp_num] = self
        self.statuses, self.received = [], 0

    def write(self, at, data):
        self.host.mr.write(data, len(data), self.offset + at)

    def read(self, at, length):
        return bytes(self.host.mr.read(length, self.offset + at))

    def address(self, at):
        return self.host.mr.buf + self.offset + at

    def piece(self, at, length):
        return SGE(self.address(at), length, self.host.mr.lkey)

    def prepare(self, fill, first):
        """Bytes to be sent and served; nothing where something is to arrive. `first`: the operation that comes first."""
        self.fill, self.first = fill, first
        self.statuses, self.received = [], 0
        self.write(SOURCE, bytes([fill]) * WRITTEN)
        self.write(SERVED, bytes([fill ^ 0xFF]) * FETCH)
        self.write(LANDING, bytes(WRITTEN))
        self.write(RECEIVED, bytes(SENT))
        self.write(FETCHED, bytes(FETCH))
        self.write(COUNTER, fill.to_bytes(8, "little") + bytes(8))

    def connect(self, other, label):
        self.qp.to_rts(verbs.attributes(other.host.gid, other.qp.qp_num, timeout=TIMEOUT, psn=0, label=label, mtu=e.IBV_MTU_1024))
        self.qp.post_recv(RecvWR(wr_id=RECEIVE, sg=[self.piece(RECEIVED, SENT)], num_sge=1))

    def post(self, other):
        key = other.host.mr.rkey
        operations = [
            (e.IBV_WR_RDMA_WRITE, SOURCE, WRITTEN, LANDING),
            (e.IBV_WR_SEND, SOURCE, SENT, None),
            (e.IBV_WR_ATOMIC_FETCH_AND_ADD, RESULT, 8, COUNTER),
            (e.IBV_WR_RDMA_READ, FETCHED, FETCH, SERVED),
        ]
        for number in range(WORK):
            opcode, own, length, theirs = operations[(self.first + number) % WORK]
            request = SendWR(wr_id=number, opcode=opcode, num_sge=1, sg=[self.piece(own, length)], send_flags=e.IBV_SEND_SIGNALED)
            if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
                request.set_wr_atomic(key, other.address(theirs), self.fill + 1, 0)
            elif theirs is not None:
                request.set_wr_rdma(key, other.address(theirs))
            self.qp.post_send(request)

    def reset(self):
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)

    def done(self):
        """Whether everything has completed, or something did not."""
        return self.failed() or len(self.statuses) == WORK and self.received == 1

    def failed(self):
        return any(status != SUCCESS for status in self.statuses)

    def wrong(self, other):
        """What is not as it should be after everything has completed well."""
        checks = {
            "WRITE": other.read(LANDING, WRITTEN) == bytes([self.fill]) * WRITTEN,
            "SEND": other.read(RECEIVED, SENT) == bytes([self.fill]) * SENT,
            "READ": self.read(FETCHED, FETCH) == bytes([other.fill ^ 0xFF]) * FETCH,
            "result": int.from_bytes(self.read(RESULT, 8), "little") == other.fill,
            "counter": int.from_bytes(other.read(COUNTER, 8), "little") == other.fill + self.fill + 1,
        }
        return [name for name, right in checks.items() if not right]


class Pair:
    """A connection, again and again."""

    def __init__(self, hosts, index, record, seed):
        self.index, self.record, self.random = index, record, random.Random(f"{seed} {index}")
        self.ends = [End(host, index) for host in hosts]
        self.number = 0
        self.until = 0.0
        self.steps = collections.deque()  # [(when, what)]

    def connect(self, end, name, label):
        own, other = self.ends[end], self.ends[1 - end]
        self.record.connect(name, own.place, other.place, (0, 0))
        own.connect(other, label)
        own.post(other)

    def prepare(self):
        kind = self.number - self.number // 4
        for end, side in enumerate(self.ends):
            # At first the READ is the last: where the LAN loses packets, Soft-RoCE acknowledges what comes again by the PSN of all that it
            # has executed, and its requester takes such an ACK for the answer of an atomic, without a result.
            side.prepare((7 * self.index + 31 * kind + 100 * end) % 250 + 1, kind * (1 + end) % WORK)

    def done(self):
        done = [end.done() for end in self.ends]
        # The other end of one that failed waits in vain.
        if any(end.failed() for end in self.ends):
            self.until = min(self.until, time.monotonic() + GRACE)
        return not self.steps and all(done)

    def reset(self):
        for end in self.random.sample(self.ends, 2):
            end.reset()
            self.record.reset(end.place)

    def outcome(self):
        """What went wrong, or nothing."""
        for end, other in (self.ends, self.ends[::-1]):
            failed = [verbs.STATUS.get(status, str(status)) for status in end.statuses if status != SUCCESS]
            if failed:
                return failed[0]
            if len(end.statuses) < WORK or other.received < 1:
                return "no completion"
            if wrong := end.wrong(other):
                return "WRONG " + " ".join(wrong)
        return None


def poll(hosts, record):
    """Takes completions of all queue pairs; whether there were any."""
    some = False
    for host in hosts:
        number, completions = host.cq.poll(64)
        some |= number > 0
        for completion in completions[:number]:
            end = host.ends[completion.qp_num]
            if completion.wr_id == RECEIVE:
                end.received += completion.status == SUCCESS
                continue
            end.statuses.append(completion.status)
            if completion.status == SUCCESS:
                record.done(end.place, len(end.statuses))
    return some


def labels(hosts, pairs, record, name):
    """All connections at once."""
    for pair in pairs:
        pair.prepare()
    # All are connected before any is used, as programs do that tell each other so.
    for pair in pairs:
        for end in (1, 0):
            own, other = pair.ends[end], pair.ends[1 - end]
            record.connect(f"{name}-{pair.index}", own.place, other.place, (0, 0))
            own.connect(other, pair.random.choice(LABELS))
    for pair in pairs:
        for end in (0, 1):
            pair.ends[end].post(pair.ends[1 - end])
    for pair in pairs:
        pair.until = time.monotonic() + LIMIT
    while not all(pair.done() or time.monotonic() > pair.until for pair in pairs):
        if not poll(hosts, record):
            time.sleep(0.001)
    found = {f"{name}-{pair.index}": pair.outcome() for pair in pairs}
    for pair in pairs:
        pair.reset()
    return found


def begin(pair, name):
    """A connection of a pair that has none: its steps."""
    pair.prepare()
    now = time.monotonic()
    first = pair.random.randrange(2)
    label = pair.random.choice((0, *LABELS))
    late = LATE if pair.number % 2 else 0
    for end, when in ((first, now), (1 - first, now + late)):
        pair.steps.append((when, lambda end=end: pair.connect(end, f"{name}-{pair.index}-{pair.number}", label)))
    pair.until = now + LIMIT


def reconnect(hosts, pairs, record, name, count):
    """Ten pairs, each at its own pace."""
    found, begun = {}, 0
    resting = [(0, pair) for pair in pairs]
    busy = []
    while busy or resting and begun < count:
        now = time.monotonic()
        for when, pair in [rest for rest in resting if rest[0] <= now]:
            resting.remove((when, pair))
            if begun < count:
                begin(pair, name)
                busy.append(pair)
                begun += 1
        for pair in list(busy):
            while pair.steps and pair.steps[0][0] <= now:
                pair.steps.popleft()[1]()
            if pair.done() or now > pair.until:
                found[f"{name}-{pair.index}-{pair.number}"] = pair.outcome()
                pair.steps.clear()
                pair.reset()
                busy.remove(pair)
                resting.append((time.monotonic() + PAUSES[(pair.index + pair.number) % 3], pair))
                pair.number += 1
        if not poll(hosts, record):
            time.sleep(0.001)
    return found


def lan_loss(percent):
    """Of what comes to host 1, and of what it sends; 0: none."""
    loss = ["netem", "limit", "100000", "loss", f"{percent}%"] if percent else []
    for tc, device in ((["tc", "-n", "gwb"], "g1"), (["tc"], "v1")):
        subprocess.run([*tc, "qdisc", "replace" if percent else "del", "dev", device, "root", *loss], check=True)


def main():
    seed = os.environ.get("LAB_SEED") or str(random.randrange(1 << 32))
    print(f"LAB_SEED={seed}", flush=True)
    record = evidence.Record(sys.argv[1])
    well = True
    for part in sys.argv[2:]:
        kind, *numbers = part.split(":")
        count = TOGETHER if kind == "reconnect" else int(numbers[0])
        hosts = [Host(number, count) for number in (0, 1)]
        pairs = [Pair(hosts, index, record, f"{seed} {part}") for index in range(count)]
        loss = int(numbers[1]) if len(numbers) > 1 else 0
        if loss:
            lan_loss(loss)
        began = time.monotonic()
        found = labels(hosts, pairs, record, part) if kind == "labels" else reconnect(hosts, pairs, record, part, int(numbers[0]))
        took = time.monotonic() - began
        if loss:
            lan_loss(0)
        bad = {incarnation: outcome for incarnation, outcome in found.items() if outcome}
        print(f"{part}: {len(found) - len(bad)} of {len(found)} well in {took:.1f} s", flush=True)
        for incarnation, outcome in bad.items():
            print(f"  {incarnation}: {outcome}", flush=True)
        well &= not bad
        for pair in pairs:
            for end in pair.ends:
                end.qp.close()
        for host in hosts:
            host.mr.close()
            host.cq.close()
            host.pd.close()
            host.context.close()
    record.close()
    sys.exit(not well)


main()
