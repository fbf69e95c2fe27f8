"""Run a crawl in the producer's process, which `sdist` starts, or print a plan.

It is called as `python -m scrapyd_dist.middlewares.producer.process CRAWL`. What to crawl comes
from the store (or, for a plan, from standard input), and where that is from the environment
(SDIST_STORE); neither from the argument list, which every user of the machine can read.
"""

import argparse
import gc
import json
import logging
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scrapy import Spider
from scrapy.settings import Settings

from scrapyd_dist.batches import Crawl, CrawlState, check_crawl_name
from scrapyd_dist.config import PARTS, STATE_FOLDER, find_root, state_dir, stay_here
from scrapyd_dist.errors import (
    ConfigError,
    CrawlFailed,
    DistError,
    NoCrawl,
    NothingMatched,
    as_store_error,
    fault_of,
)
from scrapyd_dist.forecast import Probed
from scrapyd_dist.keys import state_key
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import store_address

from ..assignment import EARLY, PROBE, is_enabled
from .crawl_code import TODAYS, CrawlCode, WorkingTree, import_code
from .lifecycle import Fault, faults, process_exit, signals


def main() -> None:
    """Run a crawl of the store, or print a plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("crawl", nargs="?")
    parser.add_argument("--plan", action="store_true")
    arguments = parser.parse_args()
    stay_here()
    with suppress(ConfigError):  # what needs the project says what is wrong with it
        root = find_root()
        if root is not None:
            sys.meta_path.insert(0, WorkingTree(root))
    if arguments.plan:
        request = json.load(sys.stdin)
        with redirect_stdout(sys.stderr):  # the project's code may print
            answer = _plan(request)
        print(json.dumps(answer), flush=True)
        if request.get("probe"):
            os._exit(0)  # one that was broken off has left threads that would be waited for
        return
    sys.exit(_crawl(arguments.crawl, store_address(Path.cwd())))


def _crawl(crawl: str, store: str) -> int:
    """Run a crawl of the store; return the exit code."""
    database = open_store(store, key=state_key(state_dir(Path.cwd())))
    row = database.own_crawl(crawl)
    logging.getLogger().addHandler(faults)
    try:
        root = find_root()
        if root is not None:
            import_code(row, root / STATE_FOLDER / "crawls" / check_crawl_name(row.id), root, store)
        ours = {"DISTRIBUTED_CRAWL": crawl, "DISTRIBUTED_STORE": store, EARLY: row.version is None}
        settings = project_settings({**row.options["settings"], **ours})
        refuse_disabled(row.options["settings"], row.options.get("spider_settings", {}))
        kind = check_known(settings, row.spider)
        _execute(settings, row.spider, row.options)
        # Scrapy 2.13 logs why a spider cannot be made when the unread result is deleted.
        gc.collect()
        _check_ended(database.crawl(crawl), kind, settings.get("LOG_FILE"))
    except NoCrawl as error:
        folder = Path(STATE_FOLDER, "crawls", crawl, PARTS).absolute()
        print(f"{as_store_error(error)} ({folder}).", file=sys.stderr)
        return DistError.exit_code
    except Exception as error:  # noqa: BLE001  (the row says what the project's code raised)
        return _write_failure(database, row, crawl, error)
    finally:
        code_in_row = _code_in_row(database, crawl)
        database.close()
    return code_in_row


def _write_failure(database: Store, row: Crawl, crawl: str, error: Exception) -> int:
    """Write into the crawl's row why it failed, and notify DISTRIBUTED_ON_FINISH.

    Returns the exit code.
    """
    if isinstance(error, DistError):
        message = str(error)
        code = error.exit_code
    else:
        traceback.print_exception(error)
        message = describe_broken(error)
        code = 2
    _, last_worker = database.workers(crawl)
    if last_worker:
        from .early_start import tell_of_workers

        message = tell_of_workers(message)
    database.update_crawl(
        crawl,
        state=database.crawl(crawl).when_refused,
        exit_code=code,
        message=message,
        pid=None,
        ended=time.time(),
    )
    on_finish = row.options["settings"].get("DISTRIBUTED_ON_FINISH")
    was_notified = isinstance(error, CrawlFailed) and error.hook_notified
    if on_finish and not was_notified:
        from scrapyd_dist.progress.summary_document import summary_of

        from .completion_hooks import notify_on_finish

        wrong = notify_on_finish(on_finish, summary_of(database.own_crawl(crawl)))
        if wrong:
            print(wrong, file=sys.stderr)
    return code


def _code_in_row(database: Store, crawl: str) -> int:
    """Return the exit code that the crawl's row has."""
    try:
        return database.crawl(crawl).exit_code or 0
    except NoCrawl:
        return DistError.exit_code


