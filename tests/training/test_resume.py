"""What if it dies? Killed and resumed runs end as if nothing had happened."""

from __future__ import annotations

import signal

from tests.support.kill_and_resume import checkpoints, command, corpus, experiment, start, wait_for


def test_three_kills_leave_no_trace(tmp_path):
    outcome = experiment(tmp_path, 3, signal.SIGKILL)
    assert outcome.kills == 3
    assert set(outcome.exit_codes) == {-signal.SIGKILL}
    assert outcome.resumed_at == sorted(outcome.resumed_at)
    assert outcome.differences == []


def test_a_signal_saves_and_ends(tmp_path):
    outcome = experiment(tmp_path, 2, signal.SIGTERM, signal.SIGINT)
    assert outcome.kills == 2
    assert outcome.exit_codes == [128 + signal.SIGTERM, 128 + signal.SIGINT]
    assert outcome.differences == []


def test_one_process_at_a_time(tmp_path):
    """A second process on the same folder is refused while the first one lives."""
    words = command(corpus(tmp_path), tmp_path / "run", 10_000, [])
    first = start(words)
    assert wait_for(lambda: checkpoints(tmp_path / "run"), first)
    second = start(words)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 2
    assert b"another process is training in" in errors
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM
