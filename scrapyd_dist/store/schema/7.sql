-- Version 7: the workers of a crawl that leases its batches are rows; they were one document in its options.

-- The highest number that a worker was given: it never comes again.
ALTER TABLE crawls ADD COLUMN last_worker INTEGER NOT NULL DEFAULT 0;

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
    PRIMARY KEY (crawl, job)
) WITHOUT ROWID;