def _check_ended(row: Crawl, kind: type[Spider], log: str | None) -> None:
    """Raise `CrawlFailed` if Scrapy is at its end, and nothing has said how the crawl ended."""
    if row.state.ended or signals.came:
        return
    fault = faults.last
    if fault is not None and fault.refusal is not None:
        raise CrawlFailed(fault.text, fault.refusal)
    root = find_root() or Path.cwd()
    log = log or str(root / STATE_FOLDER / "crawls" / row.id / "producer.log")
    if row.state is CrawlState.STARTING and fault is not None:
        raise CrawlFailed(_why_not_started(kind, fault, log), ConfigError.exit_code)
    why = "its process ended, and said no reason"
    if fault is not None:
        why = f"a part of it failed: {fault}"
    raise CrawlFailed(
        f"The crawl broke off: {why}. The whole traceback is in {log}.", DistError.exit_code
    )


def _why_not_started(kind: type[Spider], fault: Fault, log: str) -> str:
    """Say why a spider cannot be made."""
    from .spider_check import explain_lack

    return explain_lack(kind, fault.text) or (
        f"The spider {kind.name} cannot be started: {fault}. Nothing was started. The whole"
        f" traceback is in {log}."
    )


def describe_broken(error: Exception) -> str:
    """Say in a paragraph what is wrong with a project that cannot be loaded."""
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        package, _, _ = (error.name or "").partition(".")
        if Path("src", package).is_dir():
            hint = " It is in the folder src: `pip install -e .` makes it known, or PYTHONPATH=src."
    return f"The project cannot be loaded: {fault_of(error)}. Nothing was started.{hint}"


@contextmanager
def project_code() -> Iterator[None]:
    """Raise a ConfigError that says where, if the project's code raises while it is loaded."""
    try:
        yield
    except DistError:
        raise
    except Exception as error:
        raise ConfigError(describe_broken(error)) from error


def project_settings(ours: Mapping[str, Any]) -> Settings:
    """Return the project's settings, with what the crawl was given and our add-on."""
    from scrapy.utils.project import get_project_settings

    settings = get_project_settings()
    # Where settings.py or the spider says no, that is for `scrapy crawl`.
    for name, value in {"DISTRIBUTED_ENABLED": True, **ours}.items():
        settings.set(name, value, priority="cmdline")
    addons = settings.getdict("ADDONS")
    modules = [str(getattr(key, "__module__", key)) for key in addons]
    if not any(module.startswith("scrapyd_dist") for module in modules):
        settings.set("ADDONS", {**addons, "scrapyd_dist.Addon": 500}, priority="cmdline")
    return settings


def refuse_disabled(*given: Mapping[str, Any]) -> None:
    """Raise a ConfigError if one of these settings, which are of this crawl alone, says not to."""
    for values in given:
        if not is_enabled(Settings(dict(values))):
            raise ConfigError(
                "DISTRIBUTED_ENABLED is off here, but sdist spreads every crawl. Leave the setting"
                " out, or let Scrapy crawl in one process: scrapy crawl SPIDER -O FILE"
            )


