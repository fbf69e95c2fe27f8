-- Version 3: the frontier: slots, priorities, fingerprints of a batch, workers that lease, producers.

ALTER TABLE crawls ADD COLUMN kind TEXT NOT NULL DEFAULT 'crawl';
ALTER TABLE crawls ADD COLUMN standing INTEGER NOT NULL DEFAULT 0;

ALTER TABLE batches ADD COLUMN slot TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;

-- Those that wait, in the order in which they are leased.
CREATE INDEX waiting_batches ON batches (crawl, slot, priority DESC, number) WHERE state IN ('sealed', 'failed');

-- Those of its requests that came through a frontier, one after the other, each behind its length.
ALTER TABLE payloads ADD COLUMN fingerprints BLOB;

ALTER TABLE attempts ADD COLUMN worker TEXT NOT NULL DEFAULT '';
CREATE INDEX attempts_by_state ON attempts (crawl, state);

-- The last number that a batch was given: that of a removed one never comes again.
CREATE TABLE batch_numbers (
    crawl TEXT PRIMARY KEY REFERENCES crawls (id) ON DELETE CASCADE,
    last  INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO batch_numbers SELECT crawl, max(number) FROM batches GROUP BY crawl;

CREATE TABLE producers (
    crawl TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;

-- How many there are, kept up by the triggers below, so that nobody has to count.
CREATE TABLE slot_counts (
    crawl    TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    slot     TEXT NOT NULL,
    state    TEXT NOT NULL,
    batches  INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (crawl, slot, state)
) WITHOUT ROWID;

INSERT INTO slot_counts SELECT crawl, slot, state, count(*), sum(size) FROM batches GROUP BY crawl, slot, state;

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
