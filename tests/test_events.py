"""Event files: the framing that TensorFlow describes, torn ends, disks that fill up, and a run that goes on."""

from collections import namedtuple
import os

import pytest

from finite.monitor import events


def test_records_have_the_framing_of_tfrecord():
    # CRC-32C of "123456789" is 0xE3069283 (RFC 3720, B.4 has the polynomial); masked as TensorFlow's record_writer does.
    data = events.record(b"123456789")
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert data[:8] == (9).to_bytes(8, "little") and data[12:21] == b"123456789"
    assert data[21:] == masked.to_bytes(4, "little") and len(data) == 25


def test_a_torn_or_damaged_record_ends_the_reading_and_nothing_before_it_is_lost(tmp_path):
    path = tmp_path / "finite.out.events.summary.5"
    whole = events.record(b"one") + events.record(b"two" * 50)
    for end, found in ((len(whole), 2), (len(whole) - 1, 1), (20, 1), (19, 1), (18, 0), (7, 0)):
        path.write_bytes(whole[:end])
        assert len(list(events.messages(path))) == found, end
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:] + events.record(b"three"))
    assert list(events.messages(path)) == [b"one"]


def test_what_was_written_is_in_the_file_at_once(tmp_path):
    file = events.EventFile(tmp_path / "finite.out.events.summary.5")
    file.write(b"step 1")
    assert list(events.messages(file.path)) == [b"step 1"]  # before any flush or close: a kill loses nothing


def test_going_on_keeps_what_is_wanted_in_a_newer_file_and_removes_the_old(tmp_path):
    old = tmp_path / "finite.out.events.summary.99999999999"  # from a clock ahead of ours
    old.write_bytes(b"".join(events.record(bytes([n])) for n in range(5)) + b"torn")
    events.lineage_file(old).write_bytes(b"x")
    other = tmp_path / "events.summary.1.of.someone"
    other.write_bytes(b"y")
    new = events.go_on(tmp_path, lambda message: message[0] < 3)
    new.write(b"more")
    assert list(events.messages(new.path)) == [b"\0", b"\1", b"\2", b"more"]
    assert new.path.name == "finite.out.events.summary.100000000000"  # read after the old one by any dashboard
    assert events.event_files(tmp_path) == [new.path] and other.exists()
    assert not old.exists() and not events.lineage_file(old).exists()


def test_a_nearly_full_disk_ends_the_writing_before_checkpoints_lack_the_room(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    file = events.EventFile(tmp_path / "finite.out.events.summary.5")
    monkeypatch.setattr(events.shutil, "disk_usage", lambda path: usage(10**12, 0, events.ROOM_BYTES))
    file.write(b"fits")
    monkeypatch.setattr(events.shutil, "disk_usage", lambda path: usage(10**12, 10**12, events.ROOM_BYTES - 1))
    with pytest.raises(OSError, match="MB of disk are free"):
        for _ in range(3):
            file.write(bytes(events.CHECK_EVERY_BYTES))
    assert os.path.getsize(file.path) <= 2 * events.CHECK_EVERY_BYTES + 200


def test_a_full_disk_is_an_ordinary_error():
    file = events.EventFile("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        file.write(b"anything")
