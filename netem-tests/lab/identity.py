#!/usr/bin/env python3
"""identity.py CASE - connects queue pairs that are hard to tell apart, between rxe0 and rxe1.

  labels COUNT LOSS        COUNT connections at once, without rdma_cm, first PSN 0, both ways.
                           Each end chooses its flow label, 1 to 8, and by it its UDP source port.
                           The target's LAN loses LOSS percent, each way.
  reconnect PAUSE ROUNDS   Eight connections, four each way. When all is answered, both ends are reset.
                           They are connected again after PAUSE ms, with the same numbers and PSN 0.
                           In every other of ROUNDS rounds the target connects 30 ms after its requester.

Each connection carries a WRITE, a SEND, a fetch-and-add and a READ.
When one completes, the target's memory must hold at that instant what was written or sent.
The counter must have been added to once, and a READ must bring what stands there now.

Prints the seed (LAB_SEED=... chooses the same labels again), and what went wrong first.
The last line counts the ends that connected, false completions, and ends that failed.
Exit status 0: all connected, nothing was false, nothing failed.
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

import verbs

WRITE, SEND, READ = 10_000, 3_000, 5_000  # bytes
# Where each connection's things stand in its slot of a host's memory.
SOURCE, WRITTEN, RECEIVED, READABLE, BROUGHT, COUNTER, PRIOR, SLOT = 0, 10_240, 20_480, 24_576, 32_768, 40_960, 40_968, 45_056
TIMEOUT = 15  # 134 ms a try, seven tries
LIMIT = float(os.environ.get("LAB_LIMIT", "30"))
LAG = 0.030
CONNECTIONS = 8
NO_SEND = 100  # the wr_id of receives


class Host:
    """A device with so many queue pairs and a slot of memory for each."""

    def __init__(self, device, count):
        self.device, self.context = device, Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16 * count)
        self.mr = MR(self.pd, SLOT * count, e.IBV_ACCESS_LOCAL_WRITE | verbs.REMOTE)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=8, max_recv_wr=8), sq_sig_all=1)
        self.pairs = [QP(self.pd, init) for _ in range(count)]
        self.by_number = {pair.qp_num: index for index, pair in enumerate(self.pairs)}
        self.gid = self.context.query_gid(1, verbs.GID).gid

    def address(self, index):
        return {"qpn": self.pairs[index].qp_num, "gid": self.gid}

    def connect(self, index, other, name, label=0):
        attr = verbs.attributes(other.address(index), psn=0, label=label, timeout=TIMEOUT)
        pair = self.pairs[index]
        verbs.noted("connect", self.device, pair.qp_num, lambda: pair.to_rts(attr), rqpn=other.pairs[index].qp_num, rhost=other.device, name=name)

    def reset(self, index):
        pair, attr = self.pairs[index], QPAttr()
        attr.qp_state = e.IBV_QPS_RESET
        verbs.noted("reset", self.device, pair.qp_num, lambda: pair.modify(attr, e.IBV_QP_STATE))

    def piece(self, index, offset, length):
        return SGE(self.mr.buf + index * SLOT + offset, length, self.mr.lkey)

    def put(self, index, offset, data):
        self.mr.write(data, len(data), index * SLOT + offset)

    def get(self, index, offset, length):
        return self.mr.read(length, index * SLOT + offset)

    def number(self, index, offset):
        return int.from_bytes(self.get(index, offset, 8), sys.byteorder)


def bytes_of(round_number, index, what, length):
    """Returns bytes that no other round, connection or operation has at this place."""
    few = random.Random(f"{round_number} {index} {what}").randbytes(250)
    return (few * (length // 250 + 1))[:length]


class Exchange:
    """What one end asks of the other on one connection, in one round."""

    KINDS = ("write", "send", "add", "read")

    def __init__(self, requester, target, index, round_number):
        self.requester, self.target, self.index, self.round = requester, target, index, round_number
        self.statuses, self.false = {}, []
        target.put(index, WRITTEN, bytes(WRITE))
        target.put(index, RECEIVED, bytes(SEND))
        target.put(index, READABLE, self.data("read", READ))
        requester.put(index, SOURCE, self.data("write", WRITE))
        requester.put(index, BROUGHT, bytes(READ))
        self.count = target.number(index, COUNTER)

    def data(self, what, length):
        return bytes_of(self.round, f"{self.requester.device} {self.index}", what, length)

    def receive(self):
        self.target.pairs[self.index].post_recv(RecvWR(wr_id=NO_SEND, sg=[self.target.piece(self.index, RECEIVED, SEND)], num_sge=1))

    def post(self):
        at, key = self.target.mr.buf + self.index * SLOT, self.target.mr.rkey
        pair, piece = self.requester.pairs[self.index], self.requester.piece
        for number, (opcode, offset, length) in enumerate((
            (e.IBV_WR_RDMA_WRITE, SOURCE, WRITE),
            (e.IBV_WR_SEND, SOURCE, SEND),
            (e.IBV_WR_ATOMIC_FETCH_AND_ADD, PRIOR, 8),
            (e.IBV_WR_RDMA_READ, BROUGHT, READ),
        )):
            request = SendWR(wr_id=number, opcode=opcode, num_sge=1, sg=[piece(self.index, offset, length)], send_flags=e.IBV_SEND_SIGNALED)
            if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
                request.set_wr_atomic(key, at + COUNTER, 1, 0)
            elif opcode != e.IBV_WR_SEND:
                request.set_wr_rdma(key, at + (WRITTEN if opcode == e.IBV_WR_RDMA_WRITE else READABLE))
            pair.post_send(request)

    def completed(self, number, status):
        """Takes a completion, and looks at once whether it is true."""
        kind = self.KINDS[number]
        self.statuses[kind] = status
        if status != "success":
            return
        get, index = self.target.get, self.index
        true = {
            "write": lambda: get(index, WRITTEN, WRITE) == self.data("write", WRITE),
            "send": lambda: get(index, RECEIVED, SEND) == self.data("write", WRITE)[:SEND],
            "add": lambda: (self.requester.number(index, PRIOR), self.target.number(index, COUNTER)) == (self.count, self.count + 1),
            "read": lambda: self.requester.get(index, BROUGHT, READ) == self.data("read", READ),
        }[kind]()
        if not true:
            self.false.append(kind)

    def done(self):
        return len(self.statuses) == len(self.KINDS)

    def added_at_most_once(self):
        return self.target.number(self.index, COUNTER) - self.count <= 1

    def __str__(self):
        return f"round {self.round}, {self.requester.device}:{self.requester.pairs[self.index].qp_num}"


def take(hosts, exchanges):
    """Hands completions to the exchanges they belong to; true if there were any."""
    found = False
    for host in hosts:
        number, completions = host.cq.poll(32)
        for completion in completions[:number]:
            found = True
            exchange = exchanges.get((host.device, host.by_number[completion.qp_num]))
            # A receive that was flushed has the opcode of what it was; only sends carry these wr_ids.
            if exchange is not None and completion.wr_id < len(Exchange.KINDS):
                exchange.completed(completion.wr_id, verbs.STATUS[completion.status])
    return found


def await_all(hosts, exchanges, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and not all(exchange.done() for exchange in exchanges.values()):
        if not take(hosts, exchanges):
            time.sleep(0.002)


class Verdict:
    """What came of all exchanges."""

    def __init__(self):
        self.ends = self.connected = self.false = self.failed = self.complete = 0
        self.why = collections.Counter()
        self.first = []

    def add(self, exchange):
        self.ends += 1
        self.connected += "success" in exchange.statuses.values()
        wrong = [f"{kind} completed and was not there" for kind in exchange.false]
        self.false += len(wrong)
        if not exchange.added_at_most_once():
            self.false += 1
            wrong.append("added more than once")
        for kind in Exchange.KINDS:
            status = exchange.statuses.get(kind, "no completion")
            self.why[status] += 1
            if status != "success":
                wrong.append(f"{kind}: {status}")
        self.failed += any(exchange.statuses.get(kind) != "success" for kind in Exchange.KINDS)
        self.complete += not wrong
        if wrong and len(self.first) < 8:
            self.first.append(f"{exchange}: {', '.join(wrong)}")

    def tell(self):
        """Prints it; the exit status."""
        print(*self.first, sep="\n")
        print(", ".join(f"{number} {status}" for status, number in self.why.most_common()))
        print(f"{self.connected} of {self.ends} connected, {self.complete} complete, {self.false} false completions, {self.failed} failed")
        return 0 if self.complete == self.ends > 0 else 1


def lose(percent):
    """Has the target's LAN lose so much, each way."""
    for site, device in (([], "v1"), (["-n", "gwb"], "g1")):
        if percent:
            subprocess.run(["tc", *site, "qdisc", "replace", "dev", device, "root", "netem", "loss", f"{percent}%", "limit", "100000"], check=True)
        else:
            subprocess.run(["tc", *site, "qdisc", "del", "dev", device, "root"], check=False, stderr=subprocess.DEVNULL)


