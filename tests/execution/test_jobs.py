"""What a parent sends to a child."""

import dataclasses
import os
import socket

from tests.execution.internals import jobs


def surroundings(**changes) -> jobs.Surroundings:
    return dataclasses.replace(jobs.Surroundings.of_this_process(), **changes)


def send(header: bytes, payload: bytes, files=()) -> tuple:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [jobs.LENGTHS.pack(len(header), len(payload))], list(files))
        ours.sendall(header + payload)
        ours.close()
        return jobs.receive(theirs)


def test_a_job_arrives_whole_with_its_files():
    job = jobs.RunnerJob("http://127.0.0.1:1", "token", 3, 4)
    read, write = os.pipe()
    header, payload, (file,) = send(jobs.encode(surroundings(), job), b"bundle", [write])
    assert jobs.RunnerJob(**header["job"]) == job
    assert jobs.Surroundings(**header["surroundings"]) == surroundings()
    assert payload == b"bundle"
    os.write(file, b"x")
    assert os.read(read, 1) == b"x"
    for number in (read, write, file):
        os.close(number)


def test_an_environment_that_is_no_valid_text_arrives_as_it_is():
    odd = os.fsdecode(b"caf\xe9")
    header, _, _ = send(jobs.encode(surroundings(environment={"ODD": odd}), jobs.RunnerJob("", None, 0, 0)), b"")
    assert jobs.Surroundings(**header["surroundings"]).environment == {"ODD": odd}


def test_a_job_that_was_cut_short_is_no_job():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(jobs.LENGTHS.pack(100, 0) + b"{")
        assert jobs.receive(theirs) is None
