#!/usr/bin/env python3
"""partners.py FILE [MILLISECONDS] - notes which queue pairs are connected with which, until SIGTERM.

Asks the kernel what `rdma resource show qp` shows: lqpn, rqpn, state, pid.
Sends the same netlink messages itself, since that program takes 90 ms a call in the lab.
Polls every MILLISECONDS (default 15), more rarely if the kernel is slow to answer.
Appends to FILE one JSON object a line, in the form that judge.py reads:

  {"event": "device", "host": "rxe0", "addresses": ["10.0.0.1"]}
  {"event": "connect", "at": [FROM, TO], "host": "rxe0", "lqpn": 17, "rqpn": 18, "pid": 243, "by": "poll"}
  {"event": "reset", "at": [FROM, TO], "host": "rxe0", "lqpn": 17, "pid": 243, "by": "poll"}

Times are in nanoseconds, by the clock that captures use.
An event happened between its two times: the poll before it began, and the poll that showed it ended.
"""
import glob
import ipaddress
import json
import os
import signal
import socket
import struct
import sys
import time

NETLINK_RDMA = 20
CLIENT_NLDEV = 5 << 10
GET_DEVICES, GET_QUEUE_PAIRS = CLIENT_NLDEV | 1, CLIENT_NLDEV | 10
REQUEST_DUMP = 0x301
DONE, ERROR = 3, 2
DEVICE_INDEX, DEVICE_NAME = 1, 2
LQPN, RQPN, STATE, PID = 21, 22, 27, 28
QUEUE_PAIRS = 19
# RTR, RTS, SQD, SQE, ERR. A queue pair that was reset still shows its last partner.
CONNECTED = range(2, 7)
LONGEST_PAUSE = 0.1  # seconds, however long the kernel took to answer


def attributes(data, names=None):
    """Yields type and content of each netlink attribute."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        kind &= 0x3FFF
        if length < 4:
            return
        if names is None or kind in names:
            yield kind, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


class Kernel:
    """A netlink socket to the kernel's RDMA."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA)
        self.socket.bind((0, 0))

    def dump(self, command, request=b""):
        """Returns the contents of all messages that answer."""
        self.socket.send(struct.pack("=IHHII", 16 + len(request), command, REQUEST_DUMP, 0, 0) + request)
        found = []
        while True:
            data, offset = self.socket.recv(1 << 20), 0
            while offset + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, offset)
                if kind == DONE:
                    return found
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", data, offset + 16)[0], "the kernel's RDMA does not answer")
                found.append(data[offset + 16 : offset + length])
                offset += (length + 3) & ~3

    def devices(self):
        """Returns the name of each device by its index."""
        found = {}
        for message in self.dump(GET_DEVICES):
            of = dict(attributes(message))
            found[struct.unpack("=I", of[DEVICE_INDEX])[0]] = of[DEVICE_NAME].rstrip(b"\0").decode()
        return found

    def connected(self, index, name):
        """Returns partner and process of each connected queue pair of a device."""
        request = struct.pack("=HHI", 8, DEVICE_INDEX, index)
        found = {}
        for message in self.dump(GET_QUEUE_PAIRS, request):
            for _, table in attributes(message, (QUEUE_PAIRS,)):
                for _, entry in attributes(table):
                    of = dict(attributes(entry, (LQPN, RQPN, STATE, PID)))
                    partner = struct.unpack("=I", of[RQPN])[0] if RQPN in of else 0
                    # In the midst of a connect the new state stands there before the partner.
                    if partner and of[STATE][0] in CONNECTED:
                        pid = struct.unpack("=I", of[PID])[0] if PID in of else 0
                        found[name, struct.unpack("=I", of[LQPN])[0]] = (partner, pid)
        return found


def addresses(device):
    """Returns the addresses by which a device speaks RoCEv2."""
    found = set()
    for file in glob.glob(f"/sys/class/infiniband/{device}/ports/1/gids/*"):
        try:
            with open(file, encoding="ascii") as gid:
                address = ipaddress.IPv6Address(gid.read().strip())
        except (OSError, ValueError):
            continue
        if int(address):
            found.add(str(address.ipv4_mapped or address))
    return sorted(found)


def main():
    pause = (float(sys.argv[2]) if len(sys.argv) > 2 else 15) / 1000
    kernel, stopped = Kernel(), []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    with open(sys.argv[1], "a", encoding="ascii") as file:

        def note(**what):
            file.write(json.dumps(what) + "\n")
            file.flush()

        devices, before, polls, longest = kernel.devices(), {}, 0, 0
        last = time.time_ns()
        for name in devices.values():
            note(event="device", host=name, addresses=addresses(name))
        while True:
            ends, began, now = bool(stopped), time.time_ns(), {}
            for index, name in devices.items():
                now.update(kernel.connected(index, name))
            at = [last, time.time_ns()]
            for (host, number), (partner, pid) in before.items():
                if now.get((host, number)) != (partner, pid):
                    note(event="reset", at=at, host=host, lqpn=number, pid=pid, by="poll")
            for (host, number), (partner, pid) in now.items():
                if before.get((host, number)) != (partner, pid):
                    note(event="connect", at=at, host=host, lqpn=number, rqpn=partner, pid=pid, by="poll")
            before, polls, longest, last = now, polls + 1, max(longest, at[1] - at[0]), began
            if ends:
                break
            time.sleep(max(pause, min(4 * (time.time_ns() - began) / 1e9, LONGEST_PAUSE)))
        # Addresses may have come since.
        for name in devices.values():
            note(event="device", host=name, addresses=addresses(name))
        note(event="polled", polls=polls, longest=longest, pid=os.getpid())


main()
