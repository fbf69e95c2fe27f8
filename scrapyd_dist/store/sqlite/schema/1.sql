-- The tables of the SQLite store, schema 1. JSON is text; times are seconds since the epoch, where nothing else is said.

CREATE TABLE crawls (
    id          TEXT PRIMARY KEY,
    project     TEXT NOT NULL,
    spider      TEXT NOT NULL,
    state       TEXT NOT NULL,
    created     REAL NOT NULL,
    ended       REAL,
    version     TEXT,
    options     TEXT NOT NULL DEFAULT '{}',
    pid         INTEGER,
    beat        REAL,
    exit_code   INTEGER,
    message     TEXT NOT NULL DEFAULT '',
    summary     TEXT NOT NULL DEFAULT '{}',
    wanted      TEXT NOT NULL DEFAULT '',    -- what a person wants of it
    host        TEXT NOT NULL DEFAULT '',
    number      INTEGER,                     -- its short name, for rows of which there are millions
    kind        TEXT NOT NULL DEFAULT 'crawl',
    standing    INTEGER NOT NULL DEFAULT 0,
    turns       INTEGER NOT NULL DEFAULT 0,  -- the last turn that was given; 0: none are kept
    last_worker INTEGER NOT NULL DEFAULT 0   -- the highest number that a worker was given: it never comes again
);

CREATE UNIQUE INDEX crawl_numbers ON crawls (number);

