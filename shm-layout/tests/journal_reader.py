#!/usr/bin/env python3
"""Reads a journal and prints its records, a line each. Written from JOURNAL.md alone; needs nothing but Python 3.

    M sequence tag key time payload     a message, the payload in hexadecimal
    L from to cause                     sequences that are missing
    C sequence kind words..             any other control record
"""
import os
import re
import stat
import struct
import sys

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


class Frame:
    """A frame's header (2.2); raises ValueError if it is none of this file."""

    def __init__(self, data, at, salt):
        head = data[at:at + 64]
        if len(head) < 64 or head[:4] != b"SMJF" or crc32c(head[8:]) != u32(head, 4) or u64(head, 8) != salt:
            raise ValueError("no frame header")
        self.at, self.crc = at, u32(head, 4)
        self.length, self.body_crc, self.sequence = u32(head, 16), u32(head, 20), u64(head, 24)
        self.messages, self.chain, self.number = u32(head, 32), u32(head, 36), u32(head, 56)
        self.kind, self.codec = head[60], head[61]
        self.end = at + (64 + self.length + 63) // 64 * 64
        self.body = data[at + 64:at + 64 + self.length]
        self.is_whole = (self.length <= 1 << 25 and len(self.body) == self.length
                         and crc32c(self.body) == self.body_crc)


class File:
    """A file: its header (2.1) and, if it is sealed, trailer (2.6) and the holes of its footer (2.5)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        head = self.data[:4096]
        if len(head) < 4096 or head[:8] != b"SHMCJRN1" or crc32c(head[:4092]) != u32(head, 4092):
            raise ValueError("no file header")
        if struct.unpack_from("<H", head, 8)[0] != 2:
            raise ValueError("another major version")
        self.journal, self.number, self.salt = head[16:32], u64(head, 32), u64(head, 40)
        self.sequence, self.chain = u64(head, 48), u32(head, 4092)
        self.footer, self.next, self.holes = None, None, []
        end = self.data[-64:]
        if end[:8] == b"SHMCJEND" and crc32c(end[:60], crc32c(struct.pack("<Q", self.salt))) == u32(end, 60):
            self.footer, self.next = u32(end, 8) * 64, u64(end, 24)
            try:
                footer = Frame(self.data, self.footer, self.salt)
            except ValueError:
                return
            if footer.is_whole and footer.kind == 2:
                entries, keys, controls, holes = struct.unpack_from("<4I", footer.body)
                at = 48 + entries * 24 + keys * 16 + controls * 24
                self.holes = [struct.unpack_from("<3Q", footer.body, at + i * 24) for i in range(holes)]

    def frames(self):
        """The whole frames in their order, with damage passed over (3)."""
        at, number, chain, due = 4096, 0, self.chain, self.sequence
        end = len(self.data) if self.footer is None else self.footer + 64
        while at < end:
            behind = at + 64
            try:
                frame = Frame(self.data, at, self.salt)
                is_due = frame.number == number and frame.chain == chain or chain is None and frame.number >= number
                if frame.is_whole and is_due and frame.sequence >= due:
                    yield frame
                    at, number, chain, due = frame.end, frame.number + 1, frame.crc, frame.sequence
                    continue
                if not frame.is_whole:
                    behind = frame.end
            except ValueError:
                pass
            found = self.search(behind, end, number, due)
            if found is None:
                return
            at, number, chain = found.at, found.number, None

    def search(self, at, end, number, due):
        while at < end:
            at = self.data.find(b"SMJF", at, end)
            if at < 0:
                return None
            if at % 64 == 0:
                try:
                    frame = Frame(self.data, at, self.salt)
                    if frame.is_whole and frame.number > number and frame.sequence >= due and self.chains(frame):
                        return frame
                except ValueError:
                    pass
            at += 1
        return None

    def chains(self, frame):
        try:
            return Frame(self.data, frame.end, self.salt).chain == frame.crc
        except ValueError:
            return True

    def cause(self, sequence):
        return next((cause for first, last, cause in self.holes if first <= sequence <= last), 4)


def records(frame):
    """The records of a data frame (2.3): sequence due, sequence due behind it, line."""
    if frame.codec != 0:
        raise ValueError("a compressed frame")
    at, due = 0, frame.sequence
    while at < len(frame.body):
        word, meta = struct.unpack_from("<2Q", frame.body, at)
        length = word & (1 << 25) - 1
        payload = frame.body[at + 16:at + 16 + length]
        at += 16 + (length + 7) // 8 * 8
        if word >> 28 & 1:
            words = struct.unpack("<%dQ" % (length // 8), payload)
            if words[0] == 65:
                yield due, words[2] + 1, "L %d %d %d" % words[1:4]
                due = words[2] + 1
                continue
            behind = words[2] + 1 if words[0] == 3 else due
            count = {1: 2, 2: 1, 3: 3, 4: 3, 64: 6, 66: 4, 67: 2, 68: 2, 69: 4}.get(words[0], 1)
            yield due, behind, "C %d %s" % (due, " ".join(str(word) for word in words[:count]))
            due = behind
        else:
            key = word >> 27 & 1
            yield due, due + 1, "M %d %d %d %d %s" % (due, meta >> 48, key, meta & (1 << 48) - 1, payload.hex())
            due += 1


def read(path):
    files = []
    for name in sorted(os.listdir(path)):
        if re.fullmatch(r"\d{10,}-\d{20}\.smj(\.suspect)?", name) and stat.S_ISREG(os.lstat(os.path.join(path, name)).st_mode):
            try:
                files.append(File(os.path.join(path, name)))
            except ValueError as why:
                print("%s: %s" % (name, why), file=sys.stderr)
    files.sort(key=lambda file: file.number)
    due = files[0].sequence if files else 1
    for at, file in enumerate(files):
        limit = min((later.sequence for later in files[at + 1:]), default=1 << 62)
        if min(file.sequence, limit) > due:
            yield "L %d %d 4" % (due, min(file.sequence, limit) - 1)
            due = min(file.sequence, limit)
        for frame in file.frames():
            if min(frame.sequence, limit) > due:
                yield "L %d %d %d" % (due, min(frame.sequence, limit) - 1, file.cause(due))
                due = min(frame.sequence, limit)
            if frame.kind == 0:
                for sequence, behind, line in records(frame):
                    is_last = behind == sequence == limit == file.next
                    if due <= sequence < limit or is_last:
                        yield line
                        due = behind
        if file.next is not None and min(file.next, limit) > due:
            yield "L %d %d %d" % (due, min(file.next, limit) - 1, file.cause(due))
            due = min(file.next, limit)


if __name__ == "__main__":
    for line in read(sys.argv[1]):
        print(line)