def labels(count, loss):
    seed = os.environ.get("LAB_SEED") or str(random.randrange(1 << 32))
    print(f"LAB_SEED={seed}", flush=True)
    chosen, verdict = random.Random(seed), Verdict()
    hosts = Host("rxe0", count), Host("rxe1", count)
    exchanges = {}
    lose(loss)
    try:
        for index in range(count):
            for host, other in (hosts, hosts[::-1]):
                exchanges[host.device, index] = Exchange(host, other, index, 0)
                host.connect(index, other, index, chosen.randint(1, 8))
        for exchange in exchanges.values():
            exchange.receive()
        for exchange in exchanges.values():
            exchange.post()
        began = time.monotonic()
        await_all(hosts, exchanges, LIMIT)
        print(f"{time.monotonic() - began:.1f} s")
    finally:
        lose(0)
    for exchange in exchanges.values():
        verdict.add(exchange)
    return verdict.tell()


def reconnect(pause, rounds):
    verdict, hosts = Verdict(), (Host("rxe0", CONNECTIONS), Host("rxe1", CONNECTIONS))
    began = time.monotonic()
    for number in range(rounds):
        exchanges = {}
        for index in range(CONNECTIONS):
            requester, target = hosts[:: 1 if index % 2 == 0 else -1]
            exchanges[requester.device, index] = Exchange(requester, target, index, number)
        late = number % 2 == 1
        for exchange in exchanges.values():
            if not late:
                exchange.target.connect(exchange.index, exchange.requester, f"{exchange.index}.{number}")
                exchange.receive()
            exchange.requester.connect(exchange.index, exchange.target, f"{exchange.index}.{number}")
        for exchange in exchanges.values():
            exchange.post()
        if late:
            await_all(hosts, exchanges, LAG)
            for exchange in exchanges.values():
                exchange.target.connect(exchange.index, exchange.requester, f"{exchange.index}.{number}")
                exchange.receive()
        await_all(hosts, exchanges, LIMIT / 3)
        for exchange in exchanges.values():
            exchange.requester.reset(exchange.index)
            exchange.target.reset(exchange.index)
        while take(hosts, {}):
            pass
        for exchange in exchanges.values():
            verdict.add(exchange)
        time.sleep(pause / 1000)
    print(f"{time.monotonic() - began:.1f} s, {CONNECTIONS * rounds} connections")
    return verdict.tell()


def main():
    case, first, second = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    if case == "labels":
        return labels(int(first), second)
    if case == "reconnect":
        return reconnect(first, int(second))
    return f"no case {case}"


sys.exit(main())