CREATE TABLE counts (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;

CREATE TABLE shards (
    crawl      TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    url        TEXT NOT NULL,
    first_page INTEGER,
    last_page  INTEGER,
    state      TEXT NOT NULL,
    signature  TEXT NOT NULL,  -- of all but the state
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;

CREATE TABLE batches (
    crawl     TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    state     TEXT NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    sealed_at REAL NOT NULL,
    reason    TEXT NOT NULL DEFAULT '',
    earlier   INTEGER NOT NULL DEFAULT 0,
    forgiven  INTEGER NOT NULL DEFAULT 0,
    parent    INTEGER NOT NULL DEFAULT 0,
    slot      TEXT NOT NULL DEFAULT '',
    priority  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (crawl, number)
);

-- Those that wait, in the order in which they are leased.
CREATE INDEX waiting_batches ON batches (crawl, slot, priority DESC, number) WHERE state IN ('sealed', 'failed');

-- The last number that a batch was given: that of a removed one never comes again.
CREATE TABLE batch_numbers (
    crawl TEXT PRIMARY KEY REFERENCES crawls (id) ON DELETE CASCADE,
    last  INTEGER NOT NULL
) WITHOUT ROWID;

-- Apart from the batch, so that looking over the batches never reads them.
CREATE TABLE payloads (
    crawl        TEXT NOT NULL,
    batch        INTEGER NOT NULL,
    settings     TEXT NOT NULL,
    fingerprints BLOB,  -- of its requests that came through a frontier, one after the other, each behind its length
    PRIMARY KEY (crawl, batch),
    FOREIGN KEY (crawl, batch) REFERENCES batches (crawl, number) ON DELETE CASCADE
);

CREATE TABLE attempts (
    crawl    TEXT NOT NULL,
    batch    INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    job      TEXT NOT NULL UNIQUE,
    node     TEXT NOT NULL,
    url      TEXT NOT NULL,
    state    TEXT NOT NULL,
    sent_at  REAL NOT NULL,
    ended_at REAL,
    reason   TEXT NOT NULL DEFAULT '',
    report   TEXT NOT NULL DEFAULT '{}',
    part     TEXT NOT NULL DEFAULT '',
    worker   TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (crawl, batch, number),
    FOREIGN KEY (crawl, batch) REFERENCES batches (crawl, number) ON DELETE CASCADE
);

-- Promise 3: one accepted attempt per batch, whichever process asks.
CREATE UNIQUE INDEX one_accepted ON attempts (crawl, batch) WHERE state = 'accepted';
CREATE INDEX attempts_by_state ON attempts (crawl, state);

CREATE TABLE leases (
    crawl   TEXT NOT NULL,
    batch   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    holder  TEXT NOT NULL,
    until   REAL NOT NULL,
    PRIMARY KEY (crawl, batch, attempt),
    FOREIGN KEY (crawl, batch, attempt) REFERENCES attempts (crawl, batch, number) ON DELETE CASCADE
) WITHOUT ROWID;

-- The workers of a crawl that leases its batches.
CREATE TABLE workers (
    crawl      TEXT    NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    job        TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    url        TEXT    NOT NULL,  -- of its node
    pool       TEXT    NOT NULL,
    since      REAL    NOT NULL,
    spider     TEXT    NOT NULL,
    project    TEXT    NOT NULL,
    version    TEXT    NOT NULL,
    introduces INTEGER NOT NULL,
    signature  TEXT    NOT NULL,
    PRIMARY KEY (crawl, job)
) WITHOUT ROWID;

CREATE TABLE producers (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;

CREATE TABLE misses (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    batch  INTEGER NOT NULL,
    url    TEXT NOT NULL,
    kind   TEXT NOT NULL,
    reason TEXT NOT NULL
);

CREATE INDEX misses_of_crawl ON misses (crawl);

CREATE TABLE samples (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    at     REAL NOT NULL,
    sample TEXT NOT NULL
);

CREATE INDEX samples_of_crawl ON samples (crawl, at);

-- Fingerprints of requests; crawls by their numbers.
CREATE TABLE seen (
    crawl       INTEGER NOT NULL REFERENCES crawls (number) ON DELETE CASCADE,
    fingerprint BLOB NOT NULL,
    PRIMARY KEY (crawl, fingerprint)
) WITHOUT ROWID;

-- What is remembered of nodes.
CREATE TABLE nodes (
    name        TEXT PRIMARY KEY,
    draining    REAL,
    start_delay REAL NOT NULL DEFAULT 0,
    idle_looks  TEXT NOT NULL DEFAULT '[]',
    url         TEXT NOT NULL DEFAULT '',
    changed     REAL NOT NULL DEFAULT 0,  -- when the address was set
    signature   TEXT NOT NULL DEFAULT ''  -- of both
);

-- What is remembered of plain jobs.
CREATE TABLE jobs (
    id      TEXT    PRIMARY KEY,
    is_over INTEGER NOT NULL,
    at      REAL    NOT NULL,  -- when it ended; until then, when it was posted; while it waits, infinity
    record  TEXT    NOT NULL   -- JSON
) WITHOUT ROWID;

CREATE INDEX jobs_by_end ON jobs (is_over, at);

-- How jobs ended that are no plain ones of ours: the first word stays.
CREATE TABLE verdicts (
    key     TEXT PRIMARY KEY,
    at      REAL NOT NULL,
    verdict TEXT NOT NULL  -- JSON
) WITHOUT ROWID;

CREATE INDEX verdicts_by_time ON verdicts (at);

-- One row: higher after each change of a job.
CREATE TABLE job_revision (revision INTEGER NOT NULL);
INSERT INTO job_revision VALUES (0);

-- What each slot has in each state, kept up by the triggers below, so that no reader has to count.
CREATE TABLE slot_counts (
    crawl    TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot     TEXT NOT NULL,
    state    TEXT NOT NULL,
    batches  INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (crawl, slot, state)
) WITHOUT ROWID;

CREATE TRIGGER batch_comes AFTER INSERT ON batches BEGIN
    INSERT INTO slot_counts VALUES (new.crawl, new.slot, new.state, 1, new.size)
        ON CONFLICT (crawl, slot, state) DO UPDATE SET batches = batches + 1, requests = requests + excluded.requests;
END;

CREATE TRIGGER batch_moves AFTER UPDATE OF state ON batches WHEN new.state != old.state BEGIN
    UPDATE slot_counts SET batches = batches - 1, requests = requests - old.size
        WHERE crawl = old.crawl AND slot = old.slot AND state = old.state;
    INSERT INTO slot_counts VALUES (new.crawl, new.slot, new.state, 1, new.size)
        ON CONFLICT (crawl, slot, state) DO UPDATE SET batches = batches + 1, requests = requests + excluded.requests;
END;

CREATE TRIGGER batch_goes AFTER DELETE ON batches BEGIN
    UPDATE slot_counts SET batches = batches - 1, requests = requests - old.size
        WHERE crawl = old.crawl AND slot = old.slot AND state = old.state;
END;

-- Fair leasing: slots take turns.

CREATE TABLE slot_turns (
    crawl   TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot    TEXT NOT NULL,
    waiting INTEGER NOT NULL DEFAULT 0,  -- batches
    out     INTEGER NOT NULL DEFAULT 0,  -- requests of batches that workers have
    turn    INTEGER NOT NULL DEFAULT 0,  -- when it was last leased from, counted in leases
    holder  TEXT NOT NULL DEFAULT '',    -- the worker that has it to itself, while it has something of it
    PRIMARY KEY (crawl, slot)
) WITHOUT ROWID;

-- Whose turn it is, among those without a holder and those of one. Slots of other spiders are leased by name only.
CREATE INDEX next_turns ON slot_turns (crawl, holder, out, turn, slot) WHERE waiting > 0 AND substr(slot, 1, 1) != '@';
CREATE INDEX held_slots ON slot_turns (crawl, holder) WHERE holder != '';

-- Workers that found all slots taken.
CREATE TABLE hungry (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    at     REAL NOT NULL,
    PRIMARY KEY (crawl, worker)
) WITHOUT ROWID;

CREATE TRIGGER turn_comes AFTER INSERT ON batches
WHEN new.state IN ('sealed', 'failed') AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    INSERT INTO slot_turns (crawl, slot, waiting) VALUES (new.crawl, new.slot, 1)
        ON CONFLICT (crawl, slot) DO UPDATE SET waiting = waiting + 1;
END;

CREATE TRIGGER turn_moves AFTER UPDATE OF state ON batches
WHEN (new.state IN ('sealed', 'failed')) != (old.state IN ('sealed', 'failed'))
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    INSERT INTO slot_turns (crawl, slot) VALUES (new.crawl, new.slot) ON CONFLICT (crawl, slot) DO NOTHING;
    UPDATE slot_turns SET waiting = waiting + CASE WHEN new.state IN ('sealed', 'failed') THEN 1 ELSE -1 END
        WHERE crawl = new.crawl AND slot = new.slot;
END;

CREATE TRIGGER turn_goes AFTER DELETE ON batches
WHEN old.state IN ('sealed', 'failed') AND (SELECT turns FROM crawls WHERE id = old.crawl) > 0 BEGIN
    UPDATE slot_turns SET waiting = waiting - 1 WHERE crawl = old.crawl AND slot = old.slot;
END;

CREATE TRIGGER attempt_begins AFTER INSERT ON attempts
WHEN new.state IN ('sending', 'sent', 'running') AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out + (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
END;

CREATE TRIGGER attempt_begins_again AFTER UPDATE OF state ON attempts
WHEN new.state IN ('sending', 'sent', 'running') AND old.state NOT IN ('sending', 'sent', 'running')
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out + (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
END;

CREATE TRIGGER attempt_ends AFTER UPDATE OF state ON attempts
WHEN old.state IN ('sending', 'sent', 'running') AND new.state NOT IN ('sending', 'sent', 'running')
    AND (SELECT turns FROM crawls WHERE id = new.crawl) > 0 BEGIN
    UPDATE slot_turns SET out = out - (SELECT size FROM batches WHERE crawl = new.crawl AND number = new.batch)
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch);
    UPDATE slot_turns SET holder = ''
        WHERE crawl = new.crawl AND slot = (SELECT slot FROM batches WHERE crawl = new.crawl AND number = new.batch)
        AND out <= 0 AND holder != '';
END;

-- The throttle. Moments and spans are whole microseconds.

-- One row: higher after each change of the rules, and when a domain is slowed down.
CREATE TABLE throttle (version INTEGER NOT NULL);
INSERT INTO throttle VALUES (0);

-- JSON.
CREATE TABLE throttle_rules (
    domain TEXT PRIMARY KEY,
    rule   TEXT NOT NULL
) WITHOUT ROWID;

-- What is known of a domain; `asked` is brought up to date now and then only.
CREATE TABLE throttle_domains (
    domain     TEXT PRIMARY KEY,
    asked      INTEGER NOT NULL DEFAULT 0,
    rest_until INTEGER NOT NULL DEFAULT 0,
    pace       REAL    NOT NULL DEFAULT 1,
    slowed_at  INTEGER NOT NULL DEFAULT 0,
    delay      INTEGER NOT NULL DEFAULT 0,
    delayed_at INTEGER NOT NULL DEFAULT 0,
    gap        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- A key's terms; and, as it was at the moment `seen`, the one before which they have no room left.
CREATE TABLE throttle_keys (
    number INTEGER PRIMARY KEY,
    key    TEXT    NOT NULL UNIQUE,
    domain TEXT    NOT NULL REFERENCES throttle_domains (domain) ON DELETE CASCADE,
    full   INTEGER NOT NULL DEFAULT 0,
    seen   INTEGER NOT NULL DEFAULT 0,
    hits   INTEGER NOT NULL,
    window INTEGER NOT NULL,
    gap    INTEGER NOT NULL,
    apart  INTEGER NOT NULL
);

CREATE INDEX throttle_keys_of_domain ON throttle_keys (domain);

CREATE TABLE grants (
    key INTEGER NOT NULL REFERENCES throttle_keys (number) ON DELETE CASCADE,
    at  INTEGER NOT NULL,
    PRIMARY KEY (key, at)
) WITHOUT ROWID;

CREATE TABLE pages (
    domain TEXT    NOT NULL REFERENCES throttle_domains (domain) ON DELETE CASCADE,
    budget TEXT    NOT NULL,
    used   INTEGER NOT NULL,
    PRIMARY KEY (domain, budget)
) WITHOUT ROWID;

-- Which domains have changed since a version of the rules; the latest changes only.
CREATE TABLE throttle_changes (
    version INTEGER NOT NULL,
    domain  TEXT    NOT NULL,
    PRIMARY KEY (version, domain)
) WITHOUT ROWID;

-- Crawling strategies: links with their queue, events of workers, processes, and the log of changes.

-- What is kept of one strategy has its short number, and no row of it is removed by a foreign key: a strategy that was
-- reset or forgotten belongs to no crawl at once, whatever its size, and its rows are removed bit by bit.
CREATE TABLE strategies (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    crawl    INTEGER UNIQUE,              -- the number of its crawl; NULL: of none any more
    ended    INTEGER NOT NULL DEFAULT 0,
    ahead    INTEGER NOT NULL DEFAULT 0,  -- up to which slots were filled last
    turns    INTEGER NOT NULL DEFAULT 0,  -- the last turn that a slot had
    slots    INTEGER NOT NULL DEFAULT 0,  -- slots that there ever were
    events   INTEGER NOT NULL DEFAULT 0,  -- the last number of an event
    changes  INTEGER NOT NULL DEFAULT 0,  -- the last number in the log
    queued   INTEGER NOT NULL DEFAULT 0,  -- links by state
    crawled  INTEGER NOT NULL DEFAULT 0,
    failed   INTEGER NOT NULL DEFAULT 0,
    waiting  INTEGER NOT NULL DEFAULT 0,  -- links in the queue
    later    INTEGER NOT NULL DEFAULT 0,  -- of these, links that were not due when they were looked at last
    pending  INTEGER NOT NULL DEFAULT 0,  -- events
    dead     INTEGER NOT NULL DEFAULT 0   -- dead letters
);

-- In the order in which they were found: fingerprints are random, and a page of rows would be written for each of them.
CREATE TABLE links (
    strategy    INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    url         TEXT    NOT NULL,
    state       INTEGER NOT NULL,
    score       REAL    NOT NULL,
    slot        TEXT    NOT NULL,
    partition   INTEGER NOT NULL,
    depth       INTEGER NOT NULL,
    due         REAL    NOT NULL,
    expires     REAL    NOT NULL,
    reason      TEXT    NOT NULL,
    place       INTEGER,           -- its row in the queue, if it waits there
    PRIMARY KEY (strategy, fingerprint)
);

-- Numbers grow: of two with the same score, the lower one has waited longer.
CREATE TABLE link_queue (
    number      INTEGER PRIMARY KEY,
    strategy    INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    slot        TEXT    NOT NULL,
    partition   INTEGER NOT NULL,
    score       REAL    NOT NULL,
    due         REAL    NOT NULL,
    later       INTEGER NOT NULL,
    request     TEXT    NOT NULL
);

CREATE INDEX queued_links ON link_queue (strategy, slot, partition, score DESC, number) WHERE later = 0;
CREATE INDEX later_links ON link_queue (strategy, partition, due) WHERE later = 1;

CREATE TABLE link_slots (
    strategy  INTEGER NOT NULL,
    slot      TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    queued    INTEGER NOT NULL DEFAULT 0,  -- links in the queue that are due
    turn      INTEGER NOT NULL,            -- when a link was taken from it last
    is_full   INTEGER NOT NULL DEFAULT 0,  -- as many requests wait in its batches as may
    PRIMARY KEY (strategy, slot, partition)
) WITHOUT ROWID;

CREATE INDEX link_turns ON link_slots (strategy, partition, turn, slot) WHERE queued > 0 AND is_full = 0;
CREATE INDEX full_slots ON link_slots (strategy) WHERE is_full = 1;

CREATE TRIGGER slot_has_room AFTER UPDATE OF requests ON slot_counts
WHEN new.requests < old.requests AND new.state IN ('sealed', 'failed') BEGIN
    UPDATE link_slots SET is_full = 0
        WHERE slot = new.slot AND is_full = 1 AND strategy =
            (SELECT strategies.number FROM strategies JOIN crawls ON crawls.number = strategies.crawl
                WHERE crawls.id = new.crawl);
END;

CREATE TABLE link_events (
    strategy  INTEGER NOT NULL,
    number    INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    fault     TEXT,              -- of a dead letter
    event     TEXT    NOT NULL,
    PRIMARY KEY (strategy, number)
);

CREATE INDEX pending_events ON link_events (strategy, partition, number) WHERE fault IS NULL;
CREATE INDEX dead_events ON link_events (strategy, number) WHERE fault IS NOT NULL;

CREATE TABLE link_changes (
    strategy    INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    at          REAL    NOT NULL,
    fingerprint BLOB    NOT NULL,
    before      INTEGER NOT NULL,
    after       INTEGER NOT NULL,
    score       REAL    NOT NULL,
    reason      TEXT    NOT NULL,
    PRIMARY KEY (strategy, number)
) WITHOUT ROWID;

CREATE TABLE link_domains (
    strategy INTEGER NOT NULL,
    domain   TEXT    NOT NULL,
    metadata TEXT    NOT NULL,  -- JSON
    PRIMARY KEY (strategy, domain)
) WITHOUT ROWID;

CREATE TABLE strategy_processes (
    strategy INTEGER NOT NULL,
    name     TEXT    NOT NULL,
    until    REAL    NOT NULL,
    finished INTEGER NOT NULL,
    PRIMARY KEY (strategy, name)
) WITHOUT ROWID;

CREATE TABLE strategy_partitions (
    strategy  INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    process   TEXT    NOT NULL,
    PRIMARY KEY (strategy, partition)
) WITHOUT ROWID;
