-- Version 2: what is remembered of nodes, samples, leases, what a person wants, requeued and split batches.

CREATE TABLE nodes (
    name        TEXT PRIMARY KEY,
    draining    REAL,
    start_delay REAL NOT NULL DEFAULT 0,
    idle_looks  TEXT NOT NULL DEFAULT '[]',
    url         TEXT NOT NULL DEFAULT ''
);

ALTER TABLE crawls ADD COLUMN wanted TEXT NOT NULL DEFAULT '';
ALTER TABLE crawls ADD COLUMN host TEXT NOT NULL DEFAULT '';

-- A short name for the crawl, for rows of which there are millions.
ALTER TABLE crawls ADD COLUMN number INTEGER;
UPDATE crawls SET number = rowid;
CREATE UNIQUE INDEX crawl_numbers ON crawls (number);

ALTER TABLE batches ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN parent INTEGER NOT NULL DEFAULT 0;

CREATE TABLE leases (
    crawl   TEXT NOT NULL,
    batch   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    holder  TEXT NOT NULL,
    until   REAL NOT NULL,
    PRIMARY KEY (crawl, batch, attempt),
    FOREIGN KEY (crawl, batch, attempt) REFERENCES attempts (crawl, batch, number) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE samples (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    at     REAL NOT NULL,
    sample TEXT NOT NULL
);

CREATE INDEX samples_of_crawl ON samples (crawl, at);

CREATE TABLE seen (
    crawl       INTEGER NOT NULL REFERENCES crawls (number) ON DELETE CASCADE,
    fingerprint BLOB NOT NULL,
    PRIMARY KEY (crawl, fingerprint)
) WITHOUT ROWID;

INSERT INTO seen SELECT crawls.number, fingerprints.fingerprint
    FROM fingerprints JOIN crawls ON crawls.id = fingerprints.crawl;
DROP TABLE fingerprints;
