#!/usr/bin/env python3
"""icrc.py CAPTURE... - checks the ICRC of every RoCEv2 packet in pcap files, and knows nothing of Longhaul's own code.

IPv4 or IPv6 over Ethernet, as tcpdump writes them. Prints per file how many packets had a right and a wrong ICRC, and what else should not
be there: fragments, ICMP, an IPv4 identification of zero. Exit status 0: at least one packet, none wrong.

The rule: CRC-32 over eight bytes of ones, the IP header, UDP, BTH and all that follows up to the ICRC, with the fields that may change on
the way set to ones (IPv4: type of service, time to live, header checksum; IPv6: traffic class, flow label, hop limit; UDP checksum;
the byte of BTH that holds FECN and BECN). InfiniBand specification, annex A17.
"""
import struct
import sys
import zlib

ROCE_PORT = 4791


def packets(path):
    """The Ethernet frames of a classic pcap file; a last one that was cut by the end of the capture is left out."""
    with open(path, "rb") as file:
        head = file.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">"}.get(head[:4])
        if order is None or struct.unpack(order + "I", head[20:24])[0] != 1:
            sys.exit(f"{path}: not a pcap file of Ethernet frames")
        while len(record := file.read(16)) == 16:
            _, _, captured, length = struct.unpack(order + "IIII", record)
            frame = file.read(captured)
            if len(frame) < captured:
                return
            if captured < length:
                sys.exit(f"{path}: frames were cut to {captured} bytes; capture them whole")
            yield frame


def masked(packet):
    """The packet as the ICRC sees it, or None if it is not RoCEv2; and where BTH begins."""
    packet = bytearray(packet)
    version = packet[0] >> 4
    if version == 4:
        header = (packet[0] & 15) * 4
        protocol = packet[9]
        packet[1] = packet[8] = packet[10] = packet[11] = 0xFF
    elif version == 6:
        header, protocol = 40, packet[6]
        packet[0] |= 0x0F
        packet[1] = packet[2] = packet[3] = packet[7] = 0xFF
    else:
        return None, 0
    if protocol != 17 or struct.unpack_from(">H", packet, header + 2)[0] != ROCE_PORT:
        return None, 0
    packet[header + 6] = packet[header + 7] = packet[header + 8 + 4] = 0xFF
    return packet, header + 8


def check(path):
    """Counts of one file."""
    count = {"right": 0, "wrong": 0, "fragments": 0, "icmp": 0, "unidentified": 0}
    for frame in packets(path):
        kind = struct.unpack_from(">H", frame, 12)[0]
        if kind not in (0x0800, 0x86DD):
            continue
        length = struct.unpack_from(">H", frame, 16)[0] if kind == 0x0800 else struct.unpack_from(">H", frame, 18)[0] + 40
        packet = frame[14 : 14 + length]
        if kind == 0x0800:
            count["icmp"] += packet[9] == 1
            if struct.unpack_from(">H", packet, 6)[0] & 0x3FFF:
                count["fragments"] += 1
                continue
            count["unidentified"] += packet[4:6] == b"\0\0"
        covered, bth = masked(packet)
        if covered is None or len(packet) < bth + 16:
            continue
        found = struct.unpack_from("<I", packet, len(packet) - 4)[0]
        count["right" if zlib.crc32(b"\xff" * 8 + bytes(covered[:-4])) == found else "wrong"] += 1
    return count


def main():
    good = bool(sys.argv[1:])
    for path in sys.argv[1:]:
        count = check(path)
        print(f"{path.rsplit('/', 1)[-1]}: " + ", ".join(f"{number} {name}" for name, number in count.items()))
        good &= count["right"] > 0 and not any(number for name, number in count.items() if name != "right")
    sys.exit(0 if good else 1)


main()
