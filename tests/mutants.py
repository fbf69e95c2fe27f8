"""Break a rule of the program in a copy of it, one at a time, and see that the tests named for the rule fail.

The text to change must stand exactly once in the source, and the tests must pass on the unchanged copy: a rule whose
code or tests have moved ends the run, so the table below stays true.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parents[1]
#: folders of the repository that install as packages of scrapyd_dist
MAPPED = ("cli", "middlewares", "deploy", "examples")
STEPS = "contract/test_store_steps.py::test_an_attempt_that_is_not_the_batchs_current_one_changes_nothing"
LOSSES = "contract/test_sent_losses.py"
BURST = "contract/test_store_throttle.py::test_a_limit_that_is_not_moderated_gives_them_all_and_then_rests[redis]"

#: rule, the line as it stands, the line in its place, the test that has to fail
MUTANTS = [
    ("only the current attempt of a batch can change it (SQLite)",
     "if step.attempt != row.attempts:", "if False:", f"{STEPS}[sqlite]"),
    ("only the current attempt of a batch can change it (Redis)",
     'needed.append(Condition(batch_key, "attempts", [step.attempt]))', "pass", f"{STEPS}[redis]"),
    ("a batch that is done stays done",
     "BatchState.DONE: frozenset(),", "BatchState.DONE: frozenset({BatchState.SENT}),",
     "unit/test_batches.py::test_what_is_done_stays_done"),
    ("a job whose post was not answered is not posted again",
     "maybe_accepted: ClassVar[bool] = True", "maybe_accepted: ClassVar[bool] = False",
     "contract/test_sent_batches.py::test_a_post_without_an_answer_that_was_taken_is_not_posted_again"),
    ("a part whose hash differs is not accepted",
     "if await asyncio.get_running_loop().run_in_executor(None, sha256_of, growing) != part.sha256:", "if False:",
     f"{LOSSES}::test_a_part_that_is_not_what_the_worker_wrote_is_fetched_from_a_new_attempt"),
    ("a lease has one holder until it runs out",
     'f" WHERE until < {NOW} OR holder = excluded.holder"', '" WHERE true"',
     "contract/test_store_steps.py::test_a_lease_has_one_holder_until_it_runs_out[sqlite]"),
    ("a worker whose event loop stands still renews no lease",
     "if is_urgent or (now - self._renewed >= pause and now - self._turned < pause):",
     "if is_urgent or now - self._renewed >= pause:",
     "contract/test_worker_leases.py::test_a_loop_that_stands_still_lets_others_have_the_work"),
    ("a process that was stopped is not over its time when it goes on",
     "self._now += min(time.monotonic() - began, 2 * TICK)", "self._now += time.monotonic() - began",
     "unit/test_watchdog_clock.py::test_a_process_that_was_stopped_is_not_over_its_time_when_it_goes_on"),
    ("a job is over its time when two ticks have seen it",
     "while before is None or reason is None:", "while reason is None:",
     "unit/test_watchdog_clock.py::test_an_orderly_end_gets_a_minute_from_the_last_progress_on_and_ten_in_all"),
    ("a goal grants no request more than it leaves",
     "granted = max(0, min(requests, int(left)))", "granted = requests",
     "unit/test_goal_keeper.py::test_requests_are_granted_as_far_as_the_goals_leave"),
    ("the manifest names a part only when it is there",
     "self._sink.put(part.name, path, self._note_move)",
     "self._entries[part.name] = _entry(part.name, 1, 1, ''); self._sink.put(part.name, path, self._note_move)",
     "unit/test_delivery.py::test_what_fails_is_told_once_and_tried_again_until_all_is_there_once"),
    ("the end of a job is written once",
     "if revision not in (None, self.job_revision()):", "if False:",
     "contract/test_store_jobs.py::test_a_step_that_depends_on_what_was_read_is_made_only_if_nothing_has_changed[sqlite]"),
    ("a reply has one deadline, and what arrives does not renew it",
     "if call.sink is not None:\n                    adapter.deadline.renew()", "adapter.deadline.renew()",
     "contract/test_bad_peers.py::TestBadPeers::test_drops_do_not_renew_the_time_out[requests]"),
    ("no window of the throttle has more than its hits",
     "return own[place - hits] + window", "return own[place - hits] + window - 1",
     "unit/test_permits.py::test_endless_asking_gets_all_that_there_is_and_one_by_one_or_all_at_once_is_the_same"),
    ("the server's arithmetic of the throttle is that of the file's",
     "if place >= hits and moment - own[place - hits + 1] < window then return own[place - hits + 1] + window end",
     "if place >= hits and moment - own[place - hits + 1] < window then return own[place] + 1 end", BURST),
    ("a request that was seen before is not added again",
     "raise SeenBefore(frozenset(seen))", "pass",
     "contract/test_store_frontier.py::test_requests_that_were_there_before_are_named_and_nothing_is_kept[sqlite]"),
    ("items of accepted attempts only are merged",
     "return sorted(accepted, key=lambda attempt: attempt.batch)",
     "return sorted(attempts, key=lambda attempt: attempt.batch)",
     "unit/test_cli_items.py::test_a_crawls_items_are_its_own_and_those_of_accepted_attempts"),
    ("a secret is masked by the name of its setting",
     "if _SECRET_NAME.search(name):", "if False:",
     "unit/test_cli_sections.py::test_secrets_are_replaced"),
    ("a row with a foreign signature leads to nothing",
     'if hmac.compare_digest(expected, signature.encode("utf-8", "replace")):', "if True:",
     "contract/test_store_foreign.py::test_what_another_key_has_signed_is_shown_and_not_believed"),
    ("a strategy process changes only what is in partitions that it holds",
     "self._partitions.check(crawl, strategy, step.process, step.partitions)", "pass",
     "contract/test_store_strategy.py::test_a_step_is_made_as_a_whole_or_not_at_all[sqlite]"),
    ("a handler that raises leaves nothing behind",
     "    draft.forget()\n    draft.count(FAULTS)", "    draft.count(FAULTS)",
     "unit/test_manager.py::test_a_handler_that_raises_leaves_a_dead_letter_and_nothing_else"),
    ("a file of another user is not used",
     "if status.st_uid not in {os.geteuid(), 0}:", "if False:",
     "unit/test_ownership.py::test_a_store_of_another_user_is_refused_with_the_remedy[store.db]"),
    ("a row of a file is signed as well",
     "plain, why = self.signer.opened(object_in(what, row), kind, crawl)",
     "plain, why = self.signer.opened(object_in(what, row), kind, crawl)[0], ''",
     "contract/test_store_foreign.py::test_rows_without_a_signature_are_not_believed[sqlite]"),
    ("a removed node that is put back is not believed",
     "if not record.url or record.changed >= newest:", "if True:",
     "contract/test_first_commands.py::test_a_removed_node_that_is_put_back_gets_nothing[sqlite]"),
    ("no planted link is written through",
     "flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC",
     "flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC",
     "unit/test_planted_links.py::test_no_planted_link_is_written_through[.out.jl.part-write_merged]"),
    ("a crawl is stopped with its own jobs only",
     "return crawl is not None and home != crawl and homes.get(crawl, home) != home", "return False",
     "unit/test_names_in_two_projects.py::test_a_crawl_is_stopped_with_its_own_jobs_only"),
]  # fmt: skip


def file_with(line: str, root: Path) -> Path:
    """The one file with this text, which must stand there once."""
    files = [path for path in root.rglob("*") if path.suffix in {".py", ".lua"}]
    found = [path for path in files for _ in range(path.read_text("utf-8").count(line))]
    if len(found) != 1:
        sys.exit(f"this stands {len(found)} times in the source, and should once:\n  {line}")
    return found[0]


def tests_fail(tests: Iterable[str], copy: Path) -> bool:
    """Run tests against the copy; what is neither passed nor failed (no such test, say) ends the run."""
    command = [str(Path(sys.executable).with_name("pytest")), "-q", "-x", "-p", "no:cacheprovider"]
    command += [str(HERE / "tests" / test) for test in tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "examples"),
    }
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )
    # A row that fails may leave something behind for its teardown, which is an error then.
    cannot_run = re.search(r"^\d+ errors? in", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or cannot_run:
        sys.exit(f"the tests cannot be run:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return done.returncode == 1


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy, package = Path(folder), Path(folder, "scrapyd_dist")
        shutil.copytree(HERE / "scrapyd_dist", package)
        for name in MAPPED:
            shutil.copytree(HERE / name, package / name)
        if tests_fail([mutant[-1] for mutant in MUTANTS], copy):
            sys.exit("the tests fail on the unchanged source already")
        alive = []
        for rule, line, instead, test in MUTANTS:
            path = file_with(line, package)
            whole = path.read_text("utf-8")
            path.write_text(whole.replace(line, instead), "utf-8")
            caught = tests_fail([test], copy)
            path.write_text(whole, "utf-8")
            print("caught " if caught else "ALIVE  ", rule, flush=True)
            alive += [] if caught else [rule]
    sys.exit(f"{len(alive)} broken rules were not noticed" if alive else 0)


if __name__ == "__main__":
    main()
