-- The tables of the SQLite store, version 1. JSON is text; times are seconds since the epoch.

CREATE TABLE crawls (
    id        TEXT PRIMARY KEY,
    project   TEXT NOT NULL,
    spider    TEXT NOT NULL,
    state     TEXT NOT NULL,
    created   REAL NOT NULL,
    ended     REAL,
    version   TEXT,
    options   TEXT NOT NULL DEFAULT '{}',
    pid       INTEGER,
    beat      REAL,
    exit_code INTEGER,
    message   TEXT NOT NULL DEFAULT '',
    summary   TEXT NOT NULL DEFAULT '{}'
);

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
    PRIMARY KEY (crawl, number)
);

-- Apart from the batch, so that looking over the batches never reads them.
CREATE TABLE payloads (
    crawl    TEXT NOT NULL,
    batch    INTEGER NOT NULL,
    settings TEXT NOT NULL,
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
    PRIMARY KEY (crawl, batch, number),
    FOREIGN KEY (crawl, batch) REFERENCES batches (crawl, number) ON DELETE CASCADE
);

-- Promise 3: one accepted attempt per batch, whoever asks.
CREATE UNIQUE INDEX one_accepted ON attempts (crawl, batch) WHERE state = 'accepted';

CREATE TABLE misses (
    crawl  TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    batch  INTEGER NOT NULL,
    url    TEXT NOT NULL,
    kind   TEXT NOT NULL,
    reason TEXT NOT NULL
);

CREATE INDEX misses_of_crawl ON misses (crawl);

CREATE TABLE fingerprints (
    crawl       TEXT NOT NULL REFERENCES crawls (id) ON DELETE CASCADE,
    fingerprint BLOB NOT NULL,
    PRIMARY KEY (crawl, fingerprint)
) WITHOUT ROWID;