def check_known(settings: Settings, spider: str) -> type[Spider]:
    """Return the spider of that name.

    Raises:
        NothingMatched: the project has none.
        ConfigError: a module of the project cannot be imported.
    """
    import warnings

    from ..engine_compat import spider_loader

    with warnings.catch_warnings(record=True) as caught, project_code():
        warnings.simplefilter("always")
        loader = spider_loader(settings)
        known = sorted(loader.list())
    if spider in known:
        found: type[Spider] = loader.load(spider)
        return found
    listed = ", ".join(known) or "none"
    why = ""
    for warning in caught:
        text = str(warning.message)
        if "Could not load spiders" in text:
            why = f" {text.strip().splitlines()[-1]}"
            break
    raise NothingMatched(
        f"There is no spider {spider!r} in this project.{did_you_mean(spider, known)} There are:"
        f" {listed}.{why}"
    )


def _execute(settings: Settings, spider: str, options: Mapping[str, Any]) -> None:
    """Do what `scrapy crawl` does, with an argument list that only this process sees."""
    from scrapy.cmdline import execute

    from .early_start import EarlyStart

    sys.argv = ["scrapy", "crawl", spider]
    for word, given in (("-a", "args"), ("-s", "spider_settings")):
        for name, value in options.get(given, {}).items():
            sys.argv += [word, f"{name}={value}"]
    try:
        execute(list(sys.argv), settings)
    except SystemExit as end:
        if end.code == 2:
            raise DistError("Scrapy refused the command line; its own words are above.") from None
    finally:
        EarlyStart.end_all()
    if process_exit.refusal:  # it may have been refused before the producer took up the row
        raise CrawlFailed(process_exit.refusal, process_exit.code, hook_notified=True)


def _plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan that was asked for, or why there is none."""
    logging.disable(logging.CRITICAL)
    from .dry_run import plan

    try:
        with TemporaryDirectory() as folder:
            code = _planned_code(request, Path(folder))
            settings = project_settings(request["settings"])
            refuse_disabled(request["settings"], request.get("spider_settings", {}))
            for name, value in request.get("spider_settings", {}).items():
                settings.set(name, value, priority="cmdline")
            kind = check_known(settings, request["spider"])
            probe = partial(_probe, settings, request) if request.get("probe") else None
            with _spider_of_plan(kind):
                args = request.get("args", {})
                return {"plan": plan(settings, request["spider"], args, code, probe)}
    except DistError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:  # noqa: BLE001  (the project's code may raise anything)
        traceback.print_exc()
        return {"error": describe_broken(error), "exit_code": 2}


@contextmanager
def _spider_of_plan(kind: type[Spider]) -> Iterator[None]:
    """Raise a ConfigError in the words of a crawl, if the project's code raises in a plan."""
    from .spider_check import explain_lack

    try:
        yield
    except DistError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = f"The spider {kind.name} cannot be started: {fault_of(error)}. Nothing was started."
        raise ConfigError(explain_lack(kind, str(error)) or text) from error


def _probe(settings: Settings, request: Mapping[str, Any]) -> Probed:
    """Fetch a few pages of the site with the settings of a crawl.

    DistError if they tell nothing.
    """
    from .probe import Probe

    settings = settings.copy()
    # What comes of its pages is kept nowhere.
    nothing: dict[str, Any] = {"ITEM_PIPELINES": {}, "FEEDS": {}, "JOBDIR": None}
    settings.setdict({PROBE: request["probe"], **nothing}, priority="cmdline")
    # -s is in the settings, below ours.
    _execute(settings, request["spider"], {"args": request.get("args", {})})
    if Probe.last is None:
        raise DistError(
            "The probe did not begin. `scrapy crawl` with -s DISTRIBUTED_ENABLED=0 says why."
        )
    return Probe.last.result()


def _planned_code(request: Mapping[str, Any], folder: Path) -> CrawlCode:
    """Return the code of the version that was asked for; the project is imported from it then."""
    root = find_root()
    if root is None or not request.get("version"):
        return TODAYS
    if request.get("egg"):
        shutil.copy(request["egg"], folder)
    row = Crawl(
        id="plan",
        project="",
        spider=request["spider"],
        created=0,
        options={"version": request["version"]},
    )
    return import_code(row, folder, root, store_address(root))


if __name__ == "__main__":
    main()
