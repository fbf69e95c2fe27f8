"""Workers, nodes, machines and the crawl's own processes that are killed, stopped or hang."""

import os
import signal
from contextlib import suppress

from faults.trial import Trial
from rig.processes import halt, let_go_on
from rig.waiting import wait_for


def kill_worker(trial: Trial) -> None:
    """A worker is killed in the middle of its batch."""
    trial.wait_moment()
    victims = [pid for node in trial.nodes for pid in node.job_pids()]
    trial.dice.shuffle(victims)
    for pid in victims:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
            return


def kill_daemon(trial: Trial) -> None:
    """Scrapyd is killed, its workers live on as orphans; it is started again when its work has gone elsewhere."""
    trial.wait_moment()
    node = trial.victim()
    node.kill()
    if trial.dice.random() < 0.5:
        wait_for(
            lambda: trial.row.state.ended or _given_up(trial, node.name), 60, "its jobs given up"
        )
    node.restart()


def kill_machine(trial: Trial) -> None:
    """Scrapyd and all its workers are killed, and it comes back knowing no job."""
    trial.wait_moment()
    node = trial.victim()
    node.kill()
    node.kill_jobs()
    node.restart()


def restart_machines_in_turn(trial: Trial) -> None:
    """One machine after the other is killed with its jobs and comes back knowing none, three times each."""
    trial.wait_moment(0.05, 0.3)
    for node in [*trial.nodes] * 3:
        if trial.row.state.ended:
            return
        node.kill()
        node.kill_jobs()
        node.restart()
        _wait_for_attempt(trial, len(trial.attempts()))


def _wait_for_attempt(trial: Trial, known: int) -> None:
    wait_for(lambda: trial.row.state.ended or len(trial.attempts()) > known, 60, "another attempt")


def kill_producer(trial: Trial) -> None:
    """The process that coordinates is killed."""
    trial.wait_moment(0.0, 0.8)
    trial.kill_producer()


def kill_watcher(trial: Trial) -> None:
    """The command that watches is killed; the crawl goes on, and another command waits for it."""
    trial.wait_moment()
    assert trial.command
    trial.command.signal(signal.SIGKILL)
    trial.command.wait(20)
    trial.command = trial.cli("watch", trial.row.id, "--json")


def stop_machine(trial: Trial) -> None:
    """A node and its workers are stopped (SIGSTOP), and go on after their work has gone elsewhere."""
    trial.wait_moment()
    node = trial.victim()
    stopped = list(node.job_pids())
    node.pause()
    halt(stopped)
    wait_for(
        lambda: trial.row.state.ended or not stopped or _given_up(trial, node.name),
        60,
        "its jobs given up",
    )
    node.go_on()
    let_go_on(stopped)


def _given_up(trial: Trial, node: str) -> bool:
    return any(a.node == node and a.state.value == "failed" for a in trial.attempts())


def kill_all_in_turn(trial: Trial) -> None:
    """A worker, a machine and the producer, one after the other."""
    for strike in trial.dice.sample([kill_worker, kill_machine, kill_producer], 3):
        if not trial.row.state.ended:
            strike(trial)


def kill_producer_thrice(trial: Trial) -> None:
    """The producer is killed three times, spread over the crawl, and the crawl is resumed each time."""
    for low, high in ((0.1, 0.3), (0.35, 0.55), (0.6, 0.8)):
        trial.wait_moment(low, high)
        trial.kill_producer()
        assert trial.command
        trial.command.wait(60)
        trial.resume()


def hang_worker(trial: Trial) -> None:
    """A worker makes no progress any more, though its event loop turns and its leases are renewed."""
    trial.wait_moment(0.05, 0.5)
    trial.hanging_worker.touch()
    wait_for(
        lambda: trial.row.state.ended or not trial.hanging_worker.exists(),
        60,
        "a worker that hangs",
    )
