-- Version 9: crawling strategies: links with their queue, events of workers, processes, and the log of changes.

-- What is kept of one strategy has its short number, and no row of it is removed by a foreign key: a strategy that was
-- reset or forgotten is nobody's at once, whatever its size, and its rows are removed bit by bit.
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
