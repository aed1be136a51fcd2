"""Rollouts, attempts, their configuration, and the workers that run them."""

import msgspec
import pytest

from sharpen.types import (
    ATTEMPT_STATUSES,
    ROLLOUT_MODES,
    ROLLOUT_STATUSES,
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    Worker,
    WorkerHeartbeat,
)
from tests.errors import raises


def through_json(value, kind=None):
    return msgspec.json.decode(msgspec.json.encode(value), type=kind or type(value))


def test_a_new_rollout_waits_in_the_queue_with_a_plain_configuration():
    rollout = Rollout("ro-1", {"question": "6 * 7"}, 12.5)
    assert rollout.status == "queuing"
    assert rollout.config == RolloutConfig()
    assert (rollout.end_time, rollout.mode, rollout.metadata, rollout.reward) == (None, None, None, None)
    assert (rollout.resources_id, rollout.resources_version) == (None, None)


def test_the_statuses_and_modes_are_the_known_ones():
    assert set(ROLLOUT_STATUSES) == {
        "queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing",
    }  # fmt: skip
    assert set(ATTEMPT_STATUSES) == {"preparing", "running", "failed", "succeeded", "unresponsive", "timeout"}
    assert set(ROLLOUT_MODES) == {"train", "val", "test"}


@pytest.mark.parametrize(
    ("status", "finished"), [(s, s in ("failed", "succeeded", "cancelled")) for s in ROLLOUT_STATUSES]
)
def test_failed_succeeded_and_cancelled_are_finished(status, finished):
    assert Rollout("ro-1", None, 0.0, status=status).is_finished is finished


def test_id_reads_the_own_id_of_rollouts_attempts_and_workers():
    attempt = Attempt("ro-1", "at-1", 1, 0.0)
    assert Rollout("ro-1", None, 0.0).id == "ro-1"
    assert attempt.id == "at-1"
    assert AttemptedRollout("ro-1", None, 0.0, attempt=attempt).id == "ro-1"
    assert Worker("w-1").id == "w-1"


def test_a_new_attempt_is_preparing_and_unclaimed():
    attempt = Attempt("ro-1", "at-1", 1, 2.0)
    assert attempt.status == "preparing"
    assert (attempt.end_time, attempt.worker_id, attempt.last_heartbeat_time, attempt.metadata) == (None,) * 4


def test_values_are_frozen():
    rollout = Rollout("ro-1", None, 0.0)
    with pytest.raises(AttributeError):
        rollout.status = "running"


def test_an_attempted_rollout_is_a_rollout_with_its_attempt():
    rollout = AttemptedRollout("ro-1", "task", 0.0, mode="val", attempt=Attempt("ro-1", "at-1", 1, 0.0))
    assert isinstance(rollout, Rollout)
    assert rollout.attempt.attempt_id == "at-1"
    assert rollout.mode == "val"


def test_an_attempt_of_another_rollout_is_refused():
    with raises(ValueError, "ro-2", "ro-1"):
        AttemptedRollout("ro-1", None, 0.0, attempt=Attempt("ro-2", "at-1", 1, 0.0))


def test_an_attempt_of_another_rollout_is_refused_from_json_too():
    wrong = {
        "rollout_id": "ro-1",
        "input": 1,
        "start_time": 0,
        "attempt": msgspec.to_builtins(Attempt("ro-2", "a", 1, 0.0)),
    }
    with raises(ValueError, "ro-2"):
        msgspec.convert(wrong, AttemptedRollout)


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3", None])
def test_fewer_than_one_whole_attempt_is_an_error(attempts):
    with raises(ValueError, "max_attempts"):
        RolloutConfig(max_attempts=attempts)


@pytest.mark.parametrize("field", ["timeout_seconds", "unresponsive_seconds"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "10"])
def test_a_limit_that_is_no_number_above_zero_is_an_error(field, seconds):
    with raises(ValueError, field):
        RolloutConfig(**{field: seconds})


def test_no_limit_and_one_attempt_is_the_default_configuration():
    config = RolloutConfig()
    assert (config.timeout_seconds, config.unresponsive_seconds) == (None, None)
    assert (config.max_attempts, config.retry_condition) == (1, [])


@pytest.mark.parametrize("condition", [["lost"], "failed", ["failed", "cancelled"]])
def test_a_retry_condition_takes_only_statuses_of_attempts(condition):
    with raises(ValueError, "retry_condition"):
        RolloutConfig(retry_condition=condition)


def test_a_bad_configuration_is_refused_from_json_with_the_same_words():
    with raises(ValueError, "max_attempts", 0):
        msgspec.convert({"max_attempts": 0}, RolloutConfig)


def test_two_configurations_do_not_share_their_retry_condition():
    first, second = RolloutConfig(), RolloutConfig()
    first.retry_condition.append("failed")
    assert second.retry_condition == []


@pytest.mark.parametrize("mode", [None, "train", "val", "test"])
def test_a_request_takes_the_known_modes(mode):
    assert EnqueueRolloutRequest("task", mode=mode).mode == mode


def test_a_request_with_an_unknown_mode_is_refused():
    with raises(ValueError, "training"):
        EnqueueRolloutRequest("task", mode="training")


def test_a_request_needs_only_its_input():
    request = EnqueueRolloutRequest({"a": 1})
    assert (request.mode, request.resources_id, request.config, request.metadata, request.rollout_id) == (None,) * 5


FULL_CONFIG = RolloutConfig(30.0, 5.0, 3, ["timeout", "unresponsive"])
FULL_ATTEMPT = Attempt("ro-1", "at-1", 2, 1.0, 2.0, "timeout", "w-1", 1.5, {"reason": "slow"})


@pytest.mark.parametrize(
    "value",
    [
        FULL_CONFIG,
        FULL_ATTEMPT,
        Rollout("ro-1", {"x": [1, None]}, 1.0, 2.0, "train", "rs-1", "succeeded", FULL_CONFIG, {"k": 1}, 3, 0.5),
        AttemptedRollout("ro-1", "task", 1.0, config=FULL_CONFIG, attempt=FULL_ATTEMPT),
        EnqueueRolloutRequest([1, 2], "val", "rs-1", FULL_CONFIG, {"k": "v"}, "ro-7"),
        Worker("w-1", "busy", {"cpu": 0.5}, 1.0, 2.0, 3.0, 4.0, "ro-1", "at-1"),
        WorkerHeartbeat("w-1", "idle", unwanted_attempts=["at-1"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_equal_from_json(value):
    assert through_json(value) == value


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Rollout, "status", "done"),
        (Rollout, "mode", "training"),
        (Rollout, "start_time", "now"),
        (Attempt, "status", "cancelled"),
        (Attempt, "sequence_id", "1"),
        (Worker, "status", "asleep"),
    ],
)
def test_a_wrong_field_from_json_is_refused_by_its_path(kind, field, value):
    good = {
        Rollout: {"rollout_id": "ro-1", "input": 1, "start_time": 0},
        Attempt: {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 0},
        Worker: {"worker_id": "w-1"},
    }[kind]
    with raises(msgspec.ValidationError, f"$.{field}"):
        msgspec.convert({**good, field: value}, kind)


def test_a_heartbeat_answer_is_a_worker_that_names_no_attempt_by_default():
    answer = WorkerHeartbeat("w-1")
    assert isinstance(answer, Worker)
    assert answer.unwanted_attempts == []
